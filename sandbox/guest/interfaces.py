"""The network interfaces of a guest, with the configuration from its network data."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence

from caphv.api.object import Obj, annotations_of
from sandbox.guest.cloudinit import GuestError, Nic
from sandbox.guest.guest import Guest
from sandbox.harvester import kinds
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.informers import Informers


class Interfaces:
    """The interfaces of all guests on one Harvester."""

    def __init__(self, informers: Informers, addresses: Addresses) -> None:
        self._informers = informers
        self._addresses = addresses

    def bring_up(self, guest: Guest, nics: list[Nic] | None) -> list[str]:
        """Configure the interfaces of a guest and return their addresses. Unset ones are empty.

        Raises GuestError for a configuration that does not work, and LookupError if a DHCP server
        has no address.
        """
        names = interface_names(len(guest.interfaces))
        if nics is None:
            # Without network data, cloud-init tries DHCP on the first interface.
            nics = [Nic(name) for name in names[:1]]

        nics_by_name = {nic.name: nic for nic in nics}
        unknown_names = sorted(nics_by_name.keys() - set(names))
        if unknown_names:
            raise GuestError(
                f"networkdata: interface {unknown_names[0]} does not exist; existing: "
                f"{', '.join(names) or 'none'}"
            )
        return [
            self._configure(guest, interface, nics_by_name[name]) if name in nics_by_name else ""
            for name, interface in zip(names, guest.interfaces, strict=True)
        ]

    def expire_leases(self, guest: Guest) -> None:
        """Give the guest different addresses with its next DHCP leases."""
        for interface in guest.interfaces:
            self._addresses.expire(guest.holder(interface))

    def release(self, guest: Guest) -> None:
        """Release the addresses of a guest that has stopped. DHCP remembers its leases."""
        for interface in guest.interfaces:
            self._addresses.release(guest.holder(interface))

    def _configure(self, guest: Guest, interface: Obj, nic: Nic) -> str:
        holder = guest.holder(interface)
        network = self._network(guest, interface["name"])
        annotations = annotations_of(network) if network else {}

        if not nic.address:
            dhcp = annotations.get(kinds.NETWORK_DHCP)
            if not dhcp:
                raise GuestError(f"{nic.name}: no DHCP server on the network")
            return self._addresses.lease(dhcp, holder)

        route = json.loads(annotations.get(kinds.NETWORK_ROUTE) or "{}")
        if route.get("cidr"):
            _check_nic(nic, route["cidr"], route.get("gateway", ""))
        other = self._addresses.claim(nic.address, holder)
        if other:
            raise GuestError(f"{nic.name}: address {nic.address} is used by {other}")
        return nic.address

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


def _check_nic(nic: Nic, cidr: str, gateway: str) -> None:
    """Raise GuestError if a static configuration would not work on a network."""
    network = ipaddress.IPv4Network(cidr)
    if ipaddress.IPv4Address(nic.address) not in network:
        raise GuestError(f"{nic.name}: address {nic.address} is outside the network {cidr}")
    if nic.mask != str(network.netmask):
        raise GuestError(
            f"{nic.name}: mask {nic.mask} must be that of the network {cidr} ({network.netmask})"
        )
    if nic.gateway and nic.gateway != gateway:
        raise GuestError(
            f"{nic.name}: gateway {nic.gateway} must be that of the network ({gateway})"
        )
    if nic.address == gateway:
        raise GuestError(f"{nic.name}: address {nic.address} is the gateway's")
