"""Read Harvester's IPPools: their addresses, which of them are free, and who holds an address.

Addresses are strings in the form that `ipaddress` prints. Ids have the form of the Go provider,
`<namespace>/<name>`, and two management clusters may have machines with the same id. Therefore an
annotation of the pool marks each entry with its management cluster. Entries without a mark come
from the Go provider, or from a user. Addresses that the settings of single interfaces ask for have
ids of their own, `<namespace>/<name>.<interface>-<entry>`, so that each is kept and released alone.

A hostile server may put anything into a pool. Ranges that cannot be read raise `InvalidPoolError`.
An entry of `status.allocated` that is not a string is ignored, so that a machine can be deleted
whatever its pool contains.
"""

import ipaddress
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from caphv.api import names
from caphv.api.object import Obj, annotations_of, at

_MAX_RANGES = 256
# No VM has a name with a dot, because it is the name of its host, too.
_INTERFACE = re.compile(r"\.[0-9]{1,2}-[0-9]{1,2}$")
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
        """Return the number of addresses."""
        size = max(0, self.last - self.first + 1)
        return size - (self.gateway is not None and self.first <= self.gateway <= self.last)

    def count(self, numbers: Sequence[int]) -> int:
        """Return how many of these sorted numbers are addresses of the range."""
        within = numbers[bisect_left(numbers, self.first) : bisect_right(numbers, self.last)]
        return len(within) - (self.gateway in within)

    def __contains__(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        number = int(address)
        return (
            isinstance(address, self.kind)
            and self.first <= number <= self.last
            and number != self.gateway
        )

    def __iter__(self) -> Iterator[str]:
        return (
            str(self.kind(number))
            for number in range(self.first, self.last + 1)
            if number != self.gateway
        )


def referenced_pools(config: Obj) -> tuple[str, ...]:
    """Return the names of the IPPools in a `vmNetworkConfig` or `loadBalancerConfig`.

    `ipPoolRefs` overrides `ipPoolRef`. A namespace in a reference is ignored, because IPPools are
    cluster-scoped.
    """
    references = config.get("ipPoolRefs") or [config.get("ipPoolRef") or ""]
    bare = (str(reference).rpartition("/")[2] for reference in references)
    return tuple(dict.fromkeys(name for name in bare if name))


def interface_holder(machine: str, interface: int, entry: int) -> str:
    """Return the id under which a pool holds an address of an interface.

    :param machine: id of the machine
    :param interface: number of the interface, from 0
    :param entry: number of the pool in the settings of the interface, from 0
    """
    return f"{machine}.{interface}-{entry}"


def machine_holder(holder: str) -> str:
    """Return the id of the machine that has an address of an interface; other ids as they are."""
    return _INTERFACE.sub("", holder)


def allocated(pool: Obj) -> dict[str, str]:
    """Return the holders of the allocated addresses, by address."""
    return _texts(at(pool, "status", "allocated"))


def allocated_before(pool: Obj) -> dict[str, str]:
    """Return the last holders of formerly allocated addresses, by address."""
    return _texts(at(pool, "status", "allocatedHistory"))


def held(pool: Obj, identity: str, cluster: str) -> dict[str, bool]:
    """Return the addresses of an id that belong to no other management cluster.

    The values tell whether the address is marked for this management cluster.
    """
    addresses: dict[str, bool] = {}
    for address, holder in allocated(pool).items():
        if holder != identity:
            continue
        marked_for = mark(pool, address)
        if marked_for in ("", cluster):
            addresses[address] = bool(marked_for)
    return addresses


class MachineEntry(NamedTuple):
    """An entry of a machine: its id, and whether it is marked for this management cluster."""

    holder: str
    is_marked: bool


def held_by_machine(pool: Obj, machine: str, cluster: str) -> dict[str, MachineEntry]:
    """Return the entries of a machine by address, those of single interfaces included.

    As with `held`, entries of other management clusters are left out.
    """
    addresses: dict[str, MachineEntry] = {}
    for address, holder in allocated(pool).items():
        # Most entries belong to other machines, which the prefix tells faster.
        if not holder.startswith(machine) or machine_holder(holder) != machine:
            continue
        marked_for = mark(pool, address)
        if marked_for in ("", cluster):
            addresses[address] = MachineEntry(holder, bool(marked_for))
    return addresses


class Subnet(NamedTuple):
    """Prefix length and gateway of a subnet; 0 and an empty text for no subnet."""

    prefix_length: int
    gateway: str


def subnet_of(pool: Obj, address: str) -> Subnet:
    """Return the subnet that an address is in. Raises InvalidPoolError.

    The gateway is empty unless the range names it: Harvester keeps the first address of a subnet
    free, whether or not a router has it.
    """
    parsed = _address(address)
    # This validates all ranges, even those after the subnet.
    ranges_of(pool)
    specs = at(pool, "spec", "ranges") or ()
    for index, spec in enumerate(specs):
        subnet = ipaddress.ip_network(spec["subnet"], strict=False)
        part = _range(spec, f"spec.ranges[{index}] of IPPool {pool['metadata']['name']}")
        if parsed is not None and parsed in part:
            return Subnet(subnet.prefixlen, str(spec.get("gateway") or ""))
    return Subnet(0, "")


def holds(pool: Obj, address: str, identity: str, cluster: str) -> bool:
    """Return whether `held` has this address, without reading all entries of the pool."""
    is_holder = at(pool, "status", "allocated", address) == identity
    return is_holder and mark(pool, address) in ("", cluster)


def mark(pool: Obj, address: str) -> str:
    """Return the short name of the management cluster in the mark of an entry, empty for none."""
    value = annotations_of(pool).get(mark_name(address))
    return value if isinstance(value, str) else ""


def mark_name(address: str) -> str:
    """Return the name of the annotation that marks an address."""
    # Replace colons, because names of annotations have none. Expand IPv6 addresses, because the
    # names begin and end with a letter or digit.
    parsed = _address(address) if ":" in address else None
    text = parsed.exploded if parsed else address
    return names.ADDRESS_HOLDER_PREFIX + text.replace(":", "-")


def serves(pool: Obj, networks: Iterable[str]) -> bool:
    """Return whether a pool names no network or one of these networks of a machine.

    References are `<namespace>/<name>` or `<name>`. Without a namespace, only the name counts.
    """
    pool_network = _texts(at(pool, "spec", "selector")).get("network")
    return not pool_network or any(_same_network(pool_network, network) for network in networks)


def _same_network(first: str, second: str) -> bool:
    first_namespace, _, first_name = first.rpartition("/")
    second_namespace, _, second_name = second.rpartition("/")
    if first_name != second_name:
        return False
    return not first_namespace or not second_namespace or first_namespace == second_namespace


def pool_capacity(pool: Obj) -> int:
    """Count the addresses in the ranges, allocated or not. Raises InvalidPoolError."""
    return sum(part.size for part in ranges_of(pool))


def only_address(pool: Obj) -> str:
    """Return the address of a pool that has no other one; empty for other pools."""
    try:
        ranges = ranges_of(pool)
    except InvalidPoolError:
        return ""
    if sum(part.size for part in ranges) != 1:
        return ""
    return next(address for part in ranges for address in part)


def free_count(pool: Obj) -> int:
    """Count the unallocated addresses of the ranges. Raises InvalidPoolError."""
    addresses = [address for text in allocated(pool) if (address := _address(text))]
    numbers = {
        kind: sorted({int(address) for address in addresses if isinstance(address, kind)})
        for kind in _KINDS
    }
    return sum(part.size - part.count(numbers[part.kind]) for part in ranges_of(pool))


def ranges_of(pool: Obj) -> list[Range]:
    """Return ranges with the usable addresses in the order of the spec, without overlaps.

    Raises InvalidPoolError.
    """
    specs = at(pool, "spec", "ranges") or ()
    name = pool["metadata"]["name"]
    if not isinstance(specs, list | tuple):
        raise InvalidPoolError(f"spec.ranges of IPPool {name} is not a list")
    if len(specs) > _MAX_RANGES:
        raise InvalidPoolError(f"IPPool {name} has more than {_MAX_RANGES} ranges")

    ranges: list[Range] = []
    for index, spec in enumerate(specs):
        parts = [_range(spec, f"spec.ranges[{index}] of IPPool {name}")]
        for earlier in ranges:
            parts = [piece for part in parts for piece in _without(part, earlier)]
        ranges += parts
    return ranges


def contains(pool: Obj, address: str) -> bool:
    """Return whether an address is in the ranges of a pool. An invalid pool has no ranges."""
    try:
        return in_ranges(ranges_of(pool), address)
    except InvalidPoolError:
        return False


def in_ranges(ranges: Sequence[Range], address: str) -> bool:
    """Return whether an address is in one of these ranges."""
    parsed = _address(address)
    return parsed is not None and any(parsed in part for part in ranges)


def contradictions(pool: Obj, gateway: str, mask: str) -> dict[str, str]:
    """Return how a gateway and a mask of machines contradict the subnets of a pool.

    The keys are `gateway` and `subnetMask`. A VM with an address of the pool and another mask or
    gateway reaches no other network, so that its machine waits forever. Returns nothing for pools
    with invalid ranges or IPv6.
    """
    subnets: list[ipaddress.IPv4Network] = []
    ranges = at(pool, "spec", "ranges")
    for spec in ranges if isinstance(ranges, list) else ():
        try:
            subnets.append(ipaddress.IPv4Network(str(spec.get("subnet") or ""), strict=False))
        except (AttributeError, ValueError):
            return {}

    problems: dict[str, str] = {}
    masks = sorted({str(subnet.netmask) for subnet in subnets})
    name = pool["metadata"]["name"]
    if mask and masks and mask not in masks:
        problems["subnetMask"] = f"the subnets of IPPool {name} have mask {', '.join(masks)}"

    address = _address(gateway)
    if address is not None and subnets and not any(address in subnet for subnet in subnets):
        texts = ", ".join(map(str, subnets))
        problems["gateway"] = f"it is in no subnet of IPPool {name}: {texts}"
    return problems


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _texts(value: Any) -> dict[str, str]:
    """Return the entries of a JSON object that are strings."""
    items = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in items if isinstance(text, str)}


