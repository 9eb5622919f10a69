"""Rules about the settings of single network interfaces."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import interfaces
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINES, Subject

RULES = Rules()

_FAULTS = {
    interfaces.NETWORK: Fault.INVALID,
    interfaces.UNIQUE: Fault.DUPLICATE,
    interfaces.ADDRESSES_EXCLUSIVE: Fault.FORBIDDEN,
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
    "`networkInterfaces` must name each network once, and `addressesFromPools` each pool.",
    "networkInterfaces[].network",
    "networkInterfaces[].addressesFromPools[]",
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
    "The first interface must have either `addressesFromPools`, or a static address "
    "(`networkConfig`) or addresses from pools on Harvester (`vmNetworkConfig`).",
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


def _findings(subject: Subject, kind: str) -> Iterator[Finding]:
    field = subject.spec.at(interfaces.FIELD)
    for conflict in interfaces.conflicts(subject.spec.mapping):
        if conflict.kind == kind:
            path = (*field.path, *conflict.path)
            yield Finding(path, _FAULTS[kind], conflict.detail, value=conflict.value)
