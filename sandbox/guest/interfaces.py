"""The network interfaces of a guest, with the configuration from its network data."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence

from caphv.api.object import Obj, annotations_of
from sandbox.guest.cloudinit import GuestError, Nic, Subnet
from sandbox.guest.guest import Guest
from sandbox.harvester import kinds
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.informers import Informers


class Interfaces:
    """The interfaces of all guests on one Harvester."""

    def __init__(self, informers: Informers, addresses: Addresses) -> None:
        self._informers = informers
        self._addresses = addresses

    def bring_up(self, guest: Guest, nics: list[Nic] | None) -> list[tuple[str, ...]]:
        """Configure the interfaces of a guest and return the addresses of each of them.

        Raises `GuestError` if the configuration does not work, and `LookupError` if a DHCP server
        has no free address.
        """
        names = interface_names(len(guest.interfaces))
        if nics is None:
            # Without network data, cloud-init tries DHCP on the first interface.
            nics = [Nic(name) for name in names[:1]]

        nics_by_number = {_number_of(nic, guest, names): nic for nic in nics}
        _check_default_routes(nics)
        return [
            self._configure(guest, interface, nics_by_number[number])
            if number in nics_by_number
            else ()
            for number, interface in enumerate(guest.interfaces)
        ]

    def expire_leases(self, guest: Guest) -> None:
        """Give the guest different addresses with its next DHCP leases."""
        for interface in guest.interfaces:
            self._addresses.expire(guest.holder(interface))

    def release(self, guest: Guest) -> None:
        """Release the addresses of a guest that has stopped. DHCP remembers its leases."""
        for interface in guest.interfaces:
            self._addresses.release(guest.holder(interface))

    def _configure(self, guest: Guest, interface: Obj, nic: Nic) -> tuple[str, ...]:
        holder = guest.holder(interface)
        network = self._network(guest, interface["name"])
        annotations = annotations_of(network) if network else {}

        if not nic.subnets:
            dhcp = annotations.get(kinds.NETWORK_DHCP)
            if not dhcp:
                raise GuestError(f"{nic.name}: no DHCP server on the network")
            return (self._addresses.lease(dhcp, holder),)

        route = json.loads(annotations.get(kinds.NETWORK_ROUTE) or "{}")
        for subnet in nic.subnets:
            # Networks describe IPv4 only.
            if route.get("cidr") and ipaddress.ip_address(subnet.address).version == 4:
                _check_subnet(nic.name, subnet, route["cidr"], route.get("gateway", ""))
            other = self._addresses.claim(subnet.address, holder)
            if other:
                raise GuestError(f"{nic.name}: address {subnet.address} is used by {other}")
        return tuple(subnet.address for subnet in nic.subnets)

    def _network(self, guest: Guest, interface_name: str) -> Obj | None:
        """Return the NetworkAttachmentDefinition behind an interface."""
        multus_by_name = {
            network["name"]: network.get("multus") or {}
            for network in guest.spec.get("networks") or ()
        }
        reference = str(multus_by_name.get(interface_name, {}).get("networkName", ""))
        namespace, _, name = reference.rpartition("/")
        return self._informers.networks.get(namespace or guest.key.namespace, name)


def interface_names(count: int) -> Sequence[str]:
    """Return the names of the interfaces in the guest, in the order of the VM's interfaces."""
    return [f"eth{n}" for n in range(count)]


def _number_of(nic: Nic, guest: Guest, names: Sequence[str]) -> int:
    """Return the number of the interface that a configuration means. Raises `GuestError`."""
    if nic.mac:
        macs = [str(interface.get("macAddress", "")).lower() for interface in guest.interfaces]
        if nic.mac not in macs:
            raise GuestError(f"networkdata: no interface has the MAC address of {nic.name}")
        return macs.index(nic.mac)
    if nic.name not in names:
        raise GuestError(
            f"networkdata: interface {nic.name} does not exist; existing: "
            f"{', '.join(names) or 'none'}"
        )
    return names.index(nic.name)


def _check_default_routes(nics: Sequence[Nic]) -> None:
    """Raise GuestError if two default routes of a family compete."""
    gateways = [subnet.gateway for nic in nics for subnet in nic.subnets if subnet.gateway]
    versions = [ipaddress.ip_address(gateway).version for gateway in gateways]
    if len(versions) != len(set(versions)):
        raise GuestError(f"networkdata: several default routes: {', '.join(gateways)}")


def _check_subnet(name: str, subnet: Subnet, cidr: str, gateway: str) -> None:
    """Raise GuestError if a static configuration would not work on a network."""
    network = ipaddress.IPv4Network(cidr)
    if ipaddress.IPv4Address(subnet.address) not in network:
        raise GuestError(f"{name}: address {subnet.address} is outside the network {cidr}")
    if subnet.mask != str(network.netmask):
        raise GuestError(
            f"{name}: mask {subnet.mask} must be that of the network {cidr} ({network.netmask})"
        )
    if subnet.gateway and subnet.gateway != gateway:
        raise GuestError(
            f"{name}: gateway {subnet.gateway} must be that of the network ({gateway})"
        )
    if subnet.address == gateway:
        raise GuestError(f"{name}: address {subnet.address} is the gateway's")
