"""Plans which addresses of Harvester's IPPools to allocate and release, as conditional writes.

Requests of many machines for one pool become one patch with a resourceVersion precondition. Harvester's load balancer
controller and others write the same object, so a write based on stale data must fail as a whole and be planned again.
Addresses are strings in the form that `ipaddress` prints. `status.available` is incremented and decremented, never
recounted, as every other writer does.

Ids are those of the Go provider, `<namespace>/<name>`, and two management clusters may have machines with the same id.
Therefore each entry is marked with its management cluster, by an annotation of the pool that is written in the same
patch. Entries without a mark were made by the Go provider or by hand. (Annotations of an object hold 256 KiB: 6,000
addresses per pool.)
"""

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of


class InvalidPoolError(ValueError):
    """A range of an IPPool is invalid; the message names field and value."""


class RefusalReason(Enum):
    """Why a request got no address."""

    EXHAUSTED = "exhausted"
    MISSING_POOL = "missing pool"
    INVALID_POOL = "invalid pool"
    NO_POOL = "no pool"
    """The request names no pool: none is configured, or no configured pool serves the machine's networks."""
    TAKEN = "taken"
    """The address the requester already uses is held by another id."""


@dataclass(frozen=True)
class AddressRequest:
    """One address for `id` (`<namespace>/<name>`) from the first of `pools` that has one.

    `address` is the one that the requester already uses: it is reserved again if the pool has lost the entry, and no
    other address is allocated instead. `cluster` is a short name of the requesting management cluster, for the mark;
    empty for no mark. Entries of the id without a mark are adopted unless `adopt` is false.
    """

    id: str
    pools: tuple[str, ...]
    address: str = ""
    cluster: str = ""
    adopt: bool = True


@dataclass(frozen=True)
class Grant:
    """An address and its pool; `adopted` if the pool already had it for the id, so that nothing needs to be written."""

    pool: str
    address: str
    adopted: bool = False


@dataclass(frozen=True)
class Refusal:
    """Why there is no address, with a message for the user."""

    reason: RefusalReason
    message: str


@dataclass(frozen=True)
class AllocationPlan:
    """Grants and refusals by request id, and one JSON merge patch per changed pool, by pool name."""

    grants: dict[str, Grant]
    refusals: dict[str, Refusal]
    patches: dict[str, Obj]


@dataclass(frozen=True)
class Release:
    """Merge patch of a release (None if nothing changes), and the outcome for each address."""

    patch: Obj | None
    released: tuple[str, ...]
    absent: tuple[str, ...]
    foreign: dict[str, str]
    """Addresses that another id holds now, with that id; they stay allocated."""


@dataclass(frozen=True)
class _Range:
    """Usable addresses from `first` to `last` (as numbers, both included) without the gateway."""

    first: int
    last: int
    gateway: int | None
    kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]

    @property
    def size(self) -> int:
        size = max(0, self.last - self.first + 1)
        return size - (self.gateway is not None and self.first <= self.gateway <= self.last)

    def __contains__(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        number = int(address)
        return isinstance(address, self.kind) and self.first <= number <= self.last and number != self.gateway

    def __iter__(self) -> Iterator[str]:
        return (str(self.kind(number)) for number in range(self.first, self.last + 1) if number != self.gateway)


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


def marking(pool: Obj, address: str, cluster: str) -> Obj:
    """Patch that marks an entry with another management cluster."""
    version = pool["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": {mark_name(address): cluster}}}


def mark_name(address: str) -> str:
    """Name of the annotation that marks an address."""
    # Names of annotations have no colons, and begin and end with a letter or digit.
    bare = ipaddress.ip_address(address).exploded.replace(":", "-") if ":" in address else address
    return f"{names.ADDRESS_HOLDER_PREFIX}{bare}"


def pool_capacity(pool: Obj) -> int:
    """Count the addresses that can be allocated, used or not. Raises InvalidPoolError."""
    return sum(part.size for part in _ranges(pool))


def free_count(pool: Obj) -> int:
    """Count the unallocated addresses of the ranges. Raises InvalidPoolError."""
    ranges = _ranges(pool)
    allocated = (pool.get("status") or {}).get("allocated") or {}
    return sum(part.size for part in ranges) - sum(_in_ranges(ranges, address) for address in allocated)


