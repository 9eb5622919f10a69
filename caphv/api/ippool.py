"""Harvester's IPPools: which addresses a pool has, which of them are free, and who holds an address.

Addresses are strings in the form that `ipaddress` prints. Ids are those of the Go provider, `<namespace>/<name>`, and
two management clusters may have machines with the same id. Therefore each entry is marked with its management cluster,
by an annotation of the pool. Entries without a mark were made by the Go provider or by hand.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from caphv.api import names
from caphv.api.object import Obj, annotations_of


class InvalidPoolError(ValueError):
    """A range of an IPPool is invalid; the message names field and value."""


@dataclass(frozen=True)
class Range:
    """Usable addresses from `first` to `last` (as numbers, both included) without the gateway."""

    first: int
    last: int
    gateway: int | None
    kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]

    @property
    def size(self) -> int:
        """Number of addresses."""
        size = max(0, self.last - self.first + 1)
        return size - (self.gateway is not None and self.first <= self.gateway <= self.last)

    def __contains__(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        number = int(address)
        return isinstance(address, self.kind) and self.first <= number <= self.last and number != self.gateway

    def __iter__(self) -> Iterator[str]:
        return (str(self.kind(number)) for number in range(self.first, self.last + 1) if number != self.gateway)


def referenced_pools(config: Obj) -> tuple[str, ...]:
    """Names of the IPPools that a `vmNetworkConfig` or `loadBalancerConfig` refers to: `ipPoolRefs`, else `ipPoolRef`.

    IPPools are cluster-scoped: a namespace in a reference is a habit of users, not a place.
    """
    references = config.get("ipPoolRefs") or [config.get("ipPoolRef") or ""]
    bare = (str(reference).rpartition("/")[2] for reference in references)
    return tuple(dict.fromkeys(name for name in bare if name))


def holder(pool: Obj, address: str) -> str | None:
    """Return the id that holds `address`, None when it is free."""
    allocated: dict[str, str] = (pool.get("status") or {}).get("allocated") or {}
    return allocated.get(address)


def held(pool: Obj, identity: str, cluster: str) -> dict[str, bool]:
    """Addresses of an id that belong to no other management cluster; the value: whether it is marked for this one."""
    allocated: dict[str, str] = (pool.get("status") or {}).get("allocated") or {}
    found = {address: mark(pool, address) for address, current in allocated.items() if current == identity}
    return {address: bool(marked) for address, marked in found.items() if marked in ("", cluster)}


def mark(pool: Obj, address: str) -> str:
    """Short name of the management cluster that an entry is marked with, empty for an unmarked entry."""
    return annotations_of(pool).get(mark_name(address), "")


def mark_name(address: str) -> str:
    """Name of the annotation that marks an address."""
    # Names of annotations have no colons, and begin and end with a letter or digit.
    bare = ipaddress.ip_address(address).exploded.replace(":", "-") if ":" in address else address
    return f"{names.ADDRESS_HOLDER_PREFIX}{bare}"


def serves(pool: Obj, networks: Iterable[str]) -> bool:
    """Tell whether `pool` may serve a machine on `networks`: it names none of its own, or one of these.

    References are `<namespace>/<name>` or `<name>`; a name without namespace matches by name alone.
    """
    wanted: str = (pool.get("spec", {}).get("selector") or {}).get("network") or ""
    return not wanted or any(_same_network(wanted, network) for network in networks)


def _same_network(one: str, other: str) -> bool:
    one_namespace, _, one_name = one.rpartition("/")
    other_namespace, _, other_name = other.rpartition("/")
    if one_name != other_name:
        return False
    return not one_namespace or not other_namespace or one_namespace == other_namespace


def pool_capacity(pool: Obj) -> int:
    """Count the addresses that can be allocated, used or not. Raises InvalidPoolError."""
    return sum(part.size for part in ranges_of(pool))


def free_count(pool: Obj) -> int:
    """Count the unallocated addresses of the ranges. Raises InvalidPoolError."""
    ranges = ranges_of(pool)
    allocated = (pool.get("status") or {}).get("allocated") or {}
    return sum(part.size for part in ranges) - sum(in_ranges(ranges, address) for address in allocated)


def ranges_of(pool: Obj) -> list[Range]:
    """Return the usable addresses of each range. Raises InvalidPoolError."""
    specs: Sequence[Obj] = pool.get("spec", {}).get("ranges") or ()
    name = pool["metadata"]["name"]
    return [_range(spec, f"spec.ranges[{index}] of IPPool {name}") for index, spec in enumerate(specs)]


def in_ranges(ranges: Sequence[Range], address: str) -> bool:
    """Whether an address is in one of these ranges."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in part for part in ranges)


def _range(spec: Obj, where: str) -> Range:
    text = spec.get("subnet", "")
    try:
        subnet = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidPoolError(f"{where}: subnet {text!r} is not a network like 10.0.0.0/24") from None
    first, last = int(subnet.network_address), int(subnet.broadcast_address)
    gateway: int | None = None
    # Networks of one or two addresses are point-to-point links: they have no network and broadcast address.
    if subnet.num_addresses > 2:
        first += 1
        last -= subnet.version == 4
        gateway = first
    start = _bound(spec, "rangeStart", subnet, where, first)
    end = _bound(spec, "rangeEnd", subnet, where, last)
    # As Harvester does: swap bounds in the wrong order.
    low, high = min(start, end), max(start, end)
    if spec.get("gateway"):
        gateway = _bound(spec, "gateway", subnet, where, first)
    return Range(max(low, first), min(high, last), gateway, type(subnet.network_address))


def _bound(spec: Obj, key: str, subnet: ipaddress.IPv4Network | ipaddress.IPv6Network, where: str, default: int) -> int:
    text = spec.get(key)
    if not text:
        return default
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidPoolError(f"{where}: {key} {text!r} is not an IP address") from None
    if address not in subnet:
        raise InvalidPoolError(f"{where}: {key} {text} is not in the subnet {subnet}")
    return int(address)
