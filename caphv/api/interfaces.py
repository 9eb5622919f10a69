"""The settings of single network interfaces of a machine, and which of them exclude others. Pure.

`addressesFromPools` is modelled on that of Cluster API's provider for vSphere
(kubernetes-sigs/cluster-api-provider-vsphere 0115a11, `spec.network.devices[].addressesFromPools`
of VSphereVM, controllers/vspherevm_ipaddress_reconciler.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIELD = "networkInterfaces"
"""The field of a HarvesterMachine."""

NETWORK, UNIQUE, ADDRESSES_EXCLUSIVE = (
    "interface-network",
    "interface-unique",
    "interface-addresses-exclusive",
)
"""Kinds of conflicts, which are the names of the rules."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that cannot be used with the others, and the remedy.

    :param kind: one of `NETWORK`, `UNIQUE` and `ADDRESSES_EXCLUSIVE`
    :param path: keys and indices of the field below the list of interfaces
    """

    kind: str
    path: tuple[str | int, ...]
    detail: str
    value: object = None


def claimed_numbers(spec: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers, from 0, of the interfaces with addresses of IPAM providers.

    :param spec: the spec of a valid HarvesterMachine
    """
    named = {settings.get("network") for settings in spec.get(FIELD) or ()}
    return tuple(
        number for number, network in enumerate(spec.get("networks") or ()) if network in named
    )


def conflicts(spec: Mapping[str, Any]) -> Iterator[Conflict]:
    """Yield the conflicts in the spec of a HarvesterMachine, whose values may have any type."""
    networks = _listed(spec.get("networks"))
    seen: set[str] = set()
    for index, interface in enumerate(_listed(spec.get(FIELD))):
        if not isinstance(interface, dict):
            continue
        network = interface.get("network")
        if isinstance(network, str) and network:
            yield from _network_conflicts(index, network, networks, seen)
            seen.add(network)
            first = networks[0] if networks else None
            if network == first:
                yield from _address_conflicts(index, spec)
        yield from _pool_conflicts(index, _listed(interface.get("addressesFromPools")))


def _network_conflicts(
    index: int, network: str, networks: Sequence[Any], seen: set[str]
) -> Iterator[Conflict]:
    path = (index, "network")
    if network in seen:
        detail = "has an entry already: join the two"
        yield Conflict(UNIQUE, path, detail, network)
    elif networks and network not in networks:
        known = ", ".join(str(name) for name in networks)
        detail = f"is not in networks: write it as there ({known})"
        yield Conflict(NETWORK, path, detail, network)


def _address_conflicts(index: int, spec: Mapping[str, Any]) -> Iterator[Conflict]:
    """Yield that another field of the machine gives its first interface an address, too."""
    for field in ("networkConfig", "vmNetworkConfig"):
        if spec.get(field):
            detail = f"{field} gives the first interface an address: remove one of the two"
            path = (index, "addressesFromPools")
            yield Conflict(ADDRESSES_EXCLUSIVE, path, detail)


def _pool_conflicts(index: int, pools: Sequence[Any]) -> Iterator[Conflict]:
    seen: list[Any] = []
    for number, pool in enumerate(pools):
        if isinstance(pool, dict) and pool in seen:
            path = (index, "addressesFromPools", number)
            detail = "is in the list already: remove this entry"
            yield Conflict(UNIQUE, path, detail, pool.get("name"))
        seen.append(pool)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
