"""Plans which addresses of Harvester's IPPools to allocate and release, as conditional writes.

Requests of many machines for one pool become one patch with a resourceVersion precondition. Harvester's load balancer
controller and others write the same object, so a write based on stale data must fail as a whole and be planned again.
`status.available` is incremented and decremented, never recounted, as every other writer does.

Harvester's load balancer controller asks for an address by id, and the pool's history decides (`Get` in
`pkg/ipam/allocator.go` of load-balancer-harvester): it gets the address that the history has for the id, even if that
is already reserved for the id. A reservation without history is a duplicate: Harvester 1.4 fails permanently, and 1.5
and later release the address before they ask again. So an address for a load balancer is entered in both.

Each entry is marked with its management cluster, by an annotation that is written in the same patch; see
`caphv.api.ippool`. (Annotations of an object hold 256 KiB: 6,000 addresses per pool.)
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caphv.api import ippool, names
from caphv.api.ippool import InvalidPoolError, free_count, in_ranges, mark, mark_name, pool_capacity, ranges_of
from caphv.api.object import Obj, being_deleted

# Addresses that a message names.
_SHOWN = 3


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
    empty for no mark. Entries of the id without a mark are adopted unless `adopt` is false. With `load_balancer`, the
    id is that of a LoadBalancer, and Harvester's controller can take over the address.
    """

    id: str
    pools: tuple[str, ...]
    address: str = ""
    cluster: str = ""
    adopt: bool = True
    load_balancer: bool = False


@dataclass(frozen=True)
class Grant:
    """An address and its pool; `adopted` if the pool already had it for the id."""

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


def balancer_addresses(obj: Obj | None) -> set[str]:
    """Addresses that a LoadBalancer of Harvester or a Service has or asks for."""
    status = (obj or {}).get("status") or {}
    ingress = (status.get("loadBalancer") or {}).get("ingress") or ()
    found = {((obj or {}).get("spec") or {}).get("loadBalancerIP"), status.get("address")}
    found.update(entry.get("ip") for entry in ingress)
    return {address for address in found if address} - {"0.0.0.0"}


def instance_addresses(vmi: Obj | None) -> set[str]:
    """Addresses of the NICs of a VirtualMachineInstance, without those of networks inside the guest."""
    nics = [nic for nic in ((vmi or {}).get("status") or {}).get("interfaces") or () if nic.get("name")]
    found = (address for nic in nics for address in (nic.get("ipAddress"), *(nic.get("ipAddresses") or ())))
    return {address.partition("/")[0] for address in found if address}


def machine_addresses(machine: Obj | None) -> set[str]:
    """Addresses that a HarvesterMachine has or asks for: of a pool and static. One that is being deleted has none."""
    if machine is None or being_deleted(machine):
        return set()
    static = (machine.get("spec") or {}).get("networkConfig") or {}
    found = {(machine.get("status") or {}).get("allocatedIPAddress"), static.get("address")}
    return {address for address in found if address}


def marking(pool: Obj, address: str, cluster: str) -> Obj:
    """Patch that marks an entry with another management cluster."""
    version = pool["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": {mark_name(address): cluster}}}


def superseding(version: str) -> Obj:
    """Patch after which no other one takes effect that requires this version of a pool."""
    return {"metadata": {"resourceVersion": version, "annotations": {names.SUPERSEDED_ANNOTATION: version}}}


def plan_allocations(
    pools: Mapping[str, Obj], requests: Sequence[AddressRequest], in_use: Callable[[str], bool] = lambda _: False
) -> AllocationPlan:
    """Plan all `requests`, in order, against one state of `pools` (by name).

    An id keeps the address that it holds in one of its pools; else it gets the one that it had before; else the next
    free one of the first pool that has one. Addresses that are `in_use` without the pools knowing it (VMs, load
    balancers during takeover) may be kept, but are never newly allocated.
    """
    avoid: set[str] = set()
    planned: dict[str, _PoolPlan] = {}
    invalid: dict[str, str] = {}
    for name in dict.fromkeys(name for request in requests for name in request.pools if name in pools):
        try:
            planned[name] = _PoolPlan(pools[name], avoid, in_use)
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
    patches = {name: pool.patch() for name, pool in planned.items() if pool.added or pool.offered}
    return AllocationPlan(grants, refusals, patches)


def plan_releases(pool: Obj, entries: Iterable[tuple[str, str, str]]) -> Release:
    """Plan the release of `entries` (address, id, management cluster or empty).

    Only addresses that this id of this management cluster holds are released; they become history.
    """
    allocated = ippool.allocated(pool)
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
            last=(pool.get("status") or {}).get("lastAllocated") or "",
            marks={address: None for address in released if mark(pool, address)},
        )
    return Release(patch, tuple(released), tuple(absent), foreign)


