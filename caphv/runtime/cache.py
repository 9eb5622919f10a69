"""A cache of a collection, kept up to date by list and watch.

Why: every decision of a provider needs several objects. Reading them from the server costs a request each and a poll
for each change; here reads are free and changes call handlers. The rules:

* objects that are missing from a list were deleted while the watch was down: handlers are called for them;
* a watch resumes from the last resource version (bookmarks advance it when nothing happens); it starts over with a
  list after 410 Gone, and when attempts fail after five minutes without any contact;
* own writes enter the cache at once (`observe`), so that the next reconcile does not act on the state before; when the
  watch delivers the same version, handlers are not called again;
* an own write of an object that is absent is only accepted if it is newer than all the watch has delivered: an older
  one was deleted since.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from caphv.api.object import Key, Obj, Resource, being_deleted, key_of, resource_version
from caphv.runtime import logs, metrics
from caphv.runtime.budget import PIECE_SECONDS, MemoryBudget, memory_of
from caphv.runtime.errors import ApiError, Gone, NotFound, TooLarge, TooManyRequests, Unreachable, without_trace
from caphv.runtime.freshness import Freshness
from caphv.runtime.listing import MAX_OBJECTS, PageSize, Source, latest_version
from caphv.runtime.store import IndexFunction, Store

log = logging.getLogger(__name__)

_LASTING = 1.0
# After this many seconds without contact the cache lists again: the server may have been restored or replaced.
_STALE = 300.0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the cache: `old` is None for an addition, `new` for a deletion."""

    resource: Resource
    old: Obj | None
    new: Obj | None

    @property
    def obj(self) -> Obj:
        """The newest known state, for a deletion the last one."""
        obj = self.new if self.new is not None else self.old
        assert obj is not None  # noqa: S101 - one of them is always there
        return obj

    @property
    def key(self) -> Key:
        """Key of the object that changed."""
        return key_of(self.obj)


Handler = Callable[[Change], None]


