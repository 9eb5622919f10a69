"""Decide to which addresses a connection to a tenant's URL may be opened.

A kubeconfig in a Secret names a server, and the controller connects to it from inside the
management cluster's network. The policy refuses addresses that only insiders reach: addresses of
this machine, of the link (among them the metadata services of clouds), and of the management
cluster's own API server. It checks an address when a socket is created for it, after name
resolution, so a name that resolves to another address the second time gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
AddressCheck = Callable[[str], None]
"""Function of an IP address as text. Raises `AddressNotAllowed`."""

# Metadata services outside of 169.254.0.0/16, of AWS over IPv6, Alibaba Cloud, Oracle Cloud, and
# Azure's host.
_METADATA = tuple(
    ip_address(text)
    for text in ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
_NAT64 = ip_network("64:ff9b::/96")


class AddressNotAllowed(OSError):
    """A connection was refused before it was opened.

    The text does not repeat the address, which may be internal.
    """


@dataclass(slots=True)
class AddressPolicy:
    """Refuse special addresses for connections of tenants, except for networks in `allowed`.

    `own` has the addresses of the management cluster's API server, as connections to it use them.
    """

    allowed: tuple[Network, ...] = ()
    own: set[Address] = field(default_factory=set)

    def record_own(self, address: str) -> None:
        """Add an address of the management cluster's API server."""
        parsed = _parse(address)
        if parsed:
            self.own.add(parsed)

    def check(self, address: str) -> None:
        """Check an address of a Harvester. Raises `AddressNotAllowed`."""
        self._check(address, self.own)

    def check_workload(self, address: str) -> None:
        """Check an address of a workload cluster, which may be the management cluster.

        Raises `AddressNotAllowed`.
        """
        self._check(address, ())

    def _check(self, address: str, management: Iterable[Address]) -> None:
        parsed = _parse(address)
        if parsed is None:
            raise AddressNotAllowed("its address is not an IP address")
        for network in self.allowed:
            if network.version == parsed.version and parsed in network:
                return

        kind = _special(parsed)
        if parsed in management:
            kind = "an address of the management cluster's API server"
        if kind:
            raise AddressNotAllowed(f"its address is {kind}")


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of a flag, written as `10.0.0.0/8` or single addresses.

    Raises `ValueError` that names the text.
    """
    return tuple(ip_network(text.strip()) for text in texts)


def _parse(text: str) -> Address | None:
    """Return the address that packets will have, which is IPv4 for IPv4 in IPv6 notation."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def _special(address: Address) -> str:
    """Describe a special address for a message; empty for the address of an ordinary host."""
    if address in _METADATA:
        return "that of a metadata service"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        return "not that of a single host"
    # Connections to 0.0.0.0/8 reach this machine.
    if isinstance(address, IPv4Address) and int(address) >> 24 == 0:
        return "a loopback address"
    return ""
