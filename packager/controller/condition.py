"""Computes the outcome of a sync for each cluster, and its condition. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caphv.api.conditions import Status
from caphv.api.counting import name_some
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key
from packager.controller.publisher import Published
from packager.controller.state import ClusterState
from packager.definitions.files import MANIFESTS
from packager.fleet import ExpectedBundles, Report, expected_bundles
from packager.git.changeplan import Plan
from packager.rendering.rendered import Rendered
from packager.tree import cluster_folder

_MAX_LISTED = 3
_MAX_CHANGED = 5
_COMMIT = re.compile(r"\bcommit ([0-9a-f]{40}|[0-9a-f]{64})\b")


@dataclass(frozen=True)
class Outcome:
    """A cluster's bundles in the repository. `reason` is None when they are up to date."""

    reason: Reason | None = None
    message: str = ""
    commit: str = ""
    expected: ExpectedBundles | None = None
    changed: bool = False
    """Whether the last commit changed its files."""


@dataclass(frozen=True)
class ConditionUpdate:
    """Status, reason and message of condition AddonBundlesReady."""

    status: Status
    reason: str
    message: str

    @property
    def is_warning(self) -> bool:
        """Whether the user must act."""
        return self.reason in (Reason.ADDON_BUNDLES_INVALID, Reason.ADDON_BUNDLES_NOT_PUSHED)


def waiting_outcome(state: ClusterState) -> Outcome:
    """Return the outcome of a cluster that is not rendered now."""
    reason = Reason.ADDON_BUNDLES_SUSPENDED if state.suspended else Reason.ADDON_BUNDLES_IN_PROGRESS
    return Outcome(reason, state.why)


def push_failure_outcome(error: Exception) -> Outcome:
    """Return the outcome of a cluster with a change that could not be pushed."""
    return Outcome(Reason.ADDON_BUNDLES_NOT_PUSHED, f"{type(error).__name__}: {error}")


def outcomes(published: Published, known: Mapping[Key, str], path: str) -> dict[Key, Outcome]:
    """Return the outcome of each rendered cluster.

    `known` maps clusters to the commit that was awaited before this process started. `path` is the
    folder in the remote repository.
    """
    suspended = Outcome(
        Reason.ADDON_BUNDLES_SUSPENDED, "suspended by its manifest in the repository"
    )
    results = dict.fromkeys(published.batch.suspended, suspended)
    for rendered in published.batch.rendered:
        results[rendered.cluster] = _outcome(rendered, published, known, path)
    return results


def _outcome(
    rendered: Rendered, published: Published, known: Mapping[Key, str], path: str
) -> Outcome:
    """Return the outcome of one rendered cluster, as `outcomes` does."""
    key = rendered.cluster
    result = published.result
    if not rendered.ok or rendered.settings is None:
        return _invalid_outcome(rendered, published)

    folder = cluster_folder(*key)
    if folder in published.skipped:
        message = f"{folder} in the repository: {published.skipped[folder]}"
        return Outcome(Reason.ADDON_BUNDLES_NOT_PUSHED, message)

    is_changed = key in published.changed
    if key in published.unmerged:
        message = f"commit {result.head} waits on branch {result.branch} to be merged"
        if result.merge_request and result.merge_request.address:
            message += f": {result.merge_request}"
        return Outcome(Reason.ADDON_BUNDLES_IN_PROGRESS, message, result.head, changed=is_changed)

    # Await the commit that changed the cluster's files and not the head, because Fleet need not
    # reach later commits.
    commit = published.awaited.get(key) or known.get(key) or result.head
    expected = expected_bundles(rendered, rendered.settings, commit, path)
    return Outcome(
        reason=None,
        message="; ".join(_notes(rendered, published)),
        commit=commit,
        expected=expected,
        changed=is_changed,
    )


def _invalid_outcome(rendered: Rendered, published: Published) -> Outcome:
    errors = "; ".join(str(finding) for finding in rendered.findings if not finding.advice)
    message = f"{errors}. Until this is fixed, the bundles remain unchanged"
    release = rendered.versions.release if rendered.versions else ""
    upgrade = published.waves.upgrade
    if upgrade and upgrade.leaves_out(rendered.cluster, release):
        message += f"; the upgrade to release {upgrade.release} left them out"
    return Outcome(Reason.ADDON_BUNDLES_INVALID, message)


def _notes(rendered: Rendered, published: Published) -> list[str]:
    """Return notes for users about a cluster whose bundles are in the repository."""
    key = rendered.cluster
    places = (f"{cluster_folder(*key)}/", f"{MANIFESTS}/{key}/")
    notes = [
        f"{what} was kept: {why}"
        for what, why in published.skipped.items()
        if what.startswith(places)
    ]
    notes += _foreign_notes(published.result.plan, key)
    if key in published.unverified:
        notes.append(f"its definition remains as it was: {published.source_error}")
    if upgrade := published.waves.upgrade:
        release = rendered.versions.release if rendered.versions else ""
        notes += upgrade.notes(key, release)
    return notes


def _foreign_notes(plan: Plan, key: Key) -> list[str]:
    """Return a note about unmanaged files that Fleet deploys with the bundles of a cluster."""
    paths = [path for path in plan.foreign if Key(*path.split("/")[1:3]) == key]
    if not paths:
        return []
    shown = name_some(paths, _MAX_LISTED)
    return [f"Fleet also deploys files that caphv did not write: {shown}"]


def condition_of(outcome: Outcome, report: Report | None) -> ConditionUpdate:
    """Return the condition, which is true when the bundles are in the repository and applied.

    If Fleet is not visible, `report` is None, and only the repository counts.
    """
    if outcome.reason is not None:
        return ConditionUpdate("False", outcome.reason, outcome.message)

    commit = f"commit {outcome.commit}"
    notes = [outcome.message] if outcome.message else []
    if report is None:
        message = "; ".join([commit, "the status of Fleet is not visible here", *notes])
        return ConditionUpdate("True", ConditionType.ADDON_BUNDLES_READY, message)
    if report.ready:
        message = "; ".join([f"{commit}, applied by Fleet", *notes])
        return ConditionUpdate("True", ConditionType.ADDON_BUNDLES_READY, message)
    message = "; ".join([commit, *report.problems, *notes])
    return ConditionUpdate("False", Reason.ADDON_BUNDLES_NOT_APPLIED, message)


def commit_in(message: str) -> str:
    """Return the commit that a message of `condition_of` names, empty when it names none."""
    match = _COMMIT.search(message)
    return match[1] if match else ""


def commit_reason(changed: Iterable[Key]) -> str:
    """Return the sentence of a commit message that explains the commit."""
    names = [str(key) for key in changed]
    if not names:
        # A poll found a difference, and no cluster has changed.
        return "Repository was out of sync."
    return f"Changed on the management cluster: {name_some(names, _MAX_CHANGED)}."


def cluster_of(folder: str) -> Key:
    """Return the Cluster of a folder or file in the repository."""
    _, namespace, name = folder.split("/")[:3]
    return Key(namespace, name)
