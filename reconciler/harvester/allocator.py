"""Reserve and release addresses in Harvester's IPPools.

Many clients write a pool: our workers, other management clusters, Harvester's load balancer
controller. Concurrent requests become one conditional write per pool instead of fighting for its
resourceVersion. Accounts on one Harvester write in turn, each turn for a bounded time. An account
also writes for other accounts that read the same cache of pools, if all of them may patch pools.
Otherwise each account writes for itself. An allocator trusts the results of another one only if
they share that cache. After a conflict the allocator reads the pool again and plans the remaining
requests again.

A write whose answer is lost may take effect later, when its machine no longer exists. See
`AddressAllocator.settle`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from caphv.api.object import Obj, resource_version
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RequestError,
    ServerFault,
    Unreachable,
)
from reconciler.harvester import addressplan
from reconciler.harvester.poolpatch import mark_patch, superseding_patch
from reconciler.harvester.poolwriter import PoolWriter, UnansweredWrites

log = logging.getLogger(__name__)

_ATTEMPTS = 20
# A slow server, or one that throttles an account, must not hold up the others.
_TURN_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Allocation:
    """A request that waits for its answer."""

    allocator: AddressAllocator
    request: addressplan.AddressRequest
    future: asyncio.Future[addressplan.Grant | addressplan.Refusal]


@dataclass(slots=True, eq=False)
class _Release:
    """A release that waits. The result of `future` is whether the holder had the address.

    `cluster` is the management cluster that must have marked the address, empty for any.
    """

    allocator: AddressAllocator
    pool: str
    address: str
    holder: str
    cluster: str
    future: asyncio.Future[bool]


_Pending = TypeVar("_Pending", _Allocation, _Release)


class AllocatorGroup:
    """State that all allocators of one Harvester share: turns, waiting requests, lost answers."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.allocations: list[_Allocation] = []
        self.releases: list[_Release] = []
        self.turns: set[asyncio.Task[None]] = set()
        # Kept here, because an allocator is discarded when its credentials are replaced.
        self.unanswered = UnansweredWrites()


