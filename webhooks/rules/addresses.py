"""Rules about IPv4 addresses, masks, subnets and pools, in clusters and machines alike."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.schema.findings import Fault
from webhooks.rules.model import CLUSTERS, KINDS, MACHINES, Field, Problem, Rules, Subject
from webhooks.rules.values import (
    IPv4,
    IPv4Network,
    address,
    is_end,
    is_ip,
    is_subdomain,
    network,
    pool_range,
    prefix_of,
    subnet,
)

RULES = Rules()

_NO_ADDRESS = "must be an IPv4 address, for example 172.17.1.1"
# The shortest prefix by which neighbours are judged when the mask is not known from the object.
_WIDEST_PREFIX = 8
_DEFAULT_PREFIX = 16
# Names that the controller gives to pools end so; those the Go provider made may have been cut at 63 characters.
_CREATED = "-ippool"
_CUT_NAME = 60


@RULES.rule(
    "vm-network-address",
    CLUSTERS,
    "Gateway and mask of a cluster's VM network are IPv4 addresses.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    example="gateway: 172.17.1",
    go=True,
)
def _vm_network_address(subject: Subject) -> Iterator[Problem]:
    config = subject.spec.at("vmNetworkConfig")
    yield from _no_addresses(config.at("gateway"), config.at("subnetMask"))


@RULES.rule(
    "static-gateway-address",
    MACHINES,
    "The gateway of a static address is an address.",
    "networkConfig.gateway",
    example="gateway: router.example.com",
    go=True,
)
def _static_gateway_address(subject: Subject) -> Iterator[Problem]:
    gateway = subject.spec.at("networkConfig", "gateway")
    if isinstance(gateway.value, str) and not is_ip(gateway.text):
        yield gateway.invalid(_NO_ADDRESS)


@RULES.rule(
    "ipv4-address",
    KINDS,
    "Addresses of machines and pools are IPv4 addresses in dotted decimal form, without a prefix.",
    "networkConfig.*",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    "vmNetworkConfig.ipPool.*",
    "loadBalancerConfig.ipPool.*",
    example="networkConfig: {address: 172.17.1.10/24, gateway: 172.17.1.1}",
)
def _ipv4_address(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        yield from _no_addresses(pool.at("gateway"))
        yield from _no_addresses(*(pool.at(key) for key in ("rangeStart", "rangeEnd") if pool.at(key).present))
    if subject.kind in MACHINES:
        config, static = subject.spec.at("vmNetworkConfig"), subject.spec.at("networkConfig")
        yield from _no_addresses(config.at("gateway"), config.at("subnetMask"))
        yield from _no_addresses(*(static.at(key) for key in ("address", "subnetMask") if static.at(key).present))
        if is_ip(static.at("gateway").text):
            yield from _no_addresses(static.at("gateway"))


@RULES.rule(
    "subnet-mask",
    KINDS,
    "A mask is ones followed by zeros, and leaves room for hosts.",
    "vmNetworkConfig.subnetMask",
    "networkConfig.subnetMask",
    example="subnetMask: 255.0.255.0",
)
def _subnet_mask(subject: Subject) -> Iterator[Problem]:
    for mask in (subject.spec.at("vmNetworkConfig", "subnetMask"), subject.spec.at("networkConfig", "subnetMask")):
        dotted = address(mask)
        if dotted is not None and prefix_of(dotted) in (None, 0, 31, 32):
            yield mask.invalid("must be a subnet mask with room for hosts, for example 255.255.255.0")


@RULES.rule(
    "gateway-usable",
    KINDS,
    "A gateway is a host of its network: no network, broadcast or multicast address.",
    "vmNetworkConfig.gateway",
    "networkConfig.gateway",
    example="{gateway: 172.17.1.255, subnetMask: 255.255.255.0}",
)
def _gateway_usable(subject: Subject) -> Iterator[Problem]:
    for config in (subject.spec.at("vmNetworkConfig"), subject.spec.at("networkConfig")):
        yield from _unusable(config.at("gateway"), config.at("subnetMask"))


@RULES.rule(
    "static-address-usable",
    MACHINES,
    "A static address is a host of its network: no network, broadcast or multicast address.",
    "networkConfig.address",
    "networkConfig.subnetMask",
    example="{address: 172.17.1.0, gateway: 172.17.1.1, subnetMask: 255.255.255.0}",
)
def _static_address_usable(subject: Subject) -> Iterator[Problem]:
    static = subject.spec.at("networkConfig")
    yield from _unusable(static.at("address"), static.at("subnetMask"))


@RULES.rule(
    "static-gateway-differs",
    MACHINES,
    "A machine is not its own gateway.",
    "networkConfig.address",
    "networkConfig.gateway",
    example="networkConfig: {address: 172.17.1.1, gateway: 172.17.1.1}",
)
def _static_gateway_differs(subject: Subject) -> Iterator[Problem]:
    static = subject.spec.at("networkConfig")
    own = address(static.at("address"))
    if own is not None and own == address(static.at("gateway")):
        yield static.at("address").invalid("is the gateway's address: give the machine another")


@RULES.rule(
    "static-gateway-reachable",
    MACHINES,
    "Static address and gateway are in one network, by the mask next to them, or by any that can be.",
    "networkConfig.gateway",
    "networkConfig.address",
    "networkConfig.subnetMask",
    example="networkConfig: {address: 172.17.1.10, gateway: 10.0.0.1}",
)
def _static_gateway_reachable(subject: Subject) -> Iterator[Problem]:
    static = subject.spec.at("networkConfig")
    own, gateway = address(static.at("address")), address(static.at("gateway"))
    if own is None or gateway is None:
        return
    within = network(own, static.at("subnetMask"))
    if within is None:
        if static.at("subnetMask").present:
            return
        within = IPv4Network((own, _WIDEST_PREFIX), strict=False)
    if gateway not in within:
        yield static.at("gateway").invalid(
            f"is not in the machine's network {within}: correct address, mask or gateway"
        )


@RULES.rule(
    "static-gateway-far",
    MACHINES,
    "Without a mask of its own or of the cluster, a static address has 255.255.0.0.",
    "networkConfig.gateway",
    "networkConfig.subnetMask",
    example="networkConfig: {address: 10.1.0.10, gateway: 10.2.0.1}",
    advice=True,
)
def _static_gateway_far(subject: Subject) -> Iterator[Problem]:
    static = subject.spec.at("networkConfig")
    own, gateway = address(static.at("address")), address(static.at("gateway"))
    if own is None or gateway is None or static.at("subnetMask").present:
        return
    narrow, wide = (IPv4Network((own, prefix), strict=False) for prefix in (_DEFAULT_PREFIX, _WIDEST_PREFIX))
    if gateway not in narrow and gateway in wide:
        yield static.at("gateway").invalid(
            "is not in the machine's network by the default mask 255.255.0.0: set subnetMask"
        )


@RULES.rule(
    "network-config-exclusive",
    MACHINES,
    "A machine has a static address or one of pools: `networkConfig` excludes `vmNetworkConfig`.",
    "networkConfig",
    "vmNetworkConfig",
    example="networkConfig: {…}, vmNetworkConfig: {…}",
)
def _network_config_exclusive(subject: Subject) -> Iterator[Problem]:
    pooled = subject.spec.at("vmNetworkConfig")
    if pooled.mapping and subject.spec.at("networkConfig").mapping:
        yield pooled.forbidden("networkConfig gives this machine a static address: remove one of the two")


@RULES.rule(
    "vm-network-pool",
    CLUSTERS,
    "A cluster's `vmNetworkConfig` has a pool: `ipPoolRef`, `ipPoolRefs` or `ipPool`.",
    "vmNetworkConfig",
    example="vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0}",
    go=True,
)
def _vm_network_pool(subject: Subject) -> Iterator[Problem]:
    config = subject.spec.at("vmNetworkConfig")
    named = (config.at(key).present for key in ("ipPoolRef", "ipPoolRefs", "ipPool"))
    if isinstance(config.value, dict) and not any(named):
        yield config.at("ipPoolRef").required("set ipPoolRef, ipPoolRefs or ipPool; for DHCP remove vmNetworkConfig")


@RULES.rule(
    "machine-vm-network-pool",
    MACHINES,
    "A machine's `vmNetworkConfig` names pools that exist: `ipPoolRef` or `ipPoolRefs`.",
    "vmNetworkConfig.ipPoolRef",
    "vmNetworkConfig.ipPoolRefs",
    example="vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0}",
)
def _machine_vm_network_pool(subject: Subject) -> Iterator[Problem]:
    config = subject.spec.at("vmNetworkConfig")
    if config.mapping and not (config.at("ipPoolRef").present or config.at("ipPoolRefs").present):
        yield config.at("ipPoolRef").required("set ipPoolRef or ipPoolRefs; for DHCP or the cluster's pools remove all")


@RULES.rule(
    "machine-vm-network-new-pool",
    MACHINES,
    "Pools are made for clusters, not for machines: a machine's `vmNetworkConfig` has no `ipPool`.",
    "vmNetworkConfig.ipPool",
    example="vmNetworkConfig: {ipPool: {…}, …}",
)
def _machine_vm_network_new_pool(subject: Subject) -> Iterator[Problem]:
    pool = subject.spec.at("vmNetworkConfig", "ipPool")
    if pool.mapping:
        yield pool.forbidden("is made for clusters only: use ipPoolRef, or ipPool of the HarvesterCluster")


@RULES.rule(
    "ip-pool-exclusive",
    CLUSTERS,
    "A pool is made or exists: `ipPool` excludes `ipPoolRef` and `ipPoolRefs`. The name of the pool that was made is "
    "written into `ipPoolRef` by the controller.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example="loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-pool, ipPool: {…}}",
)
def _ip_pool_exclusive(subject: Subject) -> Iterator[Problem]:
    for config in (subject.spec.at("vmNetworkConfig"), subject.spec.at("loadBalancerConfig")):
        pool, reference, references = (config.at(key) for key in ("ipPool", "ipPoolRef", "ipPoolRefs"))
        other = reference.text and not _created(reference.text)
        if pool.mapping and (other or references.present):
            yield pool.forbidden(
                "excludes ipPoolRef and ipPoolRefs: name a pool that exists, or describe one to be made"
            )


@RULES.rule(
    "pool-refs-unique",
    KINDS,
    "Pools are asked once, in their order.",
    "vmNetworkConfig.ipPoolRefs[]",
    example="ipPoolRefs: [pool-a, pool-a]",
)
def _pool_refs_unique(subject: Subject) -> Iterator[Problem]:
    seen: set[str] = set()
    for reference in subject.spec.at("vmNetworkConfig", "ipPoolRefs").each():
        name = reference.text.rpartition("/")[2]
        if name and name in seen:
            yield reference.problem(Fault.DUPLICATE, "this pool is asked before already: name each pool once")
        seen.add(name)


@RULES.rule(
    "pool-ref-unused",
    KINDS,
    "`ipPoolRefs` replaces `ipPoolRef`.",
    "vmNetworkConfig.ipPoolRef",
    "vmNetworkConfig.ipPoolRefs",
    example="{ipPoolRef: pool-a, ipPoolRefs: [pool-b]}",
    advice=True,
)
def _pool_ref_unused(subject: Subject) -> Iterator[Problem]:
    config = subject.spec.at("vmNetworkConfig")
    named = [reference.text for reference in config.at("ipPoolRefs").each()]
    if named and config.at("ipPoolRef").text and config.at("ipPoolRef").text not in named:
        yield config.at("ipPoolRef").invalid("is not asked, because ipPoolRefs is set: put it into that list")


@RULES.rule(
    "dns-servers",
    KINDS,
    "DNS servers are given by address.",
    "vmNetworkConfig.dnsServers[]",
    "networkConfig.dnsServers[]",
    example="dnsServers: [dns.example.com]",
)
def _dns_servers(subject: Subject) -> Iterator[Problem]:
    for config in (subject.spec.at("vmNetworkConfig"), subject.spec.at("networkConfig")):
        for server in config.at("dnsServers").each():
            if isinstance(server.value, str) and not is_ip(server.text):
                yield server.invalid("must be an IP address, for example 9.9.9.9")


@RULES.rule(
    "dns-search",
    KINDS,
    "Search domains are domain names.",
    "vmNetworkConfig.dnsSearch[]",
    "networkConfig.dnsSearch[]",
    example='dnsSearch: ["example com"]',
)
def _dns_search(subject: Subject) -> Iterator[Problem]:
    for config in (subject.spec.at("vmNetworkConfig"), subject.spec.at("networkConfig")):
        for domain in config.at("dnsSearch").each():
            if isinstance(domain.value, str) and not is_subdomain(domain.text.lower().removesuffix(".")):
                yield domain.invalid("must be a domain name, for example example.com")


@RULES.rule(
    "ip-pool-subnet",
    CLUSTERS,
    "The subnet of a pool is an IPv4 network in CIDR form, with room for hosts.",
    "vmNetworkConfig.ipPool.subnet",
    "loadBalancerConfig.ipPool.subnet",
    example="subnet: 172.17.1.0",
)
def _ip_pool_subnet(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        field = pool.at("subnet")
        whole = subnet(field)
        if isinstance(field.value, str) and (whole is None or whole.prefixlen in (0, 32)):
            yield field.invalid("must be an IPv4 subnet in CIDR form, for example 172.17.1.0/24")


@RULES.rule(
    "ip-pool-subnet-host",
    CLUSTERS,
    "The subnet of a pool is written with its network address.",
    "vmNetworkConfig.ipPool.subnet",
    "loadBalancerConfig.ipPool.subnet",
    example="subnet: 172.17.1.5/24",
    advice=True,
)
def _ip_pool_subnet_host(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        whole = subnet(pool.at("subnet"))
        if whole is not None and str(whole.network_address) != pool.at("subnet").text.partition("/")[0]:
            yield pool.at("subnet").invalid(f"is taken for {whole}: write that")


@RULES.rule(
    "ip-pool-gateway",
    CLUSTERS,
    "The gateway of a pool is a host of its subnet.",
    "vmNetworkConfig.ipPool.gateway",
    "loadBalancerConfig.ipPool.gateway",
    example="ipPool: {subnet: 172.17.1.0/24, gateway: 10.0.0.1, vmNetwork: default/production}",
)
def _ip_pool_gateway(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        yield from _outside(pool.at("gateway"), subnet(pool.at("subnet")))


@RULES.rule(
    "ip-pool-range",
    CLUSTERS,
    "The range of a pool lies inside its subnet, without network and broadcast address.",
    "vmNetworkConfig.ipPool.rangeStart",
    "vmNetworkConfig.ipPool.rangeEnd",
    "loadBalancerConfig.ipPool.rangeStart",
    "loadBalancerConfig.ipPool.rangeEnd",
    example="{subnet: 172.17.1.0/24, rangeStart: 172.17.2.10}",
)
def _ip_pool_range(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        for key in ("rangeStart", "rangeEnd"):
            yield from _outside(pool.at(key), subnet(pool.at("subnet")))


@RULES.rule(
    "ip-pool-range-order",
    CLUSTERS,
    "The range of a pool begins before it ends.",
    "vmNetworkConfig.ipPool.rangeEnd",
    "loadBalancerConfig.ipPool.rangeEnd",
    example="{rangeStart: 172.17.1.100, rangeEnd: 172.17.1.50}",
)
def _ip_pool_range_order(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        start, end = address(pool.at("rangeStart")), address(pool.at("rangeEnd"))
        if start is not None and end is not None and start > end:
            yield pool.at("rangeEnd").invalid(f"is before rangeStart {start}: exchange the two")


@RULES.rule(
    "ip-pool-empty",
    CLUSTERS,
    "A pool has an address to give out beside that of its gateway.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example="{gateway: 172.17.1.1, rangeStart: 172.17.1.1, rangeEnd: 172.17.1.1}",
)
def _ip_pool_empty(subject: Subject) -> Iterator[Problem]:
    for pool in _pools(subject):
        given, gateway = pool_range(pool), address(pool.at("gateway"))
        if given is not None and gateway is not None and given.first == given.last == gateway:
            yield Problem(pool.path, Fault.INVALID, "has only the gateway's address: give it a larger range")


@RULES.rule(
    "ip-pools-overlap",
    CLUSTERS,
    "Harvester refuses pools whose ranges overlap.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example="both pools with subnet 172.17.1.0/24 and no range",
)
def _ip_pools_overlap(subject: Subject) -> Iterator[Problem]:
    balancers, machines = (subject.spec.at(key, "ipPool") for key in ("loadBalancerConfig", "vmNetworkConfig"))
    one, other = pool_range(balancers), pool_range(machines)
    if one is not None and other is not None and one.first <= other.last and other.first <= one.last:
        detail = f"shares addresses with {'.'.join(map(str, balancers.path))}: Harvester wants ranges apart"
        yield Problem(machines.path, Fault.INVALID, detail)


@RULES.rule(
    "vm-network-fits-pool",
    CLUSTERS,
    "VMs reach their gateway: the addresses of `ipPool` are in the network of `gateway` and `subnetMask`.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    "vmNetworkConfig.ipPool",
    example="{gateway: 10.0.0.1, subnetMask: 255.255.255.0, ipPool: {subnet: 172.17.1.0/24, …}}",
)
def _vm_network_fits_pool(subject: Subject) -> Iterator[Problem]:
    config = subject.spec.at("vmNetworkConfig")
    given, gateway = pool_range(config.at("ipPool")), address(config.at("gateway"))
    within = network(gateway, config.at("subnetMask")) if gateway is not None else None
    if given is not None and within is not None and not (given.first in within and given.last in within):
        yield config.at("gateway").invalid(
            f"its network {within} leaves out addresses of ipPool ({given.first} to {given.last}): "
            "correct gateway, subnetMask or ipPool"
        )


def _pools(subject: Subject) -> list[Field]:
    places = (subject.spec.at("loadBalancerConfig", "ipPool"), subject.spec.at("vmNetworkConfig", "ipPool"))
    return [pool for pool in places if pool.mapping]


def _no_addresses(*fields: Field) -> Iterator[Problem]:
    for field in fields:
        if isinstance(field.value, str) and address(field) is None:
            yield field.invalid(_NO_ADDRESS)


def _created(name: str) -> bool:
    return name.endswith(_CREATED) or len(name) >= _CUT_NAME


def _outside(field: Field, within: IPv4Network | None) -> Iterator[Problem]:
    """What is wrong with a host of a subnet."""
    host = address(field)
    if host is None or within is None:
        return
    if host not in within:
        yield field.invalid(f"is not in subnet {within}")
    elif is_end(host, within):
        yield field.invalid(f"is the network or broadcast address of {within}: use one between them")


def _unusable(field: Field, mask: Field) -> Iterator[Problem]:
    """What is wrong with a host, by its mask where that is known."""
    host = address(field)
    if host is None:
        return
    within = network(host, mask)
    if _special(host):
        yield field.invalid("is no address of a host: correct it")
    elif within is not None and is_end(host, within):
        yield field.invalid(f"is the network or broadcast address of {within}: use one between them")


def _special(host: IPv4) -> bool:
    # Loopback addresses are let through: the machines of a sandbox have them.
    return host.is_unspecified or host.is_multicast or host == IPv4("255.255.255.255")
