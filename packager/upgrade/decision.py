"""Decides whether an upgrade in waves starts, continues or ends.

The decision depends on the request, the progress in the repository, and the reports of Fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from caphv.api.object import Key
from packager.addons.cluster_objects import is_suspended
from packager.addons.facts import ClusterFacts, labels_of_cluster
from packager.addons.selector import selector
from packager.addons.versions import Table
from packager.contents import inventory
from packager.fleet import Report
from packager.git.snapshot import Snapshot
from packager.upgrade import request as upgrade_request
from packager.upgrade.request import Request
from packager.upgrade.rollout import (
    LeftOut,
    Rollout,
    Step,
    advance,
    begin,
    describe,
    exclude,
    next_wave,
    note_left_out,
    outdated_in,
    stop,
)
from packager.upgrade.rolloutfile import parse, status_file_of
from packager.upgrade.waves import split


@dataclass(frozen=True)
class Decision:
    """The next step of the upgrade in the repository, or of a new one.

    `current` is the upgrade in the repository, and `request` the upgrade that users ask for now.
    `step` is the next commit if there is one. `problem` is why the packager cannot follow the
    request. `is_pending`: the requested upgrade has not started.
    """

    current: Rollout | None = None
    request: Request | None = None
    step: Step | None = None
    problem: str = ""
    is_pending: bool = False

    @property
    def upgrade(self) -> Rollout | None:
        """The upgrade as the next commit leaves it."""
        return self.step.rollout if self.step else self.current

    @property
    def ends_request(self) -> bool:
        """Whether the next commit ends the requested upgrade."""
        return bool(
            self.step
            and not self.step.rollout.is_active
            and self.step.rollout.request == self.request
        )


@dataclass(frozen=True)
class Observed:
    """Observations of clusters and Fleet by the controller.

    `present` are the clusters that exist and need to become ready, because they are neither
    suspended nor being deleted. `reports` are Fleet's reports about clusters of the last wave.
    `blocked` is why waves cannot be awaited, empty if they can. `file` holds the request.
    """

    present: frozenset[Key] = frozenset()
    reports: Mapping[Key, Report] = field(default_factory=dict)
    blocked: str = ""
    now: float = 0.0
    file: str = upgrade_request.FILE

    @property
    def status_file(self) -> str:
        """The file that holds the upgrade."""
        return status_file_of(self.file)


def decide(
    snapshot: Snapshot,
    observed: Observed,
    clusters: Iterable[ClusterFacts],
    table: Table,
    left_out: LeftOut = MappingProxyType({}),
) -> Decision:
    """Return the next step of the upgrade in the repository, or of a new one.

    :param snapshot: the repository
    :param observed: observations of the controller
    :param clusters: objects of all clusters that can be read
    :param table: table of versions, with all releases
    :param left_out: clusters of the next commit whose bundles cannot be upgraded
    """
    try:
        current = parse(snapshot.read(observed.status_file))
    except ValueError as error:
        remedy = "remove the file; the upgrade then begins again with the clusters that are left"
        return Decision(problem=f"{observed.status_file} is damaged: {error}; {remedy}")
    active = current if current and current.is_active else None

    # Users stop an upgrade by removing the request.
    if snapshot.read(observed.file) is None:
        step = stop(active, f"{observed.file} was removed") if active else None
        return Decision(current, step=step)

    decision = _follow_request(snapshot, observed, current)
    is_pending = decision.is_pending
    if observed.blocked:
        # Neither a new upgrade nor the next wave can be awaited, so nothing begins.
        if is_pending:
            decision = replace(decision, problem=f"{observed.file}: {observed.blocked}")
        return decision

    request = decision.request
    facts = {cluster.key: cluster for cluster in clusters if not is_suspended(cluster.cluster)}
    if request and is_pending:
        try:
            step = _start(snapshot, request, facts, table, now=observed.now, left_out=left_out)
            return replace(decision, step=step)
        except ValueError as error:
            # An upgrade that is in progress continues.
            decision = replace(decision, problem=f"{observed.file} cannot be followed: {error}")
    if active is None:
        return decision
    return _continue(
        decision, active, snapshot, observed, facts=facts, table=table, left_out=left_out
    )


def _follow_request(snapshot: Snapshot, observed: Observed, current: Rollout | None) -> Decision:
    """Return a decision without a step: the request, whether it is pending, and its problem.

    An invalid request does not stop an upgrade in progress.
    """
    try:
        request = upgrade_request.parse_file(snapshot.read(observed.file) or b"")
    except ValueError as error:
        return Decision(current, problem=f"{observed.file}: {error}")
    # A changed request replaces the upgrade in progress. A request that ended is repeated.
    is_in_progress = current is not None and current.is_active and current.request == request
    return Decision(current, request, is_pending=not is_in_progress)


def _start(
    snapshot: Snapshot,
    request: Request,
    facts: Mapping[Key, ClusterFacts],
    table: Table,
    *,
    now: float,
    left_out: LeftOut,
) -> Step | None:
    """Return the first wave.

    Raises `ValueError` if the release is unknown, or if no cluster can be upgraded.

    :param snapshot: the repository
    :param request: the request for the upgrade
    :param facts: objects of all clusters that are not suspended
    :param table: table of versions, with all releases
    :param now: time of the commit
    :param left_out: clusters whose bundles cannot be upgraded
    """
    target = table.release(request.release) if request.release else table.newest

    clusters = list(facts.values())
    if request.selector:
        selects = selector(request.selector)
        clusters = [cluster for cluster in clusters if selects(labels_of_cluster(cluster))]
    # Choose all outdated clusters at once, because the waves of the request divide them.
    chosen = inventory.wave(clusters, snapshot.tree, target, None).chosen
    rollout = begin(split(request.waves, chosen), target.release, request)

    outdated = outdated_in(snapshot, facts, target)
    step = next_wave(rollout, exclude(outdated, left_out), target, now)
    if step and left_out and not step.pins:
        raise ValueError(
            f"no cluster can be upgraded to release {target.release}; left out: "
            f"{describe(left_out)}"
        )
    return note_left_out(step, left_out, outdated)


def _continue(
    decision: Decision,
    active: Rollout,
    snapshot: Snapshot,
    observed: Observed,
    *,
    facts: Mapping[Key, ClusterFacts],
    table: Table,
    left_out: LeftOut,
) -> Decision:
    """Add the next commit of the upgrade in progress to a decision.

    :param decision: the decision so far
    :param active: the upgrade in progress
    :param snapshot: the repository
    :param observed: observations of the controller
    :param facts: objects of all clusters that are not suspended
    :param table: table of versions, with all releases
    :param left_out: clusters whose bundles cannot be upgraded
    """
    try:
        target = table.release(active.release)
    except ValueError as error:
        blocked = (
            f"{error}; run a packager that has it, or remove {observed.file} to stop the upgrade"
        )
        return replace(decision, current=replace(active, blocked=blocked))

    # Clusters that were deleted or are suspended need not become ready. Clusters that cannot be
    # read now are still awaited.
    before = {key: versions for key, versions in active.before.items() if key in observed.present}
    reports = {key: report for key, report in observed.reports.items() if key in facts}
    outdated = outdated_in(snapshot, facts, target)
    step = advance(
        replace(active, before=before),
        exclude(outdated, left_out),
        reports,
        target,
        now=observed.now,
        unknown=observed.present - facts.keys(),
    )
    return replace(decision, step=note_left_out(step, left_out, outdated))
