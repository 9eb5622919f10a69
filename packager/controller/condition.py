"""What became of a cluster's bundles, and the condition that says it: pure decisions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.conditions import Status
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key
from packager.addons.settings import Settings
from packager.controller.fleet import Report, Wanted
from packager.controller.publisher import Published
from packager.controller.state import Seen
from packager.git.paths import joined
from packager.git.prune import Plan
from packager.rendering.bundles import FLEET_YAML, bundle_name, workspace
from packager.rendering.renderer import Rendered
from packager.tree import cluster_folder

_COMMIT = re.compile(r"\bcommit ([0-9a-f]{40}|[0-9a-f]{64})\b")


@dataclass(frozen=True)
class Outcome:
    """How a cluster stands with the repository: `reason` is empty when its bundles are there as they should be."""

    reason: Reason | None = None
    message: str = ""
    commit: str = ""
    wanted: Wanted | None = None
    changed: bool = False
    """Whether the last commit changed its files."""


@dataclass(frozen=True)
class Verdict:
    """Status, reason and message of the condition."""

    status: Status
    reason: str
    message: str

    @property
    def warns(self) -> bool:
        """Whether somebody has to do something."""
        return self.reason in (Reason.ADDON_BUNDLES_INVALID, Reason.ADDON_BUNDLES_NOT_PUSHED)


def waiting(seen: Seen) -> Outcome:
    """Return the outcome of a cluster that is not rendered now."""
    reason = Reason.ADDON_BUNDLES_SUSPENDED if seen.suspended else Reason.ADDON_BUNDLES_IN_PROGRESS
    return Outcome(reason, seen.why)


def not_pushed(error: Exception) -> Outcome:
    """Return the outcome of a cluster with a change that could not be pushed."""
    return Outcome(Reason.ADDON_BUNDLES_NOT_PUSHED, f"{type(error).__name__}: {error}")


def outcomes(published: Published, known: dict[Key, str], path: str) -> dict[Key, Outcome]:
    """Return the outcome of each rendered cluster.

    `known` has the commits that gave clusters what they have, `path` is the remote's.
    """
    suspended = Outcome(Reason.ADDON_BUNDLES_SUSPENDED, "its manifest in the repository suspends it")
    return dict.fromkeys(published.batch.suspended, suspended) | {
        rendered.cluster: _outcome(rendered, published, known, path) for rendered in published.batch.rendered
    }


def _outcome(rendered: Rendered, published: Published, known: dict[Key, str], path: str) -> Outcome:
    key, result = rendered.cluster, published.result
    if not rendered.ok or rendered.settings is None:
        wrong = "; ".join(str(finding) for finding in rendered.findings if not finding.advice)
        return Outcome(Reason.ADDON_BUNDLES_INVALID, f"{wrong}. Correct it; until then the bundles stay as they are")
    folder = cluster_folder(*key)
    if folder in published.told:
        return Outcome(Reason.ADDON_BUNDLES_NOT_PUSHED, f"{folder} in the repository: {published.told[folder]}")
    changed = key in published.changed
    if key in published.unmerged:
        message = f"commit {result.head} waits on branch {result.branch}; merge it"
        return Outcome(Reason.ADDON_BUNDLES_IN_PROGRESS, message, result.head, changed=changed)
    commit = result.commit if changed else known.get(key, result.head)
    staying = [f"{what} stays: {why}" for what, why in published.told.items() if what.startswith(f"{folder}/")]
    return Outcome(None, "; ".join(staying), commit, _wanted(rendered, rendered.settings, commit, path), changed)


def _wanted(rendered: Rendered, settings: Settings, commit: str, path: str) -> Wanted:
    names = sorted(file.split("/")[-2] for file in rendered.tree if file.endswith(f"/{FLEET_YAML}"))
    bundles = tuple((name, bundle_name(rendered.cluster, name)) for name in names)
    folder = joined(path, cluster_folder(*rendered.cluster))
    return Wanted(workspace(settings), bundles, folder, commit)


def verdict(outcome: Outcome, report: Report | None) -> Verdict:
    """Return the condition: true when the bundles are in the repository and Fleet, if it can be asked, is done."""
    if outcome.reason is not None:
        return Verdict("False", outcome.reason, outcome.message)
    place = f"commit {outcome.commit}"
    note = [outcome.message] if outcome.message else []
    if report is None:
        said = [place, "what Fleet makes of it cannot be seen here"]
        return Verdict("True", ConditionType.ADDON_BUNDLES_READY, "; ".join([*said, *note]))
    if report.ready:
        return Verdict("True", ConditionType.ADDON_BUNDLES_READY, "; ".join([f"{place}, applied by Fleet", *note]))
    return Verdict("False", Reason.ADDON_BUNDLES_NOT_APPLIED, "; ".join([place, *report.problems, *note]))


def commit_in(message: str) -> str:
    """Return the commit that a message of `verdict` names, empty when it names none."""
    found = _COMMIT.search(message)
    return found[1] if found else ""


def removals(plan: Plan) -> tuple[list[tuple[Key, str]], list[tuple[Key, str, str]]]:
    """Return removed folders and bundles, and those held back with the reason, each with the Cluster that had them."""
    removed = [(_owner(removal.folder), str(removal)) for removal in plan.removed]
    return removed, [(_owner(told.what), told.what, told.why) for told in plan.held]


def why(changed: Iterable[Key]) -> str:
    """Return the sentence of a commit's message that says why it is made."""
    names = [str(key) for key in changed]
    if not names:
        return "The repository was not as the management cluster has it."
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"Changed on the management cluster: {shown}."


def _owner(folder: str) -> Key:
    _, namespace, name = folder.split("/")[:3]
    return Key(namespace, name)
