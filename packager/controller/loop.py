"""The packager's sync loop, which waits for changes, publishes them and reports the result.

It keeps no state that it could not derive again. The desired content of the repository follows from
the caches, and the actual content is read from the repository. So recovery after a failure or a
restart is one more sync.
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
from packager.contents.uninstall import Waiting
from packager.controller import condition, metrics
from packager.controller.debouncer import Debouncer
from packager.controller.publisher import Published, Publisher
from packager.controller.state import ClusterCache, ClusterState
from packager.controller.status import Reporter
from packager.controller.upgrades import Upgrades
from packager.definitions.sourcefile import SourceProblem
from packager.git.errors import GitError, UnverifiedCommit
from packager.planning.state import ManagementState
from packager.rendering.rendered import Rendered

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (1.0, 300.0)
_CLOSE_SECONDS = 10.0
_READY_SECONDS = 30.0


@dataclass(frozen=True)
class SyncIntervals:
    """Times in seconds.

    Changes are published after `debounce` without another change, and at the latest after
    `longest`. After `interval` without a change the repository is checked anyway, because another
    client may have written to it.
    """

    debounce: float = 1.0
    longest: float = 15.0
    interval: float = 60.0


class SyncLoop:
    """Publishes the state of `clusters`, and reports the result.

    The publisher runs in its own thread. `path` is the folder of the repository to write.
    """

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
        self._clusters = clusters
        self._publisher = publisher
        self._reporter = reporter
        self._intervals = intervals
        self._path = path
        self._waiting = waiting
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
        await self._clusters.wait_until_ready(_READY_SECONDS)
        # The repository may have changed while no packager ran.
        self.debouncer.trigger_now()
        while True:
            if await self.sync():
                self._failures = 0
                await self.debouncer.wait(
                    min(self._intervals.interval, self._upgrades.seconds_left())
                )
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
        """Make the repository match the caches once, and return whether that worked."""
        changed = self.debouncer.take()
        states = self._clusters.states()
        state = self._management_state(states, changed)

        started = time.monotonic()
        try:
            published = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._publisher.publish, state, self._reporter.commits()
            )
        except Exception as error:
            self._report_failure(error, changed, states)
            return False

        self.debouncer.drop_taken()
        # On a review branch the marks of moved clusters may wait to be merged.
        if not self._publisher.is_reviewed:
            self._clusters.forget_moves(state.moved)
        metrics.SYNC_SECONDS.observe(time.monotonic() - started)
        self._report(published, states)
        return True

    def _management_state(
        self, states: dict[Key, ClusterState], changed: Collection[Key]
    ) -> ManagementState:
        """Return the state of the management cluster for the planner."""
        clusters = self._clusters
        facts = tuple(cluster.facts for cluster in states.values() if cluster.facts)
        incomplete = frozenset(key for key, cluster in states.items() if cluster.incomplete)
        rendered = {cluster.key for cluster in facts}

        return ManagementState(
            facts,
            keep=frozenset(clusters.keys() - rendered - incomplete),
            incomplete=incomplete,
            moved=frozenset(clusters.moved_clusters()),
            confirmed=frozenset(clusters.confirmed_clusters()),
            protected=frozenset(clusters.protected_clusters()),
            uninstallable=self._waiting.uninstallable_bundles(),
            waited=self._waiting.waited(),
            why=condition.commit_reason(changed),
            deleted=frozenset(clusters.deleted_clusters()),
            upgrade=self._upgrades.observe(clusters.present_clusters()),
        )

    def _report(self, published: Published, states: dict[Key, ClusterState]) -> None:
        """Report a publication in metrics, conditions, Events and the log."""
        self._count(published)
        self._count_renderings(published)
        outcomes = condition.outcomes(published, self._reporter.commits(), self._path)
        for key, cluster in states.items():
            outcome = outcomes[key] if cluster.facts else condition.waiting_outcome(cluster)
            self._reporter.update(key, outcome)

        # Upgrades need the outcomes, because waves wait for Fleet's reports about them.
        self._upgrades.note(published)
        self._report_removals(published)
        self._report_definitions(published)
        for key in self._reporter.known - states.keys():
            self._reporter.forget(key)

    def _count(self, published: Published) -> None:
        """Set the metrics of a publication, and note the removals that wait."""
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

    def _count_renderings(self, published: Published) -> None:
        # The renderer returns the same object for an unchanged cluster.
        before = self._rendered
        self._rendered = {rendered.cluster: rendered for rendered in published.batch.rendered}
        for key, rendered in self._rendered.items():
            if before.get(key) is not rendered:
                metrics.RENDERS.labels("ok" if rendered.ok else "invalid").inc()

    def _report_removals(self, published: Published) -> None:
        """Record an Event for each removal, and for each removal that is newly held back."""
        result = published.result
        if result.commit:
            for removal in result.plan.removed:
                key = condition.cluster_of(removal.folder)
                message = f"commit {result.commit} removed {removal}"
                self._reporter.record_event(key, "AddonBundlesRemoved", message)

        for kept in result.plan.held:
            if kept.what not in self._held:
                key = condition.cluster_of(kept.what)
                message = f"{kept.what} was kept: {kept.why}"
                self._reporter.record_warning(key, "AddonBundlesKept", message)
        self._held = {kept.what for kept in result.plan.held}

    def _report_definitions(self, published: Published) -> None:
        """Report problems of the definitions, and why they cannot be read, each once."""
        error = published.source_error
        if error:
            metrics.ERRORS.labels(type(error).__name__).inc()
            log.error("cannot read the definitions, will retry: %s", error)

        refusal = str(error) if isinstance(error, UnverifiedCommit) else ""
        metrics.SOURCE_REFUSED.set(bool(refusal))
        if refusal and refusal != self._refusal:
            self._upgrades.record_event("Warning", "SourceCommitRefused", refusal)
        self._refusal = refusal

        built = published.built
        if built:
            metrics.DEFINITIONS.labels("written").set(len(built.objects))
            metrics.DEFINITIONS.labels("faulty").set(len(built.invalid))
            for problem in built.problems:
                if problem not in self._problems:
                    log.warning("definition %s", problem)
            self._problems = frozenset(built.problems)

    def _report_failure(
        self, error: Exception, changed: Collection[Key], states: dict[Key, ClusterState]
    ) -> None:
        """Report a failed publication in metrics, the log, and conditions of changed clusters."""
        self.debouncer.put_back()
        metrics.SYNCS.labels("failed").inc()
        metrics.ERRORS.labels(type(error).__name__).inc()
        # Failures of Git and the disk are expected. Any other error is a bug, which the stack trace
        # locates.
        trace = None if isinstance(error, GitError | OSError) else error
        log.error("cannot update the repository, will retry: %s", error, exc_info=trace)

        not_pushed = condition.push_failure_outcome(error)
        changed_keys = set(changed)
        for key, cluster in states.items():
            if not cluster.facts:
                self._reporter.update(key, condition.waiting_outcome(cluster))
                continue
            if key not in changed_keys:
                continue
            # After a start, all clusters count as changed, but most have not changed. So keep a
            # condition that reports the bundles in the repository.
            if key in self._rendered or not self._reporter.is_in_repository(key):
                self._reporter.update(key, not_pushed)


def backoff(failures: int) -> float:
    """Return the seconds to wait after failures in a row, with a jitter of a quarter."""
    first, longest = _BACKOFF_SECONDS
    # Without this limit, the power would overflow.
    doublings = min(failures - 1, 30)
    seconds = min(first * 2.0**doublings, longest)
    return seconds * random.uniform(0.75, 1.25)
