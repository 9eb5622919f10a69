"""Cache a collection, and keep it up to date by list and watch.

Every decision of a provider needs several objects. Reading them from the server costs a request for
each object and a poll for each change. With a cache, reads are free and changes call handlers.
The rules:

* If an object is missing from a list, it was deleted while the watch was down, and the informer
  calls the handlers for it.
* A `Reflector` lists and watches. After an interruption it continues from the last resource version
  if it can, and otherwise with a list.
* Writes of this process enter the cache at once (`observe`), so that the next reconcile does not
  act on the state before. When the watch delivers the same version, the informer does not call
  handlers again.
* A write of an object that the cache does not have is accepted only if it is newer than everything
  that the watch has delivered. Otherwise the object was deleted after the write.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from caphv.api.object import Key, Obj, Resource, being_deleted, key_of, resource_version
from caphv.runtime import logs
from caphv.runtime.budget import memory_of
from caphv.runtime.errors import TooLarge
from caphv.runtime.listing import Source
from caphv.runtime.reflector import Reflector
from caphv.runtime.store import IndexFunction, Store
from caphv.runtime.watchretry import WatchRetries

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the cache; `old` is None for an addition, and `new` is None for a deletion."""

    resource: Resource
    old: Obj | None
    new: Obj | None

    @property
    def obj(self) -> Obj:
        """The newest state of the object, or its last state after a deletion."""
        obj = self.new if self.new is not None else self.old
        assert obj is not None  # noqa: S101 - one of them is always there
        return obj

    @property
    def key(self) -> Key:
        """The key of the object that changed."""
        return key_of(self.obj)


Handler = Callable[[Change], None]


