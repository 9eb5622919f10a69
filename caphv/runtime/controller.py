"""Controllers, which consist of a queue of keys and workers that reconcile these keys.

A reconcile takes a key and returns a `Result`. If it raises, the controller requeues the key with
back-off, and logs the error once in full. Correctness must never depend on a reconcile running
exactly once, nor on a reconcile running to its end.

A reconcile has a time limit, because a server that sends one byte at a time could occupy a worker
forever.
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

# A reconcile is cancelled after this many seconds. `Manager.unhealthy` allows twice as many, after
# which a reconcile has ignored its cancellation.
_MAX_RECONCILE_SECONDS = 300.0
# Seconds after which the controller retries a reconcile that it had to cancel.
_MAX_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a reconcile, with the seconds until the next one; None waits for an event."""

    requeue_after: float | None = None


# None means the same as `Result()`: only an event causes another reconcile.
Reconcile = Callable[[Key], Awaitable[Result | None]]


class Controller:
    """Workers that reconcile the keys of one queue.

    :param reconcile: called with each key
    :param concurrency: number of workers
    :param queue: a queue that may be fed before the controller exists; a new queue by default
    """

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
        self.grace = 20.0
        self._reconcile = reconcile
        self._concurrency = concurrency
        self._active: dict[Key, float] = {}

        self._workers_active = metrics.RECONCILES_ACTIVE.labels(name)
        results = ("success", "requeue", "error")
        self._results = {result: metrics.RECONCILES.labels(name, result) for result in results}
        self._seconds = metrics.RECONCILE_SECONDS.labels(name)

    @property
    def longest_running(self) -> float:
        """Age in seconds of the oldest running reconcile, 0 if none runs."""
        return time.monotonic() - min(self._active.values()) if self._active else 0.0

    def enqueue(self, key: Key) -> None:
        """Queue an object for reconciliation."""
        self.queue.add(key)

    async def run(self) -> None:
        """Run workers until cancelled, then give running reconciles `grace` seconds to finish."""
        workers = [
            asyncio.create_task(self._work(), name=f"{self.name}-{n}")
            for n in range(self._concurrency)
        ]
        try:
            await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Let running reconciles finish, because stopping between two writes is bad.
            self.queue.close()
            _, late_workers = await asyncio.wait(workers, timeout=self.grace)
            for worker in late_workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

        for worker in workers:
            worker.result()  # raises the error that ended the worker

    async def _work(self) -> None:
        """Reconcile keys of the queue until it is closed or the worker is cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await self._process(await self.queue.get())

    async def _process(self, key: Key) -> None:
        """Reconcile a key once, and requeue it according to the result or failure."""
        started = self._active[key] = time.monotonic()
        result = "error"
        self._workers_active.inc()

        try:
            with logs.context(controller=self.name, object=str(key)):
                answer = await self._reconcile_or_fail(key)
                log.debug("reconciled in %.3f s", time.monotonic() - started)
            if answer is not None and answer.requeue_after is not None:
                result = "requeue"
                self.queue.add_after(key, answer.requeue_after)
            else:
                result = "success"
            self.queue.forget(key)
        except _ReconcileFailure as failure:
            self.queue.add_rate_limited(key, at_least=failure.at_least)
        finally:
            del self._active[key]
            self.queue.done(key)
            self._workers_active.dec()
            self._results[result].inc()
            self._seconds.observe(time.monotonic() - started)

    async def _reconcile_or_fail(self, key: Key) -> Result | None:
        """Reconcile a key within the time limit.

        Logs each error and raises `_ReconcileFailure` instead. Only a cancellation of the worker
        itself is raised unchanged.
        """
        limit = asyncio.timeout(_MAX_RECONCILE_SECONDS)
        try:
            async with limit:
                return await self._reconcile(key)
        except Conflict as error:
            # The object changed meanwhile, and the watch delivers its new version.
            log.debug("conflict, retrying: %s", error)
            raise _ReconcileFailure from None
        except TooManyRequests as error:
            log.debug("server asks to wait %.0f s: %s", error.retry_after, error)
            raise _ReconcileFailure(error.retry_after) from None
        except Unreachable as error:
            log.warning("%s", error, extra=FAILURE_OF_ANY_OBJECT)
            raise _ReconcileFailure from None
        except ApiError as error:
            # Log no traceback, because the text of a refusal says everything.
            log.error("reconcile failed: %s", error)
            raise _ReconcileFailure from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # A task that the reconcile awaited was cancelled, for example because its session was
            # closed. The worker itself must continue.
            log.warning("reconcile was interrupted because a connection was closed; retrying")
            raise _ReconcileFailure from None
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                log.warning(
                    "reconcile was cancelled after %.0f s; a server may be slow; retrying",
                    _MAX_RECONCILE_SECONDS,
                )
                raise _ReconcileFailure(_MAX_RETRY_SECONDS) from None

            # Log the traceback only with the first attempt, because it does not change.
            if self.queue.failures(key) == 0:
                log.exception("reconcile failed")
            else:
                log.error("reconcile failed again: %s: %s", type(error).__name__, error)
            raise _ReconcileFailure from None


class _ReconcileFailure(Exception):
    """A reconcile failed, and its error was logged. Retry after at least `at_least` seconds."""

    def __init__(self, at_least: float = 0.0) -> None:
        super().__init__()
        self.at_least = at_least
