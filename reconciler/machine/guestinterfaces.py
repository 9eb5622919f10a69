"""Decide what a guest configures on the interfaces of a machine that have settings. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from caphv.api import interfaceaddresses, interfaces, ippool
from caphv.api.interfaceaddresses import Interface
from caphv.api.object import Obj, uid_of


@dataclass(frozen=True)
class GuestAddress:
    """An address of an interface. `gateway` is empty for none."""

    address: str
    prefix: int
    gateway: str = ""

    @property
    def version(self) -> int:
        """4 or 6."""
        return ipaddress.ip_address(self.address).version


@dataclass(frozen=True)
class Route:
    """A route to the network `to` by the router `via`. `metric` is 0 for that of the guest."""

    to: str
    via: str
    metric: int = 0


@dataclass(frozen=True)
class GuestInterface:
    """What the guest configures on an interface with settings.

    Without `addresses`, it has those of a machine without settings. `mtu` is 0 for that of the
    guest.
    """

    addresses: tuple[GuestAddress, ...]
    dns_servers: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    mtu: int = 0
    routes: tuple[Route, ...] = ()


NO_SETTINGS: Mapping[int, GuestInterface] = MappingProxyType({})
"""Of a machine without settings of interfaces."""


@dataclass(frozen=True)
class WantedAddress:
    """An address of an IPPool on Harvester for the interface with this number, from 0.

    `holder` is the id under which the pool holds it.
    """

    holder: str
    interface: int
    network: str
    pool: str


def wanted_addresses(machine: str, spec: Obj) -> tuple[WantedAddress, ...]:
    """Return the addresses of IPPools that the settings of interfaces ask for.

    :param machine: the id of the machine in pools, `<namespace>/<name>`
    """
    networks = spec.get("networks") or []
    return tuple(
        WantedAddress(
            ippool.interface_holder(machine, number, entry), number, str(networks[number]), pool
        )
        for number, entry, pool in interfaces.harvester_pools(spec)
    )


def recorded_addresses(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return network and pool of the addresses of interfaces in a status, by address."""
    return {
        str(entry.get("address")): (str(entry.get("network")), str(entry.get("pool")))
        for entry in status.get("interfaceAddresses") or ()
    }


def guest_interfaces(
    spec: Obj, addresses: Iterable[tuple[int, GuestAddress]] = ()
) -> dict[int, GuestInterface]:
    """Return what the guest configures, by the number of the interface.

    :param spec: the spec of a valid HarvesterMachine
    :param addresses: all addresses of pools, with the numbers of their interfaces
    """
    all_addresses = [*static_addresses(spec), *addresses]
    return {
        number: GuestInterface(
            tuple(address for of, address in all_addresses if of == number),
            tuple(settings.get("dnsServers") or ()),
            tuple(settings.get("dnsSearch") or ()),
            int(settings.get("mtu") or 0),
            tuple(
                Route(
                    # As Python writes them, because the guest's parsers are less tolerant.
                    str(ipaddress.ip_network(route["to"])),
                    str(ipaddress.ip_address(route["via"])),
                    int(route.get("metric") or 0),
                )
                for route in settings.get("routes") or ()
            ),
        )
        for number, settings in interfaces.settings_by_number(spec)
    }


def static_addresses(spec: Obj) -> list[tuple[int, GuestAddress]]:
    """Return the static addresses in the settings, with the numbers of their interfaces."""
    addresses = []
    for number, settings in interfaces.settings_by_number(spec):
        for entry in settings.get("addresses") or ():
            interface = interfaceaddresses.interface_of(entry.get("address"))
            gateway = interfaceaddresses.address_of(entry.get("gateway"))
            # Only an older spec, which no rule has checked, has one that is invalid.
            if interface is not None:
                prefix = interface.network.prefixlen
                address = GuestAddress(str(interface.ip), prefix, str(gateway or ""))
                addresses.append((number, address))
    return addresses


def unreachable_router(interface: GuestInterface, addresses: Iterable[Interface]) -> str:
    """Return which route an interface cannot have, and why; empty if it can have all.

    :param addresses: the addresses of the interface, whatever they come from
    """
    all_addresses = list(addresses)
    networks = [address.network for address in all_addresses]
    own = [address.ip for address in all_addresses]
    routes = [{"to": route.to, "via": route.via} for route in interface.routes]
    for problem in interfaceaddresses.route_problems(routes, networks, own):
        route = interface.routes[int(problem.path[0])]
        # The detail has the subject that its field names.
        via = f"via {route.via} " if problem.path[1] == "via" else ""
        return f"its route to {route.to} {via}{problem.detail}"
    return ""


def mac_addresses(machine: Obj) -> tuple[str, ...]:
    """Return the MAC addresses of all interfaces; empty for a machine without settings of them.

    The network data of such a machine finds its interfaces by them, whatever order and names they
    have in the guest. They follow from the uid, so that no two machines have the same.
    """
    spec = machine.get("spec") or {}
    if not interfaces.numbers(spec):
        return ()
    return tuple(
        _mac_address(f"{uid_of(machine)}/{number}")
        for number in range(len(spec.get("networks") or ()))
    )


def _mac_address(seed: str) -> str:
    digest = hashlib.sha256(seed.encode()).digest()
    # The first octet marks addresses that no manufacturer has assigned.
    return ":".join(f"{octet:02x}" for octet in (0x02, *digest[:5]))
