"""Build the network data of a guest with other addresses than those of DHCP servers.

The format is version 1 of cloud-init, because more guests read it than version 2.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from caphv.api.interfaceaddresses import Interface
from caphv.api.object import Obj
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.guestinterfaces import (
    NO_SETTINGS,
    GuestAddress,
    GuestInterface,
    unreachable_router,
)
from reconciler.machine.network import StaticAddress

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def networkdata(
    address: StaticAddress | None,
    nic_count: int,
    interfaces: Mapping[int, GuestInterface] = NO_SETTINGS,
    macs: Sequence[str] = (),
) -> str:
    """Return network data of a guest with static addresses, or with settings of interfaces.

    All other NICs use DHCP. The first NIC that knows its network's gateway has the default route
    of that family: two of them would compete. Name servers and search domains are those of all
    NICs. Raises `CloudInitError` for a route whose router the guest cannot reach.

    :param address: static address of the first NIC, None if it has none of its own
    :param interfaces: settings of NICs by their number
    :param macs: MAC addresses of all NICs, by which the guest finds them; empty to use their names
    """
    config: list[Obj] = []
    first = interfaces.get(0)
    # With DHCP, the first network leads out by IPv4.
    routed = set() if first and first.addresses else {4}
    for index in range(nic_count):
        settings = interfaces.get(index)
        subnets: list[Obj] = [{"type": "dhcp"}]
        if settings and settings.addresses:
            subnets = _static_subnets(settings.addresses, routed)
        elif index == 0 and address is not None:
            subnets = [
                {
                    "type": "static",
                    "address": address.address,
                    "netmask": address.mask,
                    "gateway": address.gateway,
                }
            ]
        if settings and settings.routes:
            _add_routes(index, settings, subnets)
        mac = {"mac_address": macs[index]} if macs else {}
        mtu = {"mtu": settings.mtu} if settings and settings.mtu else {}
        config.append({"type": "physical", "name": f"eth{index}", **mac, **mtu, "subnets": subnets})

    sources = [*([address] if address else ()), *interfaces.values()]
    servers = [server for source in sources for server in source.dns_servers]
    search = [domain for source in sources for domain in source.dns_search]
    if interfaces:
        # Interfaces often have the same. The list of a static address alone stays as it was given.
        servers = list(dict.fromkeys(servers))
        search = list(dict.fromkeys(search))
    if servers or search:
        nameserver: Obj = {"type": "nameserver", "address": servers}
        if search:
            nameserver["search"] = search
        config.append(nameserver)
    return str(yaml.dump({"version": 1, "config": config}, Dumper=_Dumper, sort_keys=False))


def _static_subnets(addresses: Sequence[GuestAddress], routed: set[int]) -> list[Obj]:
    """Return the subnets of a NIC with addresses.

    :param routed: families that have a default route, to which those of this NIC are added
    """
    subnets = []
    for address in addresses:
        subnet: Obj = {
            "type": "static" if address.version == 4 else "static6",
            "address": f"{address.address}/{address.prefix}",
        }
        if address.gateway and address.version not in routed:
            subnet["gateway"] = address.gateway
            routed.add(address.version)
        subnets.append(subnet)
    return subnets


def _add_routes(index: int, settings: GuestInterface, subnets: list[Obj]) -> None:
    """Add the routes of a NIC to the subnets of their routers. Raises `CloudInitError`.

    cloud-init ignores routes next to DHCP.
    """
    static = [(subnet, _address(subnet)) for subnet in subnets if subnet["type"] != "dhcp"]
    if problem := unreachable_router(settings, [address for _, address in static]):
        raise CloudInitError(f"the interface on network {index + 1} of networks: {problem}")

    for route in settings.routes:
        entry: Obj = {"destination": route.to, "gateway": route.via}
        if route.metric:
            entry["metric"] = route.metric
        _subnet_for(route.via, static).setdefault("routes", []).append(entry)


def _subnet_for(via: str, static: Sequence[tuple[Obj, Interface]]) -> Obj:
    """Return the subnet of a router that `unreachable_router` has found reachable.

    :param static: subnets of one NIC, each with its parsed address
    """
    router = ipaddress.ip_address(via)
    family = [(subnet, address) for subnet, address in static if address.version == router.version]
    for subnet, address in family:
        if router in address.network:
            return subnet
    # A link-local router is on the link of each subnet.
    return family[0][0]


def _address(subnet: Obj) -> Interface:
    mask = f"/{subnet['netmask']}" if "netmask" in subnet else ""
    return ipaddress.ip_interface(subnet["address"] + mask)
