"""The heads of the branches at a remote."""

from __future__ import annotations

from dataclasses import dataclass

from packager.git.clone import Clone
from packager.git.remote import Remote


@dataclass(frozen=True)
class BranchHeads:
    """Newest commits of the branch and the review branch at the remote; empty if it is missing."""

    target: str = ""
    review: str = ""


def read_heads(clone: Clone, remote: Remote) -> BranchHeads:
    """Return the heads at the remote in one short exchange, without a fetch. Raises `GitError`."""
    refs = [f"refs/heads/{branch}" for branch in (remote.branch, remote.review) if branch]
    output = clone.run_with_remote(
        "reading branches", ["ls-remote", "--", remote.url, *refs]
    ).decode()

    # `ls-remote` matches by the end of the name, so it may print other refs that end alike.
    commits: dict[str, str] = {}
    for line in output.splitlines():
        commit, _, ref = line.partition("\t")
        commits[ref] = commit
    return BranchHeads(
        target=commits.get(f"refs/heads/{remote.branch}", ""),
        review=commits.get(f"refs/heads/{remote.review}", ""),
    )
