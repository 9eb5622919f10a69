"""Addresses that objects have or request, whether or not a pool lists them. They index caches."""

from caphv.api.interfaceaddresses import interface_of
from caphv.api.object import Obj, at, being_deleted, list_at


def balancer_addresses(obj: Obj | None) -> set[str]:
    """Return the addresses that a LoadBalancer of Harvester or a Service has or requests."""
    addresses = {at(obj, "spec", "loadBalancerIP"), at(obj, "status", "address")}
    for entry in list_at(obj, "status", "loadBalancer", "ingress"):
        addresses.add(entry.get("ip"))
    return {address for address in addresses if address} - {"0.0.0.0"}


def instance_addresses(vmi: Obj | None) -> set[str]:
    """Return the addresses of the NICs of a VirtualMachineInstance.

    Networks inside the guest, which have no name, do not count.
    """
    addresses = set()
    for nic in list_at(vmi, "status", "interfaces"):
        if not nic.get("name"):
            continue
        for address in (nic.get("ipAddress"), *(nic.get("ipAddresses") or ())):
            if address:
                addresses.add(address.partition("/")[0])
    return addresses


def endpoint_addresses(harvester_cluster: Obj | None) -> set[str]:
    """Return the control plane's address of a HarvesterCluster with `ipamType: none`.

    Something outside of Harvester, or kube-vip in the guests, has it. A DNS name is no address.
    """
    if at(harvester_cluster, "spec", "loadBalancerConfig", "ipamType") != "none":
        return set()
    host = at(harvester_cluster, "spec", "controlPlaneEndpoint", "host")
    return {str(host)} if host else set()


def machine_addresses(machine: Obj | None) -> set[str]:
    """Return the addresses that a HarvesterMachine has or requests, from a pool or static.

    A machine that is being deleted has none.
    """
    if machine is None or being_deleted(machine):
        return set()
    addresses = {
        at(machine, "status", "allocatedIPAddress"),
        at(machine, "spec", "networkConfig", "address"),
        *(entry.get("address") for entry in list_at(machine, "status", "interfaceAddresses")),
    }
    for settings in list_at(machine, "spec", "networkInterfaces"):
        for entry in settings.get("addresses") or ():
            interface = interface_of(entry.get("address"))
            addresses.add(str(interface.ip) if interface else None)
    return {address for address in addresses if address}
