"""Write IPPools with patches that require a version, and track writes whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from caphv.api import resources
from caphv.api.object import Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound


class WriteKey(NamedTuple):
    """Name of a pool, and the id of a request that a write to it serves."""

    pool: str
    id: str


class UnansweredWrites(dict[WriteKey, int]):
    """Writes that may still take effect, with the newest version of the pool that each requires."""

    def expect(self, pool: str, ids: Iterable[str], version: int) -> dict[WriteKey, int]:
        """Record that a write for these ids is about to be sent; return earlier such writes."""
        keys = [WriteKey(pool, identity) for identity in ids]
        earlier = {key: self[key] for key in keys if key in self}
        self.update({key: max(version, earlier.get(key, version)) for key in keys})
        return earlier

    def settle(self, pool: str, ids: Iterable[str], earlier: Mapping[WriteKey, int]) -> None:
        """Record that the write cannot take effect later.

        :param earlier: earlier writes for these ids, which may still take effect
        """
        for identity in ids:
            self.pop(WriteKey(pool, identity), None)
        self.update(earlier)

    def of(self, ids: Collection[str]) -> dict[WriteKey, int]:
        """Return the writes for these ids."""
        return {key: version for key, version in self.items() if key.id in ids}


class PoolWriter:
    """Write pools for one account, and put each response into the cache of pools."""

    def __init__(self, client: ApiClient, pools: Callable[[], Informer]) -> None:
        self._client = client
        self._current_pools = pools

    @property
    def pools(self) -> Informer:
        """The cache of pools that the account reads now. The account may switch to another one."""
        return self._current_pools()

    async def write(self, pool: str, patch: Obj) -> None:
        """Patch a pool. Raises `Conflict` if it lacks the version that the patch requires."""
        self.pools.observe(await self._client.patch(resources.IP_POOLS, pool, "", patch))

    async def try_write(self, pool: str, patch: Obj) -> bool:
        """Patch a pool, and return whether it still had the version that the patch requires.

        If the pool had another version, this reads it again.
        """
        try:
            await self.write(pool, patch)
        except (Conflict, NotFound):
            await self.refresh(pool)
            return False
        return True

    async def refresh(self, pool: str) -> None:
        """Read a pool again."""
        # A read is needed, because the watch may deliver the newer version only after the next
        # attempt.
        try:
            self.pools.observe(await self._client.get(resources.IP_POOLS, pool))
        except NotFound:
            self.pools.forget("", pool)
