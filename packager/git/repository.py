"""One branch of a remote: read it, and commit to it.

A commit is pushed only onto the commit that it was planned for. When another client pushed first, the caller plans
again on the new head. So no change is lost, and no lock at the remote can be left behind.

GitPython reads objects. Everything that writes or talks to a remote goes through `process.run`, which sets time limits
and redacts output.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from packager.git.clone import Clone
from packager.git.commit import BASE_TRAILER, WORK_REF, Identity, Reason, base_of, message, stream
from packager.git.credentials import Credentials
from packager.git.errors import CorruptClone, GitError, MissingBranch, PushConflict, Rejected, UnmanagedFiles
from packager.git.prune import Plan
from packager.git.remote import Remote
from packager.git.snapshot import Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")

_TARGET_REF = "refs/caphv/target"
_REVIEW_REF = "refs/caphv/review"
_ATTEMPTS = 40
_LONGEST_PAUSE = 1.0
_MOST_NAMED = 5
# Messages of servers that are updating the same branch for another client.
_RACES = ("cannot lock ref", "failed to update ref", "incorrect old value", "reference already exists")


@dataclass(frozen=True)
class BranchHeads:
    """Commits at the remote: of the branch, and of the branch for review; empty where there is no such branch."""

    target: str = ""
    review: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a call: `commit` is empty when nothing had to change; `branch` is where it was pushed to."""

    plan: Plan
    head: str
    branch: str
    commit: str = ""
    attempts: int = 1
    push_seconds: float = 0.0


@dataclass(frozen=True)
class _State:
    """The last known state of the remote."""

    heads: BranchHeads
    target: Snapshot
    review: Snapshot


