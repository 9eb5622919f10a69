"""Rules about IPv4 addresses, masks and gateways, in clusters and machines alike."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from caphv.validation.finding import Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import CLUSTERS, KINDS, MACHINES, Field, Subject
from webhooks.rules.pools import pools
from webhooks.rules.values import (
    IPv4,
    IPv4Network,
    address,
    is_end,
    is_ip,
    is_subdomain,
    network,
    network_of,
    prefix_of,
)

RULES = Rules()

_NO_ADDRESS = "must be an IPv4 address, for example 172.17.1.1"
# Prefix length of a static address, unless machine or cluster set another mask (contract).
_DEFAULT_PREFIX = 16
# Machines of the sandbox have addresses in other parts of 127.0.0.0/8.
_LOOPBACK = IPv4Network("127.0.0.0/16")


@RULES.rule(
    "vm-network-address",
    CLUSTERS,
    "Gateway and mask of a cluster's VM network must be IPv4 addresses.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    example="vmNetworkConfig: {gateway: 172.17.1, subnetMask: 255.255.255.0, ipPoolRef: vm-pool}",
    refused_by_go=True,
)
def _vm_network_address(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    yield from _check_addresses(config.at("gateway"), config.at("subnetMask"))


@RULES.rule(
    "static-gateway-address",
    MACHINES,
    "The gateway of a static address must be an IP address.",
    "networkConfig.gateway",
    example="networkConfig: {address: 172.17.1.10, gateway: router.example.com}",
    refused_by_go=True,
)
def _static_gateway_address(subject: Subject) -> Iterator[Finding]:
    gateway = subject.spec.at("networkConfig", "gateway")
    if isinstance(gateway.value, str) and not is_ip(gateway.text):
        yield gateway.invalid(_NO_ADDRESS)


@RULES.rule(
    "ipv4-address",
    KINDS,
    "Addresses of machines and pools must be IPv4 addresses in dotted decimal form, without a "
    "prefix.",
    "networkConfig.*",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    "vmNetworkConfig.ipPool.*",
    "loadBalancerConfig.ipPool.*",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPool: {subnet: "
        "172.17.1.0/24, gateway: 172.17.1.1/24, vmNetwork: default/production}}"
    ),
)
def _ipv4_address(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        ends = [pool.at("rangeStart"), pool.at("rangeEnd")]
        # An empty end of a range means the end of the subnet.
        yield from _check_addresses(pool.at("gateway"), *(end for end in ends if end.present))

    if subject.kind in MACHINES:
        config = subject.spec.at("vmNetworkConfig")
        yield from _check_addresses(config.at("gateway"), config.at("subnetMask"))

        static = subject.spec.at("networkConfig")
        optional = [static.at("address"), static.at("subnetMask")]
        yield from _check_addresses(*(field for field in optional if field.present))
        # Another rule reports a gateway that is no IP address at all.
        if is_ip(static.at("gateway").text):
            yield from _check_addresses(static.at("gateway"))


@RULES.rule(
    "subnet-mask",
    KINDS,
    "A subnet mask must be ones followed by zeros, and leave room for hosts.",
    "vmNetworkConfig.subnetMask",
    "networkConfig.subnetMask",
    example="vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.0.255.0, ipPoolRef: vm-pool}",
)
def _subnet_mask(subject: Subject) -> Iterator[Finding]:
    for config in ("vmNetworkConfig", "networkConfig"):
        mask = subject.spec.at(config, "subnetMask")
        dotted = address(mask)
        if dotted is not None and prefix_of(dotted) in (None, 0, 31, 32):
            yield mask.invalid(
                "must be a subnet mask with room for hosts, for example 255.255.255.0"
            )


@RULES.rule(
    "gateway-usable",
    KINDS,
    "A gateway must be the address of a host: not a network, broadcast or multicast address.",
    "vmNetworkConfig.gateway",
    "networkConfig.gateway",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.255, subnetMask: 255.255.255.0, ipPoolRef: vm-pool}"
    ),
)
def _gateway_usable(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    static = subject.spec.at("networkConfig")
    yield from _check_host(config.at("gateway"), config.at("subnetMask"), default=False)
    yield from _check_host(static.at("gateway"), static.at("subnetMask"), default=True)


@RULES.rule(
    "static-address-usable",
    MACHINES,
    "A static address must be the address of a host: not a network, broadcast or multicast "
    "address.",
    "networkConfig.address",
    "networkConfig.subnetMask",
    example="networkConfig: {address: 172.17.1.0, gateway: 172.17.1.1, subnetMask: 255.255.255.0}",
)
def _static_address_usable(subject: Subject) -> Iterator[Finding]:
    static = subject.spec.at("networkConfig")
    yield from _check_host(static.at("address"), static.at("subnetMask"), default=True)


@RULES.rule(
    "static-gateway-differs",
    MACHINES,
    "The address of a machine must differ from its gateway.",
    "networkConfig.address",
    "networkConfig.gateway",
    example="networkConfig: {address: 172.17.1.1, gateway: 172.17.1.1}",
)
def _static_gateway_differs(subject: Subject) -> Iterator[Finding]:
    static = subject.spec.at("networkConfig")
    host = address(static.at("address"))
    gateway = address(static.at("gateway"))
    if host is not None and host == gateway:
        yield static.at("address").invalid("is the gateway's address: give the machine another")


@RULES.rule(
    "static-gateway-reachable",
    MACHINES,
    "Static address and gateway must be in one network: by the mask next to them, else by "
    "255.255.0.0, which a machine gets when its cluster sets no other. Where the cluster's mask "
    "is wider, the machine must repeat it.",
    "networkConfig.gateway",
    "networkConfig.address",
    "networkConfig.subnetMask",
    example="networkConfig: {address: 172.17.1.10, gateway: 10.0.0.1}",
)
def _static_gateway_reachable(subject: Subject) -> Iterator[Finding]:
    static = subject.spec.at("networkConfig")
    host = address(static.at("address"))
    gateway = address(static.at("gateway"))
    if host is None or gateway is None:
        return

    machine_network = _host_network(host, static.at("subnetMask"), default=True)
    if machine_network is not None and gateway not in machine_network:
        yield static.at("gateway").invalid(
            f"is not in the machine's network {machine_network}: correct address or gateway, or "
            "set the subnetMask"
        )


@RULES.rule(
    "network-config-exclusive",
    MACHINES,
    "A machine must have either a static address (`networkConfig`) or addresses from pools "
    "(`vmNetworkConfig`).",
    "networkConfig",
    "vmNetworkConfig",
    example=(
        "{networkConfig: {address: 172.17.1.10, gateway: 172.17.1.1}, vmNetworkConfig: {gateway: "
        "172.17.1.1, subnetMask: 255.255.255.0, ipPoolRef: vm-pool}}"
    ),
)
def _network_config_exclusive(subject: Subject) -> Iterator[Finding]:
    pooled = subject.spec.at("vmNetworkConfig")
    if pooled.mapping and subject.spec.at("networkConfig").mapping:
        yield pooled.forbidden(
            "networkConfig gives this machine a static address: remove one of the two"
        )


@RULES.rule(
    "dns-servers",
    KINDS,
    "DNS servers must be IP addresses.",
    "vmNetworkConfig.dnsServers[]",
    "networkConfig.dnsServers[]",
    "networkInterfaces[].dnsServers[]",
    example=(
        "networkConfig: {address: 172.17.1.10, gateway: 172.17.1.1, dnsServers: [dns.example.com]}"
    ),
)
def _dns_servers(subject: Subject) -> Iterator[Finding]:
    for config in _dns_configs(subject):
        for server in config.at("dnsServers").each():
            if isinstance(server.value, str) and not is_ip(server.text):
                yield server.invalid("must be an IP address, for example 9.9.9.9")


@RULES.rule(
    "dns-search",
    KINDS,
    "Search domains must be domain names.",
    "vmNetworkConfig.dnsSearch[]",
    "networkConfig.dnsSearch[]",
    "networkInterfaces[].dnsSearch[]",
    example="networkConfig: {address: 172.17.1.10, gateway: 172.17.1.1, dnsSearch: [example com]}",
)
def _dns_search(subject: Subject) -> Iterator[Finding]:
    for config in _dns_configs(subject):
        for domain in config.at("dnsSearch").each():
            if isinstance(domain.value, str) and not is_subdomain(
                domain.text.lower().removesuffix(".")
            ):
                yield domain.invalid("must be a domain name, for example example.com")


def _dns_configs(subject: Subject) -> Iterator[Field]:
    """Yield the fields below which DNS servers and search domains are."""
    yield subject.spec.at("vmNetworkConfig")
    yield subject.spec.at("networkConfig")
    yield from subject.spec.at("networkInterfaces").each()


def _check_addresses(*fields: Field) -> Iterator[Finding]:
    for field in fields:
        if isinstance(field.value, str) and address(field) is None:
            yield field.invalid(_NO_ADDRESS)


def _check_host(field: Field, mask: Field, *, default: bool) -> Iterator[Finding]:
    """Yield a finding for an address that no host, or no host in the mask's network, can have."""
    host = address(field)
    if host is None:
        return

    host_network = _host_network(host, mask, default=default)
    if _is_special(host):
        yield field.invalid("is no address of a host: correct it")
    elif host_network is not None and is_end(host, host_network):
        yield field.invalid(
            f"is the network or broadcast address of {host_network}: use one between them"
        )


def _host_network(host: IPv4, mask: Field, *, default: bool) -> IPv4Network | None:
    """Return the network of a host by its mask, None if the mask is unknown.

    With `default`, an absent mask means the mask of the contract.
    """
    if default and not mask.present:
        return network_of(host, _DEFAULT_PREFIX)
    return network(host, mask)


@lru_cache(maxsize=256)
def _is_special(host: IPv4) -> bool:
    # Only these loopback addresses always belong to the machine itself, because a sandbox has
    # networks in the others.
    is_loopback = host in _LOOPBACK
    is_broadcast = host == IPv4("255.255.255.255")
    return host.is_unspecified or is_loopback or host.is_multicast or is_broadcast
