"""A local copy of a collection, kept true by list and watch.

Why: every decision of a provider needs several objects. Read from the server they cost a request each and a poll for
each change; read from here they cost nothing and changes announce themselves. The rules that keep the copy true:

* after a list, objects that are not in it were deleted while nobody looked: handlers hear of them;
* a watch goes on from the last resource version it saw (bookmarks move it when nothing happens), and starts over
  with a list only when the server says 410 Gone;
* an own write is put into the copy at once (`observe`), so that the next reconcile does not act on what was before;
  when the watch brings the same version again, nobody is woken a second time;
* of an absent object, only a write later than all the watch has told is believed: an earlier one was deleted since.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from caphv.api.object import Key, Obj, Resource, key_of, resource_version
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Gone, TooManyRequests, Unreachable
from caphv.runtime.freshness import Freshness

log = logging.getLogger(__name__)

IndexFunction = Callable[[Obj], Iterable[str]]
_PAGE = 500
_LASTING = 1.0
# After this many seconds without contact nothing is taken for granted: the server may be another one by now.
_STALE = 300.0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the copy: `old` is missing for an addition, `new` for a deletion."""

    resource: Resource
    old: Obj | None
    new: Obj | None

    @property
    def obj(self) -> Obj:
        """The newest state known, for a deletion the last one."""
        obj = self.new if self.new is not None else self.old
        assert obj is not None  # noqa: S101 - one of them is always there
        return obj

    @property
    def key(self) -> Key:
        """Key of the object that changed."""
        return key_of(self.obj)


Handler = Callable[[Change], None]