def plan_allocations(
    pools: Mapping[str, Obj], requests: Sequence[AddressRequest], excluded: Collection[str] = ()
) -> AllocationPlan:
    """Plan all `requests`, in order, against one state of `pools` (by name).

    An id keeps the address that it holds in one of its pools; else it gets the one that it had before; else the next
    free one of the first pool that has one. `excluded` addresses are in use without the pools knowing it (VMs, load
    balancers during takeover): they may be kept, but are never newly allocated.
    """
    avoid = set(excluded)
    planned: dict[str, _PoolPlan] = {}
    invalid: dict[str, str] = {}
    for name in dict.fromkeys(name for request in requests for name in request.pools if name in pools):
        try:
            planned[name] = _PoolPlan(pools[name], avoid)
        except InvalidPoolError as error:
            invalid[name] = str(error)
    grants: dict[str, Grant] = {}
    refusals: dict[str, Refusal] = {}
    # Addresses in use first, so that no other request of the plan gets one of them.
    for request in sorted(requests, key=lambda request: not request.address):
        if request.id in grants:
            continue
        outcome = _allocate(request, [planned[name] for name in request.pools if name in planned])
        if isinstance(outcome, Grant):
            grants[request.id] = outcome
        else:
            refusals[request.id] = outcome or _refusal(request, planned, invalid)
    patches = {name: pool.patch() for name, pool in planned.items() if pool.added}
    return AllocationPlan(grants, refusals, patches)


def plan_releases(pool: Obj, entries: Iterable[tuple[str, str, str]]) -> Release:
    """Plan the release of `entries` (address, id, management cluster or empty).

    Only addresses that this id of this management cluster holds are released; they become history.
    """
    status = pool.get("status") or {}
    allocated: dict[str, str] = status.get("allocated") or {}
    released: dict[str, str] = {}
    absent: list[str] = []
    foreign: dict[str, str] = {}
    for address, identity, cluster in entries:
        current = allocated.get(address)
        if current is None:
            absent.append(address)
        elif current == identity and (not cluster or mark(pool, address) in ("", cluster)):
            released[address] = identity
        else:
            foreign[address] = current
    patch = None
    if released:
        patch = _patch(
            pool,
            allocated=dict.fromkeys(released),
            history=dict(released),
            change=len(released),
            last=status.get("lastAllocated") or "",
            marks={address: None for address in released if mark(pool, address)},
        )
    return Release(patch, tuple(released), tuple(absent), foreign)


class _PoolPlan:
    """One pool during planning: who holds which address, including what the plan has allocated so far.

    All pools of a plan share `avoid`, so that overlapping pools never allocate one address twice.
    """

    def __init__(self, pool: Obj, avoid: set[str]) -> None:
        status = pool.get("status") or {}
        self.pool = pool
        self.name: str = pool["metadata"]["name"]
        self.avoid = avoid
        self.allocated: dict[str, str] = status.get("allocated") or {}
        self.history: dict[str, str] = status.get("allocatedHistory") or {}
        self.added: dict[str, str] = {}
        self.marks: dict[str, str | None] = {}
        self.ranges = _ranges(pool)
        self.held: dict[str, list[str]] = {}
        for address, identity in self.allocated.items():
            self.held.setdefault(identity, []).append(address)
        self.before: dict[str, list[str]] = {}
        for address, identity in self.history.items():
            self.before.setdefault(identity, []).append(address)
        # One iteration over the ranges serves all requests: during a plan no address becomes free again.
        self.next_free = (address for part in self.ranges for address in part if self.free(address))

    def free(self, address: str) -> bool:
        return address not in self.allocated and address not in self.avoid

    def contains(self, address: str) -> bool:
        return _in_ranges(self.ranges, address)

    def previous(self, identity: str) -> str | None:
        known = self.before.get(identity, ())
        return next((address for address in known if self.free(address) and self.contains(address)), None)

    def adoptable(self, request: AddressRequest) -> str | None:
        """Address that the pool already holds for the requester."""
        usable = ("", request.cluster) if request.adopt else (request.cluster,)
        known = self.held.get(request.id, ())
        return next((a for a in known if not request.cluster or mark(self.pool, a) in usable), None)

    def allocate(self, address: str, request: AddressRequest) -> Grant:
        self.added[address] = request.id
        self.avoid.add(address)
        if request.cluster or mark(self.pool, address):
            self.marks[address] = request.cluster or None
        return Grant(self.name, address)

    def patch(self) -> Obj:
        return _patch(
            self.pool,
            allocated=dict(self.added),
            history={address: None for address in self.added if address in self.history},
            change=-len(self.added),
            last=next(reversed(self.added)),
            marks=self.marks,
        )


