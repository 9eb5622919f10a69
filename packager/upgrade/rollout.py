"""An upgrade in waves as data, and its next commit: the next wave, a revert, or the end.

A user asks for an upgrade with a file (`packager.upgrade.request`), and the commit of each wave
stores it in another one (`packager.upgrade.rolloutfile`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from caphv.api.counting import and_more
from caphv.api.object import Key
from packager.addons.facts import ClusterFacts
from packager.addons.versions import Versions
from packager.contents import inventory
from packager.fleet import Report
from packager.git.snapshot import Snapshot
from packager.upgrade.request import Request
from packager.upgrade.waves import Wave

log = logging.getLogger(__name__)

_MAX_LISTED = 5
S = TypeVar("S")

LeftOut = Mapping[Key, tuple[str, ...]]
"""Clusters whose bundles cannot be upgraded, with messages: field, value and remedy."""

Outdated = Callable[[Key], Versions | None]
"""Returns the versions of a cluster that can be upgraded now; None for any other."""


class State(StrEnum):
    """State of an upgrade. All states but the first are final."""

    PROGRESSING = "Progressing"
    COMPLETE = "Complete"
    REVERTED = "Reverted"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class Rollout:
    """An upgrade in waves.

    `wave` is the number of the wave that was committed last, from 1, and `since` is the time of
    that commit. `before` are the previous versions of this wave's clusters. `left_out` are the
    clusters of all waves so far whose bundles cannot be upgraded, with reasons, and `kept_releases`
    are the releases that these clusters keep. `blocked` is why this packager cannot continue the
    upgrade. It is not stored in the file.
    """

    release: str
    request: Request
    waves: tuple[tuple[str, tuple[Key, ...]], ...]
    state: State = State.PROGRESSING
    wave: int = 0
    since: float = 0.0
    before: Mapping[Key, Versions] = field(default_factory=dict)
    problems: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    left_out: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    kept_releases: Mapping[Key, str] = field(default_factory=dict)
    blocked: str = ""

    @property
    def is_active(self) -> bool:
        """Whether more commits may follow."""
        return self.state is State.PROGRESSING

    @property
    def name(self) -> str:
        """Name of the wave that was committed last, as the user wrote it."""
        return self.waves[self.wave - 1][0] if self.wave else ""

    @property
    def title(self) -> str:
        """Description of that wave for messages."""
        return f"wave {self.wave} of {len(self.waves)} ({self.name})" if self.wave else "no wave"

    def leaves_out(self, cluster: Key, release: str = "") -> bool:
        """Whether the upgrade left out a cluster that still has the same release.

        An empty release is unknown, and counts as the same.
        """
        return cluster in self.left_out and release in ("", self.kept_releases.get(cluster))

    def notes(self, cluster: Key, release: str = "") -> list[str]:
        """Return messages for users about a cluster with this release.

        They say that the cluster is awaited, left out, or reverted.
        """
        if self.leaves_out(cluster, release):
            reasons = "; ".join(self.left_out[cluster])
            return [f"left out of the upgrade to release {self.release}: {reasons}"]
        if self.is_active and cluster in self.before:
            blocked = f", which cannot continue: {self.blocked}" if self.blocked else ""
            return [f"{self.title} of the upgrade to release {self.release}{blocked}"]
        if self.state is State.REVERTED and cluster in self.problems:
            return [f"release {self.release} was reverted: {', '.join(self.problems[cluster])}"]
        return []


@dataclass(frozen=True)
class Step:
    """The next commit of an upgrade.

    `rollout` is the upgrade after the commit, `pins` are new versions of clusters, and `why` is the
    message of the commit. `left_out` are clusters of the wave whose bundles cannot be upgraded.
    """

    rollout: Rollout
    pins: Mapping[Key, Versions]
    why: str
    left_out: LeftOut = field(default_factory=dict)


def begin(waves: Sequence[Wave], release: str, request: Request) -> Rollout:
    """Return an upgrade whose first wave is not committed yet."""
    clusters = tuple((wave.name, tuple(facts.key for facts in wave.clusters)) for wave in waves)
    return Rollout(release, request, clusters)


def next_wave(
    rollout: Rollout,
    outdated: Outdated,
    target: Versions,
    now: float,
    unknown: Collection[Key] = (),
) -> Step | None:
    """Return the commit of the next wave with outdated clusters, or the end after the last wave.

    Returns None while the wave has `unknown` clusters.

    :param rollout: the upgrade
    :param outdated: returns the versions of a cluster that can be upgraded
    :param target: versions to upgrade to
    :param now: time of the commit
    :param unknown: clusters that exist, but cannot be read now
    """
    for number, (_, clusters) in enumerate(rollout.waves[rollout.wave :], rollout.wave + 1):
        if missing := [str(key) for key in clusters if key in unknown]:
            log.info(
                "wave %d of the upgrade waits for clusters that cannot be read: %s",
                number,
                ", ".join(missing),
            )
            return None

        before = {key: versions for key in clusters if (versions := outdated(key))}
        if before:
            # The file holds whole seconds.
            since = float(int(now))
            following = replace(rollout, wave=number, since=since, before=before)
            message = f"Upgrade to release {rollout.release}: {following.title}."
            return Step(following, dict.fromkeys(before, target), message)

    # Every cluster of all waves is upgraded or left out.
    complete = replace(rollout, state=State.COMPLETE, wave=len(rollout.waves), before={})
    return Step(complete, {}, f"The upgrade to release {rollout.release} is complete.")


def advance(
    rollout: Rollout,
    outdated: Outdated,
    reports: Mapping[Key, Report],
    target: Versions,
    *,
    now: float,
    unknown: Collection[Key] = (),
) -> Step | None:
    """Return the commit that follows a wave: the next wave, or the revert of this wave.

    Returns None while the wave is awaited. A wave is

    - complete as soon as all of its clusters have the new versions and are reported as ready,
    - reverted at once if the bundles of a cluster do not have the new versions,
    - reverted at the end of the gate if a cluster is reported as not ready.

    A cluster without a report is awaited beyond the gate, because a wave must not be reverted only
    because Fleet is not visible.

    :param rollout: the upgrade
    :param outdated: returns the versions of a cluster that can be upgraded
    :param reports: Fleet's status of clusters
    :param target: versions to upgrade to
    :param now: time of the commit
    :param unknown: clusters that exist, but cannot be read now
    """
    clusters = rollout.before
    is_over = now - rollout.since >= rollout.request.gate
    if not clusters:
        return stop(rollout, "none of its clusters is left to become ready") if is_over else None

    # Compare the versions with those before the wave, and not with the target. A packager of
    # another version has other templates, so that its target of the same release differs.
    upgraded = {key for key, versions in clusters.items() if outdated(key) != versions}
    problems: dict[Key, tuple[str, ...]] = {
        key: ("its bundles were not upgraded",) for key in clusters if key not in upgraded
    }
    wave_reports = {key: report for key, report in reports.items() if key in clusters}
    if not problems and all(report.ready for report in wave_reports.values()):
        if len(wave_reports) < len(clusters):
            return None
        return next_wave(rollout, outdated, target, now, unknown)

    if is_over:
        problems |= {
            key: report.problems for key, report in wave_reports.items() if not report.ready
        }
    elif not problems:
        return None

    reverted = replace(rollout, state=State.REVERTED, problems=problems)
    pins = {key: versions for key, versions in clusters.items() if key in upgraded}
    message = f"Revert {rollout.title} of release {rollout.release}: it did not become ready."
    return Step(reverted, pins, message)


def stop(active: Rollout, reason: str) -> Step:
    """Return the commit that ends an upgrade, and leaves the clusters as they are."""
    stopped = replace(active, state=State.STOPPED, before={})
    message = f"The upgrade to release {active.release} is stopped after {active.title}: {reason}."
    return Step(stopped, {}, message)


def leave_out_unfit(plan_step: Callable[[LeftOut], S], find_unfit: Callable[[S], LeftOut]) -> S:
    """Return a planned step whose clusters can all be upgraded.

    A wave whose clusters are all unfit is skipped, because the next call plans a later wave.

    :param plan_step: plans the next step without the clusters that it is called with
    :param find_unfit: returns the clusters of a planned step that cannot be upgraded
    """
    left_out: dict[Key, tuple[str, ...]] = {}
    while True:
        # The loop ends, because each round leaves out at least one more cluster.
        planned = plan_step(left_out)
        unfit = find_unfit(planned)
        if not unfit:
            return planned
        left_out |= unfit


def note_unreverted(reverted: Step, unfit: LeftOut) -> Step:
    """Note clusters that keep the new versions, because their bundles cannot be reverted."""
    problems = dict(reverted.rollout.problems)
    for key, reasons in unfit.items():
        message = (
            f"it keeps release {reverted.rollout.release}, which cannot be reverted: "
            f"{'; '.join(reasons)}"
        )
        problems[key] = (*problems.get(key, ()), message)
    return replace(reverted, rollout=replace(reverted.rollout, problems=problems))


def exclude(outdated: Outdated, left_out: Collection[Key]) -> Outdated:
    """Return a function like `outdated` that returns None for these clusters."""
    return lambda key: None if key in left_out else outdated(key)


def describe(left_out: LeftOut) -> str:
    """Return a text for messages that lists clusters and why they are left out."""
    rows = [f"{key}: {'; '.join(reasons)}" for key, reasons in sorted(left_out.items())]
    more = and_more(len(rows) - _MAX_LISTED)
    return "; ".join(rows[:_MAX_LISTED]) + (f";{more}" if more else "")


def note_left_out(step: Step | None, left_out: LeftOut, outdated: Outdated) -> Step | None:
    """Add the clusters that a step leaves out, and their releases, to the step."""
    if step is None or not left_out:
        return step
    releases = {key: versions.release for key in left_out if (versions := outdated(key))}
    rollout = replace(
        step.rollout,
        left_out={**step.rollout.left_out, **left_out},
        kept_releases={**step.rollout.kept_releases, **releases},
    )
    message = f"{step.why} Left out: {describe(left_out)}."
    return replace(step, rollout=rollout, why=message, left_out=left_out)


def outdated_in(
    snapshot: Snapshot, facts: Mapping[Key, ClusterFacts], target: Versions
) -> Outdated:
    """Return a function that returns the versions of a cluster in the repository if it is outdated.

    A cluster is outdated if its versions are not the target.
    """

    def outdated_versions(key: Key) -> Versions | None:
        if key not in facts:
            return None
        versions = inventory.pinned_versions(facts[key], snapshot.tree)
        return versions if versions != target else None

    return outdated_versions
