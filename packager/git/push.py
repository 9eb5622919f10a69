"""Moves a branch at a remote, and finds out whether it moved when the connection fails.

A push has a lease: it moves the branch only from the commit that the caller knows, so that no
commit of another client is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from packager.git.clone import Clone
from packager.git.errors import GitError, Rejected
from packager.git.heads import read_heads
from packager.git.mergerequest import (
    NO_PUSH_OPTIONS,
    MergeRequest,
    find_merge_request,
    push_options,
)
from packager.git.remote import Remote

# Messages of servers that are updating the same branch for another client.
_RACES = (
    "cannot lock ref",
    "failed to update ref",
    "incorrect old value",
    "reference already exists",
)
# Such an update takes less than a second. If the branch has not moved after this many attempts, the
# lock of a push that died is left, or a branch of another name is in the way.
_MAX_LOCKED = 10


class Pusher:
    """Pushes commits of a clone; `merge_request` belongs to the last push to the review branch."""

    def __init__(self, clone: Clone, remote: Remote) -> None:
        self._clone = clone
        self._remote = remote
        self._locked = 0
        self.merge_request: MergeRequest | None = None

    def push(self, commit: str, branch: str, lease: str, text: str = "") -> bool:
        """Move a branch from `lease` to `commit`; return False when another client moved it.

        :param commit: the new head, empty to delete the branch
        :param branch: the branch to move
        :param lease: the commit that the branch is expected at, empty for a new branch
        :param text: the message of the commit, for a merge request
        """
        ref = f"refs/heads/{branch}"
        arguments = ["push", "--porcelain", "--no-verify", f"--force-with-lease={ref}:{lease}"]
        destination = ["--", self._remote.url, f"{commit}:{ref}"]
        try:
            if text and branch == self._remote.review:
                options = push_options(self._remote, text, is_new=not lease)
                self._propose(arguments, destination, options)
            else:
                self._clone.run_with_remote("pushing", [*arguments, *destination])
        except GitError as error:
            # The connection may have failed after the branch had moved, so read its head. If that
            # fails too, the first error counts.
            with contextlib.suppress(GitError):
                heads = read_heads(self._clone, self._remote)
                head = heads.review if self._remote.review else heads.target
                if head == commit:
                    return True

                if head != lease:
                    self._locked = 0
                    return False
                self._locked += 1
                is_race = isinstance(error, Rejected) and any(race in str(error) for race in _RACES)
                if is_race and self._locked < _MAX_LOCKED:
                    return False
            self._locked = 0
            raise
        self._locked = 0
        return True

    def _propose(
        self, arguments: Sequence[str], destination: Sequence[str], options: Sequence[str]
    ) -> None:
        """Push the review branch, and ask a host that takes push options for a merge request."""
        try:
            output = self._clone.run_with_remote(
                "pushing", [*arguments, *options, *destination], with_messages=True
            )
        except GitError as error:
            # Git ends the push when the server takes no options.
            if NO_PUSH_OPTIONS not in str(error):
                raise
            output = self._clone.run_with_remote(
                "pushing", [*arguments, *destination], with_messages=True
            )
        self.merge_request = find_merge_request(self._remote, output.decode(errors="replace"))
