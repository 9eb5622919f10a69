"""A cache of one collection on one Harvester, shared by all accounts that may list it.

One account at a time reads it. When Harvester refuses that account, the next one continues where it stood; the refused
one leaves, and must not use what others read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from caphv.api.object import Obj, Resource
from caphv.runtime.budget import MemoryBudget, TimeBudget
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Unauthorized


@dataclass(frozen=True)
class Collection:
    """What a cache holds; `options` are those of `Informer`."""

    resource: Resource
    namespace: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Account(Protocol):
    """Who reads a shared cache."""

    @property
    def client(self) -> ApiClient:
        """Its connection."""

    def refused(self, collection: Collection) -> None:
        """Harvester has refused to list the collection, which others still may."""


OnChange = Callable[[Mapping[Account, None], Change], None]


class SharedCache:
    """The cache, its members in order of arrival, and the one that reads."""

    def __init__(self, collection: Collection, budget: MemoryBudget, on_change: OnChange, **options: Any) -> None:
        self.collection = collection
        self.members: dict[Account, None] = {}
        self._reader: Account | None = None
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._switching: set[asyncio.Task[None]] = set()
        self._one_switch = asyncio.Lock()
        source = _Source(self, budget)
        options = {**options, **collection.options}
        self.informer = Informer(source, collection.resource, namespace=collection.namespace, **options)
        self.informer.add_handler(self._changed)

    def join(self, account: Account) -> None:
        """Let an account use the cache; the caller has made sure that it may list the collection."""
        self.members[account] = None
        if self._reader is None:
            self._reader = account
            self._task = self.informer.start(server=account.client.server)
            return
        for obj in self.informer.store:
            self._on_change({account: None}, Change(self.informer.resource, None, obj))

    def leave(self, account: Account) -> bool:
        """Stop serving an account; return whether none is left, so that the cache has to be closed."""
        self.members.pop(account, None)
        if self._reader is account:
            self._reader = next(iter(self.members), None)
            if self._reader is not None:
                switching = asyncio.create_task(self._switch())
                self._switching.add(switching)
                switching.add_done_callback(self._switching.discard)
        return not self.members

    async def close(self) -> None:
        """Stop reading."""
        await _cancel(*self._switching)
        if self._task:
            await _cancel(self._task)

    def reads(self, account: Account) -> bool:
        """Whether this account is the one that reads: its own responses then show what it may."""
        return self._reader is account

    @property
    def reader(self) -> Account:
        """The account whose turn it is."""
        if self._reader is None:
            raise RuntimeError(f"no account reads {self.collection.resource}")
        return self._reader

    def hand_over(self, account: Account) -> bool:
        """Let the next account read; return whether there is one. Otherwise this one tries again, and reports why."""
        if self._reader is not account:
            return True
        if len(self.members) == 1:
            return False
        del self.members[account]
        self._reader = next(iter(self.members))
        account.refused(self.collection)
        return True

    async def _switch(self) -> None:
        """End the watch of an account that has left; the next one resumes it."""
        async with self._one_switch:
            if self._task:
                await _cancel(self._task)
            self._task = self.informer.start(server=self.reader.client.server)

    def _changed(self, change: Change) -> None:
        self._on_change(self.members, change)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Source:
    """Stands for an `ApiClient` in the informer."""

    name = "harvester"

    def __init__(self, cache: SharedCache, budget: MemoryBudget) -> None:
        self._cache = cache
        self.budget: MemoryBudget | None = budget

    @property
    def time(self) -> TimeBudget | None:
        """That of the account whose turn it is."""
        return self._cache.reader.client.time

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        while True:
            account = self._cache.reader
            try:
                return await account.client.list(resource, namespace, **options)
            except (Forbidden, Unauthorized):
                if not self._cache.hand_over(account):
                    raise

    async def watch(
        self, resource: Resource, namespace: str = "", **options: Any
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        while True:
            account = self._cache.reader
            try:
                async with contextlib.aclosing(account.client.watch(resource, namespace, **options)) as events:
                    async for event in events:
                        yield event
            except (Forbidden, Unauthorized):
                if not self._cache.hand_over(account):
                    raise
            else:
                return
