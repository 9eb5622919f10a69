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
from typing import Literal

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


class EventRecorder:
    """Queue Events with `event` and write them with `run`. `component` is shown as their source."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client = client
        self._component = component
        self._buffer: asyncio.Queue[tuple[Obj, EventType, str, str]] = asyncio.Queue(_BUFFER)
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()
        self._budget: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def event(self, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        """Queue an Event about an object (its `kind` and `apiVersion` must be set)."""
        if not self._take_token(obj["metadata"].get("uid", "")):
            metrics.EVENTS_DROPPED.inc()
            return
        try:
            self._buffer.put_nowait((obj, kind, reason, plain(message, LONGEST_EVENT)))
        except asyncio.QueueFull:
            metrics.EVENTS_DROPPED.inc()

    def is_limited(self, obj: Obj) -> bool:
        """Return whether further Events of an object are dropped now."""
        uid = obj["metadata"].get("uid", "")
        return uid in self._budget and self._tokens(uid) < 1

    async def run(self) -> None:
        """Write Events until cancelled."""
        while True:
            item = await self._buffer.get()
            try:
                await self._write(*item)
            except Exception:
                # A malformed object must not stop the process.
                log.exception("cannot write Event %s", item[2])

    async def flush(self, timeout: float = 2.0) -> None:
        """Write buffered Events for at most `timeout` seconds; for shutdown."""
        deadline = time.monotonic() + timeout
        while not self._buffer.empty() and time.monotonic() < deadline:
            await self._write(*self._buffer.get_nowait())

    async def _write(self, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        try:
            series = self._continue_series(obj, reason, message)
            if series:
                patch = {"count": series.count, "lastTimestamp": current_time()}
                await self._client.patch(EVENTS, series.name, series.namespace, patch)
            else:
                await self._create(obj, kind, reason, message)
        except NotFound:
            self._series.pop(_series_key(obj, reason, message), None)
        except RequestError as error:
            log.debug("Event %s of %s not written: %s", reason, obj["metadata"]["name"], error)

    def _continue_series(self, obj: Obj, reason: str, message: str) -> _Series | None:
        """Count a repetition; return None if the Event is new."""
        key = _series_key(obj, reason, message)
        series = self._series.get(key)
        if series is None or time.monotonic() - series.last > _REPEAT_SECONDS:
            return None
        series.count += 1
        series.last = time.monotonic()
        self._series.move_to_end(key)
        return series

    async def _create(self, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        """Create an Event and remember it, so that repetitions raise its count."""
        metadata = obj["metadata"]
        namespace = metadata.get("namespace") or "default"
        key = _series_key(obj, reason, message)
        digest = hashlib.sha256("\0".join((*key, str(time.time_ns()))).encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200].rstrip('.-')}.{digest}"
        timestamp = current_time()

        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": obj["apiVersion"],
                "kind": obj["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata.get("uid", ""),
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "firstTimestamp": timestamp,
            "lastTimestamp": timestamp,
            "count": 1,
        }
        await self._client.create(EVENTS, event)

        self._series[key] = _Series(name=name, namespace=namespace, count=1, last=time.monotonic())
        while len(self._series) > _MAX_CACHED:
            self._series.popitem(last=False)

    def _take_token(self, uid: str) -> bool:
        """Take a token from the bucket of an object, and return whether it had one."""
        tokens = self._tokens(uid)
        has_token = tokens >= 1
        self._budget[uid] = (tokens - 1 if has_token else tokens, time.monotonic())
        self._budget.move_to_end(uid)
        while len(self._budget) > _MAX_CACHED:
            self._budget.popitem(last=False)
        return has_token

    def _tokens(self, uid: str) -> float:
        moment = time.monotonic()
        tokens, last = self._budget.get(uid, (float(_BURST), moment))
        return min(float(_BURST), tokens + (moment - last) / _TRICKLE_SECONDS)


def _series_key(obj: Obj, reason: str, message: str) -> tuple[str, str, str]:
    return obj["metadata"].get("uid", ""), reason, message
