"""Reservation of addresses in Harvester's IPPools.

Pools are written by many: our workers, other management clusters, Harvester's load balancer controller. Why one
allocator a session: requests that come at the same time go into one conditional write a pool, instead of fighting each
other for its resourceVersion. Sessions of different identities on one Harvester write in turn, and each tells the
others what it wrote. When somebody else was faster, the pool is read again and the rest is planned anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from caphv.api import ipam, resources
from caphv.api.object import Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, Unreachable

_ATTEMPTS = 20


@dataclass(slots=True)
class _Pending:
    request: ipam.AddressRequest
    future: asyncio.Future[ipam.Grant | ipam.Refusal]


# Address, id of its holder, the holder's management cluster, and whether the holder had it.
_Return = tuple[str, str, str, asyncio.Future[bool]]


class Peers:
    """The allocators of one Harvester in this process: each writes with its own identity, one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.pools: list[Informer] = []


class AddressAllocator:
    """Reserve and release addresses; `in_use` names addresses that no plan may give away."""

    def __init__(self, client: ApiClient, pools: Informer, in_use: Callable[[], Collection[str]]) -> None:
        self._client = client
        self._pools = pools
        self._in_use = in_use
        self._pending: list[_Pending] = []
        self._returns: dict[str, list[_Return]] = {}
        self._peers = Peers()
        self._peers.pools.append(pools)

    def join(self, peers: Peers) -> None:
        """From now on work together with the allocators of other identities on the same Harvester."""
        if peers is not self._peers:
            self.leave()
            self._peers = peers
            peers.pools.append(self._pools)

    def leave(self) -> None:
        """The others need not tell any more what they write."""
        self._peers.pools.remove(self._pools)

    async def allocate(self, request: ipam.AddressRequest) -> ipam.Grant | ipam.Refusal:
        """Reserve an address for an id in the first of its pools that has one; the one it holds already, if any.

        Raises `ApiError` or `Unreachable` when Harvester refuses the write.
        """
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        # Whoever gets the lock first serves all that wait behind it.
        async with self._peers.lock:
            if not pending.future.done():
                batch, self._pending = self._pending, []
                await self._serve(batch)
        return await pending.future

    async def release(self, pool: str, address: str, holder: str, cluster: str = "") -> bool:
        """Give an address back if that holder has it; answers whether it had. A pool that is gone holds nothing."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._returns.setdefault(pool, []).append((address, holder, cluster, future))
        async with self._peers.lock:
            if not future.done():
                await self._take_back(pool, self._returns.pop(pool))
        return await future

    async def mark(self, pool: str, address: str, cluster: str) -> None:
        """Mark an address that stays reserved for another management cluster. Raises `Conflict`, to be tried again."""
        obj = self._pools.get("", pool)
        if obj is not None:
            await self._write(pool, ipam.marking(obj, address, cluster))

    async def _take_back(self, pool: str, returned: list[_Return]) -> None:
        try:
            for attempt in range(_ATTEMPTS):
                if await self._try_to_take_back(pool, returned):
                    return
                await _let_others_write(attempt)
            raise Conflict(409, "Conflict", f"IPPool {pool}: somebody else writes all the time")
        except BaseException as error:
            _fail((future for *_, future in returned), error)

    async def _try_to_take_back(self, pool: str, returned: list[_Return]) -> bool:
        obj = self._pools.get("", pool)
        released: tuple[str, ...] = ()
        if obj is not None:
            plan = ipam.plan_releases(obj, [(address, holder, cluster) for address, holder, cluster, _ in returned])
            released = plan.released
            try:
                if plan.patch:
                    await self._write(pool, plan.patch)
            except Conflict:
                await self._read_again(pool)
                return False
            except NotFound:
                self._pools.forget("", pool)
        for address, _, _, future in returned:
            if not future.done():
                future.set_result(address in released)
        return True

    async def _serve(self, batch: list[_Pending]) -> None:
        try:
            for attempt in range(_ATTEMPTS):
                batch = await self._attempt(batch)
                if not batch:
                    return
                await _let_others_write(attempt)
            raise Conflict(409, "Conflict", "IPPools: somebody else writes all the time")
        except BaseException as error:
            _fail((pending.future for pending in batch), error)

    async def _attempt(self, batch: list[_Pending]) -> list[_Pending]:
        """Plan and write once; answers the requests that have to be planned again."""
        pools = {obj["metadata"]["name"]: obj for obj in self._pools.store}
        plan = ipam.plan_allocations(pools, [pending.request for pending in batch], self._in_use())
        lost: set[str] = set()
        for pool, patch in plan.patches.items():
            try:
                await self._write(pool, patch)
            except (Conflict, NotFound):
                lost.add(pool)
                await self._read_again(pool)
        again = []
        for pending in batch:
            grant = plan.grants.get(pending.request.id)
            if grant and grant.pool in lost:
                again.append(pending)
            elif not pending.future.done():
                pending.future.set_result(grant or plan.refusals[pending.request.id])
        return again

    async def _write(self, pool: str, patch: Obj) -> None:
        self._observe(await self._client.patch(resources.IP_POOLS, pool, "", patch))

    async def _read_again(self, pool: str) -> None:
        try:
            self._observe(await self._client.get(resources.IP_POOLS, pool))
        except NotFound:
            self._pools.forget("", pool)

    def _observe(self, pool: Obj) -> None:
        for pools in self._peers.pools:
            pools.observe(pool)


def _fail(futures: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Give all that wait the error of the one that wrote for them."""
    for future in futures:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else Unreachable("stopped while writing"))
            future.exception()  # the owner may be gone; that is no news for the log
    if not isinstance(error, Exception):
        raise error


async def _let_others_write(attempt: int) -> None:
    """Other management clusters and identities write the same pools: meeting them again at once would help nobody."""
    await asyncio.sleep(random.uniform(0, min(0.02 * 2.0**attempt, 1.0)))