class _PoolPlan:
    """One pool during planning: who holds which address, including what the plan has allocated so far.

    All pools of a plan share `avoid`, so that overlapping pools never allocate one address twice.
    """

    def __init__(self, pool: Obj, avoid: set[str], in_use: Callable[[str], bool]) -> None:
        self.pool = pool
        self.name: str = pool["metadata"]["name"]
        self.avoid, self.in_use = avoid, in_use
        self.allocated = ippool.allocated(pool)
        self.history = ippool.allocated_before(pool)
        self.added: dict[str, str] = {}
        self.offered: dict[str, str | None] = {}
        self.marks: dict[str, str | None] = {}
        self.ranges = ranges_of(pool)
        self.held: dict[str, list[str]] = {}
        for address, identity in self.allocated.items():
            self.held.setdefault(identity, []).append(address)
        self.before: dict[str, list[str]] = {}
        for address, identity in self.history.items():
            self.before.setdefault(identity, []).append(address)
        self.used: dict[str, None] = {}
        """Addresses that are in use although the pool lists them as free; complete once `next_free` has ended."""
        # One iteration over the ranges serves all requests: during a plan no address becomes free again.
        self.next_free = self._search()

    def free(self, address: str) -> bool:
        return address not in self.allocated and address not in self.avoid and not self.in_use(address)

    def _search(self) -> Iterator[str]:
        for address in (address for part in self.ranges for address in part):
            if address in self.allocated or address in self.avoid:
                continue
            if self.in_use(address):
                self.used[address] = None
            else:
                yield address

    def contains(self, address: str) -> bool:
        return in_ranges(self.ranges, address)

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
        self.offer(address, request)
        return Grant(self.name, address)

    def adopt(self, address: str, request: AddressRequest) -> Grant:
        self.offer(address, request)
        return Grant(self.name, address, adopted=True)

    def offer(self, address: str, request: AddressRequest) -> None:
        """Make the address of a load balancer the only one in the history of its id."""
        if request.load_balancer:
            wanted = {**dict.fromkeys(self.before.get(request.id, ())), address: request.id}
            # An address that the plan allocates leaves the history, unless it is offered.
            self.offered |= {
                past: identity
                for past, identity in wanted.items()
                if self.history.get(past) != identity or past in self.added
            }

    def patch(self) -> Obj:
        return _patch(
            self.pool,
            allocated=dict(self.added),
            history={address: None for address in self.added if address in self.history} | self.offered,
            change=-len(self.added),
            last=next(reversed(self.added), (self.pool.get("status") or {}).get("lastAllocated") or ""),
            marks=self.marks,
        )


def _allocate(request: AddressRequest, pools: Sequence[_PoolPlan]) -> Grant | Refusal | None:
    if request.address:
        return _keep(request, pools)
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


def _keep(request: AddressRequest, pools: Sequence[_PoolPlan]) -> Grant | Refusal | None:
    for pool in pools:
        current = pool.allocated.get(request.address) or pool.added.get(request.address)
        marked = mark(pool.pool, request.address)
        if current == request.id and (not request.cluster or marked in ("", request.cluster)):
            return pool.adopt(request.address, request)
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
        parts.append(_exhausted(request, [pools[name] for name in present]))
    if missing:
        parts.append(f"IPPool {', '.join(missing)} does not exist on Harvester")
    parts.extend(invalid[name] for name in request.pools if name in invalid)
    reason = _reason(present, missing)
    return Refusal(reason, "; ".join(parts))


def _exhausted(request: AddressRequest, pools: Sequence[_PoolPlan]) -> str:
    used = list(dict.fromkeys(address for pool in pools for address in pool.used))
    shown = ", ".join(used[:_SHOWN]) + (", ..." if len(used) > _SHOWN else "")
    why = (
        f"; VMs, load balancers or HarvesterMachines use {len(used)} of those listed as free ({shown})" if used else ""
    )
    listed = ", ".join(pool.name for pool in pools)
    # A load balancer takes its address from one pool, and keeps it.
    advice = "add a range to the pool" if request.load_balancer else "add a range or another pool to ipPoolRefs"
    return f"no free address in IPPool {listed}{why}: {advice}"


def _reason(present: Sequence[str], missing: Sequence[str]) -> RefusalReason:
    if present:
        return RefusalReason.EXHAUSTED
    return RefusalReason.MISSING_POOL if missing else RefusalReason.INVALID_POOL


def _patch(pool: Obj, *, allocated: Obj, history: Obj, change: int, last: str, marks: Obj) -> Obj:
    status = pool.get("status") or {}
    changed: Obj = {"allocated": allocated, "lastAllocated": last}
    # The CRD requires these fields as soon as there is a status; a pool that Harvester has not counted lacks them.
    available, total = (status.get(field) for field in ("available", "total"))
    # What cannot be counted keeps its counts, so that its addresses can be released.
    with contextlib.suppress(InvalidPoolError):
        changed["available"] = (available if isinstance(available, int) else free_count(pool)) + change
        changed["total"] = total if isinstance(total, int) else pool_capacity(pool)
    if history:
        changed["allocatedHistory"] = history
    metadata: Obj = {"resourceVersion": pool["metadata"]["resourceVersion"]}
    if marks:
        metadata["annotations"] = {mark_name(address): cluster for address, cluster in marks.items()}
    return {"metadata": metadata, "status": changed}