class Informer:
    """Keeps a `Store` of one collection up to date and calls handlers with each change.

    `transform` returns the stored form of an object, without unused fields, or None to skip it. `on_error` is
    called with each failed attempt, `on_contact` with each watch that the server accepts. `probe` is an informer of the
    same server that retries often: while it fails, this one waits `max_backoff` seconds, or for `retry_now`.
    `first_from_cache` lets the server answer the first list from its own cache, which is cheaper and may be a little
    old: not for collections where absence leads to a deletion. A server that has never answered may be unreachable for
    `patience` seconds before failures are logged as warnings. Run it as a task; cancel the task to stop.
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
        """Whether a list has been read since the start; before that, absence means nothing. See `current`."""
        self.freshness = Freshness()
        self.last_error: Exception | None = None
        self._client = client
        self._events = metrics.WATCH_EVENTS.labels(client.name, str(resource))
        self._namespace = namespace
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._metadata_only = metadata_only
        self._transform = transform or _without_managed_fields
        self._on_error = on_error
        self._on_contact = on_contact
        self._max_backoff = max_backoff
        self._probe = probe
        self._first_from_cache = first_from_cache
        self._patience = patience
        self._began = time.monotonic()
        self._warned = False
        self._sizes: dict[Key, int] = {}
        self._page_size = PageSize(client)
        self._handlers: list[Handler] = []
        self._first_list = asyncio.Event()
        self._wake = asyncio.Event()
        self._opened = math.inf
        self._version = ""
        self._newest = 0
        self._contacted = math.inf

    @property
    def current(self) -> bool:
        """Whether the watch is connected and has caught up, so that absence here means absence on the server."""
        return self.freshness.current

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
        """The cached object, or None. It is shared: do not modify it."""
        return self.store.get(namespace, name)

    def observe(self, obj: Obj) -> None:
        """Add the response to an own write to the cache."""
        key = key_of(obj)
        known = self.store.get(*key)
        # The cache holds all objects as of `_version`: an absent one was deleted before this response arrived.
        if known is not None or resource_version(obj) > int(self._version or 0):
            # The removal of the last finalizer deletes an object, and the answer has the version before it.
            deleted = being_deleted(obj) and not obj["metadata"].get("finalizers")
            same_version = known is not None and resource_version(known) == resource_version(obj)
            self._put(key, obj, force=deleted and same_version)

    def deleted(self, namespace: str, name: str, answer: Obj | None) -> bool:
        """Add the response to an own deletion to the cache; return whether the object is deleted already."""
        if answer is None:
            self.forget(namespace, name)
        else:
            self.observe(answer)
        return answer is None

    def forget(self, namespace: str, name: str) -> None:
        """Remove an object for which the server has returned 404."""
        self._remove(Key(namespace, name), None)

    def clear(self) -> None:
        """Forget all objects while the cache does not run; it lists again when it does."""
        self._sizes.clear()
        self._version = ""
        self.synced = False
        self._first_list.clear()
        for obj in self.store:
            self._notify(Change(self.resource, self.store.remove(key_of(obj)), None))

    def retry_now(self) -> None:
        """Skip the next wait between attempts, also when an attempt is under way: the server is back."""
        if not self.freshness.connected:
            self._wake.set()

    def start(self, **fields: str) -> asyncio.Task[None]:
        """Run as a task of its own, which logs these fields (such as the name of its cluster), not its caller's."""
        return contextvars.Context().run(self._start, fields)

    def _start(self, fields: dict[str, str]) -> asyncio.Task[None]:
        with logs.context(**fields):
            return asyncio.create_task(self.run())

    async def run(self) -> None:
        """List and watch until cancelled."""
        budget = self._client.budget
        if budget:
            self._charge_again(budget)
        try:
            await self._run()
        finally:
            if budget:
                budget.release(sum(self._sizes.values()))

    # Inside

    def _charge_again(self, budget: MemoryBudget) -> None:
        """Account for what a cache still holds whose task was cancelled. What no longer fits is listed again."""
        try:
            budget.charge(sum(self._sizes.values()))
        except TooLarge:
            self.clear()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._opened = math.inf
            error = await self._attempt()
            # A server (or proxy) that ends watches at once must not be asked in a tight loop.
            lasted = time.monotonic() - self._opened > _LASTING
            if lasted and error is None:
                failures = 0
                continue
            failures = 1 if lasted else failures + 1
            reason = _reason(error)
            metrics.WATCH_RESTARTS.labels(self._client.name, str(self.resource), reason).inc()
            if reason in ("closed", "expired"):  # no failure; the line has the server, which the metric has not
                log.debug("watch of %s on %s restarts: %s", self.resource, self._client.name, reason)
            if isinstance(error, Gone):
                self._version = ""
                if failures == 1:
                    continue
            elif error is not None:
                self._failed(error, failures)
                if time.monotonic() - self._contacted > _STALE:
                    self._version = ""
            await self._pause(failures, error.retry_after if isinstance(error, TooManyRequests) else 0)

    async def _attempt(self) -> Exception | None:
        try:
            reason = "resume" if self._version else "list"
            if not self._version:
                self._version = await self._list()
            metrics.WATCH_STARTS.labels(self._client.name, str(self.resource), reason).inc()
            await self._watch()
        except (ApiError, Unreachable) as error:
            if self._client.time and isinstance(error, TooLarge):
                self._client.time.broken(str(error))
            return without_trace(error)
        except Exception as error:
            # A transform or an index failed, or another server responded: the cache may have missed something. Start
            # over instead of ending silently.
            if type(error) is not type(self.last_error):  # else it comes again with each attempt
                log.exception("cannot process the objects of %s on %s", self.resource, self._client.name)
            self._version = ""
            if self._client.time:
                self._client.time.broken(f"what it says of {self.resource} cannot be processed")
            return without_trace(error)
        return None

    async def _list(self) -> str:
        seen: set[Key] = set()
        continue_token = ""
        rollback = False
        while True:
            page = await self._page(continue_token)
            before = len(seen)
            listed = int(page["metadata"]["resourceVersion"])
            # A server restored from a backup counts from an older version again: all that is cached is from its future.
            rollback = rollback or listed < self._newest
            await self._put_all(page.get("items") or (), seen, force=rollback)
            continue_token = page["metadata"].get("continue", "")
            if not continue_token:
                break
            if len(seen) == before or (self._client.budget and len(seen) > MAX_OBJECTS):
                raise TooLarge(f"the list of {self.resource} does not end: {len(seen)} objects")
        if rollback:
            log.warning("%s on %s was restored to an older state", self.resource, self._client.name)
        self._newest = listed
        for obj in self.store:
            # A newer one is an own write, made after the list was taken.
            if key_of(obj) not in seen and (rollback or resource_version(obj) <= listed):
                self._remove(key_of(obj), None)
        self.synced = True
        self._first_list.set()
        return str(listed)

    async def _put_all(self, objects: Iterable[Obj], seen: set[Key], *, force: bool) -> None:
        """Store the objects of a page in pieces, so that others have their turns."""
        began = time.thread_time()
        for obj in objects:
            key = key_of(obj)
            seen.add(key)
            self._put(key, obj, force=force)
            spent = time.thread_time() - began
            if self._client.time and spent > PIECE_SECONDS:
                self._client.time.spend(spent)
                await self._client.time.rest()
                began = time.thread_time()

    async def _page(self, continue_token: str) -> Obj:
        """Read one page, smaller ones when the server's is too large."""
        while True:
            # Only the first list: a later one from the cache of a server that lags would look just like a restored
            # backup.
            from_cache = self._first_from_cache and not self._newest and not continue_token
            try:
                return await self._client.list(
                    self.resource,
                    self._namespace,
                    limit=self._page_size.limit,
                    continue_token=continue_token,
                    metadata_only=self._metadata_only,
                    resource_version="0" if from_cache else "",
                    **self._selectors,
                )
            except TooLarge:
                # Older servers ignore the limit of a list from their cache.
                self._first_from_cache = False
                if not self._page_size.shrink():
                    raise

    async def _watch(self) -> None:
        watch = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=self._version,
            metadata_only=self._metadata_only,
            on_open=self._contact,
            on_wait=self.freshness.waits,
            **self._selectors,
        )
        try:
            async with contextlib.aclosing(watch) as events:
                async for kind, obj in events:
                    self._take(kind, obj)
                    if self.freshness.needs_version:
                        version = await latest_version(self._client, self.resource, self._namespace, self._selectors)
                        self.freshness.expect(version)
        finally:
            self.freshness.closed()

    def _take(self, kind: str, obj: Obj) -> None:
        self._contacted = time.monotonic()
        if kind == "DELETED":
            self._remove(key_of(obj), obj)
        elif kind != "BOOKMARK":
            self._put(key_of(obj), obj)
        self._version = str(obj["metadata"]["resourceVersion"])
        self._newest = int(self._version)
        if kind != "BOOKMARK":
            self._events.inc()
        self.freshness.received(kind, self._newest)

    def _put(self, key: Key, obj: Obj, *, force: bool = False) -> None:
        known = self.store.get(*key)
        if known is not None and not force and resource_version(known) >= resource_version(obj):
            return
        slim = self._transform(obj)
        if slim is None:
            if known is not None:
                self._remove(key, obj)
            return
        self._account(key, slim)
        old = self.store.put(key, slim)
        self._notify(Change(self.resource, old, slim))

    def _account(self, key: Key, slim: Obj | None) -> None:
        if self._client.budget:
            size = memory_of(slim) if slim is not None else 0
            self._client.budget.charge(size - self._sizes.get(key, 0))
            if slim is None:
                self._sizes.pop(key, None)
            else:
                self._sizes[key] = size

    def _remove(self, key: Key, obj: Obj | None) -> None:
        known = self.store.get(*key)
        if known is None:
            return
        if obj is not None and resource_version(obj) < resource_version(known):
            return  # it was recreated, and an own write has brought the new object
        self._account(key, None)
        self._notify(Change(self.resource, self.store.remove(key), None))

    def _notify(self, change: Change) -> None:
        for handler in list(self._handlers):
            try:
                handler(change)
            except Exception:
                # One faulty handler must not stop the cache for all others.
                log.exception("handler of %s failed for %s", self.resource, change.key)

    def _contact(self) -> None:
        self._opened = self._contacted = time.monotonic()
        self._wake.clear()
        self.freshness.opened()
        self.last_error = None
        if self._warned:
            self._warned = False
            log.info("watch of %s on %s resumed", self.resource, self._client.name)
        if self._on_contact:
            self._on_contact()

    def _failed(self, error: Exception, failures: int) -> None:
        self.last_error = error
        # One failure is nothing special. While the probe fails, its line says why.
        normal = (
            failures == 1 or self._probe_fails or (not self._newest and time.monotonic() - self._began < self._patience)
        )
        self._warned = self._warned or not normal
        level = logging.DEBUG if normal else logging.WARNING
        # The body of this answer is no Status object: its error would say that no API server answers.
        why = "the server does not serve this kind (HTTP 404)" if isinstance(error, NotFound) else error
        log.log(level, "watch of %s on %s failed: %s", self.resource, self._client.name, why)
        if self._on_error:
            self._on_error(error)

    @property
    def _probe_fails(self) -> bool:
        return self._probe is not None and self._probe.last_error is not None

    async def _pause(self, failures: int, at_least: float = 0) -> None:
        # Jitter: after an outage the watches of all processes come back spread over the interval.
        limit = self._max_backoff if self._probe_fails else min(0.2 * 2.0 ** min(failures, 20), self._max_backoff)
        # Not cleared before the wait: `retry_now` may have been called while the attempt that failed was hanging.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(at_least, random.uniform(limit / 4, limit))):
                await self._wake.wait()
        self._wake.clear()


def _reason(error: Exception | None) -> str:
    if error is None:
        return "closed"
    if isinstance(error, Gone):
        return "expired"
    if isinstance(error, TooLarge):
        return "broken"  # it answers, though
    return "refused" if isinstance(error, ApiError) else "unreachable" if isinstance(error, Unreachable) else "broken"


def _without_managed_fields(obj: Obj) -> Obj:
    # A copy: the caller of an own write may still use the response.
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name != "managedFields"}}
