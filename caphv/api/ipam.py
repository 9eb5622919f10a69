"""Which addresses of Harvester's IPPools to give out and to take back, as plans of conditional writes.

Requests of many machines for one pool become one patch with a resourceVersion precondition: Harvester's load balancer
and others write the same object, so a write based on stale data must fail as a whole and be planned anew.
All addresses are strings in the form `ipaddress` prints. `status.available` is counted up and down, never recounted: so
does every other writer.

Ids are the Go provider's, `<namespace>/<name>`, and two management clusters may have machines of one such name. So each
entry that is made for a management cluster is marked with it, by an annotation of the pool that is written in the same
patch. Entries without a mark are the Go provider's, or made by hand. (Annotations of an object hold 256 KiB: 6,000
addresses of one pool.)
"""

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of


class InvalidPoolError(ValueError):
    """A range of an IPPool cannot be understood; the message names field and value."""


class Reason(Enum):
    """Why a request got no address."""

    EXHAUSTED = "exhausted"
    MISSING_POOL = "missing pool"
    INVALID_POOL = "invalid pool"
    NO_POOL = "no pool"
    """The request names no pool: none is configured, or none serves the machine's networks."""
    TAKEN = "taken"
    """The address the requester already uses is held by another id."""


@dataclass(frozen=True)
class AddressRequest:
    """One address for `id` (`<namespace>/<name>`) from the first of `pools` that has one.

    `address` is the one the requester is known to use already: it is reserved again when the pool has lost the entry,
    and no other is given in its place. `cluster` is a short name of the management cluster that asks, for the mark;
    empty for entries without. Entries of the id that have no mark are adopted unless `adopt` is false.
    """

    id: str
    pools: tuple[str, ...]
    address: str = ""
    cluster: str = ""
    adopt: bool = True


@dataclass(frozen=True)
class Grant:
    """An address and its pool; `adopted` when the pool already held it for the id, so nothing needs to be written."""

    pool: str
    address: str
    adopted: bool = False


@dataclass(frozen=True)
class Refusal:
    """Why there is no address, with a message for an operator."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class AllocationPlan:
    """Grants and refusals by request id, and a JSON merge patch for each pool that changes, by pool name."""

    grants: dict[str, Grant]
    refusals: dict[str, Refusal]
    patches: dict[str, Obj]


@dataclass(frozen=True)
class Release:
    """What a release does: the merge patch (None when nothing changes), and what became of each address."""

    patch: Obj | None
    released: tuple[str, ...]
    absent: tuple[str, ...]
    foreign: dict[str, str]
    """Addresses that someone else holds now, with the holder's id; they are left alone."""


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
    """Addresses under an id that are not another management cluster's; of each, whether it is marked for this one."""
    allocated: dict[str, str] = (pool.get("status") or {}).get("allocated") or {}
    found = {address: mark(pool, address) for address, current in allocated.items() if current == identity}
    return {address: bool(marked) for address, marked in found.items() if marked in ("", cluster)}


def mark(pool: Obj, address: str) -> str:
    """Short name of the management cluster that an entry was made for, empty when it does not say."""
    return annotations_of(pool).get(_mark_name(address), "")


def marking(pool: Obj, address: str, cluster: str) -> Obj:
    """Patch that marks an entry for another management cluster than before."""
    version = pool["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": {_mark_name(address): cluster}}}


def _mark_name(address: str) -> str:
    # Names of annotations have no colons, and begin and end with a letter or digit.
    bare = ipaddress.ip_address(address).exploded.replace(":", "-") if ":" in address else address
    return f"{names.ADDRESS_HOLDER_PREFIX}{bare}"


def pool_capacity(pool: Obj) -> int:
    """Count the addresses that can be given out, used or not. Raises InvalidPoolError."""
    return sum(part.size for part in _ranges(pool))


def free_count(pool: Obj) -> int:
    """Count the addresses of the ranges that nobody holds. Raises InvalidPoolError."""
    ranges = _ranges(pool)
    allocated = (pool.get("status") or {}).get("allocated") or {}
    return sum(part.size for part in ranges) - sum(_in_ranges(ranges, address) for address in allocated)


def plan_allocations(
    pools: Mapping[str, Obj], requests: Sequence[AddressRequest], excluded: Collection[str] = ()
) -> AllocationPlan:
    """Plan all `requests`, in order, against one state of `pools` (by name).

    An address the id holds in any of its pools is adopted; else it gets the one it had before; else the next free one
    of the first pool with any. `excluded` addresses are in use by somebody the pools may not know (VMs, load balancers
    in takeover) and are only kept, never newly given.
    """
    avoid = set(excluded)
    books: dict[str, _Book] = {}
    broken: dict[str, str] = {}
    for name in dict.fromkeys(name for request in requests for name in request.pools if name in pools):
        try:
            books[name] = _Book(pools[name], avoid)
        except InvalidPoolError as error:
            broken[name] = str(error)
    grants: dict[str, Grant] = {}
    refusals: dict[str, Refusal] = {}
    # Addresses in use first, lest another request of the plan is given one of them.
    for request in sorted(requests, key=lambda request: not request.address):
        if request.id in grants:
            continue
        outcome = _serve(request, [books[name] for name in request.pools if name in books])
        if isinstance(outcome, Grant):
            grants[request.id] = outcome
        else:
            refusals[request.id] = outcome or _refusal(request, books, broken)
    patches = {name: book.patch() for name, book in books.items() if book.added}
    return AllocationPlan(grants, refusals, patches)


