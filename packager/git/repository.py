"""One branch of a remote: read it, and commit to it.

A commit is pushed only onto the commit that it was planned for. When another client pushed first, the caller plans
again on the new head. So no change is lost, and no lock at the remote can be left behind.

GitPython reads objects. Everything that writes or talks to a remote goes through `process.run`, which sets time limits
and redacts output.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from packager.git.clone import Clone
from packager.git.commit import (
    BASE_TRAILER,
    WORK_REF,
    Identity,
    Reason,
    base_of,
    check,
    group_stream,
    message,
    stream,
    with_former_files,
)
from packager.git.creation import check_creation, last_known
from packager.git.credentials import Credentials
from packager.git.errors import CorruptClone, GitError, PushConflict, Rejected, UnmanagedFiles, UnverifiedCommit
from packager.git.folder import tree_id_with
from packager.git.history import LOG, Change, parsed
from packager.git.mergerequest import NO_PUSH_OPTIONS, MergeRequest, announced, push_options, to_open
from packager.git.paths import joined
from packager.git.prune import Plan
from packager.git.remote import Remote
from packager.git.result import BranchHeads, Result
from packager.git.signers import Signers
from packager.git.snapshot import Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")

_TARGET_REFS = "refs/caphv/target-"
_REVIEW_REF = "refs/caphv/review"
_GROUP_REFS = "refs/caphv/groups"
_GROUP_FILE = "README.md"
_DEPTHS = ("--depth=100", "--depth=1000", "--unshallow")
_ATTEMPTS = 40
_LONGEST_PAUSE = 1.0
# The clone holds the newest commits only, and the remote does not have the others.
_NO_HISTORY = "shallow update not allowed"
# Messages of servers that are updating the same branch for another client.
_RACES = ("cannot lock ref", "failed to update ref", "incorrect old value", "reference already exists")


Split = Callable[[Snapshot, Collection[str]], Mapping[str, Collection[str]]]
"""Returns the folders of a snapshot that have an own branch, by `<workspace>/<group>`, given the existing branches."""


@dataclass(frozen=True)
class _State:
    """The last known state of the remote."""

    heads: BranchHeads
    target: Snapshot
    review: Snapshot


class Repository:
    """Reads a remote and commits to it. Use it as a context manager, from one thread at a time; calls block.

    `folder` is the cache, for this remote alone. `split` says which folders of the branch are also on branches of
    their own; these follow each commit. Methods raise GitErrors.
    """

    def __init__(
        self,
        remote: Remote,
        folder: Path,
        credentials: Credentials | None = None,
        identity: Identity | None = None,
        split: Split | None = None,
    ) -> None:
        self.remote = remote
        self._split = split
        self._followed: BranchHeads | None = None
        self._identity = identity or Identity()
        self._clone = Clone(remote, folder, credentials or Credentials())
        self._state: _State | None = None
        self._merge_request: MergeRequest | None = None
        # A cache that served another branch or repository has not seen this one.
        place = hashlib.sha256(f"{remote.url}\0{remote.branch}".encode()).hexdigest()
        self._target_ref = f"{_TARGET_REFS}{place[:16]}"

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
        prefix = f"refs/heads/{self.remote.group_branches}/"
        if self._split:
            arguments.append(f"{prefix}*")
        lines = self._clone.remotely("reading branches", arguments).decode().splitlines()
        found = {ref: commit for commit, _, ref in (line.partition("\t") for line in lines)}
        target, review = (found.get(f"refs/heads/{name}", "") for name in (self.remote.branch, self.remote.review))
        named = {ref.removeprefix(prefix): commit for ref, commit in found.items() if ref.startswith(prefix)}
        # Below longer paths there are branches of others.
        groups = {name: commit for name, commit in named.items() if name.count("/") == 1}
        return BranchHeads(target, review, groups)

    def commits(self) -> set[str]:
        """Return the newest known commits of the branch and of the branches of groups."""
        heads = self._state.heads if self._state else BranchHeads()
        return {heads.target, *heads.groups.values()}

    def last_change(self, path: str) -> Change | None:
        """Return the newest commit of the branch that changed a file or folder; fetch as much history as that takes."""
        return self._healed(lambda: self._last_change(joined(self.remote.path, path)))

    def _last_change(self, path: str) -> Change | None:
        if not self._synced().target.commit:
            return None
        arguments = [*LOG, self._target_ref, "--", path]
        for depth in _DEPTHS:
            found = parsed(self._clone.locally("reading the history", arguments).decode(errors="replace"))
            if found is None or not self._clone.is_cut_at(found.commit):
                return found
            refs = f"+refs/heads/{self.remote.branch}:{self._target_ref}"
            fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", depth, "--", self.remote.url, refs]
            self._clone.remotely("fetching the history", fetch)
        return parsed(self._clone.locally("reading the history", arguments).decode(errors="replace"))

    def branch_of(self, group: str) -> tuple[str, str]:
        """Return the name and the newest known commit of the branch from which Fleet reads a group."""
        heads = self._synced().heads
        return (self._branch_of(group), heads.groups.get(group, "")) if group else (self.remote.branch, heads.target)

    def at(self, commit: str) -> Snapshot:
        """Return a snapshot of a commit that the clone has, below the remote's path."""
        return Snapshot(self._clone.objects, commit, self.remote.path)

    def verify(self, commit: str, signers: Signers) -> str:
        """Return who signed a commit. Raises UnverifiedCommit, which says what to do, unless a listed signer did."""
        try:
            return self._clone.verify(commit, signers)
        except UnverifiedCommit as error:
            raise UnverifiedCommit(
                f"commit {commit} of branch {self.remote.branch} of {self.remote.shown} is refused: {error}; have a "
                "listed signer sign it (git commit --amend --no-edit -S) and push that, or add its key to "
                "--source-signers"
            ) from None

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
                result = replace(result, attempts=attempt, merge_request=self._merge_request_of(result))
                return self._with_groups(result)
            log.info("another client pushed first; planning again on the new head")
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2**attempt)))
        raise PushConflict(f"other clients pushed to {self.remote.branch} first, {_ATTEMPTS} times; try again later")

    def _merge_request_of(self, result: Result) -> MergeRequest | None:
        """Return the merge request of a result that waits on the branch for review."""
        is_waiting = self._state and result.head != self._state.heads.target
        if not self.remote.review or result.branch != self.remote.review or not is_waiting:
            return None
        return self._merge_request or to_open(self.remote)

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
        wanted = [(self.remote.branch, self._target_ref, heads.target), (self.remote.review, _REVIEW_REF, heads.review)]
        refs = [f"+refs/heads/{branch}:{ref}" for branch, ref, commit in wanted if commit]
        refs += [f"+refs/heads/{self._branch_of(name)}:{_GROUP_REFS}/{name}" for name in heads.groups]
        if refs:
            depth = [] if self._clone.is_shallow or self._clone.ref(self._target_ref) else ["--depth=1"]
            arguments = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", *depth]
            # Before the fetch: its refs still hold what an earlier snapshot may read.
            self._pack()
            self._clone.remotely("fetching", [*arguments, "--", self.remote.url, *refs])
        # A branch may have moved between the two requests: what was fetched counts.
        target, review = (self._clone.ref(ref) if commit else "" for _, ref, commit in wanted)
        known = target or last_known(self._clone, self.remote, self._target_ref)
        groups = {name: self._clone.ref(f"{_GROUP_REFS}/{name}") for name in heads.groups}
        merged = Snapshot(objects, known, self.remote.path)
        return _State(BranchHeads(target, review, groups), merged, Snapshot(objects, review, self.remote.path, merged))

    def _attempt(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result | None:
        """Return the result, or None when another client pushed first."""
        state = self._synced()
        if self.remote.review:
            return self._attempt_review(state, plan, reason)
        if state.target.commit and not state.heads.target:
            self._restore(state.target.commit)
            state = self._synced()
        planned = plan(state.target)
        if planned.is_empty:
            return Result(planned, state.target.commit, self.remote.branch)
        if not state.target.commit:
            check_creation(self._clone, self.remote)
        return self._written(state, planned, state.target, reason)

    def _restore(self, commit: str) -> None:
        """Create the branch again at its last known commit, or without its history if neither side has that."""
        branch = self.remote.branch
        try:
            created = self._push(commit, branch, "")
        except Rejected as error:
            if _NO_HISTORY not in str(error):
                raise
            text = f"Restore the files of branch {branch} from commit {commit}\n"
            created = self._push(self._clone.same_tree(commit, text, self._identity.variables), branch, "")
        if created:
            log.warning("created branch %s again, which was at commit %s", branch, commit)
        self._state = None

    def _attempt_review(self, state: _State, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result | None:
        """Extend the review branch while it is based on the branch's head, and restart it when that moved.

        It proposes nothing that is no longer planned: a change that was taken back is taken back there, too.
        """
        target, review = state.target, state.review
        if not target.commit:
            raise UnmanagedFiles(
                f"branch {self.remote.branch} does not exist; create it before changes to it can be reviewed"
            )
        reason = replace(reason, trailers={**reason.trailers, BASE_TRAILER: target.commit})
        planned = plan(target)
        merged = Result(planned, target.commit, self.remote.branch)
        if planned.is_empty and not (review.commit and base_of(review.message)):
            return merged
        if not review.commit or self._reviewed_base(review) != target.commit:
            return self._withdrawn(state, merged) if planned.is_empty else self._written(state, planned, target, reason)
        extension = with_former_files(plan(review), planned, review, target)
        found: Result | None = Result(extension, review.commit, self.remote.review)
        if not extension.is_empty:
            found = self._written(state, extension, review, reason)
        # Nothing waits to be merged: Fleet reads what is planned.
        return replace(found, head=target.commit) if found and planned.is_empty else found

    def _withdrawn(self, state: _State, merged: Result) -> Result | None:
        """Delete a review branch of an earlier base if it proposes anything; None when another client moved it."""
        review = self.remote.review
        if state.review.root != state.target.root:
            try:
                if not self._push("", review, state.review.commit):
                    return None
            except Rejected as error:
                log.warning("delete branch %s, its changes are no longer planned: %s", review, error)
                return merged
            log.info("deleted branch %s: its changes are no longer planned", review)
            self._state = None
        return merged

    def _reviewed_base(self, review: Snapshot) -> str:
        """Return the commit that the review branch is based on. Raises UnmanagedFiles for commits of others on it."""
        if base := base_of(review.message):
            return base
        raise UnmanagedFiles(
            f"branch {self.remote.review} ends with {review.commit[:12]}, a commit that caphv did not write; "
            "merge or delete the branch"
        )

    def _written(self, state: _State, plan: Plan, base: Snapshot, reason: Reason) -> Result | None:
        check(plan, base)
        branch = self.remote.review or self.remote.branch
        lease = state.review.commit if self.remote.review else state.target.commit
        text = message(plan, reason)
        commit = self._commit(plan, base.commit, text)
        started = time.monotonic()
        if not self._push(commit, branch, lease, text):
            return None
        result = Result(plan, commit, branch, commit, push_seconds=time.monotonic() - started)
        self._remember(state, commit)
        return result

    # Branches of groups

    def stale(self) -> list[str]:
        """Return the branches of groups that do not hold what the branch holds."""
        state = self._healed(self._synced)
        return [self._branch_of(group) for group in self._stale(state)]

    def _branch_of(self, group: str) -> str:
        return f"{self.remote.group_branches}/{group}"

    def _stale(self, state: _State) -> dict[str, dict[str, str]]:
        """Return the folders by path and id of each group whose branch does not have exactly these."""
        if self._split is None:
            return {}
        if self._followed == state.heads:
            return {}
        path, found = self.remote.path, {}
        for group, folders in self._split(state.target, state.heads.groups).items():
            entries = {joined(path, folder): state.target.entry(folder) for folder in folders}
            ids = {folder: entry.id for folder, entry in entries.items() if entry}
            head = Snapshot(self._clone.objects, state.heads.groups.get(group, ""))
            if head.root != tree_id_with(self._group_files(), ids):
                found[group] = ids
        return found

    def _group_files(self) -> dict[str, bytes]:
        text = f"caphv copies these folders from branch {self.remote.branch}. Change them there.\n"
        return {_GROUP_FILE: text.encode()}

    def _with_groups(self, result: Result) -> Result:
        """Make the branches of groups follow the branch."""
        moved: set[str] = set()
        state = self._state or self._healed(self._synced)
        for attempt in range(1, _ATTEMPTS + 1):
            stale = self._stale(state)
            if not stale:
                self._followed = state.heads
                return replace(result, groups=state.heads.groups, moved=tuple(sorted(moved)))
            heads = state.heads.groups
            text = f"Follow commit {state.target.commit} of branch {self.remote.branch}\n"
            commits = {group: self._group_commit(ids, text, heads.get(group, "")) for group, ids in stale.items()}
            if self._push_groups(commits, heads):
                moved |= commits.keys()
                self._state = state = replace(state, heads=replace(state.heads, groups={**heads, **commits}))
                refs = "".join(f"update {_GROUP_REFS}/{group} {commit}\n" for group, commit in commits.items())
                self._clone.locally("remembering the commits", ["update-ref", "--stdin"], stdin=refs.encode())
                continue
            log.info("another client pushed a group's branch first")
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2**attempt)))
            state = self._healed(self._synced)
        raise PushConflict(f"other clients pushed to {self.remote.group_branches}/ first, {_ATTEMPTS} times")

    def _group_commit(self, folders: Mapping[str, str], text: str, parent: str) -> str:
        return self._imported(group_stream(self._group_files(), folders, text, self._identity, parent), text, parent)

    def _push_groups(self, commits: Mapping[str, str], before: Mapping[str, str]) -> bool:
        """Move branches of groups to these commits; False when another client moved one."""
        refs = {group: f"refs/heads/{self._branch_of(group)}" for group in commits}
        leases = [f"--force-with-lease={ref}:{before.get(group, '')}" for group, ref in refs.items()]
        specs = [f"{commits[group]}:{ref}" for group, ref in refs.items()]
        try:
            self._clone.remotely(
                "pushing", ["push", "--porcelain", "--no-verify", *leases, "--", self.remote.url, *specs]
            )
        except GitError:
            now = self.heads().groups
            if all(now.get(group) == commit for group, commit in commits.items()):
                return True
            if any(now.get(group, "") not in (before.get(group, ""), commits[group]) for group in commits):
                return False
            raise
        return True

    def _commit(self, plan: Plan, parent: str, text: str) -> str:
        return self._imported(stream(plan, text, self._identity, parent, self.remote.path), text, parent)

    def _imported(self, lines: Iterator[bytes], text: str, parent: str) -> str:
        """Write a commit and return its id."""
        parts = b"".join(lines)
        arguments = ["fast-import", "--quiet", "--done", "--force"]
        commit = self._clone.locally("writing the commit", arguments, stdin=parts).decode().strip()
        if not self._clone.credentials.signing_key:
            return commit
        # fast-import cannot sign: create the same commit again, signed.
        signed = self._clone.same_tree(commit, text, self._identity.variables, parent)
        self._clone.locally("writing the commit", ["update-ref", WORK_REF, signed])
        return signed

    def _push(self, commit: str, branch: str, lease: str, text: str = "") -> bool:
        """Move a branch from `lease` to `commit`, whose message is `text`; False when another client moved it."""
        ref = f"refs/heads/{branch}"
        arguments = ["push", "--porcelain", "--no-verify", f"--force-with-lease={ref}:{lease}"]
        place = ["--", self.remote.url, f"{commit}:{ref}"]
        try:
            if text and branch == self.remote.review:
                self._propose(arguments, place, push_options(self.remote, text, is_new=not lease))
            else:
                self._clone.remotely("pushing", [*arguments, *place])
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

    def _propose(self, arguments: Sequence[str], place: Sequence[str], options: Sequence[str]) -> None:
        """Push the review branch; a host that takes push options is asked to open a merge request."""
        try:
            output = self._clone.remotely("pushing", [*arguments, *options, *place], with_messages=True)
        except GitError as error:
            if NO_PUSH_OPTIONS not in str(error):
                raise
            output = self._clone.remotely("pushing", [*arguments, *place], with_messages=True)
        self._merge_request = announced(self.remote, output.decode(errors="replace"))

    def _remember(self, state: _State, commit: str) -> None:
        """Take the pushed commit as the remote's head, without fetching it."""
        merged = state.target if self.remote.review else None
        snapshot = Snapshot(self._clone.objects, commit, self.remote.path, merged)
        if self.remote.review:
            self._state = replace(state, heads=replace(state.heads, review=commit), review=snapshot)
        else:
            self._state = replace(state, heads=replace(state.heads, target=commit), target=snapshot)
        with contextlib.suppress(GitError):  # the push succeeded; a failure here only costs time later
            ref = _REVIEW_REF if self.remote.review else self._target_ref
            self._clone.locally("remembering the commit", ["update-ref", ref, commit])
        self._pack()

    def _pack(self) -> None:
        """Pack the clone if it has many objects or packs; a failure only costs time later."""
        with contextlib.suppress(GitError):
            self._clone.locally("packing the clone", ["gc", "--auto", "--quiet"])