class Store:
    """Objects by key, with indexes that are kept up to date with each change."""

    def __init__(self, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        self._objects: dict[Key, Obj] = {}
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in self._index_functions}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Obj]:
        return iter(list(self._objects.values()))

    def keys(self) -> set[Key]:
        """Keys of all objects."""
        return set(self._objects)

    def get(self, namespace: str, name: str) -> Obj | None:
        """The object, or None. It is shared: nobody may change it."""
        return self._objects.get(Key(namespace, name))

    def by_index(self, index: str, value: str) -> list[Obj]:
        """Objects for which the index function gave this value, ordered by key."""
        return [self._objects[key] for key in sorted(self._indexes[index].get(value, ()))]

    def put(self, key: Key, obj: Obj) -> Obj | None:
        """Store an object; answers the one before."""
        old = self._objects.get(key)
        self._reindex(key, old, obj)
        self._objects[key] = obj
        return old

    def remove(self, key: Key) -> Obj | None:
        """Forget an object; answers it."""
        old = self._objects.get(key)
        if old is not None:
            self._reindex(key, old, None)
            del self._objects[key]
        return old

    def _reindex(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        # All functions first: one that raises must not leave the indexes half changed.
        values = {
            name: (set(function(old) if old is not None else ()), set(function(new) if new is not None else ()))
            for name, function in self._index_functions.items()
        }
        for name, (before, after) in values.items():
            index = self._indexes[name]
            for value in before - after:
                index[value].discard(key)
                if not index[value]:
                    del index[value]
            for value in after - before:
                index.setdefault(value, set()).add(key)


class Informer:
    """Keeps a `Store` of one collection true and tells handlers of each change.

    `transform` makes the stored form of an object (drop what nobody reads) or None to leave it out.
    `on_error` hears of each failed attempt, `on_contact` of each watch that the server accepts, so that an owner can
    say on a condition why nothing happens. `probe` is an informer of the same server that tries often: while it fails,
    this one waits `max_backoff` seconds, or for `retry_now`. Run it as a task; cancel the task to stop.
    """

    def __init__(
        self,
        client: ApiClient,
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
    ) -> None:
        self.resource = resource
        self.store = Store(indexes)
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
        self._handlers: list[Handler] = []
        self._synced = asyncio.Event()
        self._wake = asyncio.Event()
        self._opened = math.inf
        self._version = ""
        self._newest = 0
        self._contacted = math.inf

    @property
    def synced(self) -> bool:
        """Whether a list has been read since the start; before, an absent object means nothing. See `current`."""
        return self._synced.is_set()

    @property
    def current(self) -> bool:
        """Whether the watch is connected and has caught up, so that absence here means absence on the server."""
        return self.freshness.current

    async def wait_synced(self) -> None:
        """Wait for the first list."""
        await self._synced.wait()

    def add_handler(self, handler: Handler) -> None:
        """Call the handler for each later change, and now for what is there already."""
        self._handlers.append(handler)
        for obj in self.store:
            handler(Change(self.resource, None, obj))

    def remove_handler(self, handler: Handler) -> None:
        """Do not call the handler any more."""
        self._handlers.remove(handler)

    def get(self, namespace: str, name: str) -> Obj | None:
        """The object in the local copy, or None. It is shared: nobody may change it."""
        return self.store.get(namespace, name)

    def observe(self, obj: Obj) -> None:
        """Take over the server's answer to an own write."""
        key = key_of(obj)
        # The copy holds all there was at `_version`: what is absent was deleted before this answer arrived.
        if self.store.get(*key) is not None or resource_version(obj) > int(self._version or 0):
            self._put(key, obj)

    def deleted(self, namespace: str, name: str, answer: Obj | None) -> bool:
        """Take over the answer to an own deletion; tells whether the object is gone already."""
        if answer is None:
            self.forget(namespace, name)
        else:
            self.observe(answer)
        return answer is None

    def forget(self, namespace: str, name: str) -> None:
        """Take over that the server answered 404 to a read or an own write."""
        self._remove(Key(namespace, name), None)

    def retry_now(self) -> None:
        """Skip the next wait between attempts, also when an attempt is under way: the server is back."""
        if not self.freshness.connected:
            self._wake.set()

    def start(self) -> asyncio.Task[None]:
        """Run it as a task of its own; it logs without the fields of whoever starts it."""
        return asyncio.create_task(self.run(), context=contextvars.Context())

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            self._opened = math.inf
            error = await self._attempt()
            # A server (or proxy) that ends watches at once must not be asked in a circle.
            lasted = time.monotonic() - self._opened > _LASTING
            if lasted and error is None:
                failures = 0
                continue
            failures = 1 if lasted else failures + 1
            metrics.WATCH_RESTARTS.labels(self._client.name, str(self.resource), _reason(error)).inc()
            if isinstance(error, Gone):
                self._version = ""
                if failures == 1:
                    continue
            elif error is not None:
                self._failed(error, failures)
                if time.monotonic() - self._contacted > _STALE:
                    self._version = ""
            await self._pause(failures, error.retry_after if isinstance(error, TooManyRequests) else 0)

    # Inside

    async def _attempt(self) -> Exception | None:
        try:
            reason = "resume" if self._version else "list"
            if not self._version:
                self._version = await self._list()
            metrics.WATCH_STARTS.labels(self._client.name, str(self.resource), reason).inc()
            await self._watch()
        except (ApiError, Unreachable) as error:
            return error
        except Exception as error:
            # An object that a transform or an index cannot take, or an answer of some other server: the copy may have
            # missed something, so it starts over, and does not end in silence.
            log.exception("%s on %s cannot be taken over", self.resource, self._client.name)
            self._version = ""
            return error
        return None

    async def _list(self) -> str:
        seen: set[Key] = set()
        continue_token = ""
        rollback = False
        while True:
            page = await self._client.list(
                self.resource,
                self._namespace,
                limit=_PAGE,
                continue_token=continue_token,
                metadata_only=self._metadata_only,
                **self._selectors,
            )
            listed = int(page["metadata"]["resourceVersion"])
            # A server restored from a backup counts from an older version again: all that we know is from its future.
            rollback = rollback or listed < self._newest
            for obj in page.get("items") or ():
                key = key_of(obj)
                seen.add(key)
                self._put(key, obj, believe=rollback)
            continue_token = page["metadata"].get("continue", "")
            if not continue_token:
                break
        if rollback:
            log.warning("%s on %s went back to an older state", self.resource, self._client.name)
        self._newest = listed
        for obj in self.store:
            # A later one is an own write, made after the server took the list.
            if key_of(obj) not in seen and (rollback or resource_version(obj) <= listed):
                self._remove(key_of(obj), None)
        self._synced.set()
        return str(listed)

    async def _watch(self) -> None:
        watch = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=self._version,
            metadata_only=self._metadata_only,
            on_open=self._contact,
            **self._selectors,
        )
        try:
            async with contextlib.aclosing(watch) as events:
                async for kind, obj in events:
                    self._take(kind, obj)
        finally:
            self.freshness.closed()

    def _take(self, kind: str, obj: Obj) -> None:
        if kind == "DELETED":
            self._remove(key_of(obj), obj)
        elif kind != "BOOKMARK":
            self._put(key_of(obj), obj)
        self._version = str(obj["metadata"]["resourceVersion"])
        self._newest = int(self._version)
        if kind != "BOOKMARK":
            self._events.inc()
        self.freshness.received(kind)

    def _put(self, key: Key, obj: Obj, *, believe: bool = False) -> None:
        known = self.store.get(*key)
        if known is not None and not believe and resource_version(known) >= resource_version(obj):
            return
        slim = self._transform(obj)
        if slim is None:
            if known is not None:
                self._remove(key, obj)
            return
        old = self.store.put(key, slim)
        self._tell(Change(self.resource, old, slim))

    def _remove(self, key: Key, obj: Obj | None) -> None:
        known = self.store.get(*key)
        if known is None:
            return
        if obj is not None and resource_version(obj) < resource_version(known):
            return  # an object of that name was made again, and we know the new one from our own write
        self._tell(Change(self.resource, self.store.remove(key), None))

    def _tell(self, change: Change) -> None:
        for handler in list(self._handlers):
            try:
                handler(change)
            except Exception:
                # One faulty handler must not stop the copy for all others.
                log.exception("handler of %s failed for %s", self.resource, change.key)

    def _contact(self) -> None:
        self._opened = self._contacted = time.monotonic()
        self._wake.clear()
        self.freshness.opened()
        if self.last_error is not None:
            self.last_error = None
            log.info("watch of %s on %s goes on", self.resource, self._client.name)
        if self._on_contact:
            self._on_contact()

    def _failed(self, error: Exception, failures: int) -> None:
        self.last_error = error
        level = logging.WARNING if failures > 1 else logging.DEBUG
        log.log(level, "watch of %s on %s failed (attempt %d): %s", self.resource, self._client.name, failures, error)
        if self._on_error:
            self._on_error(error)

    async def _pause(self, failures: int, at_least: float = 0) -> None:
        # Full jitter: after an outage the watches of all processes come back spread over the interval.
        probe_fails = self._probe is not None and self._probe.last_error is not None
        limit = self._max_backoff if probe_fails else min(0.2 * 2.0 ** min(failures, 20), self._max_backoff)
        # Not cleared before the wait: `retry_now` may have been called while the attempt that failed was hanging.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(at_least, random.uniform(limit / 4, limit)))
        self._wake.clear()


def _reason(error: Exception | None) -> str:
    if error is None:
        return "closed"
    if isinstance(error, Gone):
        return "expired"
    return "refused" if isinstance(error, ApiError) else "unreachable" if isinstance(error, Unreachable) else "broken"


def _without_managed_fields(obj: Obj) -> Obj:
    # A copy: whoever made an own write may still use the answer.
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name != "managedFields"}}
