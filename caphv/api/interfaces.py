"""The settings of single network interfaces of a machine, and which of them exclude others. Pure.

`addressesFromPools` is modelled on that of Cluster API's provider for vSphere
(kubernetes-sigs/cluster-api-provider-vsphere 0115a11, `spec.network.devices[].addressesFromPools`
of VSphereVM, controllers/vspherevm_ipaddress_reconciler.go), and `mtu` and `routes` on its fields
of these names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from caphv.api import interfaceaddresses, resources
from caphv.api.interfaceaddresses import IPNetwork

FIELD = "networkInterfaces"
"""The field of a HarvesterMachine."""

NETWORK, UNIQUE, ADDRESSES_EXCLUSIVE, ADDRESS, ROUTE, TEMPLATE = (
    "interface-network",
    "interface-unique",
    "interface-addresses-exclusive",
    "interface-address",
    "interface-route",
    "interface-addresses-of-template",
)
"""Kinds of conflicts, which are the names of the rules."""

_STATIC = "addresses"
_POOLS = "addressesFromPools"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that cannot be used with the others, and the remedy.

    :param kind: one of `NETWORK`, `UNIQUE`, `ADDRESSES_EXCLUSIVE`, `ADDRESS`, `ROUTE`, `TEMPLATE`
    :param path: keys and indices of the field below the list of interfaces
    """

    kind: str
    path: tuple[str | int, ...]
    detail: str
    value: object = None


@dataclass(slots=True)
class _Seen:
    """What earlier interfaces of a machine have."""

    networks: set[str] = field(default_factory=set)
    addresses: set[object] = field(default_factory=set)
    routes: set[object] = field(default_factory=set)


