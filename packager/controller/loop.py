"""The loop of the packager in the cluster: waits for changes, publishes them, and says what became of them.

It decides nothing that it could not find again: what the repository should hold follows from caches, what it holds is
read from the repository. So after a failure or a restart there is nothing to make up for but another look.
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
from packager.controller.debouncer import Trigger
from packager.controller.planner import Work
from packager.controller.publisher import Published, Publisher
from packager.controller.state import Seen, View
from packager.controller.status import Reporter
from packager.definitions.source import Problem
from packager.git.errors import GitError
from packager.rendering.renderer import Rendered

log = logging.getLogger(__name__)

_BACKOFF = (1.0, 300.0)
_CLOSE_SECONDS = 10.0
_READY_SECONDS = 30.0


@dataclass(frozen=True)
class Pace:
    """Seconds: a batch waits until nothing has changed for `debounce`, but not longer than `longest`.

    After `interval` without a change the repository is looked at all the same: somebody may have written to it.
    """

    debounce: float = 1.0
    longest: float = 15.0
    interval: float = 60.0


class Loop:
    """Publishes what `view` sees, by `publisher` in a thread of its own, and has `reporter` say what came of it."""

    def __init__(self, view: View, publisher: Publisher, reporter: Reporter, pace: Pace, path: str) -> None:
        self.trigger = Trigger(pace.debounce, pace.longest)
        self._view, self._publisher, self._reporter = view, publisher, reporter
        self._pace, self._path = pace, path
        self._thread = ThreadPoolExecutor(1, "git")
        self._rendered: dict[Key, Rendered] = {}
        self._held: set[str] = set()
        self._problems: frozenset[Problem] = frozenset()
        self._failures = 0
        metrics.LAG.set_function(lambda: self.trigger.lag)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._view.ready(_READY_SECONDS)
        self.trigger.hurry()
        while True:
            if await self.sync():
                self._failures = 0
                await self.trigger.wait(self._pace.interval)
            else:
                self._failures += 1
                await self.trigger.pause(backoff(self._failures))

    async def close(self) -> None:
        """Let go of the clone, when what runs in the thread has ended."""
        self._publisher.stop()
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._publisher.close)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), _CLOSE_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def sync(self) -> bool:
        """Bring the repository to what the caches say; tells whether that worked."""
        changed = self.trigger.take()
        seen = self._view.seen()
        work = self._work(seen, changed)
        started = time.monotonic()
        try:
            published = await asyncio.get_running_loop().run_in_executor(self._thread, self._publisher.publish, work)
        except Exception as error:
            self._failed(error, changed, seen)
            return False
        self.trigger.done()
        if not self._publisher.is_reviewed:
            self._view.forget_moved(work.moved)
        metrics.SYNC_SECONDS.observe(time.monotonic() - started)
        self._done(published, seen)
        return True

    def _work(self, seen: dict[Key, Seen], changed: Collection[Key]) -> Work:
        facts = tuple(found.facts for found in seen.values() if found.facts)
        incomplete = frozenset(key for key, found in seen.items() if found.incomplete)
        keep = frozenset(self._view.there() - {found.key for found in facts} - incomplete)
        moved, confirmed = frozenset(self._view.moved()), frozenset(self._view.confirmed())
        return Work(facts, keep, incomplete, moved, confirmed, condition.why(changed))

    def _done(self, published: Published, seen: dict[Key, Seen]) -> None:
        self._count(published)
        said = condition.outcomes(published, self._reporter.commits(), self._path)
        for key, found in seen.items():
            self._reporter.say(key, said[key] if found.facts else condition.waiting(found))
        self._tell_removals(published)
        self._tell_definitions(published)
        for key in self._reporter.known - seen.keys():
            self._reporter.forget(key)

    def _count(self, published: Published) -> None:
        result = published.result
        metrics.SYNCS.labels("pushed" if result.commit else "unchanged").inc()
        metrics.LAST_SUCCESS.set_to_current_time()
        if result.commit:
            metrics.COMMITS.inc()
            metrics.PUSH_SECONDS.observe(result.push_seconds)
            metrics.REMOVED.inc(len(result.plan.removed))
        metrics.HELD.set(len(result.plan.held))
        # A cluster that did not change has the very same result as before.
        before, self._rendered = self._rendered, {found.cluster: found for found in published.batch.rendered}
        for key, rendered in self._rendered.items():
            if before.get(key) is not rendered:
                metrics.RENDERS.labels("ok" if rendered.ok else "invalid").inc()

    def _tell_removals(self, published: Published) -> None:
        removed, held = condition.removals(published.result.plan)
        if published.result.commit:
            for key, what in removed:
                self._reporter.tell(key, "AddonBundlesRemoved", f"commit {published.result.commit} removed {what}")
        for key, what, why in held:
            if what not in self._held:
                self._reporter.warn(key, "AddonBundlesKept", f"{what} is not wanted any more and stays: {why}")
        self._held = {what for _, what, _ in held}

    def _tell_definitions(self, published: Published) -> None:
        if published.source_error:
            metrics.ERRORS.labels(type(published.source_error).__name__).inc()
            log.error("definitions cannot be followed, trying again: %s", published.source_error)
        if published.made:
            metrics.DEFINITIONS.labels("written").set(len(published.made.objects))
            metrics.DEFINITIONS.labels("faulty").set(len(published.made.bad))
            for problem in published.made.problems:
                if problem not in self._problems:
                    log.warning("definition %s", problem)
            self._problems = frozenset(published.made.problems)

    def _failed(self, error: Exception, changed: Collection[Key], seen: dict[Key, Seen]) -> None:
        self.trigger.failed()
        metrics.SYNCS.labels("failed").inc()
        metrics.ERRORS.labels(type(error).__name__).inc()
        # What Git and the disk can do is foreseen; anything else is a fault of ours, and the trace says where.
        trace = None if isinstance(error, GitError | OSError) else error
        log.error("the repository is not as it should be, trying again: %s", error, exc_info=trace)
        said, waiting = condition.not_pushed(error), set(changed)
        for key, found in seen.items():
            if not found.facts:
                self._reporter.say(key, condition.waiting(found))
            # After a start all clusters count as changed: what their condition said before is more likely.
            elif key in waiting and (key in self._rendered or not self._reporter.settled(key)):
                self._reporter.say(key, said)


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row, with a jitter of a quarter."""
    first, longest = _BACKOFF
    return min(first * 2.0 ** min(failures - 1, 30), longest) * random.uniform(0.75, 1.25)
