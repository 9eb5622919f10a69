"""Rules about the settings of single network interfaces."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import interfaces
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINE, MACHINE_TEMPLATE, MACHINES, Subject

RULES = Rules()

_FAULTS = {
    interfaces.NETWORK: Fault.INVALID,
    interfaces.UNIQUE: Fault.DUPLICATE,
    interfaces.ADDRESSES_EXCLUSIVE: Fault.FORBIDDEN,
    interfaces.ADDRESS: Fault.INVALID,
    interfaces.ROUTE: Fault.INVALID,
    interfaces.TEMPLATE: Fault.FORBIDDEN,
}
_POOL = "{apiGroup: ipam.cluster.x-k8s.io, kind: InClusterIPPool, name: production-v4}"
_NETWORKS = "networks: [default/production]"


@RULES.rule(
    interfaces.NETWORK,
    MACHINES,
    "An entry of `networkInterfaces` must name a network that `networks` has.",
    "networkInterfaces[].network",
    "networks",
    example=(
        f"{{{_NETWORKS}, networkInterfaces: [{{network: default/storage, addressesFromPools: "
        f"[{_POOL}]}}]}}"
    ),
)
def _interface_network(subject: Subject) -> Iterator[Finding]:
    yield from _findings(subject, interfaces.NETWORK)


@RULES.rule(
    interfaces.UNIQUE,
    MACHINES,
    "`networkInterfaces` must name each network once, `addressesFromPools` each pool, `addresses` "
    "each address, and `routes` each destination, or by different metrics.",
    "networkInterfaces[].network",
    "networkInterfaces[].addressesFromPools[]",
    "networkInterfaces[].addresses[].address",
    "networkInterfaces[].routes[].to",
    example=(
        f"{{{_NETWORKS}, networkInterfaces: [{{network: default/production, addressesFromPools: "
        f"[{_POOL}, {_POOL}]}}]}}"
    ),
)
def _interface_unique(subject: Subject) -> Iterator[Finding]:
    yield from _findings(subject, interfaces.UNIQUE)


@RULES.rule(
    interfaces.ADDRESSES_EXCLUSIVE,
    MACHINES,
    "An interface must have either `addresses` or `addressesFromPools`, and the first one neither "
    "with `networkConfig` or `vmNetworkConfig`, which give it an address, too.",
    "networkInterfaces[].addresses",
    "networkInterfaces[].addressesFromPools",
    "networkConfig",
    "vmNetworkConfig",
    example=(
        f"{{{_NETWORKS}, networkConfig: {{address: 172.17.1.10, gateway: 172.17.1.1}}, "
        f"networkInterfaces: [{{network: default/production, addressesFromPools: [{_POOL}]}}]}}"
    ),
)
def _interface_addresses_exclusive(subject: Subject) -> Iterator[Finding]:
    yield from _findings(subject, interfaces.ADDRESSES_EXCLUSIVE)


@RULES.rule(
    interfaces.ADDRESS,
    (MACHINE,),
    "A static address must be that of a host with the prefix length of its network, and its "
    "gateway another address of this network, or with IPv6 a link-local one.",
    "networkInterfaces[].addresses[].address",
    "networkInterfaces[].addresses[].gateway",
    example=(
        f"{{{_NETWORKS}, networkInterfaces: [{{network: default/production, addresses: "
        "[{address: 172.17.1.10/24, gateway: 10.0.0.1}]}]}"
    ),
)
def _interface_address(subject: Subject) -> Iterator[Finding]:
    yield from _findings(subject, interfaces.ADDRESS)


@RULES.rule(
    interfaces.ROUTE,
    MACHINES,
    "A route must lead to a network, by a router of the same family in a network of the "
    "interface, which has `addresses`, `addressesFromPools` or the address of the first interface.",
    "networkInterfaces[].routes",
    "networkInterfaces[].routes[].to",
    "networkInterfaces[].routes[].via",
    example=(
        f"{{{_NETWORKS}, networkInterfaces: [{{network: default/production, routes: "
        "[{to: 10.20.0.0/16, via: fd00::1}]}]}"
    ),
)
def _interface_route(subject: Subject) -> Iterator[Finding]:
    yield from _findings(subject, interfaces.ROUTE)


@RULES.rule(
    interfaces.TEMPLATE,
    (MACHINE_TEMPLATE,),
    "A template must not have static `addresses`: all its machines would get them, also the new "
    "one that replaces an old one of a single replica.",
    "networkInterfaces[].addresses",
    example=(
        f"{{{_NETWORKS}, networkInterfaces: [{{network: default/production, addresses: "
        "[{address: 172.17.1.10/24}]}]}"
    ),
)
def _interface_addresses_of_template(subject: Subject) -> Iterator[Finding]:
    field = subject.spec.at(interfaces.FIELD)
    for conflict in interfaces.template_conflicts(subject.spec.mapping):
        path = (*field.path, *conflict.path)
        yield Finding(path, _FAULTS[interfaces.TEMPLATE], conflict.detail)


def _findings(subject: Subject, kind: str) -> Iterator[Finding]:
    field = subject.spec.at(interfaces.FIELD)
    for conflict in interfaces.conflicts(subject.spec.mapping):
        if conflict.kind == kind:
            path = (*field.path, *conflict.path)
            yield Finding(path, _FAULTS[kind], conflict.detail, value=conflict.value)
