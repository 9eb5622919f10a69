"""Rules about the addresses of machines."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from caphv.api import interfaces
from caphv.api.interfaceaddresses import address_of
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

RULES = Rules()

_FAULTS = {
    interfaces.NETWORK: Fault.INVALID,
    interfaces.UNIQUE: Fault.DUPLICATE,
    interfaces.ADDRESSES_EXCLUSIVE: Fault.FORBIDDEN,
    interfaces.ADDRESS: Fault.INVALID,
    interfaces.ROUTE: Fault.INVALID,
    interfaces.TEMPLATE: Fault.FORBIDDEN,
}


@RULES.rule(
    "definition-address",
    KINDS,
    "Gateway and DNS servers must be IPv4 addresses, and the subnet mask must be one.",
)
def _check_addresses(obj: Obj) -> Iterator[Finding]:
    addresses = obj["spec"].get("addresses", {})
    if not addresses:
        return

    root: FieldPath = ("spec", "addresses")
    gateway = addresses["gateway"]
    texts: list[tuple[FieldPath, str]] = [(("gateway",), gateway)]
    for index, server in enumerate(addresses.get("dnsServers", ())):
        texts.append((("dnsServers", index), server))
    for path, text in texts:
        if not is_ipv4(text):
            detail = "must be an IPv4 address, for example 172.16.0.1"
            yield Finding((*root, *path), Fault.INVALID, detail, value=text)

    # Read the mask only now. If the field is missing, this line ends the rule, and the addresses
    # have been checked.
    mask = addresses["subnetMask"]
    if not _is_mask(mask):
        detail = "must be a subnet mask, for example 255.255.0.0"
        yield Finding((*root, "subnetMask"), Fault.INVALID, detail, value=mask)
        return
    if not is_ipv4(gateway):
        return
    network = ipaddress.IPv4Network((gateway, mask), strict=False)
    # Networks of one or two addresses have no network or broadcast address.
    if network.prefixlen >= 31:
        return
    if ipaddress.IPv4Address(gateway) in (network.network_address, network.broadcast_address):
        detail = f"must not be the network or broadcast address of {network}: use one between them"
        yield Finding((*root, "gateway"), Fault.INVALID, detail, value=gateway)


@RULES.rule(
    "definition-interfaces",
    KINDS,
    "`networkInterfaces` must name each network of `machines.networks` at most once, each pool and "
    "destination of a route once, routers in a network of the interface, no routes next to DHCP, "
    "DNS servers by IP address, and no static addresses. Pools of `machines` exclude `addresses` "
    "for the first network.",
)
def _check_interfaces(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    machines = spec["machines"]
    pools: list[tuple[FieldPath, Obj]] = [
        (("spec", "machines"), machines),
        (("spec", "controlPlane"), spec.get("controlPlane", {})),
        *((("spec", "workers", index), pool) for index, pool in enumerate(spec.get("workers", ()))),
    ]
    for path, pool in pools:
        listed = pool.get(interfaces.FIELD, ())
        root = (*path, interfaces.FIELD)
        fields = {"networks": machines["networks"], interfaces.FIELD: listed}
        # A single pool may take its addresses elsewhere than all others.
        if pool is machines:
            fields["vmNetworkConfig"] = spec.get("addresses")
        # A class of its own may give machines addresses that the definition does not name.
        has_dhcp = not spec.get("addresses") and not spec.get("clusterClass")
        all_conflicts = (
            *interfaces.conflicts(fields, first_has_dhcp=has_dhcp),
            *interfaces.template_conflicts(fields),
        )
        for conflict in all_conflicts:
            detail = conflict.detail.replace("vmNetworkConfig", "spec.addresses")
            fault = _FAULTS[conflict.kind]
            yield Finding((*root, *conflict.path), fault, detail, value=conflict.value)

        for index, settings in enumerate(listed):
            for number, server in enumerate(settings.get("dnsServers", ())):
                if address_of(server) is None:
                    field = (*root, index, "dnsServers", number)
                    detail = "must be an IP address, for example 9.9.9.9"
                    yield Finding(field, Fault.INVALID, detail, value=server)


def is_ipv4(text: str) -> bool:
    """Whether a text is an IPv4 address."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_mask(text: str) -> bool:
    if not is_ipv4(text):
        return False
    # A mask has ones, then zeros, so its inverse is one less than a power of two.
    inverse = ~int(ipaddress.IPv4Address(text)) & 0xFFFFFFFF
    return inverse & (inverse + 1) == 0 and inverse != 0xFFFFFFFF