def numbers(spec: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers, from 0, of the interfaces with settings.

    :param spec: the spec of a valid HarvesterMachine
    """
    return tuple(number for number, _ in settings_by_number(spec))


def addressed_numbers(spec: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers, from 0, of the interfaces whose settings say where addresses come from.

    The addresses of all others come from `vmNetworkConfig`, `networkConfig` or DHCP.

    :param spec: the spec of a valid HarvesterMachine
    """
    return tuple(
        number
        for number, settings in settings_by_number(spec)
        if settings.get(_STATIC) or settings.get(_POOLS)
    )


def settings_by_number(spec: Mapping[str, Any]) -> list[NumberedSettings]:
    """Return number and settings of each interface that has settings, in their order.

    Settings for a network that the machine lacks are ignored; rule `interface-network` refuses
    them.
    """
    named = {settings.get("network"): settings for settings in spec.get(FIELD) or ()}
    return [
        NumberedSettings(number, named[network])
        for number, network in enumerate(spec.get("networks") or ())
        if network in named
    ]


def is_harvester_pool(pool: Mapping[str, Any]) -> bool:
    """Return whether an entry of `addressesFromPools` is an IPPool on Harvester.

    The provider gives addresses of these itself, and claims those of all others.
    """
    kind = (resources.IP_POOLS.group, resources.IP_POOLS.kind)
    return (pool.get("apiGroup"), pool.get("kind")) == kind


class NumberedSettings(NamedTuple):
    """The settings of an interface, and its number, from 0."""

    number: int
    settings: Mapping[str, Any]


class HarvesterPool(NamedTuple):
    """The name of an IPPool on Harvester, with the numbers of its interface and entry, from 0."""

    interface: int
    entry: int
    name: str


def harvester_pools(spec: Mapping[str, Any]) -> list[HarvesterPool]:
    """Return the IPPools on Harvester that interfaces have addresses of.

    :param spec: the spec of a HarvesterMachine, whose values may have any type
    """
    networks = _listed(spec.get("networks"))
    pools = []
    for interface in _listed(spec.get(FIELD)):
        if not isinstance(interface, dict) or interface.get("network") not in networks:
            continue
        number = networks.index(interface.get("network"))
        for entry, pool in enumerate(_listed(interface.get(_POOLS))):
            if isinstance(pool, dict) and is_harvester_pool(pool) and pool.get("name"):
                pools.append(HarvesterPool(number, entry, str(pool["name"])))
    return sorted(pools)


def conflicts(spec: Mapping[str, Any], *, first_has_dhcp: bool = False) -> Iterator[Conflict]:
    """Yield the conflicts in the spec of a HarvesterMachine, whose values may have any type.

    :param first_has_dhcp: whether the cluster gives the first interface no address, so that it has
        DHCP unless the spec gives it one
    """
    networks = _listed(spec.get("networks"))
    seen = _Seen()
    config = spec.get("networkConfig")
    address = config.get("address") if isinstance(config, dict) else None
    address_of_first = interfaceaddresses.address_of(address)

    for index, interface in enumerate(_listed(spec.get(FIELD))):
        if not isinstance(interface, dict):
            continue

        network = interface.get("network")
        is_first = False
        if isinstance(network, str) and network:
            yield from _network_conflicts(index, network, networks, seen.networks)
            seen.networks.add(network)
            is_first = network == (networks[0] if networks else None)
        yield from _source_conflicts(index, interface, spec if is_first else {})
        yield from _pool_conflicts(index, _listed(interface.get(_POOLS)))

        # The first interface has either the address of networkConfig or others.
        others = seen.addresses if is_first else seen.addresses | {address_of_first}
        yield from _address_conflicts(index, _listed(interface.get(_STATIC)), others)
        static = interfaceaddresses.interfaces_of(_listed(interface.get(_STATIC)))
        seen.addresses |= {address.ip for address in static}

        is_open = is_first and not first_has_dhcp
        connected = _connected(interface, spec if is_first else {}, is_open=is_open)
        yield from _route_conflicts(index, interface, connected, seen)


def template_conflicts(spec: Mapping[str, Any]) -> Iterator[Conflict]:
    """Yield static addresses, which a template gives to all of its machines."""
    for index, interface in enumerate(_listed(spec.get(FIELD))):
        if isinstance(interface, dict) and interface.get(_STATIC):
            detail = "all machines of a template would get these addresses: use addressesFromPools"
            yield Conflict(TEMPLATE, (index, _STATIC), detail)


def _network_conflicts(
    index: int, network: str, networks: Sequence[Any], seen: set[str]
) -> Iterator[Conflict]:
    path = (index, "network")
    if network in seen:
        detail = "has an entry already: join the two"
        yield Conflict(UNIQUE, path, detail, network)
    elif networks and network not in networks:
        names = ", ".join(str(name) for name in networks)
        detail = f"is not in networks: write it as there ({names})"
        yield Conflict(NETWORK, path, detail, network)


def _source_conflicts(
    index: int, interface: Mapping[str, Any], spec: Mapping[str, Any]
) -> Iterator[Conflict]:
    """Yield that several fields give an interface addresses.

    :param spec: the spec for the first interface, empty for the others
    """
    sources = [name for name in (_STATIC, _POOLS) if interface.get(name) is not None]
    if len(sources) > 1:
        detail = "addresses gives this interface static addresses: remove one of the two"
        yield Conflict(ADDRESSES_EXCLUSIVE, (index, _POOLS), detail)
    for name in ("networkConfig", "vmNetworkConfig"):
        if sources and spec.get(name):
            detail = f"{name} gives the first interface an address: remove one of the two"
            yield Conflict(ADDRESSES_EXCLUSIVE, (index, sources[0]), detail)


def _pool_conflicts(index: int, pools: Sequence[Any]) -> Iterator[Conflict]:
    seen: list[Any] = []
    for number, pool in enumerate(pools):
        if isinstance(pool, dict) and pool in seen:
            path = (index, _POOLS, number)
            detail = "is in the list already: remove this entry"
            yield Conflict(UNIQUE, path, detail, pool.get("name"))
        seen.append(pool)


def _address_conflicts(
    index: int, entries: Sequence[Any], others: Collection[object]
) -> Iterator[Conflict]:
    """Yield the problems of static addresses.

    :param others: what other interfaces have
    """
    for problem in interfaceaddresses.address_problems(entries):
        path = (index, _STATIC, *problem.path)
        yield Conflict(ADDRESS, path, problem.detail, problem.value)

    seen = set(others)
    for number, entry in enumerate(entries):
        text = entry.get("address") if isinstance(entry, dict) else None
        interface = interfaceaddresses.interface_of(text)
        if interface is None:
            continue
        if interface.ip in seen:
            detail = "is an address of the machine already: remove this entry"
            yield Conflict(UNIQUE, (index, _STATIC, number, "address"), detail, text)
        seen.add(interface.ip)


def _connected(
    interface: Mapping[str, Any], spec: Mapping[str, Any], *, is_open: bool
) -> Sequence[IPNetwork] | None:
    """Return the networks that an interface has addresses of, None if they are unknown.

    :param spec: the spec for the first interface, empty for the others
    :param is_open: whether the cluster may give it an address
    """
    static = interface.get(_STATIC)
    if static is not None:
        addresses = interfaceaddresses.interfaces_of(_listed(static))
        if len(addresses) != len(_listed(static)):
            return None
        return [address.network for address in addresses]
    if interface.get(_POOLS) is not None:
        return None
    for name, key in (("networkConfig", "address"), ("vmNetworkConfig", "gateway")):
        config = spec.get(name)
        if isinstance(config, dict) and config:
            # Without a mask of its own, the machine has that of its cluster.
            text = f"{config.get(key)}/{config.get('subnetMask')}"
            try:
                return (ipaddress.IPv4Interface(text).network,)
            except ValueError:
                return None
    return None if is_open else ()


def _route_conflicts(
    index: int,
    interface: Mapping[str, Any],
    connected: Sequence[IPNetwork] | None,
    seen: _Seen,
) -> Iterator[Conflict]:
    """Yield the problems of the routes of an interface, and routes that an interface has already.

    :param index: index of the interface in the settings
    :param interface: its settings
    :param connected: the networks that it has addresses of, empty with DHCP, None if unknown
    :param seen: what the interfaces before it have
    """
    routes = _listed(interface.get("routes"))
    reachable = connected
    if routes and connected == () and interface.get(_STATIC) is None:
        detail = (
            "need an interface with addresses or addressesFromPools: guests take those next to "
            "DHCP from its server"
        )
        yield Conflict(ROUTE, (index, "routes"), detail)
        # Do not also report each route, because its router is in no network of the interface.
        reachable = None

    static = interfaceaddresses.interfaces_of(_listed(interface.get(_STATIC)))
    own_addresses = [address.ip for address in static]
    for problem in interfaceaddresses.route_problems(routes, reachable, own_addresses):
        path = (index, "routes", *problem.path)
        yield Conflict(ROUTE, path, problem.detail, problem.value)

    for number, route in enumerate(routes):
        if not isinstance(route, dict) or not isinstance(route.get("to"), str):
            continue
        network = interfaceaddresses.interface_of(route["to"])
        metric = route.get("metric")
        rank = (network or route["to"], metric if isinstance(metric, int | float) else None)
        if rank in seen.routes:
            detail = (
                "has a route of this metric already: remove one, or give them different metrics"
            )
            yield Conflict(UNIQUE, (index, "routes", number, "to"), detail, route["to"])
        seen.routes.add(rank)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
