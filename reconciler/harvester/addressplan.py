"""Plan which addresses of Harvester's IPPools to allocate and release, as conditional writes.

Requests of many machines for one pool become one patch with a resourceVersion precondition.
Harvester's load balancer controller and others write the same object, so a write based on stale
data must fail as a whole and be planned again. `status.available` is incremented and decremented,
never recounted, because every other writer does so.

Harvester's load balancer controller requests an address by id, and the pool's history decides which
one it gets (`Get` in `pkg/ipam/allocator.go` of load-balancer-harvester). The controller gets the
address that the history has for the id, even if the pool already reserves it for the id. It takes a
reservation without history for a duplicate. Harvester 1.4 then fails permanently, and Harvester 1.5
and later release the address before they request one again. Therefore an address for a load
balancer is written into both the reservations and the history.

Each entry is marked with its management cluster, by an annotation in the same patch; see
`caphv.api.ippool`. The annotations of an object may take 256 KiB, enough for 6,000 addresses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from caphv.api import ippool
from caphv.api.ippool import InvalidPoolError, in_ranges, mark, ranges_of
from caphv.api.object import Obj, at
from reconciler.harvester.poolpatch import entries_patch

# A message lists at most so many addresses.
_SHOWN = 3


class RefusalReason(Enum):
    """Why a request got no address."""

    EXHAUSTED = "exhausted"
    MISSING_POOL = "missing pool"
    INVALID_POOL = "invalid pool"
    NO_POOL = "no pool"
    """The request names no pool.

    None is configured, or no configured pool serves the machine's networks.
    """
    TAKEN = "taken"
    """Another id holds the address that the requester already uses."""


@dataclass(frozen=True)
class AddressRequest:
    """A request for one address.

    :param id: holder of the address, `<namespace>/<name>`
    :param pools: names of IPPools; the first one with a free address serves the request
    :param address: the address that the requester already uses. If the pool has lost the entry, it
        reserves this address again and allocates no other one
    :param cluster: short name of the requesting management cluster, for the mark; empty for no mark
    :param adopt: whether entries of the id without a mark belong to the requester
    :param load_balancer: whether a LoadBalancer requests the address, so that Harvester's
        controller must be able to take it over
    """

    id: str
    pools: tuple[str, ...]
    address: str = ""
    cluster: str = ""
    adopt: bool = True
    load_balancer: bool = False


@dataclass(frozen=True)
class Grant:
    """An address and its pool; `adopted` if the pool already held the address for the id."""

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
    """Grants and refusals by request id, and a merge patch for each pool that changes, by name."""

    grants: dict[str, Grant]
    refusals: dict[str, Refusal]
    patches: dict[str, Obj]


class ReleaseEntry(NamedTuple):
    """An address to release.

    :param holder: the id that must hold the address
    :param cluster: the management cluster that must have marked the address; empty for any
    """

    address: str
    holder: str
    cluster: str


@dataclass(frozen=True)
class Release:
    """The merge patch of a release (None if nothing changes) and the outcome for each address."""

    patch: Obj | None
    released: tuple[str, ...]
    absent: tuple[str, ...]
    foreign: dict[str, str]
    """Addresses that another id holds now, with that id; they stay allocated."""


def plan_allocations(
    pools: Mapping[str, Obj],
    requests: Sequence[AddressRequest],
    in_use: Callable[[str], bool] = lambda _: False,
) -> AllocationPlan:
    """Plan all requests, in order, against one state of the pools.

    An id keeps the address that it holds in one of its pools. Otherwise it gets the address that it
    had before, or else the next free address of the first pool that has one.

    :param pools: IPPools by name
    :param in_use: returns whether an object (a VM, or a load balancer during a takeover) has an
        address, whatever the pools say. Its holder may keep the address, but no other id gets it
    """
    # All pools share this set, because their ranges may overlap.
    avoid: set[str] = set()
    planned: dict[str, _PoolPlan] = {}
    invalid: dict[str, str] = {}
    requested = [name for request in requests for name in request.pools]
    for name in dict.fromkeys(requested):
        if name not in pools:
            continue
        try:
            planned[name] = _PoolPlan(pools[name], avoid, in_use)
        except InvalidPoolError as error:
            invalid[name] = str(error)

    grants: dict[str, Grant] = {}
    refusals: dict[str, Refusal] = {}
    # Requests for an address in use come first, so that no other request of the plan gets it.
    for request in sorted(requests, key=lambda request: not request.address):
        if request.id in grants:
            continue
        outcome = _allocate(request, [planned[name] for name in request.pools if name in planned])
        if isinstance(outcome, Grant):
            grants[request.id] = outcome
        else:
            refusals[request.id] = outcome or _refusal(request, planned, invalid)

    patches = {name: pool.patch() for name, pool in planned.items() if pool.added or pool.offered}
    return AllocationPlan(grants, refusals, patches)


def plan_releases(pool: Obj, entries: Iterable[ReleaseEntry]) -> Release:
    """Plan the release of entries of a pool. The history keeps released addresses."""
    allocated = ippool.allocated(pool)
    released: dict[str, str] = {}
    absent: list[str] = []
    foreign: dict[str, str] = {}
    for address, holder, cluster in entries:
        present_holder = allocated.get(address)
        if present_holder is None:
            absent.append(address)
        elif present_holder == holder and (not cluster or mark(pool, address) in ("", cluster)):
            released[address] = holder
        else:
            foreign[address] = present_holder

    patch = None
    if released:
        patch = entries_patch(
            pool,
            allocated=dict.fromkeys(released),
            history=dict(released),
            change=len(released),
            last=at(pool, "status", "lastAllocated") or "",
            marks={address: None for address in released if mark(pool, address)},
        )
    return Release(patch, tuple(released), tuple(absent), foreign)


class _PoolPlan:
    """One pool during planning: who holds which address, including allocations of the plan.

    All pools of a plan share `avoid`, so that overlapping pools never allocate one address twice.
    """

    def __init__(self, pool: Obj, avoid: set[str], in_use: Callable[[str], bool]) -> None:
        self.pool = pool
        self.name: str = pool["metadata"]["name"]
        self.avoid = avoid
        self.in_use = in_use
        self.allocated = ippool.allocated(pool)
        self.history = ippool.allocated_before(pool)
        self.added: dict[str, str] = {}
        self.offered: dict[str, str | None] = {}
        self.marks: dict[str, str | None] = {}
        self.ranges = ranges_of(pool)

        # Addresses by id, because each request looks for the addresses of its own id.
        self.held: dict[str, list[str]] = {}
        for address, identity in self.allocated.items():
            self.held.setdefault(identity, []).append(address)
        self.before: dict[str, list[str]] = {}
        for address, identity in self.history.items():
            self.before.setdefault(identity, []).append(address)
        # Addresses in use although the pool lists them as free. Complete once `next_free` has
        # ended.
        self.used: dict[str, None] = {}
        # One iteration over the ranges serves all requests, because no address becomes free again
        # during a plan.
        self.next_free = self._search()

    def free(self, address: str) -> bool:
        """Return whether neither the pool, nor the plan, nor an object has an address."""
        return (
            address not in self.allocated and address not in self.avoid and not self.in_use(address)
        )

    def _search(self) -> Iterator[str]:
        """Yield the free addresses in the order of the ranges, and record those in use."""
        for address in (address for part in self.ranges for address in part):
            if address in self.allocated or address in self.avoid:
                continue
            if self.in_use(address):
                self.used[address] = None
            else:
                yield address

    def contains(self, address: str) -> bool:
        """Return whether an address is in a range of the pool."""
        return in_ranges(self.ranges, address)

    def previous(self, identity: str) -> str | None:
        """Return an address that an id had before and can get again, None for none."""
        for address in self.before.get(identity, ()):
            if self.free(address) and self.contains(address):
                return address
        return None

    def adoptable(self, request: AddressRequest) -> str | None:
        """Return the address that the pool already holds for the requester, None for none."""
        # An entry without a mark is one of an earlier release, or of another client.
        usable = ("", request.cluster) if request.adopt else (request.cluster,)
        for address in self.held.get(request.id, ()):
            if not request.cluster or mark(self.pool, address) in usable:
                return address
        return None

    def allocate(self, address: str, request: AddressRequest) -> Grant:
        """Plan an entry for an address that the pool does not hold yet."""
        self.added[address] = request.id
        self.avoid.add(address)
        if request.cluster or mark(self.pool, address):
            # A mark that a former holder has left must not stay.
            self.marks[address] = request.cluster or None
        self.offer(address, request)
        return Grant(self.name, address)

    def adopt(self, address: str, request: AddressRequest) -> Grant:
        """Grant an address that the pool already holds for the requester."""
        self.offer(address, request)
        return Grant(self.name, address, adopted=True)

    def offer(self, address: str, request: AddressRequest) -> None:
        """Make the address of a load balancer the only address in the history of its id."""
        if not request.load_balancer:
            return
        history = {**dict.fromkeys(self.before.get(request.id, ())), address: request.id}
        # `patch` removes an address that the plan allocates from the history, unless it is offered.
        self.offered |= {
            past: identity
            for past, identity in history.items()
            if self.history.get(past) != identity or past in self.added
        }

    def patch(self) -> Obj:
        """Return the merge patch of the pool for all entries of the plan."""
        # An address is in the entries or in the history, except for those offered to Harvester.
        removed = {address: None for address in self.added if address in self.history}
        last = at(self.pool, "status", "lastAllocated") or ""
        if self.added:
            last = list(self.added)[-1]
        return entries_patch(
            self.pool,
            allocated=dict(self.added),
            history={**removed, **self.offered},
            change=-len(self.added),
            last=last,
            marks=self.marks,
        )


def _allocate(request: AddressRequest, pools: Sequence[_PoolPlan]) -> Grant | Refusal | None:
    """Grant an address of these pools. Return None if no pool has one."""
    if request.address:
        return _grant_requested(request, pools)

    # Each preference is tried on all pools before the next one, because an address that the id
    # holds in the last pool is better than a free address of the first pool.
    for pool in pools:
        if (address := pool.adoptable(request)) is not None:
            return pool.adopt(address, request)
    for pool in pools:
        if (address := pool.previous(request.id)) is not None:
            return pool.allocate(address, request)
    for pool in pools:
        if (address := next(pool.next_free, None)) is not None:
            return pool.allocate(address, request)
    return None


def _grant_requested(request: AddressRequest, pools: Sequence[_PoolPlan]) -> Grant | Refusal | None:
    """Grant the address that the request names, unless another id has it.

    Returns None if no pool contains the address.
    """
    for pool in pools:
        holder = pool.allocated.get(request.address) or pool.added.get(request.address)
        marked = mark(pool.pool, request.address)
        if holder == request.id and (not request.cluster or marked in ("", request.cluster)):
            return pool.adopt(request.address, request)
        if holder is not None:
            # Machines of two management clusters may have the same id.
            elsewhere = f" of management cluster {marked}" if holder == request.id else ""
            return Refusal(
                RefusalReason.TAKEN,
                f"address {request.address} of {request.id} is held by {holder}{elsewhere} in "
                f"IPPool {pool.name}; find out which of them uses it, and correct "
                "status.allocated of the pool",
            )

    for pool in pools:
        if pool.contains(request.address):
            return pool.allocate(request.address, request)
    return None


def _refusal(
    request: AddressRequest, pools: Mapping[str, _PoolPlan], invalid: Mapping[str, str]
) -> Refusal:
    """Return why no pool of a request has an address for it."""
    if not request.pools:
        return Refusal(
            RefusalReason.NO_POOL,
            f"no IPPool serves {request.id}: add one that serves its networks to "
            "vmNetworkConfig.ipPoolRefs",
        )

    present = [name for name in request.pools if name in pools]
    missing = [name for name in request.pools if name not in pools and name not in invalid]
    reason = RefusalReason.INVALID_POOL
    parts = []
    if missing:
        reason = RefusalReason.MISSING_POOL
    if present:
        reason = RefusalReason.EXHAUSTED
        if request.address:
            parts.append(f"address {request.address} is in no range of IPPool {', '.join(present)}")
        else:
            parts.append(_exhaustion(request, [pools[name] for name in present]))
    if missing:
        parts.append(
            f"IPPool {', '.join(missing)} does not exist on Harvester: create it there, or name "
            "another"
        )
    parts.extend(invalid[name] for name in request.pools if name in invalid)
    return Refusal(reason, "; ".join(parts))


def _exhaustion(request: AddressRequest, pools: Sequence[_PoolPlan]) -> str:
    """Return the message about pools without a free address, with advice for the user."""
    used = list(dict.fromkeys(address for pool in pools for address in pool.used))
    usage = ""
    if used:
        shown = ", ".join(used[:_SHOWN]) + (", ..." if len(used) > _SHOWN else "")
        usage = (
            f"; VMs, load balancers, HarvesterMachines or external endpoints use {len(used)} of "
            f"those listed as free ({shown})"
        )

    # A second pool does not help a load balancer, which takes its address from one pool.
    advice = "add a range to the pool"
    if not request.load_balancer:
        advice += ", or another pool to ipPoolRefs"
    listed = ", ".join(pool.name for pool in pools)
    return f"no free address in IPPool {listed}{usage}: {advice}"
