"""List and watch one collection, and hand its objects to a cache.

A watch resumes from the last resource version (bookmarks advance it while nothing happens). It
starts over with a list after 410 Gone, when attempts fail after five minutes without any contact,
when it was silent because the server was restored to an older version, and when an object did not
fit into the memory of the cache.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from caphv.api.object import Key, Obj, Resource, key_of
from caphv.runtime import metrics
from caphv.runtime.budget import PIECE_SECONDS
from caphv.runtime.errors import (
    Gone,
    RequestError,
    SilentWatch,
    TooLarge,
    TooManyRequests,
    without_trace,
)
from caphv.runtime.listing import MAX_OBJECTS, PageSize, Source
from caphv.runtime.watchretry import WatchRetries
from caphv.runtime.watchstate import WatchState

# Operators know the lines of an informer by this name.
log = logging.getLogger("caphv.runtime.cache")

# A watch that was open for more seconds than this was a success.
_LASTING_SECONDS = 1.0
# After this many seconds without contact a list is read again, because the server may have been
# restored or replaced.
_STALE_SECONDS = 300.0


class Sink(Protocol):
    """Takes the objects of a collection."""

    def put(self, key: Key, obj: Obj, *, force: bool = False) -> None:
        """Store an object if it is newer than the stored one, or with `force`."""

    def remove(self, key: Key, obj: Obj | None) -> None:
        """Remove an object. `obj` is its last state, None to remove any state."""

    def remove_absent(self, keys: set[Key], version: int, *, was_restored: bool) -> None:
        """Remove objects that the list of this version lacks.

        :param keys: the keys of all objects of the list
        :param version: the resource version of the list
        :param was_restored: whether the server counts from an older version again
        """

    def complete_list(self) -> None:
        """Record that all objects of a list are stored."""


class Reflector:
    """Keep a sink up to date with one collection of a server.

    :param selectors: label and field selectors of the collection
    :param metadata_only: read nothing but the metadata
    :param first_from_cache: let the server answer the first list from its own cache
    :param retries: counts, reports and delays failed attempts
    :param on_contact: called for each watch that the server accepts
    """

    def __init__(
        self,
        client: Source,
        resource: Resource,
        sink: Sink,
        *,
        namespace: str,
        selectors: Mapping[str, str],
        metadata_only: bool,
        first_from_cache: bool,
        retries: WatchRetries,
        on_contact: Callable[[], None] | None,
    ) -> None:
        self.watch_state = WatchState()
        self.retries = retries
        self.version = ""
        """The resource version at which the next watch starts. If empty, it starts with a list."""

        self._client = client
        self._resource = resource
        self._sink = sink
        self._events = metrics.WATCH_EVENTS.labels(client.name, str(resource))
        self._namespace = namespace
        self._selectors = selectors
        self._metadata_only = metadata_only
        self._page_size = PageSize(client)
        self._first_from_cache = first_from_cache
        self._on_contact = on_contact

        # The newest resource version that the server has sent.
        self._newest = 0
        self._opened = math.inf
        self._contacted = math.inf

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            self._opened = math.inf
            error = await self._attempt()

            # A server (or proxy) that ends watches at once must not be asked in a tight loop.
            lasted = time.monotonic() - self._opened > _LASTING_SECONDS
            if lasted and error is None:
                failures = 0
                continue

            failures = 1 if lasted else failures + 1
            self.retries.count_restart(error)
            if isinstance(error, Gone):
                self.version = ""
                if failures == 1:
                    continue
            elif error is not None:
                has_answered = self._newest > 0
                self.retries.report_failure(error, failures, has_answered=has_answered)
                if time.monotonic() - self._contacted > _STALE_SECONDS:
                    self.version = ""

            retry_after = error.retry_after if isinstance(error, TooManyRequests) else 0
            await self.retries.pause(failures, retry_after)

    async def _attempt(self) -> Exception | None:
        """List if necessary, then watch. Return why the watch ended, None for its normal end."""
        try:
            reason = "resume" if self.version else "list"
            if not self.version:
                self.version = await self._list()

            metrics.WATCH_STARTS.labels(self._client.name, str(self._resource), reason).inc()
            try:
                await self._watch()
            except SilentWatch:
                await self._detect_restore()
        except RequestError as error:
            if isinstance(error, TooLarge):
                # A resumed watch would bring the same event first. A list also frees the memory of
                # objects that were deleted since.
                self.version = ""
                if self._client.time:
                    self._client.time.record_violation(str(error))
            return without_trace(error)

        except Exception as error:
            # A transform or an index failed, or another server responded, so the cache may have
            # missed changes. Start over instead of ending silently.
            if type(error) is not type(self.retries.last_error):
                # Log only the first of a series, because each attempt fails with the same error.
                log.exception(
                    "cannot process the objects of %s on %s", self._resource, self._client.name
                )

            self.version = ""
            if self._client.time:
                self._client.time.record_violation(
                    f"what it says of {self._resource} cannot be processed"
                )
            return without_trace(error)
        return None

    async def _list(self) -> str:
        """Read the whole collection page by page, and return its resource version.

        Raises `TooLarge` if objects do not fit into the memory of the cache.
        """
        keys: set[Key] = set()
        excess: TooLarge | None = None
        continue_token = ""
        was_restored = False
        while True:
            page = await self._read_page(continue_token)
            version = int(page["metadata"]["resourceVersion"])
            # A server that was restored from a backup counts from an older version again. All
            # cached objects are then from its future.
            was_restored = was_restored or version < self._newest

            count = len(keys)
            error = await self._put_all(page.get("items") or (), keys, force=was_restored)
            excess = excess or error
            continue_token = page["metadata"].get("continue", "")
            if not continue_token:
                break
            if len(keys) == count or (self._client.budget and len(keys) > MAX_OBJECTS):
                raise TooLarge(f"the list of {self._resource} does not end: {len(keys)} objects")

        self._sink.remove_absent(keys, version, was_restored=was_restored)
        if excess:
            # The next list has the memory of the removed objects, and perhaps fits.
            raise excess

        if was_restored:
            log.warning(
                "%s on %s was restored to an older state", self._resource, self._client.name
            )
        self._newest = version
        self._sink.complete_list()
        return str(version)

    async def _put_all(
        self, objects: Iterable[Obj], keys: set[Key], *, force: bool
    ) -> TooLarge | None:
        """Store the objects of a page, and add their keys to `keys`. Other tasks run meanwhile.

        Returns an error if objects did not fit. Smaller ones, and those that have shrunk, are
        stored nevertheless.
        """
        excess: TooLarge | None = None
        began = time.thread_time()
        for obj in objects:
            key = key_of(obj)
            keys.add(key)
            try:
                self._sink.put(key, obj, force=force)
            except TooLarge as error:
                excess = excess or without_trace(error)

            spent = time.thread_time() - began
            if self._client.time and spent > PIECE_SECONDS:
                self._client.time.spend(spent)
                await self._client.time.rest()
                began = time.thread_time()
        return excess

    async def _read_page(self, continue_token: str) -> Obj:
        """Read one page. Request smaller pages while the response is too large."""
        while True:
            # Only the first list may come from the server's cache. A later list from a server that
            # lags behind would look just like a restored backup.
            from_cache = self._first_from_cache and not self._newest and not continue_token

            try:
                return await self._client.list(
                    self._resource,
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
            self._resource,
            self._namespace,
            resource_version=self.version,
            metadata_only=self._metadata_only,
            on_open=self._note_contact,
            **self._selectors,
        )
        try:
            async with contextlib.aclosing(watch) as events:
                async for kind, obj in events:
                    self._handle_event(kind, obj)
        finally:
            self.watch_state.record_closing()

    async def _detect_restore(self) -> None:
        """Let the next attempt begin with a list if the server counts from an older version again.

        Such a server accepts a watch from a version that it has not reached yet, and withholds all
        events and bookmarks up to that version.
        """
        # A server without bookmarks is also silent, so a list of everything would be too much.
        page = await self._client.list(
            self._resource,
            self._namespace,
            limit=1,
            metadata_only=self._metadata_only,
            **self._selectors,
        )
        if int(page["metadata"]["resourceVersion"]) < self._newest:
            self.version = ""

    def _handle_event(self, kind: str, obj: Obj) -> None:
        self._contacted = time.monotonic()
        if kind == "DELETED":
            self._sink.remove(key_of(obj), obj)
        elif kind != "BOOKMARK":
            self._sink.put(key_of(obj), obj)
        self.version = str(obj["metadata"]["resourceVersion"])
        self._newest = int(self.version)
        if kind != "BOOKMARK":
            self._events.inc()

    def _note_contact(self) -> None:
        """Record that the server has accepted the watch, which ends a series of failures."""
        self._opened = self._contacted = time.monotonic()
        self.retries.note_contact()
        self.watch_state.record_opening()
        if self._on_contact:
            self._on_contact()
