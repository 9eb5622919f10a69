"""Upgrades in waves: takes the request from the packager's Lease, and finds out when the next commit is due.

What the next commit is, `packager.rollout` decides. The progress is in the repository; here is only what Fleet reports
of the clusters of the last wave.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

from caphv.api import names
from caphv.api.names import Reason
from caphv.api.object import LEASES, Key
from caphv.runtime.election import LeaderElection
from caphv.runtime.events import EventRecorder, EventType
from packager import rollout
from packager.controller import metrics
from packager.controller.fleet import Fleet, Report
from packager.controller.publisher import Published, Publisher
from packager.controller.status import Reporter

log = logging.getLogger(__name__)


class Upgrades:
    """Follows the upgrade that `file` of the repository holds; `due` is called if there may be something to commit."""

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
        self._election, self._publisher, self._fleet = election, publisher, fleet
        self._reporter, self._events, self._due = reporter, events, due
        self._text = ""
        self._taken = ""
        self._known = False
        self._problem = ""
        self._current: rollout.Rollout | None = None
        self._waiting: set[Key] = set()
        if election:
            election.on_annotations = self._annotations_changed

    def observed(self, present: frozenset[Key]) -> rollout.Observed | None:
        """Return what the next plan needs to know; None where no wave can be awaited, because commits are reviewed.

        `present` are the clusters that need to become ready.
        """
        if self._publisher.is_reviewed:
            return None
        visible = self._fleet.uninstallable() is not None
        request = "" if self._text == self._taken or self._why_not(self._text, visible=visible) else self._text
        return rollout.Observed(present, request, self._reports(), visible, time.time(), self._file)

    def seconds_left(self) -> float:
        """Return the seconds until the gate of the last wave closes; infinite when none waits."""
        left = self._current.since + self._current.gate - time.time() if self._current and self._waiting else -1.0
        return left if left > 0 else math.inf

    def note(self, published: Published) -> None:
        """Take the result of a sync."""
        before, self._current = self._current, published.upgrade
        found = published.upgrade
        for state in rollout.State:
            metrics.UPGRADE_STATE.labels(state.lower()).set(found is not None and found.state is state)
        is_active = bool(found and found.is_active)
        # An upgrade that ended before may have been requested with the same text.
        is_taken = found and found.request == self._text and (is_active or published.step)
        if self._text and (is_taken or (self._text == rollout.STOP and not is_active)):
            self._take()
        self._report_problem(published)
        if published.step and found:
            self._report(published)
        is_pending = self._text not in ("", self._taken)
        if not self._known or found != before or (published.result.commit and is_pending):
            self._known = True
            self._waiting = {key for key, report in self._reports().items() if not report.ready}
            if is_pending or (is_active and not self._waiting):
                self._due()

    def fleet_changed(self, place: Key) -> None:
        """Check the clusters of a Bundle that changed."""
        if not self._waiting:
            return
        reports = self._reports(self._reporter.clusters_of(place) & self._waiting)
        self._waiting -= {key for key, report in reports.items() if report.ready}
        if not self._waiting:
            self._due()

    def fleet_visible(self) -> None:
        """Check all clusters of the last wave with the next sync: Fleet became visible."""
        self._known = False

    def _reports(self, only: set[Key] | None = None) -> Mapping[Key, Report]:
        """Return what Fleet reports of clusters of the last wave, as far as it is visible."""
        if self._current is None or not self._current.is_active:
            return {}
        found = {}
        for key in self._current.before if only is None else only:
            if report := self._report_of(key):
                found[key] = report
        return found

    def _report_of(self, key: Key) -> Report | None:
        outcome = self._reporter.outcome(key)
        if outcome and outcome.reason is Reason.ADDON_BUNDLES_INVALID:
            return Report((outcome.message,))
        if outcome is None or outcome.wanted is None:
            return None
        return self._fleet.report(outcome.wanted, self._publisher.may_be_before)

    def _annotations_changed(self, annotations: Mapping[str, str]) -> None:
        text = annotations.get(names.UPGRADE_ANNOTATION, "").strip()
        if text == self._text:
            return
        self._text, self._taken, self._problem = text, "", ""
        if not text:
            return
        if why := self._why_not(text, visible=self._fleet.uninstallable() is not None):
            self.record_event("Warning", "UpgradeNotPossible", f"{text!r}: {why}")
        self._due()

    def _why_not(self, text: str, *, visible: bool) -> str:
        """Return why a request cannot be followed now, empty if it can."""
        if text in ("", rollout.STOP):
            return ""
        try:
            request = rollout.parse_request(text)
            if request.release:
                self._publisher.table.release(request.release)
        except ValueError as error:
            return f"annotation {names.UPGRADE_ANNOTATION}: {error}"
        if self._publisher.is_reviewed:
            return "commits wait on a review branch to be merged, so no wave can be awaited; use caphv bundles upgrade"
        return "" if visible else "Bundles of Fleet are not visible here; the upgrade starts once they are"

    def _take(self) -> None:
        """Remove the request: the repository holds it now."""
        self._taken = self._text
        if self._election:
            self._election.remove_annotation(names.UPGRADE_ANNOTATION, self._text)

    def _report_problem(self, published: Published) -> None:
        """Report why an upgrade cannot start or continue, once for each request."""
        found, problem = published.upgrade, published.problem
        if found and found.blocked:
            problem = f"the upgrade to release {found.release} cannot continue: {found.blocked}"
        if problem and problem != self._problem:
            self._problem = problem
            self.record_event("Warning", "UpgradeNotPossible", problem)

    def _report(self, published: Published) -> None:
        found, step = published.upgrade, published.step
        if found is None or step is None:
            return
        commit = published.result.commit
        for key, why in sorted(step.left_out.items()):
            message = f"the upgrade to release {found.release} left the cluster out: {'; '.join(why)}"
            self._reporter.warning_event(key, "AddonBundlesLeftOut", message)
        if found.state is not rollout.State.REVERTED:
            reason = "UpgradeProgressing" if found.is_active else f"Upgrade{found.state.value}"
            self.record_event("Normal", reason, f"{step.why} Commit {commit}")
            return
        for key, problems in sorted(found.problems.items()):
            message = f"commit {commit} reverts release {found.release}: {'; '.join(problems)}"
            self._reporter.warning_event(key, "AddonBundlesReverted", message)
        some = ", ".join(map(str, sorted(found.problems)[:5]))
        self.record_event("Warning", "UpgradeReverted", f"{step.why} Not ready: {some}. Commit {commit}")

    def record_event(self, kind: EventType, reason: str, message: str) -> None:
        """Record an Event for the Lease, which exists with leader election, and log it."""
        log.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, message)
        if self._election and self._election.lease:
            about = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
            self._events.event({**about, "metadata": self._election.lease["metadata"]}, kind, reason, message)
