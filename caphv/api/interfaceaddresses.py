"""Check static addresses and routes of interfaces, whose values may have any type. Pure.

Paths of problems are relative to the list that is checked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Path = tuple[str | int, ...]

# Guests of the sandbox have other addresses of 127.0.0.0/8.
_LOOPBACKS = (ipaddress.ip_network("127.0.0.0/16"), ipaddress.ip_network("::1/128"))
_BROADCAST = ipaddress.ip_address("255.255.255.255")
# Networks with longer prefixes have addresses of hosts only.
_LONGEST = {4: 30, 6: 126}


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that cannot be used, and the remedy."""

    path: Path
    detail: str
    value: object = None


def address_of(value: object) -> Address | None:
    """Return the IP address in a text; None for anything else, and for one with a scope."""
    if not isinstance(value, str) or "%" in value:
        return None
    try:
        return ipaddress.ip_address(value)
    except ValueError:
        return None


def interface_of(value: object) -> Interface | None:
    """Return the address with the prefix length of its network in a text, None if it has none."""
    if not isinstance(value, str) or "%" in value or not value.partition("/")[2].isdecimal():
        return None
    try:
        return ipaddress.ip_interface(value)
    except ValueError:
        return None


def interfaces_of(entries: Iterable[Any]) -> tuple[Interface, ...]:
    """Return static addresses with their networks; those that are not valid are ignored."""
    interfaces = (interface_of(entry.get("address")) for entry in entries if _is_object(entry))
    return tuple(interface for interface in interfaces if interface is not None)


def address_problems(entries: Sequence[Any]) -> Iterator[Problem]:
    """Yield the problems of an interface's static addresses."""
    for number, entry in enumerate(entries):
        # The schema reports values of another type.
        if not _is_object(entry) or not isinstance(entry.get("address"), str):
            continue
        interface = interface_of(entry["address"])
        path: Path = (number, "address")
        if interface is None:
            detail = (
                "must be an IP address with the prefix length of its network, for example "
                "172.17.1.10/24 or fd00::10/64"
            )
            yield Problem(path, detail, entry["address"])
        elif detail := _host_problem(interface):
            yield Problem(path, detail, entry["address"])
        gateway = entry.get("gateway")
        if isinstance(gateway, str) and (detail := _gateway_problem(gateway, interface)):
            yield Problem((number, "gateway"), detail, gateway)


def route_problems(
    routes: Sequence[Any],
    connected: Sequence[IPNetwork] | None,
    own: Collection[Address] = (),
) -> Iterator[Problem]:
    """Yield the problems of an interface's routes.

    :param connected: the networks that the interface has addresses of, None if they are unknown
    :param own: the addresses of the interface, as far as they are known
    """
    for number, route in enumerate(routes):
        if not _is_object(route):
            continue
        destination = _destination(route.get("to"))
        if isinstance(destination, str):
            yield Problem((number, "to"), destination, route["to"])
            destination = None
        elif destination in (connected or ()):
            detail = "is the network of the interface, which needs no router: remove this route"
            yield Problem((number, "to"), detail, route["to"])
        if isinstance(route.get("via"), str):
            detail = _next_hop_problem(route["via"], destination, connected, own)
            if detail:
                yield Problem((number, "via"), detail, route["via"])


def _host_problem(interface: Interface) -> str:
    """Return why no host can have an address; empty if one can."""
    if not is_host(interface.ip) or interface.ip.is_link_local:
        return "is no address of a host: correct it"
    network = interface.network
    if not network.prefixlen:
        return "has no prefix length that a network can have: correct it"
    return _end_problem(interface.ip, network)


def _end_problem(address: Address, network: IPNetwork) -> str:
    """Return that an address is that of a network itself or of all its hosts; empty if not."""
    ends = (network.network_address, *([network.broadcast_address] if network.version == 4 else ()))
    if network.prefixlen <= _LONGEST[network.version] and address in ends:
        return f"is the network or broadcast address of {network}: use one between them"
    return ""


def is_host(address: Address) -> bool:
    """Return whether a single host can have an address."""
    return not (
        address.is_unspecified
        or address.is_multicast
        or address == _BROADCAST
        or getattr(address, "ipv4_mapped", None) is not None
        or any(address in network for network in _LOOPBACKS)
    )


def _gateway_problem(text: str, interface: Interface | None) -> str:
    gateway = address_of(text)
    if gateway is None:
        return "must be an IP address, for example 172.17.1.1"
    if interface is None:
        return ""
    if gateway.version != interface.version:
        return f"is of another family than {interface.ip}: correct it"
    if gateway == interface.ip:
        return "is the address of the machine: correct one of the two"
    return _reach_problem(gateway, [interface.network])


def _destination(value: object) -> IPNetwork | str | None:
    """Return the network of a route, or why there is none; None for a value of another type."""
    if not isinstance(value, str):
        return None
    interface = interface_of(value)
    if interface is None:
        return "must be a network with its prefix length, for example 10.20.0.0/16"
    network = interface.network
    if not network.prefixlen:
        return (
            "is the default route, which the gateway of an address or pool gives: remove this route"
        )
    if interface.ip != network.network_address:
        return f"has bits beyond its prefix: write {network}"
    if network.is_multicast or any(_is_within(network, other) for other in _LOOPBACKS):
        return "is no network of hosts behind a router: correct it"
    return network


def _next_hop_problem(
    text: str,
    destination: IPNetwork | None,
    connected: Sequence[IPNetwork] | None,
    own: Collection[Address],
) -> str:
    router = address_of(text)
    if router is None:
        return "must be the IP address of a router, for example 172.17.1.254"
    if not is_host(router):
        return "is no address of a router: correct it"
    if destination is not None and router.version != destination.version:
        return f"is of another family than {destination}: correct one of the two"
    if router in own:
        return "is the address of the machine: correct one of the two"
    return "" if connected is None else _reach_problem(router, connected)


def _reach_problem(router: Address, connected: Sequence[IPNetwork]) -> str:
    """Return why a router cannot be reached from networks; empty if it can."""
    networks = [network for network in connected if network.version == router.version]
    if not networks:
        return f"needs an IPv{router.version} address of this interface: add one, or remove it"
    # Routers of IPv6 often have a link-local address only.
    if router.version == 6 and router.is_link_local:
        return ""
    for network in networks:
        if router in network:
            # Routers of IPv6 may have the address of the network, too (RFC 4291, 2.6.1).
            return _end_problem(router, network) if router.version == 4 else ""
    listed = " or ".join(map(str, networks))
    return f"is not in {listed}, the network of the interface: correct it"


def _is_within(network: IPNetwork, other: IPNetwork) -> bool:
    return network.version == other.version and (
        network.network_address in other and network.prefixlen >= other.prefixlen
    )


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
