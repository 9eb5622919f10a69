"""Observes Fleet's reports about the last wave of an upgrade, and requests the next commit.

`packager.upgrade.decision` decides about the content of the next commit. Request and progress are
in the repository.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

from caphv.api.names import Reason
from caphv.api.object import LEASES, Key
from caphv.runtime.election import LeaderElection
from caphv.runtime.events import EventRecorder, EventType
from packager.controller import metrics
from packager.controller.publisher import Published, Publisher
from packager.controller.status import Reporter
from packager.fleet import Fleet, Report
from packager.upgrade import rollout
from packager.upgrade.decision import Decision, Observed

log = logging.getLogger(__name__)

_REVIEW_BLOCKS = (
    "commits of the packager wait on a review branch to be merged, so that no wave can be awaited; "
    "run the packager without --review, or upgrade with caphv bundles upgrade, a few clusters at "
    "a time"
)
_FLEET_IS_INVISIBLE = (
    "Bundles of Fleet are not visible to the packager; the upgrade continues once they are"
)
# The file of an upgrade holds the problems of all clusters. The condition of a cluster lists all.
_MAX_PROBLEM_LENGTH = 600


class Upgrades:
    """Follows the request in `file` of the repository.

    `due` is called when the next commit may be due.
    """

    def __init__(
        self,
        publisher: Publisher,
        fleet: Fleet,
        reporter: Reporter,
        events: EventRecorder,
        *,
        election: LeaderElection | None,
        file: str,
        due: Callable[[], None],
    ) -> None:
        self._file = file
        self._election = election
        self._publisher = publisher
        self._fleet = fleet
        self._reporter = reporter
        self._events = events
        self._due = due
        self._problem = ""
        self._current: rollout.Rollout | None = None
        self._present: frozenset[Key] = frozenset()
        # Clusters of the current wave that Fleet does not report as ready.
        self._waiting: set[Key] = set()

    def observe(self, present: frozenset[Key]) -> Observed:
        """Return observations for the next plan; clusters in `present` need to become ready."""
        self._present = present
        blocked = ""
        if self._publisher.is_reviewed:
            blocked = _REVIEW_BLOCKS
        elif self._fleet.uninstallable() is None:
            blocked = _FLEET_IS_INVISIBLE
        return Observed(
            present=present,
            reports=self._reports(),
            blocked=blocked,
            now=time.time(),
            file=self._file,
        )

    def seconds_left(self) -> float:
        """Return the seconds until the gate of the last wave closes; infinite if none waits."""
        if self._current is None or not self._waiting:
            return math.inf
        seconds = self._current.since + self._current.request.gate - time.time()
        return seconds if seconds > 0 else math.inf

    def note(self, published: Published) -> None:
        """Take the result of a sync."""
        decision = published.waves
        before = self._current
        self._current = decision.upgrade
        for state in rollout.State:
            is_state = self._current is not None and self._current.state is state
            metrics.UPGRADE_STATE.labels(state.lower()).set(is_state)
        self._report_problem(decision)
        if decision.step:
            self._report(decision.step, published.result.commit)

        was_waiting = bool(self._waiting)
        self._waiting = self._unready_clusters()
        has_news = was_waiting or self._current != before or bool(published.result.commit)
        is_active = self._current is not None and self._current.is_active
        # The commit of a wave has no other change, so it follows the commit of this sync.
        is_postponed = (
            bool(published.result.commit) and decision.step is None and decision.is_pending
        )
        if is_postponed or (is_active and not self._waiting and has_news):
            self._due()

    def on_fleet_change(self, bundle: Key) -> None:
        """Check the clusters of a Bundle that changed; the name is empty for a whole workspace."""
        if not self._waiting:
            return
        reports = self._reports(self._reporter.clusters_of(bundle) & self._waiting)
        self._waiting -= {key for key, report in reports.items() if report.ready}
        if not self._waiting:
            self._due()

    def _unready_clusters(self) -> set[Key]:
        """Return the clusters of the last wave that Fleet does not report as ready.

        A cluster that is not rendered yet has no report. Clusters that need not become ready are
        left out.
        """
        if self._current is None or not self._current.is_active:
            return set()
        ready = {key for key, report in self._reports().items() if report.ready}
        return {key for key in self._current.before if key in self._present} - ready

    def _reports(self, only: set[Key] | None = None) -> Mapping[Key, Report]:
        """Return Fleet's reports about clusters of the last wave, as far as Fleet is visible."""
        if self._current is None or not self._current.is_active:
            return {}
        reports = {}
        for key in self._current.before if only is None else only:
            if report := self._report_of(key):
                reports[key] = report
        return reports

    def _report_of(self, key: Key) -> Report | None:
        """Return the report about a cluster, None if Fleet is not visible.

        An invalid cluster has no bundles to report about, so its error is the report.
        """
        outcome = self._reporter.outcome(key)
        if outcome and outcome.reason is Reason.ADDON_BUNDLES_INVALID:
            return Report((outcome.message[:_MAX_PROBLEM_LENGTH],))
        if outcome is None or outcome.expected is None:
            return None
        return self._fleet.report(outcome.expected, self._publisher.may_be_before)

    def _report_problem(self, decision: Decision) -> None:
        """Report why an upgrade cannot start or continue, once for each problem of a request."""
        current = decision.current
        problem = decision.problem
        if current and current.blocked:
            problem = f"the upgrade to release {current.release} cannot continue: {current.blocked}"
        if problem and problem != self._problem:
            self.record_event("Warning", "UpgradeNotPossible", problem)
        # A sync with another commit does not look for all problems, so it forgets none.
        if problem or decision.step or decision.request is None:
            self._problem = problem

    def _report(self, step: rollout.Step, commit: str) -> None:
        """Record Events about a commit of the upgrade, and about clusters that it affects."""
        upgrade = step.rollout
        for key, reasons in sorted(step.left_out.items()):
            message = (
                f"the upgrade to release {upgrade.release} left the cluster out: "
                f"{'; '.join(reasons)}"
            )
            self._reporter.record_warning(key, "AddonBundlesLeftOut", message)
        if upgrade.state is not rollout.State.REVERTED:
            reason = "UpgradeProgressing" if upgrade.is_active else f"Upgrade{upgrade.state.value}"
            self.record_event("Normal", reason, f"{step.why} Commit {commit}")
            return

        for key, problems in sorted(upgrade.problems.items()):
            message = f"commit {commit} reverts release {upgrade.release}: {'; '.join(problems)}"
            self._reporter.record_warning(key, "AddonBundlesReverted", message)
        # An Event holds 1 KiB.
        some = ", ".join(map(str, sorted(upgrade.problems)[:5]))
        self.record_event(
            "Warning", "UpgradeReverted", f"{step.why} Not ready: {some}. Commit {commit}"
        )

    def record_event(self, kind: EventType, reason: str, message: str) -> None:
        """Record an Event for the Lease, which exists with leader election, and log it."""
        log.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, message)
        if self._election and self._election.lease:
            about = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
            self._events.event(
                {**about, "metadata": self._election.lease["metadata"]}, kind, reason, message
            )
