"""The result of a commit."""

from __future__ import annotations

from dataclasses import dataclass

from packager.git.changeplan import Plan
from packager.git.mergerequest import MergeRequest


@dataclass(frozen=True)
class Result:
    """The result of planning and committing.

    `commit` on `branch` is empty if nothing had to change.

    `merge_request` is for the review branch, and None if nothing waits to be merged.
    """

    plan: Plan
    head: str
    branch: str
    commit: str = ""
    attempts: int = 1
    push_seconds: float = 0.0
    merge_request: MergeRequest | None = None
