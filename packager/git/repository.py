"""Reads one branch of a remote, and commits to it.

A commit is pushed only onto the commit that it was planned for. When another client pushed first,
the caller plans again on the new head. So no change is lost, and no lock at the remote can be left
behind.

GitPython reads objects. Everything that writes or talks to a remote goes through `process.run`,
which sets time limits and redacts output.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from packager.git.changeplan import Plan
from packager.git.clone import Clone
from packager.git.commit import (
    BASE_TRAILER,
    WORK_REF,
    Identity,
    Reason,
    base_of,
    check,
    message,
    restore_former_files,
    stream,
)
from packager.git.creation import check_creation, last_known_commit
from packager.git.credentials import Credentials
from packager.git.errors import (
    CorruptClone,
    GitError,
    PushConflict,
    Rejected,
    UnmanagedFiles,
    UnverifiedCommit,
)
from packager.git.heads import BranchHeads, read_heads
from packager.git.history import Change, of_branch
from packager.git.mergerequest import MergeRequest, merge_request_to_open
from packager.git.paths import join_path
from packager.git.push import Pusher
from packager.git.remote import Remote
from packager.git.result import Result
from packager.git.signers import Signers
from packager.git.snapshot import Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")

_TARGET_REFS = "refs/caphv/target-"
_REVIEW_REF = "refs/caphv/review"
_MAX_ATTEMPTS = 40
_MAX_PAUSE_SECONDS = 1.0
# Base branches move by fewer commits while a change is reviewed.
_DEEPEN = "--deepen=1000"
# Git says this when the clone holds only the newest commits and the remote lacks the older ones.
_NO_HISTORY = "shallow update not allowed"


@dataclass(frozen=True)
class _State:
    """The last known state of the remote."""

    heads: BranchHeads
    target: Snapshot
    review: Snapshot


class Repository:
    """Reads a remote and commits to it. Use it as a context manager.

    Calls block, and must come from one thread at a time. `folder` is the cache, for this remote
    alone. Methods raise GitErrors.
    """

    def __init__(
        self,
        remote: Remote,
        folder: Path,
        credentials: Credentials | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.remote = remote
        self._identity = identity or Identity()
        self._clone = Clone(remote, folder, credentials or Credentials())
        self._state: _State | None = None
        self._pusher = Pusher(self._clone, remote)
        # A cache may have served another branch or repository, so the ref names both.
        digest = hashlib.sha256(f"{remote.url}\0{remote.branch}".encode()).hexdigest()
        self._target_ref = f"{_TARGET_REFS}{digest[:16]}"

    def __enter__(self) -> Repository:
        self._clone.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state = None
        # The damage was found outside of `read`. The next caller gets a new clone.
        if isinstance(error, CorruptClone):
            self._clone.discard()
        self._clone.close()

    def heads(self) -> BranchHeads:
        """Return the heads at the remote in one short exchange, without a fetch; for polling."""
        return read_heads(self._clone, self.remote)

    def last_change(self, path: str) -> Change | None:
        """Return the newest commit of the branch that changed a file or folder.

        Fetches more history until the commit is found.
        """
        return self._retry_corrupt(lambda: self._last_change(join_path(self.remote.path, path)))

    def _last_change(self, path: str) -> Change | None:
        if not self._sync().target.commit:
            return None
        return of_branch(self._clone, self.remote, self._target_ref, path)

    def snapshot_at(self, commit: str) -> Snapshot:
        """Return a snapshot of a commit that the clone has, below the remote's path."""
        return Snapshot(self._clone.objects, commit, self.remote.path)

    def verify(self, commit: str, signers: Signers) -> str:
        """Return the name of the signer of a commit.

        Raises `UnverifiedCommit` with a remedy unless a listed signer signed it.
        """
        try:
            return self._clone.verify(commit, signers)
        except UnverifiedCommit as error:
            raise UnverifiedCommit(
                f"commit {commit} of branch {self.remote.branch} of {self.remote.shown} is "
                f"refused: {error}; have a listed signer sign it (git commit --amend --no-edit "
                "-S) and push that, or add its key to --source-signers"
            ) from None

    def sync(self) -> Snapshot:
        """Return a snapshot of the newest commit of the branch, below the remote's path."""
        return self.read(lambda snapshot: snapshot)

    def read(self, call: Callable[[Snapshot], T]) -> T:
        """Call with the snapshot of `sync`, and again with that of a new clone if it is corrupt.

        Snapshots read their content on access, when damage that `sync` did not meet is found.
        """
        return self._retry_corrupt(lambda: call(self._sync().target))

    def commit(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result:
        """Commit and push the plan for the newest snapshot.

        `plan` is called again for each newer snapshot until a push succeeds. Nothing is written for
        an empty plan.
        """
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            result = self._retry_corrupt(lambda: self._attempt(plan, reason))
            if result is not None:
                merge_request = self._merge_request_of(result)
                return replace(result, attempts=attempt, merge_request=merge_request)

            log.info("another client pushed first; planning again on the new head")
            # Random pauses let two packagers that race fall out of step.
            longest_pause = min(_MAX_PAUSE_SECONDS, 0.05 * 2**attempt)
            time.sleep(random.uniform(0, longest_pause))
        raise PushConflict(
            f"other clients pushed to {self.remote.branch} first, {_MAX_ATTEMPTS} times; "
            "try again later"
        )

    def _merge_request_of(self, result: Result) -> MergeRequest | None:
        """Return the merge request of a result that waits on the branch for review."""
        is_waiting = self._state and result.head != self._state.heads.target
        if not self.remote.review or result.branch != self.remote.review or not is_waiting:
            return None
        return self._pusher.merge_request or merge_request_to_open(self.remote)

    def _retry_corrupt(self, call: Callable[[], T]) -> T:
        """Call, and call again with a new clone if the clone is corrupt."""
        try:
            return call()
        except CorruptClone as error:
            log.warning("recreating the clone: %s", error)
            self._state = None
            self._clone.discard()
            return call()

    def _sync(self) -> _State:
        """Return the state of the remote; fetch only if a branch moved."""
        heads = self.heads()
        if self._state is None or heads != self._state.heads:
            self._state = self._fetch(heads)
        return self._state

    def _fetch(self, heads: BranchHeads) -> _State:
        """Fetch the branches that exist, and return their state."""
        objects = self._clone.objects
        branches = [
            (self.remote.branch, self._target_ref, heads.target),
            (self.remote.review, _REVIEW_REF, heads.review),
        ]
        refs = [f"+refs/heads/{branch}:{ref}" for branch, ref, commit in branches if commit]
        if refs:
            options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc"]
            # Only the first fetch is shallow. Later ones bring all commits since.
            if not self._clone.is_shallow and not self._clone.ref(self._target_ref):
                options.append("--depth=1")
            # Pack before the fetch, because the refs still hold objects that an earlier snapshot
            # may read.
            self._pack()
            self._clone.run_with_remote(
                "fetching", ["fetch", *options, "--", self.remote.url, *refs]
            )

        # A branch may have moved since its head was read, so use the fetched commits.
        target = self._clone.ref(self._target_ref) if heads.target else ""
        review = self._clone.ref(_REVIEW_REF) if heads.review else ""
        base = target or last_known_commit(self._clone, self.remote, self._target_ref)
        merged = Snapshot(objects, base, self.remote.path)
        return _State(
            BranchHeads(target, review),
            merged,
            Snapshot(objects=objects, commit=review, path=self.remote.path, merged=merged),
        )

    def _attempt(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result | None:
        """Plan and commit once. Returns None when another client pushed first."""
        state = self._sync()
        if self.remote.review:
            return self._attempt_review(state, plan, reason)

        # The branch was deleted. Continue from its last known commit.
        if state.target.commit and not state.heads.target:
            self._restore(state.target.commit)
            state = self._sync()

        # Nothing differs from the branch, so there is no commit.
        planned = plan(state.target)
        if planned.is_empty:
            return Result(planned, state.target.commit, self.remote.branch)
        if not state.target.commit:
            check_creation(self._clone, self.remote)
        return self._write(state, planned, state.target, reason)

    def _restore(self, commit: str) -> None:
        """Create the branch again at its last known commit.

        It gets the files without their history if neither side has the history.
        """
        branch = self.remote.branch
        try:
            is_created = self._pusher.push(commit, branch, "")
        except Rejected as error:
            if _NO_HISTORY not in str(error):
                raise
            text = f"Restore the files of branch {branch} from commit {commit}\n"
            first_commit = self._clone.commit_same_tree(commit, text, self._identity.variables)
            is_created = self._pusher.push(first_commit, branch, "")
        if is_created:
            log.warning("created branch %s again, which was at commit %s", branch, commit)
        self._state = None

    def _attempt_review(
        self, state: _State, plan: Callable[[Snapshot], Plan], reason: Reason
    ) -> Result | None:
        """Extend the review branch, or restart it when its base branch has moved.

        A change that is no longer planned is also taken back on the review branch. Returns None
        when another client pushed first. There is no commit

        - if the base branch has all planned files, and no review of the packager is open,
        - if the review branch has all planned files.
        """
        target = state.target
        review = state.review
        if not target.commit:
            raise UnmanagedFiles(
                f"branch {self.remote.branch} does not exist; create it before changes to it can "
                "be reviewed"
            )
        # The trailer tells a later attempt, even of another process, which base was reviewed.
        with_base = replace(reason, trailers={**reason.trailers, BASE_TRAILER: target.commit})

        planned = plan(target)
        merged = Result(planned, target.commit, self.remote.branch)
        if planned.is_empty and not (review.commit and base_of(review.message)):
            return merged
        if not review.commit or self._reviewed_base(state) != target.commit:
            if planned.is_empty:
                return self._withdraw(state, merged)
            return self._write(state, planned, target, with_base)

        extension = restore_former_files(plan(review), planned, review, target)
        result: Result | None = Result(extension, review.commit, self.remote.review)
        if not extension.is_empty:
            result = self._write(state, extension, review, with_base)
        if result and planned.is_empty:
            # Nothing waits to be merged, because the base branch already has the planned files.
            return replace(result, head=target.commit)
        return result

    def _withdraw(self, state: _State, merged: Result) -> Result | None:
        """Delete a review branch of an earlier base if it differs from the base branch.

        Returns `merged`, or None when another client moved the branch.
        """
        review = self.remote.review
        if state.review.root == state.target.root:
            return merged
        try:
            if not self._pusher.push("", review, state.review.commit):
                return None
        except Rejected as error:
            log.warning("delete branch %s, its changes are no longer planned: %s", review, error)
            return merged
        log.info("deleted branch %s: its changes are no longer planned", review)
        self._state = None
        return merged

    def _reviewed_base(self, state: _State) -> str:
        """Return the commit that the review branch is based on, empty to restart the branch.

        Raises `UnmanagedFiles` if the branch has commits that would be lost.
        """
        review = state.review
        if base := base_of(review.message):
            return base
        if review.root == state.target.root or not self._has_work_of_others(state):
            return ""
        raise UnmanagedFiles(
            f"branch {self.remote.review} ends with {review.commit[:12]}, a commit that caphv did "
            "not write; merge or delete the branch"
        )

    def _has_work_of_others(self, state: _State) -> bool:
        """Whether the review branch has commits of others that its base branch lacks.

        A merge is none, because hosts merge the base branch into the review branch on request.
        """
        arguments = ["rev-list", "--max-count=1", "--no-merges"]
        arguments += ["--invert-grep", f"--grep=^{BASE_TRAILER}: "]
        arguments += [state.review.commit, f"^{state.target.commit}"]
        if not self._clone.run_locally("reading the history", arguments):
            return False

        # The history may be cut above the commits that both branches have.
        branches = [(self.remote.branch, self._target_ref), (self.remote.review, _REVIEW_REF)]
        refs = [f"+refs/heads/{branch}:{ref}" for branch, ref in branches]
        options = ["--quiet", "--no-tags", "--no-write-fetch-head", _DEEPEN]
        if self._clone.is_shallow:
            # A server that cannot do that leaves the answer as it is.
            with contextlib.suppress(GitError):
                self._clone.run_with_remote(
                    "fetching the history", ["fetch", *options, "--", self.remote.url, *refs]
                )
        return bool(self._clone.run_locally("reading the history", arguments))

    def _write(self, state: _State, plan: Plan, base: Snapshot, reason: Reason) -> Result | None:
        """Commit a plan on top of `base` and push it; return None if the branch moved."""
        check(plan, base)
        branch = self.remote.review or self.remote.branch
        # The branch must still be where the plan found it.
        lease = state.review.commit if self.remote.review else state.target.commit
        # The message lists everything, so that a reader need not open the diff.
        text = message(plan, reason)
        commit = self._create_commit(plan, base.commit, text)

        started = time.monotonic()
        if not self._pusher.push(commit, branch, lease, text):
            return None
        result = Result(plan, commit, branch, commit, push_seconds=time.monotonic() - started)
        self._remember(state, commit)
        return result

    def _create_commit(self, plan: Plan, parent: str, text: str) -> str:
        """Write a commit to the clone and return its id."""
        lines = b"".join(stream(plan, text, self._identity, parent, self.remote.path))
        arguments = ["fast-import", "--quiet", "--done", "--force"]
        output = self._clone.run_locally("writing the commit", arguments, stdin=lines)
        commit = output.decode().strip()
        if not self._clone.credentials.signing_key:
            return commit

        # fast-import cannot sign, so create the same commit again with a signature.
        signed = self._clone.commit_same_tree(commit, text, self._identity.variables, parent)
        self._clone.run_locally("writing the commit", ["update-ref", WORK_REF, signed])
        return signed

    def _remember(self, state: _State, commit: str) -> None:
        """Take the pushed commit as the remote's head, without fetching it."""
        if self.remote.review:
            snapshot = Snapshot(
                objects=self._clone.objects,
                commit=commit,
                path=self.remote.path,
                merged=state.target,
            )
            self._state = replace(state, heads=replace(state.heads, review=commit), review=snapshot)
        else:
            snapshot = Snapshot(self._clone.objects, commit, self.remote.path)
            self._state = replace(state, heads=replace(state.heads, target=commit), target=snapshot)

        # The push has succeeded. A failure here only costs time later.
        with contextlib.suppress(GitError):
            ref = _REVIEW_REF if self.remote.review else self._target_ref
            self._clone.run_locally("remembering the commit", ["update-ref", ref, commit])
        self._pack()

    def _pack(self) -> None:
        """Pack the clone if it has many objects or packs; a failure only costs time later."""
        with contextlib.suppress(GitError):
            self._clone.run_locally("packing the clone", ["gc", "--auto", "--quiet"])
