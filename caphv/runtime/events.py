"""Write Kubernetes Events in the background.

Events must neither delay nor fail a reconcile, nor load the API server. Therefore they pass through
a bounded buffer, a repetition raises the count of the first Event, and each object has a token
bucket.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, NamedTuple

from caphv.api.conditions import current_time
from caphv.api.object import EVENTS, Obj
from caphv.api.plaintext import LONGEST_EVENT, plain
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
_BUFFER = 1000
_MAX_CACHED = 2000
# A repetition within this many seconds raises the count of the previous Event.
_REPEAT_SECONDS = 600.0
# An object may have this many Events at once, and then one in this many seconds.
_BURST = 25
_TRICKLE_SECONDS = 60.0


@dataclass(slots=True)
class _Series:
    name: str
    namespace: str
    count: int
    last: float


class _QueuedEvent(NamedTuple):
    """An Event that is not written yet."""

    obj: Obj
    kind: EventType
    reason: str
    message: str


class _Bucket(NamedTuple):
    """The tokens of an object, and the time at which they were counted."""

    tokens: float
    counted_at: float


class EventRecorder:
    """Queue Events with `event` and write them with `run`. `component` is shown as their source."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client = client
        self._component = component
        self._buffer: asyncio.Queue[_QueuedEvent] = asyncio.Queue(_BUFFER)
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def event(self, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        """Queue an Event about an object (its `kind` and `apiVersion` must be set)."""
        if not self._take_token(obj["metadata"].get("uid", "")):
            metrics.EVENTS_DROPPED.inc()
            return
        try:
            self._buffer.put_nowait(_QueuedEvent(obj, kind, reason, plain(message, LONGEST_EVENT)))
        except asyncio.QueueFull:
            metrics.EVENTS_DROPPED.inc()

    def is_limited(self, obj: Obj) -> bool:
        """Return whether further Events of an object are dropped now."""
        uid = obj["metadata"].get("uid", "")
        return uid in self._buckets and self._tokens(uid) < 1

    async def run(self) -> None:
        """Write Events until cancelled."""
        while True:
            event = await self._buffer.get()
            try:
                await self._write(event)
            except Exception:
                # A malformed object must not stop the process.
                log.exception("cannot write Event %s", event.reason)

    async def flush(self, timeout: float = 2.0) -> None:
        """Write buffered Events for at most `timeout` seconds; for shutdown."""
        deadline = time.monotonic() + timeout
        while not self._buffer.empty() and time.monotonic() < deadline:
            await self._write(self._buffer.get_nowait())

    async def _write(self, event: _QueuedEvent) -> None:
        """Raise the count of the previous Event for a repetition, else create an Event."""
        key = _series_key(event)
        try:
            series = self._continue_series(key)
            if series:
                patch = {"count": series.count, "lastTimestamp": current_time()}
                await self._client.patch(EVENTS, series.name, series.namespace, patch)
            else:
                await self._create(event)
        except NotFound:
            # The Event was deleted. The next repetition creates another one.
            self._series.pop(key, None)
        except RequestError as error:
            name = event.obj["metadata"]["name"]
            log.debug("Event %s of %s not written: %s", event.reason, name, error)

    def _continue_series(self, key: tuple[str, str, str]) -> _Series | None:
        """Count a repetition; return None if the Event is new."""
        series = self._series.get(key)
        if series is None or time.monotonic() - series.last > _REPEAT_SECONDS:
            return None
        series.count += 1
        series.last = time.monotonic()
        self._series.move_to_end(key)
        return series

    async def _create(self, event: _QueuedEvent) -> None:
        """Create an Event and remember it, so that repetitions raise its count."""
        metadata = event.obj["metadata"]
        namespace = metadata.get("namespace") or "default"
        key = _series_key(event)
        digest = hashlib.sha256("\0".join((*key, str(time.time_ns()))).encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200].rstrip('.-')}.{digest}"
        timestamp = current_time()

        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": event.obj["apiVersion"],
                "kind": event.obj["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata.get("uid", ""),
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component},
            "firstTimestamp": timestamp,
            "lastTimestamp": timestamp,
            "count": 1,
        }
        await self._client.create(EVENTS, body)

        self._series[key] = _Series(name=name, namespace=namespace, count=1, last=time.monotonic())
        while len(self._series) > _MAX_CACHED:
            self._series.popitem(last=False)

    def _take_token(self, uid: str) -> bool:
        """Take a token from the bucket of an object, and return whether it had one."""
        tokens = self._tokens(uid)
        has_token = tokens >= 1
        self._buckets[uid] = _Bucket(tokens - 1 if has_token else tokens, time.monotonic())
        self._buckets.move_to_end(uid)
        while len(self._buckets) > _MAX_CACHED:
            self._buckets.popitem(last=False)
        return has_token

    def _tokens(self, uid: str) -> float:
        """Return the tokens that an object has now; a new object has a full bucket."""
        bucket = self._buckets.get(uid)
        if bucket is None:
            return float(_BURST)
        earned = (time.monotonic() - bucket.counted_at) / _TRICKLE_SECONDS
        return min(float(_BURST), bucket.tokens + earned)


def _series_key(event: _QueuedEvent) -> tuple[str, str, str]:
    """Return what all Events of one series have in common: the object's uid, and the text."""
    return event.obj["metadata"].get("uid", ""), event.reason, event.message
