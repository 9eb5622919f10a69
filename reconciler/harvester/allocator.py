"""Reservation of addresses in Harvester's IPPools.

Many clients write a pool: our workers, other management clusters, Harvester's load balancer controller. Concurrent
requests become one conditional write per pool instead of fighting for its resourceVersion. Accounts on one Harvester
write in turn, each turn for a bounded time. An account also writes for the others that read the same cache of pools, if
all of them may patch pools; otherwise each writes for itself. No allocator trusts the results of another one, unless
they share that cache. After a conflict the allocator reads the pool again and plans the remaining requests again.

A write whose answer is lost may take effect later, when its machine no longer exists. See `AddressAllocator.settle`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from caphv.api import resources
from caphv.api.object import Obj, resource_version
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerFault, Unreachable
from reconciler.harvester import ipam

log = logging.getLogger(__name__)

_ATTEMPTS = 20
# A slow server, or one that throttles an account, must not hold up the others.
_TURN_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Allocation:
    allocator: AddressAllocator
    request: ipam.AddressRequest
    future: asyncio.Future[ipam.Grant | ipam.Refusal]


@dataclass(slots=True, eq=False)
class _Release:
    """`cluster` is the holder's management cluster; the future says whether the holder had the address."""

    allocator: AddressAllocator
    pool: str
    address: str
    holder: str
    cluster: str
    future: asyncio.Future[bool]


_Pending = TypeVar("_Pending", _Allocation, _Release)


