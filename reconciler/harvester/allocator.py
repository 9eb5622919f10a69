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
from collections.abc import Callable, Coroutine, Iterable
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
    """`cluster` is the holder's management cluster; the future tells whether the holder had the address."""

    allocator: AddressAllocator
    pool: str
    address: str
    holder: str
    cluster: str
    future: asyncio.Future[bool]


_Pending = TypeVar("_Pending", _Allocation, _Release)


class AllocatorGroup:
    """The allocators of one Harvester in this process: whose turn it is, and what waits for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.allocations: list[_Allocation] = []
        self.releases: list[_Release] = []


class AddressAllocator:
    """Reserves and releases addresses. `in_use` tells whether an address must not be newly allocated.

    `writes_for_others`: the account may patch pools, and shares their cache.
    """

    def __init__(self, client: ApiClient, pools: Callable[[], Informer], in_use: Callable[[str], bool]) -> None:
        self.writes_for_others = False
        self._client = client
        self._current_pools = pools
        self._in_use = in_use
        # By pool, the version that a write for own requests required which has no answer, or none yet.
        self._unanswered: dict[str, str] = {}
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
        try:
            # The first one to get the lock serves all requests that wait for it.
            async with group.lock:
                if not pending.future.done():
                    batch = self._take(group.allocations, lambda _: True)
                    await self._turn(self._allocate_batch(batch), batch, group.allocations)
            return await pending.future
        finally:
            # If the reconcile was cancelled: the machine may not exist when the next one serves this request.
            pending.future.cancel()

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

    async def settle(self) -> None:
        """Make sure that the pools in the cache have all that was ever reserved here: a deletion relies on that.

        A write whose answer was lost requires the version of the pool that it was planned with. If the pool still has
        it, another write ends that. Raises `ApiError`, `Unreachable`: retry.
        """
        if not self._unanswered:
            return
        async with self.group.lock:  # after a turn that still waits for its answers
            unanswered = dict(self._unanswered)
        for pool, version in unanswered.items():
            obj = self._pools.get("", pool)
            if obj is not None and resource_version(obj) <= int(version):
                await self._supersede(pool, version)
            if self._unanswered.get(pool) == version:
                del self._unanswered[pool]

    async def _supersede(self, pool: str, version: str) -> None:
        try:
            await self._written(pool, ipam.superseding(version))
        except (Forbidden, Invalid) as error:
            # What would be refused now is not worth a deletion that never ends.
            log.warning("cannot tell whether a write to IPPool %s without an answer takes effect: %s", pool, error)

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

    async def _allocate_batch(self, batch: list[_Allocation]) -> None:
        for attempt in range(_ATTEMPTS):
            batch = await self._try_allocate(batch)
            if not batch:
                return
            await _back_off(attempt)
        raise Conflict(409, "Conflict", "IPPools: modified concurrently; retrying")

    async def _try_allocate(self, batch: list[_Allocation]) -> list[_Allocation]:
        """Plan and write once; return the requests that have to be planned again."""
        pools = {obj["metadata"]["name"]: obj for obj in self._pools.store}
        accounts = {pending.allocator for pending in batch}
        plan = ipam.plan_allocations(
            pools,
            [pending.request for pending in batch],
            lambda address: any(account._in_use(address) for account in accounts),
        )
        # One outcome for each pool: one that refuses writes, or hangs, fails no request that another pool can serve.
        by_pool: dict[str, list[_Allocation]] = {}
        for pending in batch:
            grant = plan.grants.get(pending.request.id)
            if grant and grant.pool in plan.patches:
                by_pool.setdefault(grant.pool, []).append(pending)
            else:
                _answer(pending, plan)
        writes = (self._write_for(pool, plan, granted) for pool, granted in by_pool.items())
        return [pending for again in await asyncio.gather(*writes) for pending in again]

    async def _write_for(self, pool: str, plan: ipam.AllocationPlan, granted: list[_Allocation]) -> list[_Allocation]:
        """Write one pool and answer these requests; return those that have to be planned again."""
        patch, accounts = plan.patches[pool], {pending.allocator for pending in granted}
        for account in accounts:
            account._unanswered[pool] = patch["metadata"]["resourceVersion"]
        try:
            written = await self._written(pool, patch)
        except (ApiError, Unreachable) as error:
            self._fail(granted, error, self.group.allocations)
            if not isinstance(error, (ServerFault, Unreachable)):
                _answered(pool, accounts)
            return []
        _answered(pool, accounts)
        if not written:
            return [pending for pending in granted if not pending.future.done()]
        for pending in granted:
            _answer(pending, plan)
        return []

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


def _answered(pool: str, accounts: Iterable[AddressAllocator]) -> None:
    for account in accounts:
        account._unanswered.pop(pool, None)


def _answer(pending: _Allocation, plan: ipam.AllocationPlan) -> None:
    if not pending.future.done():
        pending.future.set_result(plan.grants.get(pending.request.id) or plan.refusals[pending.request.id])


async def _back_off(attempt: int) -> None:
    """Wait with jitter: other management clusters and identities write the same pools."""
    await asyncio.sleep(random.uniform(0, min(0.02 * 2.0**attempt, 1.0)))
