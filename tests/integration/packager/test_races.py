"""Concurrent pushes: no change is lost, and all of them end with the same tree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packager.contents.folders import compare_folders
from packager.git import repository as module
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.errors import MissingBranch, PushConflict, Rejected
from packager.git.pruning import Pruning
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.git.snapshot import Snapshot
from tests.support.packager.git_servers import HttpBackend
from tests.support.packager.repositories import CLUSTERS, SYNCED, Origin, git, paths, put, wanted

pytestmark = pytest.mark.integration


# Each push is tried again after the others: twice the pushers take four times as long.
@pytest.mark.parametrize("pushers", [8, pytest.param(20, marks=pytest.mark.long)])
def test_many_pushers_lose_nothing(origin: Origin, tmp_path: Path, pushers: int) -> None:
    names = [f"a/c{number:02}" for number in range(pushers)]

    def push(name: str, url: str) -> str:
        only = Pruning(complete=True, budget=1, scope=[f"clusters/{name}"])
        with Repository(Remote(url), tmp_path / name.replace("/", "-")) as repository:
            return put(repository, wanted(name), only).commit

    with HttpBackend(origin.folder.parent).serve() as backend, ThreadPoolExecutor(len(names)) as pool:
        commits = list(pool.map(lambda name: push(name, f"{backend.url}/fleet.git"), names))
    assert set(origin.files()) == paths(*names)
    assert origin.count() == len(set(commits)) == len(names)


def test_two_packagers_converge(origin: Origin, tmp_path: Path) -> None:
    """Both run through the same settings, each at its own pace; no round undoes what the other did."""
    names = [f"a/c{number}" for number in range(5)]

    def run(which: str) -> set[str]:
        commits = set()
        with Repository(Remote(origin.url), tmp_path / which) as repository:
            for count in range(1, 6):
                commits.add(put(repository, wanted(*names[:count])).commit)
        return commits - {""}

    with ThreadPoolExecutor(2) as pool:
        commits = set.union(*pool.map(run, ["one", "two"]))
    with Repository(Remote(origin.url), tmp_path / "three") as repository:
        assert put(repository, wanted(*names)).commit == ""
    assert set(origin.files()) == paths(*names)
    assert origin.count() == len(commits)


def test_a_lost_race_is_decided_again_on_what_is_there(origin: Origin, cache: Path) -> None:
    seen: list[str] = []

    def decide(snapshot: Snapshot) -> Plan:
        seen.append((snapshot.read("mtu") or b"").decode())
        if len(seen) < 3:
            origin.push({"mtu": f"{9000 + len(seen)}"})
        mtu = int(seen[-1] or 1500)
        return compare_folders(snapshot, {CLUSTERS: wanted("a/one", mtu=mtu)}, SYNCED)

    with Repository(Remote(origin.url), cache) as repository:
        result = repository.commit(decide, Reason("a test"))
    assert seen == ["", "9001", "9002"]
    assert (result.attempts, origin.count(), origin.head()) == (3, 3, result.commit)
    assert "mtu: 9002" in origin.files()["clusters/a/one/cni/fleet.yaml"]


@pytest.mark.parametrize("history", ["deleted", "forced"])
def test_a_branch_that_is_taken_away_while_it_is_decided(history: str, origin: Origin, cache: Path) -> None:
    """History that a user removed does not come back with our push."""
    with Repository(Remote(origin.url), cache) as repository:
        old = put(repository, wanted("a/one", "a/two")).commit
        calls = []

        def decide(snapshot: Snapshot) -> Plan:
            calls.append(snapshot.commit)
            if len(calls) == 1:
                origin.push({"README.md": "another history"}, replace=True)
                if history == "deleted":
                    (origin.folder / "refs" / "heads" / "main").unlink()
            return compare_folders(snapshot, {CLUSTERS: wanted("a/one", mtu=9000)}, SYNCED)

        if history == "deleted":
            with pytest.raises(MissingBranch, match=old):
                repository.commit(decide, Reason("a test"))
            assert (calls, origin.branches()) == ([old], [])
            return
        result = repository.commit(decide, Reason("a test"))
    assert calls[0] == old
    assert len(calls) == 2
    assert (set(origin.files()), origin.head()) == (paths("a/one") | {"README.md"}, result.commit)
    assert origin.count() == 2


def test_it_gives_up_after_many_lost_races(origin: Origin, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ATTEMPTS", 3)

    def decide(snapshot: Snapshot) -> Plan:
        origin.push({"other": snapshot.commit})
        return compare_folders(snapshot, {CLUSTERS: wanted("a/one")}, SYNCED)

    with Repository(Remote(origin.url), cache) as repository, pytest.raises(PushConflict, match="3 times"):
        repository.commit(decide, Reason("a test"))
    assert set(origin.files()) == {"other"}


@pytest.mark.parametrize(("review", "reason"), [("caphv/x", "'refs/heads/caphv' exists"), ("", "File exists")])
def test_a_branch_that_stays_locked_is_no_race(origin: Origin, cache: Path, review: str, reason: str) -> None:
    """A branch that is in the way of another one, and the lock of a push that died on the server."""
    origin.push({"README.md": "text"})
    git(origin.folder, "branch", "caphv", "main")
    if not review:
        (origin.folder / "refs" / "heads" / "main.lock").touch()
    with Repository(Remote(origin.url, review=review), cache) as repository, pytest.raises(Rejected, match=reason):
        put(repository, wanted("a/one"))


def test_a_push_whose_answer_is_lost_counts_once(
    origin: Origin, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook runs after the branch has moved, and the connection ends before the answer."""
    with HttpBackend(origin.folder.parent).serve() as backend:
        hook = origin.folder / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nsleep 3\n")
        hook.chmod(0o755)
        remote = Remote(f"{backend.url}/fleet.git", timeout=2)
        with Repository(remote, cache) as repository:
            result = put(repository, wanted("a/one"))
    assert (result.commit, origin.count()) == (origin.head(), 1)
