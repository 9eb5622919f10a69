"""Reservation of addresses in Harvester's IPPools.

Many clients write a pool: our workers, other management clusters, Harvester's load balancer controller. Each session
has one allocator, so that concurrent requests become one conditional write per pool instead of fighting for its
resourceVersion. Sessions of different accounts on one Harvester write in turn, each turn for a bounded time. No
allocator trusts the results of another one, unless they share the cache of pools. After a conflict it reads the pool
again with its own client and plans the remaining requests again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from caphv.api import ipam, resources
from caphv.api.object import Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, Unreachable

_ATTEMPTS = 20
# A slow server, or one that throttles an account, must not hold up the others.
_TURN_SECONDS = 5.0


@dataclass(slots=True)
class _Pending:
    request: ipam.AddressRequest
    future: asyncio.Future[ipam.Grant | ipam.Refusal]


# Address, id of its holder, the holder's management cluster, and a future: whether the holder had it.
_PendingRelease = tuple[str, str, str, asyncio.Future[bool]]


class AllocatorGroup:
    """The allocators of one Harvester in this process. Each writes with its own identity, one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()


class AddressAllocator:
    """Reserves and releases addresses. `in_use` returns addresses that must not be allocated."""

    def __init__(self, client: ApiClient, pools: Callable[[], Informer], in_use: Callable[[], Collection[str]]) -> None:
        self._client = client
        self._current_pools = pools
        self._in_use = in_use
        self._pending: list[_Pending] = []
        self._pending_releases: dict[str, list[_PendingRelease]] = {}
        self.group = AllocatorGroup()

    def join(self, group: AllocatorGroup) -> None:
        """Join the allocators of other accounts on the same Harvester."""
        self.group = group

    async def allocate(self, request: ipam.AddressRequest) -> ipam.Grant | ipam.Refusal:
        """Reserve an address in the first of the request's pools that has one, or return the one its id holds.

        Raises `ApiError` when Harvester refuses the write, `Unreachable` when it does not answer.
        """
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        # The first one to get the lock serves all requests that wait for it.
        async with self.group.lock:
            if not pending.future.done():
                batch, self._pending = self._pending, []
                await _bounded(self._allocate_batch(batch))
        return await pending.future

    async def release(self, pool: str, address: str, holder: str, cluster: str = "") -> bool:
        """Release an address if that holder has it, and return whether it had. A deleted pool holds nothing."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending_releases.setdefault(pool, []).append((address, holder, cluster, future))
        async with self.group.lock:
            if not future.done():
                await _bounded(self._release_all(pool, self._pending_releases.pop(pool)))
        return await future

    async def mark(self, pool: str, address: str, cluster: str) -> None:
        """Record that a reserved address now belongs to another management cluster. Raises `Conflict`: retry."""
        obj = self._pools.get("", pool)
        if obj is not None:
            await self._write(pool, ipam.marking(obj, address, cluster))

    async def _release_all(self, pool: str, releases: list[_PendingRelease]) -> None:
        try:
            for attempt in range(_ATTEMPTS):
                if await self._try_release(pool, releases):
                    return
                await _back_off(attempt)
            raise Conflict(409, "Conflict", f"IPPool {pool}: modified concurrently; retrying")
        except BaseException as error:
            _fail((future for *_, future in releases), error)

    async def _try_release(self, pool: str, releases: list[_PendingRelease]) -> bool:
        obj = self._pools.get("", pool)
        released: tuple[str, ...] = ()
        if obj is not None:
            plan = ipam.plan_releases(obj, [(address, holder, cluster) for address, holder, cluster, _ in releases])
            released = plan.released
            try:
                if plan.patch:
                    await self._write(pool, plan.patch)
            except Conflict:
                await self._refresh(pool)
                return False
            except NotFound:
                self._pools.forget("", pool)
        for address, _, _, future in releases:
            if not future.done():
                future.set_result(address in released)
        return True

    async def _allocate_batch(self, batch: list[_Pending]) -> None:
        try:
            for attempt in range(_ATTEMPTS):
                batch = await self._try_allocate(batch)
                if not batch:
                    return
                await _back_off(attempt)
            raise Conflict(409, "Conflict", "IPPools: modified concurrently; retrying")
        except BaseException as error:
            _fail((pending.future for pending in batch), error)

    async def _try_allocate(self, batch: list[_Pending]) -> list[_Pending]:
        """Plan and write once; return the requests that have to be planned again."""
        pools = {obj["metadata"]["name"]: obj for obj in self._pools.store}
        plan = ipam.plan_allocations(pools, [pending.request for pending in batch], self._in_use())
        conflicts: set[str] = set()
        for pool, patch in plan.patches.items():
            try:
                await self._write(pool, patch)
            except (Conflict, NotFound):
                conflicts.add(pool)
                await self._refresh(pool)
        retry = []
        for pending in batch:
            grant = plan.grants.get(pending.request.id)
            if grant and grant.pool in conflicts:
                retry.append(pending)
            elif not pending.future.done():
                pending.future.set_result(grant or plan.refusals[pending.request.id])
        return retry

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


async def _bounded(turn: Coroutine[Any, Any, None]) -> None:
    """Take one turn; requests that it has not served in time fail as unreachable."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_TURN_SECONDS):
            await turn


def _fail(futures: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Fail all waiting requests with the error of the write."""
    for future in futures:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else Unreachable("no answer in time"))
            future.exception()  # marks it as retrieved: the waiting reconcile may have been cancelled
    if not isinstance(error, Exception):
        raise error


async def _back_off(attempt: int) -> None:
    """Wait with jitter: other management clusters and identities write the same pools."""
    await asyncio.sleep(random.uniform(0, min(0.02 * 2.0**attempt, 1.0)))