def _without(part: Range, other: Range) -> list[Range]:
    """Return the parts of a range that another range does not cover."""
    if part.kind is not other.kind or part.last < other.first or other.last < part.first:
        return [part]
    pieces = [replace(part, last=other.first - 1), replace(part, first=other.last + 1)]
    return [piece for piece in pieces if piece.first <= piece.last]


def _range(spec: Any, where: str) -> Range:
    """Return the usable addresses of a range of a spec. Raises InvalidPoolError."""
    if not isinstance(spec, dict):
        raise InvalidPoolError(f"{where} is not an object")
    text = _text(spec, "subnet", where)
    try:
        subnet = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidPoolError(
            f"{where}: subnet {text!r} is not a network like 10.0.0.0/24"
        ) from None

    # Networks of one or two addresses are point-to-point links without network and broadcast
    # address.
    first = int(subnet.network_address)
    last = int(subnet.broadcast_address)
    gateway: int | None = None
    if subnet.num_addresses > 2:
        first += 1
        last -= subnet.version == 4
        gateway = first

    # Swap bounds in the wrong order, as Harvester does.
    start = _bound(spec, "rangeStart", subnet, where, first)
    end = _bound(spec, "rangeEnd", subnet, where, last)
    low = min(start, end)
    high = max(start, end)
    if spec.get("gateway"):
        gateway = _bound(spec, "gateway", subnet, where, first)
    return Range(max(low, first), min(high, last), gateway, type(subnet.network_address))


def _bound(
    spec: Obj,
    key: str,
    subnet: ipaddress.IPv4Network | ipaddress.IPv6Network,
    where: str,
    default: int,
) -> int:
    """Return the address in a field of a range as a number. Raises InvalidPoolError.

    :param subnet: network that must contain the address
    :param where: path of the range for messages
    :param default: the number if the field is missing
    """
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
    """Return the text in a field of a range, empty for none. Raises InvalidPoolError.

    A number is refused, because its author does not mean the address that `ipaddress` reads from
    it.
    """
    value = spec.get(key) or ""
    if not isinstance(value, str):
        raise InvalidPoolError(f"{where}: {key} is not a string")
    return value
