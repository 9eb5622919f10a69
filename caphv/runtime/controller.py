"""A controller: a queue of keys and workers that reconcile them.

A reconcile takes a key and returns a `Result`. It may raise: the key is then requeued with back-off, and the error is
logged once in full. Correctness must never depend on a reconcile running exactly once, nor to its end.

Why a time limit: a server that sends one byte at a time would occupy a worker for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from caphv.api.object import Key
from caphv.runtime import logs, metrics
from caphv.runtime.errors import ApiError, Conflict, TooManyRequests, Unreachable
from caphv.runtime.queue import WorkQueue
from caphv.runtime.repeats import FAILURE_OF_ANY_OBJECT

log = logging.getLogger(__name__)

# `Manager.unhealthy` allows twice as much: what it sees then ignores cancellation.
_LONGEST_RECONCILE = 300.0
_RETRY_LONGEST = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile answers: `requeue_after` is a delay in seconds, None to wait for the next event."""

    requeue_after: float | None = None


# None means the same as `Result()`: nothing but an event brings the object back.
Reconcile = Callable[[Key], Awaitable[Result | None]]


class Controller:
    """`concurrency` workers over one queue: its own, or the given one, which others may feed before it exists."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        concurrency: int = 16,
        queue: WorkQueue[Key] | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[Key] = queue if queue is not None else WorkQueue(name)
        self._reconcile = reconcile
        self._concurrency = concurrency
        self._active: dict[Key, float] = {}
        self._workers_active = metrics.RECONCILES_ACTIVE.labels(name)
        results = ("success", "requeue", "error")
        self._results = {result: metrics.RECONCILES.labels(name, result) for result in results}
        self._seconds = metrics.RECONCILE_SECONDS.labels(name)
        self.grace = 20.0

    @property
    def longest_running(self) -> float:
        """Age in seconds of the oldest running reconcile, 0 if none runs."""
        return time.monotonic() - min(self._active.values()) if self._active else 0.0

    def enqueue(self, key: Key) -> None:
        """Queue an object for reconciliation."""
        self.queue.add(key)

    async def run(self) -> None:
        """Run workers until cancelled, then give running reconciles `grace` seconds to finish."""
        workers = [asyncio.create_task(self._work(), name=f"{self.name}-{n}") for n in range(self._concurrency)]
        try:
            await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Let running reconciles finish: between two writes is a bad place to stop.
            self.queue.close()
            _, late = await asyncio.wait(workers, timeout=self.grace)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        for worker in workers:
            worker.result()

    async def _work(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await self._once(await self.queue.get())

    async def _once(self, key: Key) -> None:
        started = self._active[key] = time.monotonic()
        result = "error"
        self._workers_active.inc()
        try:
            with logs.context(controller=self.name, object=str(key)):
                answer = await self._guarded(key)
                log.debug("reconciled in %.3f s", time.monotonic() - started)
            if answer is not None and answer.requeue_after is not None:
                result = "requeue"
                self.queue.add_after(key, answer.requeue_after)
            else:
                result = "success"
            self.queue.forget(key)
        except _Failed as failed:
            self.queue.add_rate_limited(key, at_least=failed.at_least)
        finally:
            del self._active[key]
            self.queue.done(key)
            self._workers_active.dec()
            self._results[result].inc()
            self._seconds.observe(time.monotonic() - started)

    async def _guarded(self, key: Key) -> Result | None:
        limit = asyncio.timeout(_LONGEST_RECONCILE)
        try:
            async with limit:
                return await self._reconcile(key)
        except Conflict as error:
            # The object changed meanwhile; the watch delivers its new version.
            log.debug("conflict, retrying: %s", error)
            raise _Failed from None
        except TooManyRequests as error:
            log.debug("server asks to wait %.0f s: %s", error.retry_after, error)
            raise _Failed(error.retry_after) from None
        except Unreachable as error:
            log.warning("%s", error, extra=FAILURE_OF_ANY_OBJECT)
            raise _Failed from None
        except ApiError as error:
            # A refusal says all that there is to know: where it was caught is of no use to the reader.
            log.error("reconcile failed: %s", error)
            raise _Failed from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # Something it awaited was cancelled, for example by a closed session; the worker itself must continue.
            log.warning("reconcile was interrupted because a connection was closed; retrying")
            raise _Failed from None
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                log.warning("reconcile was cancelled after %.0f s; a server may be slow; retrying", _LONGEST_RECONCILE)
                raise _Failed(_RETRY_LONGEST) from None
            if self.queue.failures(key) == 0:
                log.exception("reconcile failed")
            else:
                log.error("reconcile failed again: %s: %s", type(error).__name__, error)
            raise _Failed from None


class _Failed(Exception):
    def __init__(self, at_least: float = 0.0) -> None:
        super().__init__()
        self.at_least = at_least