class AllocatorGroup:
    """The allocators of one Harvester in this process: whose turn it is, what waits for it, and what has no answer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.allocations: list[_Allocation] = []
        self.releases: list[_Release] = []
        self.turns: set[asyncio.Task[None]] = set()
        # By pool and request id, the newest version that a write required which may still take effect. Here and not in
        # the allocator, which ends with its credentials.
        self.unanswered: dict[tuple[str, str], int] = {}

    def expect(self, pool: str, ids: Iterable[str], version: int) -> dict[tuple[str, str], int]:
        """A write is about to be sent for these ids; return what was known before."""
        keys = [(pool, identity) for identity in ids]
        before = {key: self.unanswered[key] for key in keys if key in self.unanswered}
        self.unanswered.update({key: max(version, before.get(key, version)) for key in keys})
        return before

    def answered(self, pool: str, ids: Iterable[str], before: Mapping[tuple[str, str], int]) -> None:
        """That write cannot take effect later; `before` is what still can."""
        for key in [(pool, identity) for identity in ids]:
            self.unanswered.pop(key, None)
        self.unanswered.update(before)


class AddressAllocator:
    """Reserves and releases addresses. `in_use` says whether an address must not be newly allocated.

    `writes_for_others`: the account may patch pools, and shares their cache.
    """

    def __init__(self, client: ApiClient, pools: Callable[[], Informer], in_use: Callable[[str], bool]) -> None:
        self.writes_for_others = False
        self._client = client
        self._current_pools = pools
        self._in_use = in_use
        # Addresses in writes that have no answer yet.
        self._writing: set[str] = set()
        self.group = AllocatorGroup()

    def join(self, group: AllocatorGroup) -> None:
        """Join the allocators of other accounts on the same Harvester."""
        self.group = group

    async def allocate(self, request: ipam.AddressRequest) -> ipam.Grant | ipam.Refusal:
        """Reserve an address in the first of the request's pools that has one, or return the one its id holds.

        Raises `ApiError` when Harvester refuses the write, `Unreachable` when it does not answer.
        """
        group = self.group
        pending = _Allocation(self, request, asyncio.get_running_loop().create_future())
        group.allocations.append(pending)
        # A task of its own: the answer may come before the end of the turn, in which another pool hangs.
        turn = asyncio.create_task(self._serve_allocations(pending))
        group.turns.add(turn)
        turn.add_done_callback(group.turns.discard)
        try:
            return await pending.future
        finally:
            # If the reconcile was cancelled: the machine may not exist when the next one serves this request.
            pending.future.cancel()

    async def _serve_allocations(self, pending: _Allocation) -> None:
        """Serve all requests that wait, unless another one's turn has served this one."""
        group = self.group
        async with group.lock:
            if not pending.future.done():
                batch = self._take(group.allocations, lambda _: True)
                await self._turn(self._allocate_batch(batch), batch, group.allocations)

    async def release(self, pool: str, address: str, holder: str, cluster: str = "") -> bool:
        """Release an address if that holder has it, and return whether it had. A deleted pool holds nothing."""
        group = self.group
        pending = _Release(self, pool, address, holder, cluster, asyncio.get_running_loop().create_future())
        group.releases.append(pending)
        try:
            async with group.lock:
                if not pending.future.done():
                    batch = self._take(group.releases, lambda release: release.pool == pool)
                    await self._turn(self._release_all(pool, batch), batch, group.releases)
            return await pending.future
        finally:
            # If the reconcile was cancelled: a machine of that id may have been created when the next one serves this.
            pending.future.cancel()

    async def settle(self, ids: Collection[str]) -> None:
        """Make sure that the pools in the cache have all that was ever reserved for these ids: a deletion relies on it.

        A write whose answer was lost requires the version of the pool that it was planned with. If the pool still has
        it, another write ends that. Raises `ApiError`, `Unreachable`: retry.
        """
        group = self.group
        if not any(identity in ids for _, identity in group.unanswered):
            return
        async with group.lock:  # after a turn that still waits for its answers
            unanswered = {key: version for key, version in group.unanswered.items() if key[1] in ids}
        for key, version in unanswered.items():
            obj = self._pools.get("", key[0])
            if obj is not None and resource_version(obj) <= version:
                await self._supersede(key[0], str(version))
            if group.unanswered.get(key) == version:
                del group.unanswered[key]

    async def _supersede(self, pool: str, version: str) -> None:
        try:
            await self._written(pool, ipam.superseding(version))
        except (Forbidden, Invalid) as error:
            # What would be refused now is not worth a deletion that never ends.
            log.warning("cannot find out whether a write to IPPool %s without an answer takes effect: %s", pool, error)

    def _take(self, waiting: list[_Pending], wanted: Callable[[_Pending], bool]) -> list[_Pending]:
        """Remove and return what this allocator may serve, and drop the requests of cancelled reconciles."""
        waiting[:] = [pending for pending in waiting if not pending.future.done()]
        batch = [pending for pending in waiting if self._serves(pending.allocator) and wanted(pending)]
        waiting[:] = [pending for pending in waiting if pending not in batch]
        return batch

    def _serves(self, other: AddressAllocator) -> bool:
        both = self.writes_for_others and other.writes_for_others
        return other is self or (both and other._pools is self._pools)

    async def _turn(self, work: Coroutine[Any, Any, None], batch: list[_Pending], waiting: list[_Pending]) -> None:
        """Serve a batch. What has no outcome when that fails, or takes too long, fails."""
        failure: BaseException
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await work
            return
        except TimeoutError:
            failure = Unreachable("Harvester does not answer in time")
            self._client.reached(f"addresses were not written within {_TURN_SECONDS:g} s")
        except BaseException as error:
            failure = error
        stopped = Unreachable("stopped while addresses were written")
        self._fail(batch, failure if isinstance(failure, Exception) else stopped, waiting)
        if not isinstance(failure, Exception):
            raise failure

    def _fail(self, batch: Iterable[_Pending], failure: Exception, waiting: list[_Pending]) -> None:
        """Fail own requests. Those of others wait for their account's turn: the failure may be this account's."""
        for pending in batch:
            if pending.future.done():
                continue
            if pending.allocator is self:
                pending.future.set_exception(failure)
                pending.future.exception()  # marks it as retrieved: the waiting reconcile may have been cancelled
            elif pending not in waiting:
                waiting.append(pending)

    async def mark(self, pool: str, address: str, cluster: str) -> None:
        """Record that a reserved address now belongs to another management cluster. Raises `Conflict`: retry."""
        obj = self._pools.get("", pool)
        if obj is not None:
            await self._write(pool, ipam.marking(obj, address, cluster))

    async def _release_all(self, pool: str, releases: list[_Release]) -> None:
        for attempt in range(_ATTEMPTS):
            if await self._try_release(pool, releases):
                return
            await _back_off(attempt)
        raise Conflict(409, "Conflict", f"IPPool {pool}: modified concurrently; retrying")

    async def _try_release(self, pool: str, releases: list[_Release]) -> bool:
        releases = [release for release in releases if not release.future.done()]
        obj = self._pools.get("", pool)
        released: tuple[str, ...] = ()
        if obj is not None:
            plan = ipam.plan_releases(obj, [(one.address, one.holder, one.cluster) for one in releases])
            released = plan.released
            try:
                if plan.patch:
                    await self._write(pool, plan.patch)
            except Conflict:
                await self._refresh(pool)
                return False
            except NotFound:
                self._pools.forget("", pool)
        for release in releases:
            if not release.future.done():
                release.future.set_result(release.address in released)
        return True

    async def _allocate_batch(self, batch: list[_Allocation], attempt: int = 0) -> None:
        """Plan and write. Each pool has its own outcome: one that refuses writes, or hangs, holds up no other."""
        pools = {obj["metadata"]["name"]: obj for obj in self._pools.store}
        accounts = {pending.allocator for pending in batch}
        plan = ipam.plan_allocations(
            pools,
            [pending.request for pending in batch],
            lambda address: address in self._writing or any(account._in_use(address) for account in accounts),
        )
        by_pool: dict[str, list[_Allocation]] = {}
        for pending in batch:
            grant = plan.grants.get(pending.request.id)
            if grant and grant.pool in plan.patches:
                by_pool.setdefault(grant.pool, []).append(pending)
            else:
                _answer(pending, plan)
        await asyncio.gather(*(self._write_for(pool, plan, granted, attempt) for pool, granted in by_pool.items()))

    async def _write_for(self, pool: str, plan: ipam.AllocationPlan, granted: list[_Allocation], attempt: int) -> None:
        """Write one pool and answer these requests, or plan them again after a conflict."""
        addresses = {plan.grants[pending.request.id].address for pending in granted}
        self._writing |= addresses
        try:
            written = await self._answered_write(pool, plan.patches[pool], [pending.request.id for pending in granted])
        except (ApiError, Unreachable) as error:
            self._fail(granted, error, self.group.allocations)
            return
        finally:
            self._writing -= addresses
        granted = [pending for pending in granted if not pending.future.done()]
        if written:
            for pending in granted:
                _answer(pending, plan)
        elif granted and attempt + 1 < _ATTEMPTS:
            await _back_off(attempt)
            await self._allocate_batch(granted, attempt + 1)
        else:
            failure = Conflict(409, "Conflict", f"IPPool {pool}: modified concurrently; retrying")
            self._fail(granted, failure, self.group.allocations)

    async def _answered_write(self, pool: str, patch: Obj, ids: list[str]) -> bool:
        """Like `_written`, and remember the write until it is certain that it does not take effect later.

        A refusal says nothing about an earlier write that requires the same version, and may still be on its way.
        """
        version = int(patch["metadata"]["resourceVersion"])
        before = self.group.expect(pool, ids, version)
        try:
            written = await self._written(pool, patch)
        except ApiError as error:
            if not isinstance(error, ServerFault):
                self.group.answered(pool, ids, before)
            raise
        self.group.answered(pool, ids, {key: newer for key, newer in before.items() if newer > version})
        return written

    async def _written(self, pool: str, patch: Obj) -> bool:
        """Whether a pool was still as the plan assumed; if not, it was read again."""
        try:
            await self._write(pool, patch)
        except (Conflict, NotFound):
            await self._refresh(pool)
            return False
        return True

    async def _write(self, pool: str, patch: Obj) -> None:
        self._pools.observe(await self._client.patch(resources.IP_POOLS, pool, "", patch))

    async def _refresh(self, pool: str) -> None:
        try:
            self._pools.observe(await self._client.get(resources.IP_POOLS, pool))
        except NotFound:
            self._pools.forget("", pool)

    @property
    def _pools(self) -> Informer:
        return self._current_pools()


def _answer(pending: _Allocation, plan: ipam.AllocationPlan) -> None:
    if not pending.future.done():
        pending.future.set_result(plan.grants.get(pending.request.id) or plan.refusals[pending.request.id])


async def _back_off(attempt: int) -> None:
    """Wait with jitter: other management clusters and identities write the same pools."""
    await asyncio.sleep(random.uniform(0, min(0.02 * 2.0**attempt, 1.0)))