class Informer:
    """Keep a `Store` of one collection up to date, and call handlers with each change.

    Run it as a task; cancel the task to stop.

    :param indexes: index functions of the store by name
    :param transform: returns the stored form of an object, without unused fields, or None to skip
        the object
    :param on_error: called with the error of each failed attempt
    :param on_contact: called for each watch that the server accepts
    :param max_backoff: longest wait between attempts, in seconds
    :param probe: an informer of the same server that retries often; while it fails, this one waits
        `max_backoff` seconds, or for `retry_now`
    :param first_from_cache: let the server answer the first list from its own cache, which is
        cheaper but may be a little old; not for collections where absence causes a deletion
    :param patience: how many seconds a server that has never answered may be unreachable before the
        informer logs failures as warnings
    """

    def __init__(
        self,
        client: Source,
        resource: Resource,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        indexes: Mapping[str, IndexFunction] | None = None,
        transform: Callable[[Obj], Obj | None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_contact: Callable[[], None] | None = None,
        max_backoff: float = 30.0,
        probe: Informer | None = None,
        first_from_cache: bool = False,
        patience: float = 0.0,
    ) -> None:
        self.resource = resource
        self.store = Store(indexes)
        self.synced = False
        """Whether a list has been read. Before that, absence means nothing. See `current`."""

        self._client = client
        self._namespace = namespace
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._metadata_only = metadata_only
        self._transform = transform or _without_managed_fields
        self._handlers: list[Handler] = []
        # Memory that the budget of the client counts for each object.
        self._sizes: dict[Key, int] = {}

        self._first_list = asyncio.Event()
        self.retries: WatchRetries = WatchRetries(
            client.name,
            resource,
            on_error=on_error,
            max_backoff=max_backoff,
            patience=patience,
            probe=probe.retries if probe else None,
        )
        self._reflector = Reflector(
            client,
            resource,
            self,
            namespace=namespace,
            selectors=self._selectors,
            metadata_only=metadata_only,
            first_from_cache=first_from_cache,
            retries=self.retries,
            on_contact=on_contact,
        )
        self.watch_state = self._reflector.watch_state

    @property
    def last_error(self) -> Exception | None:
        """Why the last attempt failed, None once the server has accepted the watch."""
        return self.retries.last_error

    @property
    def current(self) -> bool:
        """Whether the watch is connected, so that the cache follows the server.

        Use `read` for objects that a decision must not miss.
        """
        return self.watch_state.connected

    async def wait_synced(self) -> None:
        """Wait for the first list."""
        await self._first_list.wait()

    def add_handler(self, handler: Handler) -> None:
        """Call the handler for each object that is cached, and for each later change."""
        self._handlers.append(handler)
        for obj in self.store:
            handler(Change(self.resource, None, obj))

    def remove_handler(self, handler: Handler) -> None:
        """Stop calling the handler."""
        self._handlers.remove(handler)

    def get(self, namespace: str, name: str) -> Obj | None:
        """Return the cached object, or None. Do not modify it, because all readers share it."""
        return self.store.get(namespace, name)

    async def read(self, namespace: str, name: str) -> Obj | None:
        """Read one object from the server and cache it. Return None if it does not exist.

        The request is a list, so that the account needs no other rights than the cache needs.
        """
        selectors = {**self._selectors, "field_selector": f"metadata.name={name}"}
        page = await self._client.list(
            self.resource, namespace, metadata_only=self._metadata_only, **selectors
        )
        for obj in page.get("items") or ():
            if obj["metadata"]["name"] == name:
                self.observe(obj)
                return obj
        return None

    def observe(self, obj: Obj) -> None:
        """Store the response to a write of this process."""
        key = key_of(obj)
        cached = self.store.get(*key)
        # The cache has all objects as of the reflector's version. If this one is absent and not
        # newer, it was deleted before the response arrived.
        if cached is None and resource_version(obj) <= int(self._reflector.version or 0):
            return

        # Removing the last finalizer deletes an object. The response then has the version that the
        # object had before.
        was_deleted = being_deleted(obj) and not obj["metadata"].get("finalizers")
        same_version = cached is not None and resource_version(cached) == resource_version(obj)
        self.put(key, obj, force=was_deleted and same_version)

    def observe_deletion(self, namespace: str, name: str, answer: Obj | None) -> bool:
        """Store the response to our own deletion, and return whether the object is deleted."""
        if answer is None:
            self.forget(namespace, name)
        else:
            self.observe(answer)
        return answer is None

    def forget(self, namespace: str, name: str) -> None:
        """Remove an object for which the server has returned 404."""
        self.remove(Key(namespace, name), None)

    def clear(self) -> None:
        """Forget all objects while the informer does not run. Its next run begins with a list."""
        self._sizes.clear()
        self._reflector.version = ""
        self.synced = False
        self._first_list.clear()
        for obj in self.store:
            self._notify(Change(self.resource, self.store.remove(key_of(obj)), None))

    def retry_now(self) -> None:
        """Skip the next wait between attempts, because the server answers again.

        This also works while an attempt is under way.
        """
        if not self.watch_state.connected:
            self.retries.retry_now()

    def forget_error(self) -> None:
        """Forget why the last attempt failed, and retry now, because another account will try."""
        self.retries.last_error = None
        self.retry_now()

    def start(self, **fields: str) -> asyncio.Task[None]:
        """Run as a task whose log lines have these fields, but not the fields of the caller."""

        def create_task() -> asyncio.Task[None]:
            with logs.context(**fields):
                return asyncio.create_task(self.run())

        return contextvars.Context().run(create_task)

    async def run(self) -> None:
        """List and watch until cancelled."""
        budget = self._client.budget
        if budget:
            try:
                # A cache whose task was cancelled still has its objects.
                budget.charge(sum(self._sizes.values()))
            except TooLarge:
                self.clear()
        try:
            await self._reflector.run()
        finally:
            if budget:
                budget.release(sum(self._sizes.values()))

    def put(self, key: Key, obj: Obj, *, force: bool = False) -> None:
        """Store an object if it is newer than the cached one, or with `force`, and notify."""
        cached = self.store.get(*key)
        if cached is not None and not force and resource_version(cached) >= resource_version(obj):
            return

        stored = self._transform(obj)
        if stored is None:
            # The object is not of interest any more, so readers must not find it.
            if cached is not None:
                self.remove(key, obj)
            return

        self._account(key, stored)
        old = self.store.put(key, stored)
        self._notify(Change(self.resource, old, stored))

    def remove_absent(self, keys: set[Key], version: int, *, was_restored: bool) -> None:
        """Remove objects that the list of this version lacks: they were deleted meanwhile.

        :param keys: the keys of all objects of the list
        :param version: the resource version of the list
        :param was_restored: whether the server counts from an older version again
        """
        for obj in self.store:
            # Keep newer objects, which this process wrote after the list was taken.
            if key_of(obj) not in keys and (was_restored or resource_version(obj) <= version):
                self.remove(key_of(obj), None)

    def complete_list(self) -> None:
        """Record that all objects of a list are stored."""
        self.synced = True
        self._first_list.set()

    def _account(self, key: Key, stored: Obj | None) -> None:
        """Charge the memory of an object to the server's budget, or release it for None.

        Raises `TooLarge`.
        """
        if not self._client.budget:
            return
        size = memory_of(stored) if stored is not None else 0
        self._client.budget.charge(size - self._sizes.get(key, 0))
        if stored is None:
            self._sizes.pop(key, None)
        else:
            self._sizes[key] = size

    def remove(self, key: Key, obj: Obj | None) -> None:
        """Remove an object and notify. `obj` is its last state, None to remove any state."""
        cached = self.store.get(*key)
        if cached is None:
            return
        if obj is not None and resource_version(obj) < resource_version(cached):
            return  # this process has recreated the object, and its write entered the cache
        self._account(key, None)
        self._notify(Change(self.resource, self.store.remove(key), None))

    def _notify(self, change: Change) -> None:
        for handler in list(self._handlers):
            try:
                handler(change)
            except Exception:
                # One faulty handler must not stop the cache for all others.
                log.exception("handler of %s failed for %s", self.resource, change.key)


def _without_managed_fields(obj: Obj) -> Obj:
    # Copy the object: the caller of a write may still use the response.
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": metadata}
