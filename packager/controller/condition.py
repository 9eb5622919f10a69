"""The outcome of a sync for each cluster, and the condition that reports it: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.conditions import Status
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key
from packager.controller.fleet import ExpectedBundles, Report, expected_bundles
from packager.controller.publisher import Published
from packager.controller.state import ClusterState
from packager.definitions.files import MANIFESTS
from packager.git.prune import Plan
from packager.rendering.renderer import Rendered
from packager.tree import cluster_folder

_MOST_NAMED = 3
_COMMIT = re.compile(r"\bcommit ([0-9a-f]{40}|[0-9a-f]{64})\b")


@dataclass(frozen=True)
class Outcome:
    """A cluster's bundles in the repository: `reason` is None when they are up to date."""

    reason: Reason | None = None
    message: str = ""
    commit: str = ""
    wanted: ExpectedBundles | None = None
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


def waiting(state: ClusterState) -> Outcome:
    """Return the outcome of a cluster that is not rendered now."""
    reason = Reason.ADDON_BUNDLES_SUSPENDED if state.suspended else Reason.ADDON_BUNDLES_IN_PROGRESS
    return Outcome(reason, state.why)


def not_pushed(error: Exception) -> Outcome:
    """Return the outcome of a cluster with a change that could not be pushed."""
    return Outcome(Reason.ADDON_BUNDLES_NOT_PUSHED, f"{type(error).__name__}: {error}")


def outcomes(published: Published, known: dict[Key, str], path: str) -> dict[Key, Outcome]:
    """Return the outcome of each rendered cluster.

    `known` maps clusters to the commit that was awaited before this process; `path` is the remote's.
    """
    suspended = Outcome(Reason.ADDON_BUNDLES_SUSPENDED, "suspended by its manifest in the repository")
    return dict.fromkeys(published.batch.suspended, suspended) | {
        rendered.cluster: _outcome(rendered, published, known, path) for rendered in published.batch.rendered
    }


def _outcome(rendered: Rendered, published: Published, known: dict[Key, str], path: str) -> Outcome:
    key, result = rendered.cluster, published.result
    if not rendered.ok or rendered.settings is None:
        errors = "; ".join(str(finding) for finding in rendered.findings if not finding.advice)
        message = f"{errors}. Until this is fixed, the bundles remain unchanged"
        release = rendered.versions.release if rendered.versions else ""
        if published.upgrade and published.upgrade.leaves_out(key, release):
            message += f"; the upgrade to release {published.upgrade.release} left them out"
        return Outcome(Reason.ADDON_BUNDLES_INVALID, message)
    folder = cluster_folder(*key)
    if folder in published.skipped:
        return Outcome(Reason.ADDON_BUNDLES_NOT_PUSHED, f"{folder} in the repository: {published.skipped[folder]}")
    changed = key in published.changed
    if key in published.unmerged:
        message = f"commit {result.head} waits on branch {result.branch} to be merged"
        if result.merge_request and result.merge_request.address:
            message += f": {result.merge_request}"
        return Outcome(Reason.ADDON_BUNDLES_IN_PROGRESS, message, result.head, changed=changed)
    commit = published.awaited.get(key) or known.get(key) or result.head_of(rendered.branch)
    places = (f"{folder}/", f"{MANIFESTS}/{key}/")
    staying = [f"{what} was kept: {why}" for what, why in published.skipped.items() if what.startswith(places)]
    staying += _foreign(published.result.plan, key)
    if key in published.unverified:
        staying.append(f"its definition remains as it was: {published.source_error}")
    release = rendered.versions.release if rendered.versions else ""
    staying += published.upgrade.notes(key, release) if published.upgrade else []
    expected = expected_bundles(rendered, rendered.settings, commit, path)
    return Outcome(None, "; ".join(staying), commit, expected, changed)


def _foreign(plan: Plan, key: Key) -> list[str]:
    """Return a note about files of others that Fleet deploys with those of a cluster."""
    found = [path for path in plan.foreign if Key(*path.split("/")[1:3]) == key]
    if not found:
        return []
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return [f"Fleet also deploys files that caphv did not write: {', '.join(found[:_MOST_NAMED])}{more}"]


def condition_of(outcome: Outcome, report: Report | None) -> ConditionUpdate:
    """Return the condition: true when the bundles are in the repository and, if Fleet is visible, applied."""
    if outcome.reason is not None:
        return ConditionUpdate("False", outcome.reason, outcome.message)
    place = f"commit {outcome.commit}"
    note = [outcome.message] if outcome.message else []
    if report is None:
        parts = [place, "the status of Fleet is not visible here"]
        return ConditionUpdate("True", ConditionType.ADDON_BUNDLES_READY, "; ".join([*parts, *note]))
    if report.ready:
        return ConditionUpdate(
            "True", ConditionType.ADDON_BUNDLES_READY, "; ".join([f"{place}, applied by Fleet", *note])
        )
    return ConditionUpdate("False", Reason.ADDON_BUNDLES_NOT_APPLIED, "; ".join([place, *report.problems, *note]))


def commit_in(message: str) -> str:
    """Return the commit that a message of `condition_of` names, empty when it names none."""
    found = _COMMIT.search(message)
    return found[1] if found else ""


def removals(plan: Plan) -> tuple[list[tuple[Key, str]], list[tuple[Key, str, str]]]:
    """Return removed folders and bundles, and those that were kept with the reason, each with its Cluster."""
    removed = [(_owner(removal.folder), str(removal)) for removal in plan.removed]
    return removed, [(_owner(kept.what), kept.what, kept.why) for kept in plan.held]


def why(changed: Iterable[Key]) -> str:
    """Return the sentence of a commit message that explains the commit."""
    names = [str(key) for key in changed]
    if not names:
        return "Repository was out of sync."
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"Changed on the management cluster: {shown}."


def _owner(folder: str) -> Key:
    _, namespace, name = folder.split("/")[:3]
    return Key(namespace, name)
