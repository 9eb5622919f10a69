"""Start and stop informers, controllers, lease, health and metrics of a process in order.

Caches fill while the process waits for the lease, so that a standby takes over with full caches.
Controllers run only while the process holds the lease. When it loses the lease, the process exits,
because only a restart is sure to forget all state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from http.client import responses
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from caphv.runtime import metrics
from caphv.runtime.cache import Informer
from caphv.runtime.controller import Controller
from caphv.runtime.election import LeaderElection
from caphv.runtime.errors import ApiError, TooLarge, Unreachable
from caphv.runtime.health import HealthServer
from caphv.runtime.metrics_auth import MetricsAuth
from caphv.runtime.runnable import Runnable, listening_address

log = logging.getLogger(__name__)

# Seconds without a heartbeat after which the event loop counts as stalled, and seconds after which
# a running reconcile counts as stuck.
_LOOP_STALLED_SECONDS = 15.0
_RECONCILE_STUCK_SECONDS = 600.0
_HEARTBEAT_SECONDS = 1.0


class LeaseLost(RuntimeError):
    """Another process may reconcile now, so this one has stopped all work."""


@dataclass(frozen=True, slots=True)
class BindAddresses:
    """Addresses to listen on, as `[host]:port`; empty or `0` disables a server."""

    metrics: str = ":8080"
    health: str = ":9440"


class Manager:
    """Add informers, controllers and other tasks, then `run`.

    :param election: the lease that controllers and tasks need; None to run them at once
    :param metrics_auth: protection of the metrics server; None for open access without TLS
    :param health: a running health server; by default the manager starts one
    :param grace: seconds that running reconciles have to finish
    """

    def __init__(
        self,
        *,
        addresses: BindAddresses,
        election: LeaderElection | None = None,
        metrics_auth: MetricsAuth | None = None,
        health: HealthServer | None = None,
        grace: float = 20.0,
    ) -> None:
        self._addresses = addresses
        self._health = health
        self._election = election
        self._metrics_auth = metrics_auth
        self._grace = grace

        self._informers: list[Informer] = []
        self._controllers: list[Controller] = []
        self._runnables: list[Runnable] = [metrics_auth] if metrics_auth else []
        self._tasks: list[Callable[[], Coroutine[Any, Any, None]]] = []

        self._on_start: list[Callable[[], Awaitable[None]]] = []
        self._on_stop: list[Callable[[], Awaitable[None]]] = []
        self._on_scrape: list[Callable[[], None]] = []
        self._last_beat = time.monotonic()
        self._stopping = False

    def add_informer(self, informer: Informer) -> Informer:
        """Run an informer from the start. The process is ready once all informers have synced."""
        self._informers.append(informer)
        return informer

    def add_controller(self, controller: Controller) -> Controller:
        """Run a controller while the lease is held."""
        controller.grace = self._grace
        self._controllers.append(controller)
        return controller

    def add_task(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine while the lease is held."""
        self._tasks.append(task)

    def add_runnable(self, runnable: Runnable) -> None:
        """Run a runnable from the start until all controllers have stopped.

        The process is ready once the runnable is.
        """
        self._runnables.append(runnable)

    def on_start(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Call the hook once the process holds the lease and before any controller runs."""
        self._on_start.append(hook)

    def on_stop(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Call the hook after all controllers have ended."""
        self._on_stop.append(hook)

    def on_scrape(self, hook: Callable[[], None]) -> None:
        """Call the hook before each scrape.

        Use this for metrics that are cheaper to compute then than at each change.
        """
        self._on_scrape.append(hook)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises `LeaseLost`, or the error of a task that must not end."""
        async with contextlib.AsyncExitStack() as stack:
            await self._serve(stack)
            background = [asyncio.create_task(self._heartbeat())]
            background += [informer.start() for informer in self._informers]
            background += [asyncio.create_task(runnable.run()) for runnable in self._runnables]
            stack.push_async_callback(_cancel, background)

            stopped = asyncio.create_task(stop.wait())
            stack.push_async_callback(_cancel, [stopped])
            work = asyncio.create_task(self._lead())
            try:
                await asyncio.wait(
                    [work, stopped, *background], return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                work_error = await self._shut_down(work)

            for task in background:
                if task.done() and not task.cancelled() and task.exception():
                    raise task.exception() or RuntimeError
            if work_error:
                raise work_error

    async def _shut_down(self, work: asyncio.Task[None]) -> BaseException | None:
        """End the work of the leader, release the lease, and return the error of the work."""
        self._stopping = True
        log.info("stopping")
        for runnable in self._runnables:
            runnable.stopping()
        work_error = await _finish(work, self._grace + 5)

        try:
            for hook in self._on_stop:
                await hook()
        finally:
            # Keep the lease if the work has not ended, because it may still write.
            if self._election and work.done():
                await self._election.release()
            if self._election:
                await self._election.close()
        return work_error

    async def _lead(self) -> None:
        """Wait for caches and the lease, then run controllers and tasks until one ends.

        Raises `LeaseLost`, the error of the controller or task that ended, or `RuntimeError`.
        """
        await asyncio.gather(*(informer.wait_synced() for informer in self._informers))
        log.info("caches are in sync")

        hold: list[asyncio.Task[None]] = []
        if self._election:
            await self._election.acquire()
            hold = [asyncio.create_task(self._election.hold())]
        elif self._controllers:
            metrics.LEADER.set(1)

        tasks: list[asyncio.Task[None]] = []
        try:
            for hook in self._on_start:
                await hook()
            tasks = [asyncio.create_task(controller.run()) for controller in self._controllers]
            tasks += [asyncio.create_task(task()) for task in self._tasks]
            if not tasks and not hold:
                await asyncio.Event().wait()  # there are only runnables

            ended, _ = await asyncio.wait([*tasks, *hold], return_when=asyncio.FIRST_COMPLETED)
            if hold and hold[0] in ended:
                for controller in self._controllers:
                    controller.grace = 0  # no more writes, because the next holder starts soon
                raise LeaseLost(
                    "lost the lease; exiting, so that two processes never reconcile at the same "
                    "time"
                )
            for task in ended:
                task.result()
            raise RuntimeError("a task that must not end has ended")
        finally:
            await _cancel(tasks)
            await _cancel(hold)

    async def _heartbeat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    # Health

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the process."""
        reasons = []
        if time.monotonic() - self._last_beat > _LOOP_STALLED_SECONDS:
            reasons.append("event loop is stalled")
        for controller in self._controllers:
            seconds = controller.longest_running
            if seconds > _RECONCILE_STUCK_SECONDS:
                reasons.append(
                    f"controller {controller.name}: a reconcile has run for {seconds:.0f} s"
                )
        return reasons

    def not_ready(self) -> list[str]:
        """Return the reasons why this process is not ready."""
        reasons = ["stopping"] if self._stopping else []
        for informer in self._informers:
            if not informer.synced:
                cause = _cause(informer.last_error)
                reasons.append(f"cache of {informer.resource} is not in sync{cause}")
        for runnable in self._runnables:
            reasons += runnable.not_ready()
        return reasons

    async def _handle_metrics(self, _request: web.Request) -> web.Response:
        for hook in self._on_scrape:
            try:
                hook()
            except Exception:
                # A faulty hook must not hide all other metrics.
                log.exception("metrics are incomplete")
        body = generate_latest() + b"".join(runnable.metrics() for runnable in self._runnables)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        """Start the servers of health and metrics. The stack stops them."""
        health = self._health
        if health is None:
            health = await stack.enter_async_context(HealthServer(self._addresses.health))
        health.report(self.unhealthy, self.not_ready)

        address = listening_address(self._addresses.metrics)
        if address is None:
            return
        host, port = address
        auth = self._metrics_auth
        application = web.Application(middlewares=[auth.guard] if auth else ())
        application.router.add_get("/metrics", self._handle_metrics)

        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        tls = auth.listener() if auth else None
        await web.TCPSite(runner, host or None, port, ssl_context=tls).start()


def _cause(error: Exception | None) -> str:
    """Return why a list fails, without the text of the server.

    Anyone who reaches the port of the probes may read this.
    """
    if error is None:
        return ""
    if isinstance(error, ApiError):
        return f": HTTP {error.status} {responses.get(error.status, '')}".rstrip()

    cause = "invalid answer"
    if isinstance(error, TooLarge):
        cause = "answer too large"
    elif isinstance(error, Unreachable):
        cause = "no answer"
    return f": {cause} from the API server"


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _finish(task: asyncio.Task[None], timeout: float) -> BaseException | None:
    """Cancel a task, wait for its end, and return its error.

    Returns None if the task had no error or did not end.
    """
    task.cancel()
    await asyncio.wait([task], timeout=timeout)
    if not task.done():
        log.error("work did not end within %.0f s", timeout)
        return None
    return None if task.cancelled() else task.exception()
