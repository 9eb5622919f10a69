"""The changes of a plan for review: the state of each cluster, and files before and after."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from packager.bundler import Batch
from packager.git.folder import RECORD
from packager.git.prune import Plan
from packager.git.snapshot import Snapshot
from packager.tree import CLUSTERS

FOREIGN_FILE = "was not written by caphv, and Fleet deploys it: remove it, or move it where no GitRepo reads it"


class State(StrEnum):
    """How the bundles of a cluster in a repository compare with the rendered ones."""

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


@dataclass(frozen=True)
class FileChange:
    """A file that is added (`before` is None), removed (`after` is None) or changed; `path` as in the repository."""

    path: str
    before: bytes | None
    after: bytes | None

    @cached_property
    def lines(self) -> list[str]:
        """The change as a unified diff, line by line without line ends."""
        before, after = (
            (content or b"").decode(errors="replace").splitlines() for content in (self.before, self.after)
        )
        old = "/dev/null" if self.before is None else f"a/{self.path}"
        new = "/dev/null" if self.after is None else f"b/{self.path}"
        return list(difflib.unified_diff(before, after, old, new, lineterm=""))

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of added and removed lines."""
        body = self.lines[2:]
        return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)


@dataclass(frozen=True)
class ClusterDiff:
    """One cluster: `name` is `<namespace>/<name>`, `why` gives reasons that files do not show."""

    name: str
    state: State
    changes: tuple[FileChange, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Whether the repository is up to date for this cluster, or not supposed to be."""
        return self.state in (State.MATCHES, State.SUSPENDED)


def diff_clusters(batch: Batch, plan: Plan, snapshot: Snapshot) -> list[ClusterDiff]:
    """Return each cluster of a batch or plan by name; `snapshot` is what the plan was made for."""
    changes = _changes(plan, snapshot)
    states = {str(key): State.SUSPENDED for key in batch.suspended}
    states |= {str(result.cluster): State.MATCHES if result.ok else State.INVALID for result in batch.rendered}
    reasons = {str(one.cluster): [str(f) for f in one.findings if not f.advice] for one in batch.failed}
    for folder, state in (
        *((removal.folder, State.EXTRA) for removal in plan.removed if not removal.bundle),
        *((folder, State.DIFFERS) for folder in plan.changed),
        *((folder, State.MISSING) for folder in plan.added),
    ):
        states[_cluster(folder)] = state
    for skipped in plan.held:
        name = _cluster(skipped.what)
        reasons.setdefault(name, []).append(f"{skipped.what} stays: {skipped.why}")
        states[name] = State.EXTRA if name not in states else State.DIFFERS
    for skipped in plan.refused:
        reasons.setdefault(_cluster(skipped.what), []).append(skipped.why)
        states[_cluster(skipped.what)] = State.FOREIGN
    for path in plan.foreign:
        name = _cluster(path)
        reasons.setdefault(name, []).append(f"{path} {FOREIGN_FILE}")
        if states.setdefault(name, State.FOREIGN) in (State.MATCHES, State.SUSPENDED):
            states[name] = State.FOREIGN
    return [
        ClusterDiff(name, states[name], tuple(changes.get(name, ())), tuple(reasons.get(name, ())))
        for name in sorted(states)
    ]


def _changes(plan: Plan, snapshot: Snapshot) -> dict[str, list[FileChange]]:
    """Return the changed files of each cluster."""
    paths: dict[str, list[str]] = {}
    for path in sorted({*plan.write, *plan.delete}):
        paths.setdefault(_cluster(path), []).append(path)
    # The list of files is redundant, unless it was edited.
    shown = {
        name: [path for path in found if not path.endswith(f"/{RECORD}")] or found for name, found in paths.items()
    }
    return {
        name: [FileChange(path, snapshot.read(path), plan.write.get(path)) for path in found]
        for name, found in shown.items()
    }


def _cluster(path: str) -> str:
    return "/".join(path.removeprefix(f"{CLUSTERS}/").split("/")[:2])