def plan_releases(pool: Obj, entries: Iterable[tuple[str, str, str]]) -> Release:
    """Plan the return of `entries` (address, id, management cluster or empty).

    What that very id holds, and no other management cluster, is released and remembered as history.
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


class _Book:
    """One pool while a plan is made: who holds what, including what the plan has given away so far.

    `avoid` is shared by the books of a plan, so that pools which overlap do not give out one address twice.
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
        # One walk over the ranges serves all requests of the plan: what it has passed never becomes free again in it.
        self.walk = (address for part in self.ranges for address in part if self.free(address))

    def free(self, address: str) -> bool:
        return address not in self.allocated and address not in self.avoid

    def contains(self, address: str) -> bool:
        return _in_ranges(self.ranges, address)

    def previous(self, identity: str) -> str | None:
        known = self.before.get(identity, ())
        return next((address for address in known if self.free(address) and self.contains(address)), None)

    def adoptable(self, request: AddressRequest) -> str | None:
        """Address that the pool holds for the requester already."""
        usable = ("", request.cluster) if request.adopt else (request.cluster,)
        known = self.held.get(request.id, ())
        return next((a for a in known if not request.cluster or mark(self.pool, a) in usable), None)

    def give(self, address: str, request: AddressRequest) -> Grant:
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


def _serve(request: AddressRequest, books: Sequence[_Book]) -> Grant | Refusal | None:
    if request.address:
        return _keep(request, books)
    for book in books:
        if (address := book.adoptable(request)) is not None:
            return Grant(book.name, address, adopted=True)
    for book in books:
        if (address := book.previous(request.id)) is not None:
            return book.give(address, request)
    for book in books:
        if (address := next(book.walk, None)) is not None:
            return book.give(address, request)
    return None


def _keep(request: AddressRequest, books: Sequence[_Book]) -> Grant | Refusal | None:
    for book in books:
        current = book.allocated.get(request.address) or book.added.get(request.address)
        marked = mark(book.pool, request.address)
        if current == request.id and (not request.cluster or marked in ("", request.cluster)):
            return Grant(book.name, request.address, adopted=True)
        if current is not None:
            other = f" of management cluster {marked}" if current == request.id else ""
            return Refusal(
                Reason.TAKEN,
                f"address {request.address} of {request.id} is held by {current}{other} in IPPool {book.name}; "
                "find out which of the two really uses it and correct status.allocated of the pool",
            )
    for book in books:
        if book.contains(request.address):
            return book.give(request.address, request)
    return None


def _refusal(request: AddressRequest, books: Mapping[str, _Book], broken: Mapping[str, str]) -> Refusal:
    if not request.pools:
        return Refusal(
            Reason.NO_POOL, f"no IPPool serves {request.id}: name one in vmNetworkConfig.ipPoolRefs for its networks"
        )
    present = [name for name in request.pools if name in books]
    missing = [name for name in request.pools if name not in books and name not in broken]
    parts = []
    if present and request.address:
        parts.append(f"address {request.address} is in no range of IPPool {', '.join(present)}")
    elif present:
        parts.append(f"no free address in IPPool {', '.join(present)}: add a range or another pool to ipPoolRefs")
    if missing:
        parts.append(f"IPPool {', '.join(missing)} does not exist on Harvester")
    parts.extend(broken[name] for name in request.pools if name in broken)
    reason = Reason.EXHAUSTED if present else Reason.MISSING_POOL if missing else Reason.INVALID_POOL
    return Refusal(reason, "; ".join(parts))


def _patch(pool: Obj, *, allocated: Obj, history: Obj, change: int, last: str, marks: Obj) -> Obj:
    status = pool.get("status") or {}
    # A pool that Harvester has not counted yet lacks the fields which the CRD requires as soon as there is a status.
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
        metadata["annotations"] = {_mark_name(address): cluster for address, cluster in marks.items()}
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
    # Networks of one or two addresses are links between two points: they have no network and broadcast address.
    if subnet.num_addresses > 2:
        first += 1
        last -= subnet.version == 4
        gateway = first
    start = _bound(spec, "rangeStart", subnet, where, first)
    end = _bound(spec, "rangeEnd", subnet, where, last)
    # As Harvester does: bounds the wrong way round are swapped.
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
