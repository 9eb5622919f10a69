"""Decides whether a branch may be created, because it may be misspelt or deleted and not new."""

from __future__ import annotations

from caphv.api.counting import name_some
from packager.git.clone import Clone
from packager.git.errors import MissingBranch
from packager.git.remote import Remote

_MAX_LISTED = 5


def check_creation(clone: Clone, remote: Remote) -> None:
    """Raise `MissingBranch` if only other branches exist and this one may not be created."""
    if remote.create_branch:
        return
    out = clone.run_with_remote(
        "reading branches", ["ls-remote", "--heads", "--", remote.url]
    ).decode()
    branches = [line.partition("\trefs/heads/")[2] for line in out.splitlines()]
    # Another client may have created the branch since it was looked up. The push then fails, and
    # the commit is planned again.
    if not branches or remote.branch in branches:
        return

    raise MissingBranch(
        f"{remote.shown} has no branch {remote.branch}, only "
        f"{name_some(branches, _MAX_LISTED)}: correct --branch, or create the branch with "
        "--create-branch"
    )


def last_known_commit(clone: Clone, remote: Remote, ref: str) -> str:
    """Return the commit from which a missing branch continues, empty if the branch is unknown.

    A branch that began without it would give all clusters bundles of the newest release at once,
    and would lose unmanaged files. Raises `MissingBranch` for a known branch that may not be
    created.
    """
    commit = clone.ref(ref)
    if commit and (remote.review or not remote.create_branch):
        url = remote.shown
        branch = remote.branch
        raise MissingBranch(
            f"{url} has no branch {branch} any more, which was at commit {commit}: push it again "
            f"from a clone that has it (git push {url} {commit}:refs/heads/{branch}), or name the "
            "branch that replaces it; where caphv writes, --create-branch without --review "
            "continues from that commit"
        )
    return commit
