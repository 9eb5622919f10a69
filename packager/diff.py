"""What a plan would change, for people who review it: states of clusters, and files before and after."""

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


class State(StrEnum):
    """How what a repository holds for a cluster stands to what it should hold."""

    MATCHES = "matches"
    DIFFERS = "differs"
    MISSING = "missing"
    INVALID = "invalid"
    """The cluster cannot be rendered; what the repository holds stays."""
    SUSPENDED = "suspended"
    """Nobody looks at it, because an annotation says so."""
    EXTRA = "extra"
    """The repository has bundles of a cluster that there is not."""
    FOREIGN = "foreign"
    """Files of somebody else stand where the bundles should."""


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
        """How many lines come and go."""
        body = self.lines[2:]
        return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)


@dataclass(frozen=True)
class Compared:
    """One cluster: `name` is `<namespace>/<name>`, `why` says what is wrong where files do not."""

    name: str
    state: State
    changes: tuple[FileChange, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def is_true(self) -> bool:
        """Whether the repository holds what it should, as far as anybody wants it to."""
        return self.state in (State.MATCHES, State.SUSPENDED)


def compared(batch: Batch, plan: Plan, snapshot: Snapshot) -> list[Compared]:
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
    for told in plan.held:
        name = _cluster(told.what)
        reasons.setdefault(name, []).append(f"{told.what} stays: {told.why}")
        states[name] = State.EXTRA if name not in states else State.DIFFERS
    for told in plan.refused:
        reasons.setdefault(_cluster(told.what), []).append(told.why)
        states[_cluster(told.what)] = State.FOREIGN
    return [
        Compared(name, states[name], tuple(changes.get(name, ())), tuple(reasons.get(name, ())))
        for name in sorted(states)
    ]


def _changes(plan: Plan, snapshot: Snapshot) -> dict[str, list[FileChange]]:
    """Return the changed files of each cluster."""
    paths: dict[str, list[str]] = {}
    for path in sorted({*plan.write, *plan.delete}):
        paths.setdefault(_cluster(path), []).append(path)
    # The list of files says nothing that the files do not say, unless somebody has spoilt it.
    shown = {
        name: [path for path in found if not path.endswith(f"/{RECORD}")] or found for name, found in paths.items()
    }
    return {
        name: [FileChange(path, snapshot.read(path), plan.write.get(path)) for path in found]
        for name, found in shown.items()
    }


def _cluster(path: str) -> str:
    return "/".join(path.removeprefix(f"{CLUSTERS}/").split("/")[:2])
