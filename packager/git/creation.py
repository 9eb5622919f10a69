"""May a branch be created? A misspelt name and a deleted branch differ from a new one."""

from __future__ import annotations

from packager.git.clone import Clone
from packager.git.errors import MissingBranch
from packager.git.remote import Remote

_MOST_NAMED = 5


def check_creation(clone: Clone, remote: Remote) -> None:
    """Raise MissingBranch if the repository has other branches only, unless the branch may be created."""
    if remote.create_branch:
        return
    out = clone.remotely("reading branches", ["ls-remote", "--heads", "--", remote.url]).decode()
    found = [line.partition("\trefs/heads/")[2] for line in out.splitlines()]
    # Another client may have created it since it was looked up: then the push fails, and is planned again.
    if found and remote.branch not in found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise MissingBranch(
            f"{remote.shown} has no branch {remote.branch}, only {', '.join(found[:_MOST_NAMED])}{more}: "
            "correct --branch, or create the branch with --create-branch"
        )


def last_known(clone: Clone, remote: Remote, ref: str) -> str:
    """Return the commit from which a missing branch continues, empty for one that was never seen.

    Without that, all clusters would get bundles of the newest release at once, and files of others would be lost.
    Raises MissingBranch unless the branch may be created: to have seen it is no permission.
    """
    commit = clone.ref(ref)
    if commit and (remote.review or not remote.create_branch):
        url, branch = remote.shown, remote.branch
        raise MissingBranch(
            f"{url} has no branch {branch} any more, which was at commit {commit}: push it again from a clone that has "
            f"it (git push {url} {commit}:refs/heads/{branch}), or name the branch that replaces it; where caphv "
            "writes, --create-branch without --review continues from that commit"
        )
    return commit