class Repository:
    """Reads a remote and commits to it. Use it as a context manager, from one thread at a time; calls block.

    `folder` is the cache, for this remote alone. Methods raise GitErrors.
    """

    def __init__(
        self, remote: Remote, folder: Path, credentials: Credentials | None = None, identity: Identity | None = None
    ) -> None:
        self.remote = remote
        self._identity = identity or Identity()
        self._clone = Clone(remote, folder, credentials or Credentials())
        self._state: _State | None = None

    def __enter__(self) -> Repository:
        self._clone.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = None
        self._clone.close()

    def heads(self) -> BranchHeads:
        """Return the heads at the remote without fetching: one short exchange, for polling."""
        branches = [branch for branch in (self.remote.branch, self.remote.review) if branch]
        arguments = ["ls-remote", "--", self.remote.url, *(f"refs/heads/{branch}" for branch in branches)]
        lines = self._clone.remotely("reading branches", arguments).decode().splitlines()
        found = {ref: commit for commit, _, ref in (line.partition("\t") for line in lines)}
        return BranchHeads(*(found.get(f"refs/heads/{branch}", "") for branch in branches))

    def sync(self) -> Snapshot:
        """Return a snapshot of the newest commit of the branch, below the remote's path."""
        return self._healed(self._synced).target

    def commit(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result:
        """Commit and push the plan for the newest snapshot.

        `plan` is called again for each newer snapshot until a push succeeds. Nothing is written for an empty plan.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            result = self._healed(lambda: self._attempt(plan, reason))
            if result is not None:
                return replace(result, attempts=attempt)
            log.info("another client pushed first; planning again on the new head")
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2**attempt)))
        raise PushConflict(f"other clients pushed to {self.remote.branch} first, {_ATTEMPTS} times; try again later")

    def _healed(self, call: Callable[[], T]) -> T:
        """Call, and call again with a new clone if the clone is corrupt."""
        try:
            return call()
        except CorruptClone as error:
            log.warning("recreating the clone: %s", error)
            self._state = None
            self._clone.discard()
            return call()

    def _synced(self) -> _State:
        heads = self.heads()
        if self._state is None or heads != self._state.heads:
            self._state = self._fetched(heads)
        return self._state

    def _fetched(self, heads: BranchHeads) -> _State:
        objects = self._clone.objects
        wanted = [(self.remote.branch, _TARGET_REF, heads.target), (self.remote.review, _REVIEW_REF, heads.review)]
        refs = [f"+refs/heads/{branch}:{ref}" for branch, ref, commit in wanted if commit]
        if refs:
            depth = [] if self._clone.is_shallow or self._clone.ref(_TARGET_REF) else ["--depth=1"]
            arguments = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", *depth]
            self._clone.remotely("fetching", [*arguments, "--", self.remote.url, *refs])
        # A branch may have moved between the two requests: what was fetched counts.
        target, review = (self._clone.ref(ref) if commit else "" for _, ref, commit in wanted)
        return _State(
            BranchHeads(target, review),
            Snapshot(objects, target, self.remote.path),
            Snapshot(objects, review, self.remote.path),
        )

    def _attempt(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result | None:
        """Return the result, or None when another client pushed first."""
        state = self._synced()
        if self.remote.review:
            return self._attempt_review(state, plan, reason)
        planned = plan(state.target)
        if planned.is_empty:
            return Result(planned, state.target.commit, self.remote.branch)
        if not state.target.commit:
            self._check_creation()
        return self._written(state, planned, state.target, reason)

    def _check_creation(self) -> None:
        """Raise MissingBranch unless the branch may be created, or was seen before: then it is recreated."""
        if self.remote.create_branch or self._clone.ref(_TARGET_REF):
            return
        out = self._clone.remotely("reading branches", ["ls-remote", "--heads", "--", self.remote.url]).decode()
        found = [line.partition("\trefs/heads/")[2] for line in out.splitlines()]
        # Another client may have created it since it was looked up: then the push fails, and is planned again.
        if found and self.remote.branch not in found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            raise MissingBranch(
                f"{self.remote.shown} has no branch {self.remote.branch}, only {', '.join(found[:_MOST_NAMED])}{more}: "
                "correct --branch, or create the branch with --create-branch"
            )

    def _attempt_review(self, state: _State, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result | None:
        """Extend the review branch while it is based on the branch's head, and restart it when that moved."""
        base = state.target
        if not base.commit:
            raise UnmanagedFiles(
                f"branch {self.remote.branch} does not exist; create it before changes to it can be reviewed"
            )
        planned = plan(base)
        if planned.is_empty:
            return Result(planned, base.commit, self.remote.branch)
        if state.review.commit and self._reviewed_base(state.review) == base.commit:
            base = state.review
            planned = plan(base)
            if planned.is_empty:
                return Result(planned, base.commit, self.remote.review)
        trailers = {**reason.trailers, BASE_TRAILER: state.target.commit}
        return self._written(state, planned, base, Reason(reason.why, trailers))

    def _reviewed_base(self, review: Snapshot) -> str:
        """Return the commit that the review branch is based on. Raises UnmanagedFiles for commits of others on it."""
        if base := base_of(review.message):
            return base
        raise UnmanagedFiles(
            f"branch {self.remote.review} ends with {review.commit[:12]}, a commit that caphv did not write; "
            "merge or delete the branch"
        )

    def _written(self, state: _State, plan: Plan, base: Snapshot, reason: Reason) -> Result | None:
        branch = self.remote.review or self.remote.branch
        lease = state.review.commit if self.remote.review else state.target.commit
        commit = self._commit(plan, base.commit, message(plan, reason))
        started = time.monotonic()
        if not self._push(commit, branch, lease):
            return None
        result = Result(plan, commit, branch, commit, push_seconds=time.monotonic() - started)
        self._remember(state, commit)
        return result

    def _commit(self, plan: Plan, parent: str, text: str) -> str:
        parts = b"".join(stream(plan, text, self._identity, parent, self.remote.path))
        arguments = ["fast-import", "--quiet", "--done", "--force"]
        commit = self._clone.locally("writing the commit", arguments, stdin=parts).decode().strip()
        if not self._clone.credentials.signing_key:
            return commit
        # fast-import cannot sign: create the same commit again, signed.
        parents = ["-p", parent] if parent else []
        arguments = ["commit-tree", "-S", *parents, f"{commit}^{{tree}}"]
        signed = self._clone.signed(arguments, text, self._identity.variables)
        self._clone.locally("writing the commit", ["update-ref", WORK_REF, signed])
        return signed

    def _push(self, commit: str, branch: str, lease: str) -> bool:
        """Move a branch from `lease` to `commit`; False when another client moved it."""
        ref = f"refs/heads/{branch}"
        arguments = ["push", "--porcelain", "--no-verify", f"--force-with-lease={ref}:{lease}"]
        try:
            self._clone.remotely("pushing", [*arguments, "--", self.remote.url, f"{commit}:{ref}"])
        except GitError as error:
            # The connection may have failed after the branch was moved: check where the branch is.
            with contextlib.suppress(GitError):
                heads = self.heads()
                now = heads.review if self.remote.review else heads.target
                if now == commit:
                    return True
                if now != lease or (isinstance(error, Rejected) and any(race in str(error) for race in _RACES)):
                    return False
            raise
        return True

    def _remember(self, state: _State, commit: str) -> None:
        """Take the pushed commit as the remote's head, without fetching it."""
        snapshot = Snapshot(self._clone.objects, commit, self.remote.path)
        if self.remote.review:
            self._state = replace(state, heads=BranchHeads(state.heads.target, commit), review=snapshot)
        else:
            self._state = replace(state, heads=BranchHeads(commit, state.heads.review), target=snapshot)
        with contextlib.suppress(GitError):  # the push succeeded; a failure here only costs time later
            ref = _REVIEW_REF if self.remote.review else _TARGET_REF
            self._clone.locally("remembering the commit", ["update-ref", ref, commit])
            self._clone.locally("packing the clone", ["gc", "--auto", "--quiet"])
