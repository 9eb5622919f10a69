"""What a call of a repository leaves: heads of branches, and the result of a commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packager.git.mergerequest import MergeRequest
from packager.git.prune import Plan


@dataclass(frozen=True)
class BranchHeads:
    """Commits at the remote: of the branch, and of the branch for review; empty where there is no such branch.

    `groups` are those of the branches with one group of folders, by `<workspace>/<group>`.
    """

    target: str = ""
    review: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The result of a call: `commit` is empty when nothing had to change; `branch` is where it was pushed to.

    `merge_request` is that of the review branch, None where nothing waits to be merged.
    `groups` are the heads of the branches with one group of folders, by group, and `moved` those that were pushed.
    """

    plan: Plan
    head: str
    branch: str
    commit: str = ""
    attempts: int = 1
    push_seconds: float = 0.0
    groups: Mapping[str, str] = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    merge_request: MergeRequest | None = None

    def head_of(self, group: str) -> str:
        """Return the commit from which Fleet reads a group, empty for one without a branch."""
        return self.groups.get(group, self.head)
