"""The changes of a plan for review: the state of each cluster, and files before and after."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from packager.git.changeplan import Plan
from packager.git.folder import FILE_LIST
from packager.git.snapshot import Snapshot
from packager.rendering.bundler import Batch
from packager.tree import CLUSTERS

FOREIGN_FILE = (
    "was not written by caphv, and Fleet deploys it: remove it, or move it where no GitRepo "
    "reads it"
)


class State(StrEnum):
    """Result of comparing the bundles of a cluster in a repository with the rendered ones."""

    MATCHES = "matches"
    DIFFERS = "differs"
    MISSING = "missing"
    INVALID = "invalid"
    """The cluster cannot be rendered; its files in the repository stay."""
    SUSPENDED = "suspended"
    """An annotation suspends its bundles."""
    EXTRA = "extra"
    """The repository has bundles of a cluster that does not exist."""
    FOREIGN = "foreign"
    """Unmanaged files are where the bundles should be, or in the same bundles."""


class LineCounts(NamedTuple):
    """The numbers of lines that a change adds and removes."""

    added: int
    removed: int


@dataclass(frozen=True)
class FileChange:
    """A file that is added (`before` is None), removed (`after` is None) or changed."""

    path: str
    before: bytes | None
    after: bytes | None

    @cached_property
    def lines(self) -> list[str]:
        """The change as a unified diff, line by line without line ends."""
        before = (self.before or b"").decode(errors="replace").splitlines()
        after = (self.after or b"").decode(errors="replace").splitlines()
        old = "/dev/null" if self.before is None else f"a/{self.path}"
        new = "/dev/null" if self.after is None else f"b/{self.path}"
        return list(difflib.unified_diff(before, after, old, new, lineterm=""))

    @property
    def counts(self) -> LineCounts:
        """The numbers of added and removed lines."""
        # The first two lines name the files, and begin with the same signs.
        lines = self.lines[2:]
        return LineCounts(
            added=sum(line.startswith("+") for line in lines),
            removed=sum(line.startswith("-") for line in lines),
        )


@dataclass(frozen=True)
class ClusterDiff:
    """One cluster. `name` is `<namespace>/<name>`; `why` gives reasons that files do not show."""

    name: str
    state: State
    changes: tuple[FileChange, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Whether the repository is up to date for this cluster, or not supposed to be."""
        return self.state in (State.MATCHES, State.SUSPENDED)


def diff_clusters(batch: Batch, plan: Plan, snapshot: Snapshot) -> list[ClusterDiff]:
    """Return each cluster of a batch or plan by name; the plan changes `snapshot`."""
    states = {str(key): State.SUSPENDED for key in batch.suspended}
    reasons: dict[str, list[str]] = {}
    for result in batch.rendered:
        states[str(result.cluster)] = State.MATCHES if result.ok else State.INVALID
    for result in batch.failed:
        errors = [str(finding) for finding in result.findings if not finding.advice]
        reasons[str(result.cluster)] = errors

    # A change says more than the rendering, and an added folder says more than a removed one.
    for removal in plan.removed:
        if not removal.bundle:
            states[_cluster(removal.folder)] = State.EXTRA
    for folder in plan.changed:
        states[_cluster(folder)] = State.DIFFERS
    for folder in plan.added:
        states[_cluster(folder)] = State.MISSING

    # If bundles of a known cluster wait to be removed, the cluster differs. Any other folder is
    # extra.
    for skipped in plan.held:
        name = _cluster(skipped.what)
        reasons.setdefault(name, []).append(f"{skipped.what} stays: {skipped.why}")
        states[name] = State.EXTRA if name not in states else State.DIFFERS
    for skipped in plan.refused:
        name = _cluster(skipped.what)
        reasons.setdefault(name, []).append(skipped.why)
        states[name] = State.FOREIGN
    for path in plan.foreign:
        name = _cluster(path)
        reasons.setdefault(name, []).append(f"{path} {FOREIGN_FILE}")
        # Any other state needs more attention than unmanaged files.
        if states.get(name, State.MATCHES) in (State.MATCHES, State.SUSPENDED):
            states[name] = State.FOREIGN

    changes = _changes(plan, snapshot)
    return [
        ClusterDiff(
            name=name,
            state=states[name],
            changes=tuple(changes.get(name, ())),
            why=tuple(reasons.get(name, ())),
        )
        for name in sorted(states)
    ]


def _changes(plan: Plan, snapshot: Snapshot) -> dict[str, list[FileChange]]:
    """Return the changed files of each cluster."""
    paths_of: dict[str, list[str]] = {}
    for path in sorted({*plan.write, *plan.delete}):
        paths_of.setdefault(_cluster(path), []).append(path)

    changes: dict[str, list[FileChange]] = {}
    for name, paths in paths_of.items():
        # The list of files is redundant, unless it was edited.
        shown = [path for path in paths if not path.endswith(f"/{FILE_LIST}")] or paths
        changes[name] = [
            FileChange(path, snapshot.read(path), plan.write.get(path)) for path in shown
        ]
    return changes


def _cluster(path: str) -> str:
    return "/".join(path.removeprefix(f"{CLUSTERS}/").split("/")[:2])
