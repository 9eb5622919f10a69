"""Harvester's IPPools: which addresses a pool has, which of them are free, and who holds an address.

Addresses are strings in the form that `ipaddress` prints. Ids are those of the Go provider, `<namespace>/<name>`, and
two management clusters may have machines with the same id. Therefore each entry is marked with its management cluster,
by an annotation of the pool. Entries without a mark were made by the Go provider or by hand.

A hostile server may put anything into a pool. Ranges that cannot be read are an `InvalidPoolError`. An entry of
`status.allocated` that is not a string holds nothing, so that a machine can be deleted whatever its pool contains.
"""

import ipaddress
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, annotations_of

_MAX_RANGES = 256
_KINDS = (ipaddress.IPv4Address, ipaddress.IPv6Address)


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

    def count(self, numbers: Sequence[int]) -> int:
        """How many of these sorted numbers are addresses of the range."""
        known = numbers[bisect_left(numbers, self.first) : bisect_right(numbers, self.last)]
        return len(known) - (self.gateway in known)

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


def allocated(pool: Obj) -> dict[str, str]:
    """Ids by the address that they hold."""
    return _texts((pool.get("status") or {}).get("allocated"))


def allocated_before(pool: Obj) -> dict[str, str]:
    """Ids by the address that they held last."""
    return _texts((pool.get("status") or {}).get("allocatedHistory"))


def held(pool: Obj, identity: str, cluster: str) -> dict[str, bool]:
    """Addresses of an id that belong to no other management cluster; the value: whether it is marked for this one."""
    found = {address: mark(pool, address) for address, current in allocated(pool).items() if current == identity}
    return {address: bool(marked) for address, marked in found.items() if marked in ("", cluster)}


def mark(pool: Obj, address: str) -> str:
    """Short name of the management cluster that an entry is marked with, empty for an unmarked entry."""
    marked = annotations_of(pool).get(mark_name(address))
    return marked if isinstance(marked, str) else ""


def mark_name(address: str) -> str:
    """Name of the annotation that marks an address."""
    # Names of annotations have no colons, and begin and end with a letter or digit.
    parsed = _address(address) if ":" in address else None
    return f"{names.ADDRESS_HOLDER_PREFIX}{(parsed.exploded if parsed else address).replace(':', '-')}"


def serves(pool: Obj, networks: Iterable[str]) -> bool:
    """Return whether `pool` may serve a machine on `networks`: it names none of its own, or one of these.

    References are `<namespace>/<name>` or `<name>`; a name without namespace matches by name alone.
    """
    wanted = _texts((pool.get("spec") or {}).get("selector")).get("network")
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
    parsed = [address for text in allocated(pool) if (address := _address(text))]
    taken = {kind: sorted({int(one) for one in parsed if isinstance(one, kind)}) for kind in _KINDS}
    return sum(part.size - part.count(taken[part.kind]) for part in ranges_of(pool))


def ranges_of(pool: Obj) -> list[Range]:
    """Return the usable addresses, each in one range only, in the order of the spec. Raises InvalidPoolError."""
    specs, name = (pool.get("spec") or {}).get("ranges") or (), pool["metadata"]["name"]
    if not isinstance(specs, list | tuple):
        raise InvalidPoolError(f"spec.ranges of IPPool {name} is not a list")
    if len(specs) > _MAX_RANGES:
        raise InvalidPoolError(f"IPPool {name} has more than {_MAX_RANGES} ranges")
    found: list[Range] = []
    for index, spec in enumerate(specs):
        parts = [_range(spec, f"spec.ranges[{index}] of IPPool {name}")]
        for known in found:
            parts = [piece for part in parts for piece in _without(part, known)]
        found += parts
    return found


def contains(pool: Obj, address: str) -> bool:
    """Whether an address is in the ranges of a pool; an invalid pool has no ranges."""
    try:
        return in_ranges(ranges_of(pool), address)
    except InvalidPoolError:
        return False


def in_ranges(ranges: Sequence[Range], address: str) -> bool:
    """Whether an address is in one of these ranges."""
    parsed = _address(address)
    return parsed is not None and any(parsed in part for part in ranges)


def contradictions(pool: Obj, gateway: str, mask: str) -> dict[str, str]:
    """Return how a gateway and a mask of machines contradict the subnets of a pool, by `gateway` and `subnetMask`.

    A VM with an address of the pool and another mask or gateway reaches no other network: its machine waits forever.
    Pools whose ranges are invalid, and those of IPv6, contradict nothing here.
    """
    subnets: list[ipaddress.IPv4Network] = []
    ranges = (pool.get("spec") or {}).get("ranges")
    for spec in ranges if isinstance(ranges, list) else ():
        try:
            subnets.append(ipaddress.IPv4Network(str(spec.get("subnet") or ""), strict=False))
        except (AttributeError, ValueError):
            return {}

    found: dict[str, str] = {}
    masks = sorted({str(subnet.netmask) for subnet in subnets})
    name = pool["metadata"]["name"]
    if mask and masks and mask not in masks:
        found["subnetMask"] = f"the subnets of IPPool {name} have mask {', '.join(masks)}"

    address = _address(gateway)
    if address is not None and subnets and not any(address in subnet for subnet in subnets):
        found["gateway"] = f"it is in no subnet of IPPool {name}: {', '.join(map(str, subnets))}"
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _texts(value: Any) -> dict[str, str]:
    """The entries of a JSON object that are strings."""
    items = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in items if isinstance(text, str)}


def _without(part: Range, known: Range) -> list[Range]:
    """What is left of a range without another one."""
    if part.kind is not known.kind or part.last < known.first or known.last < part.first:
        return [part]
    pieces = [replace(part, last=known.first - 1), replace(part, first=known.last + 1)]
    return [piece for piece in pieces if piece.first <= piece.last]


def _range(spec: Any, where: str) -> Range:
    if not isinstance(spec, dict):
        raise InvalidPoolError(f"{where} is not an object")
    text = _text(spec, "subnet", where)
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
    text = _text(spec, key, where)
    if not text:
        return default
    address = _address(text)
    if address is None:
        raise InvalidPoolError(f"{where}: {key} {text!r} is not an IP address")
    if address not in subnet:
        raise InvalidPoolError(f"{where}: {key} {text} is not in the subnet {subnet}")
    return int(address)


def _text(spec: Obj, key: str, where: str) -> str:
    """A field of a range, empty for none. A number is not meant as the address that `ipaddress` would read."""
    value = spec.get(key) or ""
    if not isinstance(value, str):
        raise InvalidPoolError(f"{where}: {key} is not a string")
    return value
