"""The packager's sync loop: it waits for changes, publishes them and reports the result.

It keeps no state that it could not derive again: the desired content of the repository follows from the caches, the
actual content is read from the repository. So recovery after a failure or a restart is one more sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from caphv.api.object import Key
from packager.controller import condition, metrics
from packager.controller.debouncer import Debouncer
from packager.controller.publisher import Published, Publisher
from packager.controller.state import ClusterCache, ClusterState
from packager.controller.status import Reporter
from packager.controller.upgrades import Upgrades
from packager.definitions.source import SourceProblem
from packager.git.errors import GitError, UnverifiedCommit
from packager.planner import ManagementState
from packager.rendering.renderer import Rendered
from packager.uninstall import Waiting

log = logging.getLogger(__name__)

_BACKOFF = (1.0, 300.0)
_CLOSE_SECONDS = 10.0
_READY_SECONDS = 30.0


@dataclass(frozen=True)
class SyncIntervals:
    """Seconds: changes are published after `debounce` without another change, at the latest after `longest`.

    After `interval` without a change the repository is checked anyway: another client may have written to it.
    """

    debounce: float = 1.0
    longest: float = 15.0
    interval: float = 60.0


class SyncLoop:
    """Publishes the state of `clusters`, by `publisher` in its own thread, and has `reporter` report the result."""

    def __init__(
        self,
        clusters: ClusterCache,
        publisher: Publisher,
        reporter: Reporter,
        intervals: SyncIntervals,
        path: str,
        *,
        waiting: Waiting,
        upgrades: Upgrades,
    ) -> None:
        self.debouncer = Debouncer(intervals.debounce, intervals.longest)
        self._clusters, self._publisher, self._reporter = clusters, publisher, reporter
        self._intervals, self._path, self._waiting = intervals, path, waiting
        self._upgrades = upgrades
        self._thread = ThreadPoolExecutor(1, "git")
        self._rendered: dict[Key, Rendered] = {}
        self._held: set[str] = set()
        self._problems: frozenset[SourceProblem] = frozenset()
        self._refusal = ""
        self._failures = 0
        metrics.LAG.set_function(lambda: self.debouncer.lag)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._clusters.ready(_READY_SECONDS)
        self.debouncer.trigger_now()
        while True:
            if await self.sync():
                self._failures = 0
                await self.debouncer.wait(min(self._intervals.interval, self._upgrades.seconds_left()))
            else:
                self._failures += 1
                await self.debouncer.pause(backoff(self._failures))

    async def close(self) -> None:
        """Release the clone once the running publication has ended."""
        self._publisher.stop()
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._publisher.close)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.shield(closing)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def sync(self) -> bool:
        """Make the repository match the caches once; return whether that worked."""
        changed = self.debouncer.take()
        states = self._clusters.states()
        state = self._state(states, changed)
        started = time.monotonic()
        try:
            published = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._publisher.publish, state, self._reporter.commits()
            )
        except Exception as error:
            self._failed(error, changed, states)
            return False
        self.debouncer.done()
        if not self._publisher.is_reviewed:
            self._clusters.forget_moved(state.moved)
        metrics.SYNC_SECONDS.observe(time.monotonic() - started)
        self._done(published, states)
        return True

    def _state(self, states: dict[Key, ClusterState], changed: Collection[Key]) -> ManagementState:
        facts = tuple(found.facts for found in states.values() if found.facts)
        incomplete = frozenset(key for key, found in states.items() if found.incomplete)
        keep = frozenset(self._clusters.keys() - {found.key for found in facts} - incomplete)
        moved, confirmed = frozenset(self._clusters.moved()), frozenset(self._clusters.confirmed())
        protected = frozenset(self._clusters.protected())
        uninstallable = self._waiting.over()
        return ManagementState(
            facts,
            keep,
            incomplete,
            moved,
            confirmed,
            protected,
            uninstallable,
            condition.why(changed),
            deleted=frozenset(self._clusters.deleted()),
            upgrade=self._upgrades.observed(self._clusters.present()),
        )

    def _done(self, published: Published, states: dict[Key, ClusterState]) -> None:
        self._count(published)
        outcomes = condition.outcomes(published, self._reporter.commits(), self._path)
        for key, found in states.items():
            self._reporter.update(key, outcomes[key] if found.facts else condition.waiting(found))
        self._upgrades.note(published)
        self._report_removals(published)
        self._report_definitions(published)
        for key in self._reporter.known - states.keys():
            self._reporter.forget(key)

    def _count(self, published: Published) -> None:
        result = published.result
        metrics.SYNCS.labels("pushed" if result.commit else "unchanged").inc()
        if published.source_error is None:
            metrics.LAST_SUCCESS.set_to_current_time()
        if result.commit:
            metrics.COMMITS.inc()
            metrics.PUSH_SECONDS.observe(result.push_seconds)
            metrics.REMOVED.inc(len(result.plan.removed))
        metrics.HELD.set(len(result.plan.held))
        self._waiting.note(result.plan.held)
        metrics.FOREIGN.set(len(result.plan.foreign))
        # An unchanged cluster has the very same result object as before.
        before, self._rendered = self._rendered, {found.cluster: found for found in published.batch.rendered}
        for key, rendered in self._rendered.items():
            if before.get(key) is not rendered:
                metrics.RENDERS.labels("ok" if rendered.ok else "invalid").inc()

    def _report_removals(self, published: Published) -> None:
        removed, held = condition.removals(published.result.plan)
        if published.result.commit:
            for key, what in removed:
                self._reporter.event(key, "AddonBundlesRemoved", f"commit {published.result.commit} removed {what}")
        for key, what, why in held:
            if what not in self._held:
                self._reporter.warning_event(key, "AddonBundlesKept", f"{what} was kept: {why}")
        self._held = {what for _, what, _ in held}

    def _report_definitions(self, published: Published) -> None:
        if published.source_error:
            metrics.ERRORS.labels(type(published.source_error).__name__).inc()
            log.error("cannot read the definitions, will retry: %s", published.source_error)
        refusal = str(published.source_error) if isinstance(published.source_error, UnverifiedCommit) else ""
        metrics.SOURCE_REFUSED.set(bool(refusal))
        if refusal and refusal != self._refusal:
            self._upgrades.record_event("Warning", "SourceCommitRefused", refusal)
        self._refusal = refusal
        if published.built:
            metrics.DEFINITIONS.labels("written").set(len(published.built.objects))
            metrics.DEFINITIONS.labels("faulty").set(len(published.built.invalid))
            for problem in published.built.problems:
                if problem not in self._problems:
                    log.warning("definition %s", problem)
            self._problems = frozenset(published.built.problems)

    def _failed(self, error: Exception, changed: Collection[Key], states: dict[Key, ClusterState]) -> None:
        self.debouncer.failed()
        metrics.SYNCS.labels("failed").inc()
        metrics.ERRORS.labels(type(error).__name__).inc()
        # Failures of Git and the disk are expected; anything else is a bug, and the stack trace locates it.
        trace = None if isinstance(error, GitError | OSError) else error
        log.error("cannot update the repository, will retry: %s", error, exc_info=trace)
        not_pushed, waiting = condition.not_pushed(error), set(changed)
        for key, found in states.items():
            if not found.facts:
                self._reporter.update(key, condition.waiting(found))
            # After a start all clusters count as changed; their last condition is more likely to be true.
            elif key in waiting and (key in self._rendered or not self._reporter.settled(key)):
                self._reporter.update(key, not_pushed)


def backoff(failures: int) -> float:
    """Return the seconds to wait after this many consecutive failures, with a jitter of a quarter."""
    first, longest = _BACKOFF
    return min(first * 2.0 ** min(failures - 1, 30), longest) * random.uniform(0.75, 1.25)
