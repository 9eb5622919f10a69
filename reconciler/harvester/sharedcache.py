"""A cache of one collection on one Harvester, shared by all accounts that may list it.

The first account reads the collection for all. When Harvester refuses that account, the account
falls back to a cache of its own, because it must not use objects that others read. When the account
leaves, its connection is closed. In both cases its request ends with an error, and the next account
continues from the present state of the cache.
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
from caphv.runtime.errors import Forbidden, RequestError, Unauthorized


@dataclass(frozen=True)
class Collection:
    """The objects that one cache holds; `options` are keyword arguments of `Informer`."""

    resource: Resource
    namespace: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Account(Protocol):
    """An account that reads a shared cache."""

    @property
    def client(self) -> ApiClient:
        """Client of the account."""

    def handle_refusal(self, collection: Collection) -> None:
        """Handle that Harvester has refused this account, but not others, to list a collection."""


OnChange = Callable[[Mapping[Account, None], Change], None]


class SharedCache:
    """The cache and its members in order of arrival; the first member reads for all.

    :param collection: the objects that the cache holds
    :param budget: the memory that all shared caches of a Harvester may take
    :param on_change: called with the members that a change concerns
    :param options: options of the informer; options of the collection take precedence
    """

    def __init__(
        self,
        collection: Collection,
        budget: MemoryBudget,
        on_change: OnChange,
        options: Mapping[str, Any],
    ) -> None:
        self.collection = collection
        self.members: dict[Account, None] = {}
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        source = _Source(self, budget)
        self.informer = Informer(
            source,
            collection.resource,
            namespace=collection.namespace,
            **{**options, **collection.options},
        )
        self.informer.add_handler(self._report_change)

    def join(self, account: Account) -> None:
        """Let an account use the cache. The caller has verified that it may list the collection."""
        self.members[account] = None
        if self._task is None:
            self._task = self.informer.start(server=account.client.server)
            return

        # The next attempt of an account that was refused lets this one read.
        if is_refusal(self.informer.last_error):
            self.informer.retry_now()

        # Objects that the cache already holds are new to this account.
        for obj in self.informer.store:
            self._on_change({account: None}, Change(self.informer.resource, None, obj))

    def leave(self, account: Account) -> bool:
        """Stop serving an account; return whether the cache is no longer used."""
        self._remove(account)
        return not self.members

    def _remove(self, account: Account) -> None:
        """Remove a member. If it is the one that reads, the next one does."""
        was_reader = self.reads(account)
        self.members.pop(account, None)
        # The refusal of the former account must not be taken for one of the next.
        if was_reader and is_refusal(self.informer.last_error):
            self.informer.forget_error()

    async def close(self) -> None:
        """Stop reading."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def reads(self, account: Account) -> bool:
        """Return whether this account is the one that reads.

        Responses to its own requests then show whether it may list the collection.
        """
        return bool(self.members) and self.reader is account

    @property
    def reader(self) -> Account:
        """The account that reads."""
        return next(iter(self.members))

    def has_next(self, account: Account, error: RequestError) -> bool:
        """Return whether another account reads after an error of this one.

        Another one does if this account has left, or if a refusal makes it leave.
        """
        # The last account stays and tries again, so that the cache reports the refusal.
        if is_refusal(error) and self.reads(account) and len(self.members) > 1:
            self._remove(account)
            account.handle_refusal(self.collection)
        return bool(self.members) and not self.reads(account)

    def _report_change(self, change: Change) -> None:
        self._on_change(self.members, change)


def is_refusal(error: Exception | None) -> bool:
    """Return whether an error says something about one account, and nothing about others."""
    return isinstance(error, Forbidden | Unauthorized)


class _Source:
    """Send the requests of the informer with the client of the account that reads."""

    name = "harvester"

    def __init__(self, cache: SharedCache, budget: MemoryBudget) -> None:
        self._cache = cache
        self.budget: MemoryBudget | None = budget

    @property
    def time(self) -> TimeBudget | None:
        """The time budget of the account that reads now."""
        return self._cache.reader.client.time

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        """List with the account that reads, and with the next one after a refusal."""
        while True:
            account = self._cache.reader
            try:
                return await account.client.list(resource, namespace, **options)
            except RequestError as error:
                if not self._cache.has_next(account, error):
                    raise

    async def watch(
        self, resource: Resource, namespace: str = "", **options: Any
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        """Watch with the account that reads now; the watch ends when another one reads."""
        account = self._cache.reader
        try:
            async with contextlib.aclosing(
                account.client.watch(resource, namespace, **options)
            ) as events:
                async for event in events:
                    yield event
        except RequestError as error:
            # If this raises nothing, the watch just ends, and the informer resumes with the next
            # account.
            if not self._cache.has_next(account, error):
                raise