class AddressAllocator:
    """Reserve and release addresses for one account.

    `writes_for_others` says that the account may patch pools and shares the cache of pools.

    :param client: client of the account
    :param pools: returns the cache of pools that the account reads now
    :param in_use: returns whether an object has an address, which then must not be allocated
    """

    def __init__(
        self, client: ApiClient, pools: Callable[[], Informer], in_use: Callable[[str], bool]
    ) -> None:
        self.writes_for_others = False
        self.group = AllocatorGroup()
        self._client = client
        self._writer = PoolWriter(client, pools)
        self._in_use = in_use
        # Addresses in writes without an answer yet. Neither the pools nor objects have them.
        self._writing: set[str] = set()

    def join(self, group: AllocatorGroup) -> None:
        """Join the allocators of other accounts on the same Harvester."""
        self.group = group

    async def allocate(
        self, request: addressplan.AddressRequest
    ) -> addressplan.Grant | addressplan.Refusal:
        """Reserve an address in the first pool that has one, or return the one that the id holds.

        Raises `ApiError` if Harvester refuses the write, `Unreachable` if it does not answer.
        """
        group = self.group
        pending = _Allocation(self, request, asyncio.get_running_loop().create_future())
        group.allocations.append(pending)
        # The turn has its own task, because the answer may come before the turn ends: another pool
        # of the turn may hang.
        turn = asyncio.create_task(self._serve_allocations(pending))
        group.turns.add(turn)
        turn.add_done_callback(group.turns.discard)
        try:
            return await pending.future
        finally:
            # After a cancellation, the next turn must not serve the request, because the machine
            # may no longer exist.
            pending.future.cancel()

    async def _serve_allocations(self, pending: _Allocation) -> None:
        """Serve all waiting requests, unless another turn has served this one already."""
        group = self.group
        async with group.lock:
            if not pending.future.done():
                batch = self._take(group.allocations, lambda _: True)
                await self._turn(self._allocate_batch(batch), batch, group.allocations)

    async def release(self, pool: str, address: str, holder: str, cluster: str = "") -> bool:
        """Release an address if the holder has it, and return whether the holder had it.

        Returns False for a pool that was deleted.

        :param pool: name of the IPPool
        :param address: the address
        :param holder: the id under which the pool holds it
        :param cluster: uid of the management cluster that must have marked the address, or empty
        """
        group = self.group
        pending = _Release(
            self, pool, address, holder, cluster, asyncio.get_running_loop().create_future()
        )
        group.releases.append(pending)

        try:
            async with group.lock:
                if not pending.future.done():
                    batch = self._take(group.releases, lambda release: release.pool == pool)
                    await self._turn(self._release_all(pool, batch), batch, group.releases)
            return await pending.future
        finally:
            # After a cancellation, the next turn must not serve the request, because a machine of
            # the same id may have been created.
            pending.future.cancel()

    async def settle(self, ids: Collection[str]) -> None:
        """Make sure that the cached pools show every reservation ever written for these ids.

        A deletion relies on that. Raises `ApiError`, `Unreachable` for a retry.
        """
        group = self.group
        if not group.unanswered.of(ids):
            return
        async with group.lock:  # after a turn that still waits for its answers
            unanswered = group.unanswered.of(ids)

        # An unanswered write requires the version of the pool with which it was planned. If the
        # pool still has that version, a newer write prevents the old one from taking effect.
        for key, version in unanswered.items():
            obj = self._writer.pools.get("", key.pool)
            if obj is not None and resource_version(obj) <= version:
                await self._supersede(key.pool, str(version))
            if group.unanswered.get(key) == version:
                del group.unanswered[key]

    async def _supersede(self, pool: str, version: str) -> None:
        """Write a newer version of a pool, so that no write that requires this one takes effect."""
        try:
            await self._writer.try_write(pool, superseding_patch(version))
        except (Forbidden, Invalid) as error:
            # Without this, a deletion would never end after an account has lost its rights.
            log.warning(
                "cannot find out whether a write to IPPool %s without an answer takes effect: %s",
                pool,
                error,
            )

    def _take(self, waiting: list[_Pending], select: Callable[[_Pending], bool]) -> list[_Pending]:
        """Remove and return the entries that this allocator may serve. Drop cancelled entries."""
        waiting[:] = [pending for pending in waiting if not pending.future.done()]
        batch = [
            pending for pending in waiting if self._serves(pending.allocator) and select(pending)
        ]
        waiting[:] = [pending for pending in waiting if pending not in batch]
        return batch

    def _serves(self, other: AddressAllocator) -> bool:
        """Return whether this account may write for another one; see the module's docstring."""
        both = self.writes_for_others and other.writes_for_others
        return other is self or (both and other._writer.pools is self._writer.pools)

    async def _turn(
        self, work: Coroutine[Any, Any, None], batch: list[_Pending], waiting: list[_Pending]
    ) -> None:
        """Serve a batch. If that fails or takes too long, fail requests that have no outcome."""
        failure: BaseException
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await work
            return
        except TimeoutError:
            failure = Unreachable("Harvester does not answer in time")
            self._client.record_limit(f"addresses were not written within {_TURN_SECONDS:g} s")
        except BaseException as error:
            failure = error  # a cancellation, too, must leave no request without an outcome

        stopped = Unreachable("stopped while addresses were written")
        self._fail(batch, failure if isinstance(failure, Exception) else stopped, waiting)
        if not isinstance(failure, Exception):
            raise failure

    def _fail(self, batch: Iterable[_Pending], failure: Exception, waiting: list[_Pending]) -> None:
        """Fail the requests of this account, and put the requests of others back in the queue.

        The failure may concern this account alone.
        """
        for pending in batch:
            if pending.future.done():
                continue
            if pending.allocator is self:
                pending.future.set_exception(failure)
                # Nothing retrieves the exception if the waiting reconcile was cancelled, and
                # asyncio logs exceptions that are never retrieved.
                pending.future.exception()
            elif pending not in waiting:
                waiting.append(pending)

    async def mark(self, pool: str, address: str, cluster: str) -> None:
        """Record that a reserved address now belongs to another management cluster.

        Raises `Conflict` for a retry.
        """
        obj = self._writer.pools.get("", pool)
        if obj is not None:
            await self._writer.write(pool, mark_patch(obj, address, cluster))

    async def _release_all(self, pool: str, releases: list[_Release]) -> None:
        """Release addresses of one pool, with retries. Raises `Conflict` after many conflicts."""
        for attempt in range(_ATTEMPTS):
            if await self._try_release(pool, releases):
                return
            await _back_off(attempt)
        raise Conflict(409, "Conflict", f"IPPool {pool}: modified concurrently; retrying")

    async def _try_release(self, pool: str, releases: list[_Release]) -> bool:
        """Plan and write releases of one pool.

        Returns False after a conflict. The releases then have to be planned again.
        """
        waiting = [release for release in releases if not release.future.done()]
        obj = self._writer.pools.get("", pool)
        released: tuple[str, ...] = ()
        if obj is not None:
            entries = [
                addressplan.ReleaseEntry(release.address, release.holder, release.cluster)
                for release in waiting
            ]
            plan = addressplan.plan_releases(obj, entries)
            released = plan.released
            try:
                if plan.patch:
                    await self._writer.write(pool, plan.patch)
            except Conflict:
                await self._writer.refresh(pool)
                return False
            except NotFound:
                self._writer.pools.forget("", pool)

        for release in waiting:
            # The machine may have cancelled its release during the write.
            if not release.future.done():
                release.future.set_result(release.address in released)
        return True

    async def _allocate_batch(self, batch: list[_Allocation], attempt: int = 0) -> None:
        """Plan allocations and write them.

        :param attempt: how many conflicts these requests have had
        """
        pools = {obj["metadata"]["name"]: obj for obj in self._writer.pools.store}
        accounts = {pending.allocator for pending in batch}

        def in_use(address: str) -> bool:
            if address in self._writing:
                return True
            return any(account._in_use(address) for account in accounts)

        plan = addressplan.plan_allocations(pools, [pending.request for pending in batch], in_use)

        by_pool: dict[str, list[_Allocation]] = {}
        for pending in batch:
            grant = plan.grants.get(pending.request.id)
            if grant and grant.pool in plan.patches:
                by_pool.setdefault(grant.pool, []).append(pending)
            else:
                _answer(pending, plan)
        # Write the pools concurrently, so that a pool that hangs or refuses writes delays no other.
        await asyncio.gather(
            *(self._write_for(pool, plan, granted, attempt) for pool, granted in by_pool.items())
        )

    async def _write_for(
        self, pool: str, plan: addressplan.AllocationPlan, granted: list[_Allocation], attempt: int
    ) -> None:
        """Write one pool and answer these requests, or plan them again after a conflict.

        :param pool: name of the IPPool
        :param plan: the plan for all pools
        :param granted: the requests that get an address of this pool
        :param attempt: how many conflicts these requests have had
        """
        addresses = {plan.grants[pending.request.id].address for pending in granted}
        self._writing |= addresses
        try:
            written = await self._tracked_write(
                pool, plan.patches[pool], [pending.request.id for pending in granted]
            )
        except RequestError as error:
            self._fail(granted, error, self.group.allocations)
            return
        finally:
            self._writing -= addresses

        # Requests may have been cancelled during the write.
        waiting = [pending for pending in granted if not pending.future.done()]
        if written:
            for pending in waiting:
                _answer(pending, plan)
        elif waiting and attempt + 1 < _ATTEMPTS:
            await _back_off(attempt)
            await self._allocate_batch(waiting, attempt + 1)
        else:
            failure = Conflict(409, "Conflict", f"IPPool {pool}: modified concurrently; retrying")
            self._fail(waiting, failure, self.group.allocations)

    async def _tracked_write(self, pool: str, patch: Obj, ids: list[str]) -> bool:
        """Patch a pool as `PoolWriter.try_write` does, and remember a write without an answer.

        Such a write may take effect until another write supersedes it; see `settle`.

        :param ids: the ids of the requests that the write serves
        """
        version = int(patch["metadata"]["resourceVersion"])
        earlier = self.group.unanswered.expect(pool, ids, version)
        try:
            written = await self._writer.try_write(pool, patch)
        except ApiError as error:
            # An earlier write that requires the same version may still be on its way, and a refusal
            # of this write says nothing about it. After a fault of the server, this write may take
            # effect later, too.
            if not isinstance(error, ServerFault):
                self.group.unanswered.settle(pool, ids, earlier)
            raise

        # The pool now has a newer version than this write requires, so that this write, and
        # earlier ones which require the same version, cannot take effect any more.
        newer_writes = {key: newer for key, newer in earlier.items() if newer > version}
        self.group.unanswered.settle(pool, ids, newer_writes)
        return written


def _answer(pending: _Allocation, plan: addressplan.AllocationPlan) -> None:
    """Set the planned outcome as the result of a request."""
    if not pending.future.done():
        pending.future.set_result(
            plan.grants.get(pending.request.id) or plan.refusals[pending.request.id]
        )


async def _back_off(attempt: int) -> None:
    """Wait with jitter: other management clusters and accounts write the same pools."""
    await asyncio.sleep(random.uniform(0, min(0.02 * 2.0**attempt, 1.0)))
