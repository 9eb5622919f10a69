"""Kubernetes Events, written in the background.

Events must neither delay nor fail a reconcile, nor load the API server: they pass a bounded buffer, a repetition raises
the count of the first Event, and each object has a token bucket.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from caphv.api.object import EVENTS, Obj
from caphv.api.plaintext import LONGEST_EVENT, plain
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
_BUFFER = 1000
_REMEMBERED = 2000
_SAME_FOR = 600.0
_BURST = 25
_TRICKLE = 60.0


@dataclass(slots=True)
class _Series:
    name: str
    namespace: str
    count: int
    last: float


class EventRecorder:
    """Queue Events with `event`, write them with `run`; `component` is shown as their source."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client = client
        self._component = component
        self._buffer: asyncio.Queue[tuple[Obj, EventType, str, str]] = asyncio.Queue(_BUFFER)
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()
        self._budget: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def event(self, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        """Queue an Event about an object (its `kind` and `apiVersion` must be set)."""
        if not self._allowed(obj["metadata"].get("uid", "")):
            metrics.EVENTS_DROPPED.inc()
            return
        try:
            self._buffer.put_nowait((obj, kind, reason, plain(message, LONGEST_EVENT)))
        except asyncio.QueueFull:
            metrics.EVENTS_DROPPED.inc()

    def limited(self, obj: Obj) -> bool:
        """Whether further Events of an object are dropped now."""
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
            series = self._repeated(obj, reason, message)
            if series:
                patch = {"count": series.count, "lastTimestamp": _now()}
                await self._client.patch(EVENTS, series.name, series.namespace, patch)
            else:
                await self._create(obj, kind, reason, message)
        except NotFound:
            self._series.pop(_series_key(obj, reason, message), None)
        except (ApiError, Unreachable) as error:
            log.debug("Event %s of %s not written: %s", reason, obj["metadata"]["name"], error)

    def _repeated(self, obj: Obj, reason: str, message: str) -> _Series | None:
        key = _series_key(obj, reason, message)
        series = self._series.get(key)
        if series is None or time.monotonic() - series.last > _SAME_FOR:
            return None
        series.count, series.last = series.count + 1, time.monotonic()
        self._series.move_to_end(key)
        return series

    async def _create(self, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        metadata = obj["metadata"]
        namespace = metadata.get("namespace") or "default"
        key = _series_key(obj, reason, message)
        digest = hashlib.sha256("\0".join((*key, str(time.time_ns()))).encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200].rstrip('.-')}.{digest}"
        now = _now()
        await self._client.create(
            EVENTS,
            {
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
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )
        self._series[key] = _Series(name, namespace, 1, time.monotonic())
        while len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)

    def _allowed(self, uid: str) -> bool:
        tokens = self._tokens(uid)
        allowed = tokens >= 1
        self._budget[uid] = (tokens - 1 if allowed else tokens, time.monotonic())
        self._budget.move_to_end(uid)
        while len(self._budget) > _REMEMBERED:
            self._budget.popitem(last=False)
        return allowed

    def _tokens(self, uid: str) -> float:
        now = time.monotonic()
        tokens, last = self._budget.get(uid, (float(_BURST), now))
        return min(float(_BURST), tokens + (now - last) / _TRICKLE)


def _series_key(obj: Obj, reason: str, message: str) -> tuple[str, str, str]:
    return obj["metadata"].get("uid", ""), reason, message


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