def _allocate(request: AddressRequest, pools: Sequence[_PoolPlan]) -> Grant | Refusal | None:
    if request.address:
        return _keep(request, pools)
    for pool in pools:
        if (address := pool.adoptable(request)) is not None:
            return Grant(pool.name, address, adopted=True)
    for pool in pools:
        if (address := pool.previous(request.id)) is not None:
            return pool.allocate(address, request)
    for pool in pools:
        if (address := next(pool.next_free, None)) is not None:
            return pool.allocate(address, request)
    return None


def _keep(request: AddressRequest, pools: Sequence[_PoolPlan]) -> Grant | Refusal | None:
    for pool in pools:
        current = pool.allocated.get(request.address) or pool.added.get(request.address)
        marked = mark(pool.pool, request.address)
        if current == request.id and (not request.cluster or marked in ("", request.cluster)):
            return Grant(pool.name, request.address, adopted=True)
        if current is not None:
            other = f" of management cluster {marked}" if current == request.id else ""
            return Refusal(
                RefusalReason.TAKEN,
                f"address {request.address} of {request.id} is held by {current}{other} in IPPool {pool.name}; "
                "find out which of them uses it, and correct status.allocated of the pool",
            )
    for pool in pools:
        if pool.contains(request.address):
            return pool.allocate(request.address, request)
    return None


def _refusal(request: AddressRequest, pools: Mapping[str, _PoolPlan], invalid: Mapping[str, str]) -> Refusal:
    if not request.pools:
        return Refusal(
            RefusalReason.NO_POOL,
            f"no IPPool serves {request.id}: add one that serves its networks to vmNetworkConfig.ipPoolRefs",
        )
    present = [name for name in request.pools if name in pools]
    missing = [name for name in request.pools if name not in pools and name not in invalid]
    parts = []
    if present and request.address:
        parts.append(f"address {request.address} is in no range of IPPool {', '.join(present)}")
    elif present:
        parts.append(f"no free address in IPPool {', '.join(present)}: add a range or another pool to ipPoolRefs")
    if missing:
        parts.append(f"IPPool {', '.join(missing)} does not exist on Harvester")
    parts.extend(invalid[name] for name in request.pools if name in invalid)
    reason = _reason(present, missing)
    return Refusal(reason, "; ".join(parts))


def _reason(present: Sequence[str], missing: Sequence[str]) -> RefusalReason:
    if present:
        return RefusalReason.EXHAUSTED
    return RefusalReason.MISSING_POOL if missing else RefusalReason.INVALID_POOL


def _patch(pool: Obj, *, allocated: Obj, history: Obj, change: int, last: str, marks: Obj) -> Obj:
    status = pool.get("status") or {}
    # The CRD requires these fields as soon as there is a status; a pool that Harvester has not counted lacks them.
    available = status.get("available")
    total = status.get("total")
    changed: Obj = {
        "allocated": allocated,
        "available": (free_count(pool) if available is None else available) + change,
        "total": pool_capacity(pool) if total is None else total,
        "lastAllocated": last,
    }
    if history:
        changed["allocatedHistory"] = history
    metadata: Obj = {"resourceVersion": pool["metadata"]["resourceVersion"]}
    if marks:
        metadata["annotations"] = {mark_name(address): cluster for address, cluster in marks.items()}
    return {"metadata": metadata, "status": changed}


def _in_ranges(ranges: Sequence[_Range], address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in part for part in ranges)


def _ranges(pool: Obj) -> list[_Range]:
    specs: Sequence[Obj] = pool.get("spec", {}).get("ranges") or ()
    name = pool["metadata"]["name"]
    return [_range(spec, f"spec.ranges[{index}] of IPPool {name}") for index, spec in enumerate(specs)]


def _range(spec: Obj, where: str) -> _Range:
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
    return _Range(max(low, first), min(high, last), gateway, type(subnet.network_address))


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
