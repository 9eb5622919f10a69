"""Killed at any moment, with a damaged clone, a full disk or a branch that is not what it was: the next call heals."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from packager.git import clone
from packager.git.errors import CloneLocked, CorruptClone, DiskFull, MissingBranch
from packager.git.folder import Folder
from packager.git.remote import Remote
from packager.git.repository import Repository
from tests.support.packager.repositories import Origin, damage_last_file, git, paths, put, wanted

pytestmark = pytest.mark.integration


def in_child(call: Callable[[], None]) -> int:
    """Run a call in a forked process; answers its wait status. Whatever it started is killed with it."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def publish(origin: Origin, cache: Path, mtu: int) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one", "a/two", mtu=mtu))


def tree_of(mtu: int, tmp_path: Path) -> str:
    plain = Origin.make(tmp_path / f"plain-{mtu}")
    publish(plain, tmp_path / f"plain-cache-{mtu}", mtu)
    return plain.tree()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_step(when: str, origin: Origin, cache: Path, tmp_path: Path) -> None:
    steps, mtu = 0, 1500
    killed = True
    while killed:

        def die_at_step(step: int = steps, value: int = mtu) -> None:
            left, real = [step], clone.run

            def run(*arguments: object, **options: object) -> bytes:
                left[0] -= 1
                if left[0] < 0 and when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                out = real(*arguments, **options)  # type: ignore[arg-type]
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return out

            clone.run = run
            publish(origin, cache, value)

        status = in_child(die_at_step)
        killed = os.WIFSIGNALED(status)
        assert killed or status == 0
        publish(origin, cache, mtu)
        assert origin.tree() == tree_of(mtu, tmp_path)
        assert list(cache.glob("private-*")) == []
        steps, mtu = steps + 1, mtu + 1
    assert steps > 6


def test_killed_at_random_moments(origin: Origin, cache: Path, tmp_path: Path) -> None:
    """Git is left alone when its parent dies, as it is when a process is killed; the lock makes the next one wait."""
    publish(origin, cache, 1500)
    for mtu in range(1501, 1521):
        child = os.fork()
        if child == 0:
            publish(origin, cache, mtu)
            os._exit(0)
        time.sleep(random.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    publish(origin, cache, 1521)
    assert origin.tree() == tree_of(1521, tmp_path)
    assert origin.count() <= 22


def lose_objects(path: Path) -> None:
    for file in (path / "objects").rglob("*"):
        if file.is_file():
            file.unlink()


def empty_objects(path: Path) -> None:
    for file in (path / "objects").rglob("*"):
        if file.is_file():
            file.chmod(0o600)
            file.write_bytes(b"")


def break_head(path: Path) -> None:
    (path / "HEAD").write_bytes(b"\0\0\0")


def break_refs(path: Path) -> None:
    (path / "packed-refs").write_bytes(b"\xff garbage\n")
    for ref in (path / "refs" / "caphv").iterdir():
        ref.write_text("garbage\n")


def break_config(path: Path) -> None:
    (path / "config").write_text("[core\n")


def leave_locks(path: Path) -> None:
    for name in ("HEAD.lock", "config.lock", "shallow.lock", "packed-refs.lock", "refs/caphv/work.lock", "index.lock"):
        (path / name).write_text("")
    (path / "objects" / "pack").mkdir(exist_ok=True)
    (path / "objects" / "pack" / "tmp_pack_x").write_text("half")
    (path.parent / "private-x").mkdir()
    (path.parent / "private-x" / "key").write_text("SECRET")


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize(
    "damage", [lose_objects, empty_objects, break_head, break_refs, break_config, leave_locks, empty, shutil.rmtree]
)
@pytest.mark.parametrize("moved", [False, True], ids=["same-head", "moved-head"])
def test_damaged_clones(damage: Callable[[Path], None], moved: bool, origin: Origin, cache: Path) -> None:
    publish(origin, cache, 1500)
    if moved:
        origin.push({"README.md": "x"})
    damage(cache / "clone.git")
    publish(origin, cache, 9000)
    files = origin.files()
    assert files["clusters/a/two/cni/fleet.yaml"] == "name: a/two-cni\nmtu: 9000"
    assert origin.count() == (3 if moved else 2)
    assert not (cache / "private-x").exists()


def test_damage_while_it_runs(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one"))
        lose_objects(cache / "clone.git")
        put(repository, wanted("a/one", mtu=9000))
        assert "mtu: 9000" in origin.files()["clusters/a/one/cni/fleet.yaml"]


DEFINITION = random.Random(1).randbytes(1000).hex()


@pytest.fixture
def damaged(origin: Origin, cache: Path) -> Origin:
    """A repository with one file, which is damaged in its clone."""
    origin.push({"production.yaml": DEFINITION})
    with Repository(Remote(origin.url), cache) as repository:
        repository.sync()
    damage_last_file(cache / "clone.git")
    return origin


def test_content_that_is_cut_short_is_not_read(damaged: Origin, cache: Path) -> None:
    """An empty definition would count as a removed one."""
    with (
        Repository(Remote(damaged.url), cache) as repository,
        pytest.raises(CorruptClone, match=r"has \d+ bytes instead of 2,000"),
    ):
        repository.sync().read("production.yaml")


def test_damage_that_only_reading_finds(damaged: Origin, cache: Path) -> None:
    with Repository(Remote(damaged.url), cache) as repository:
        content = repository.read(lambda snapshot: snapshot.read("production.yaml"))
    assert content == DEFINITION.encode()


def test_the_clone_of_a_reader_that_failed_is_recreated(damaged: Origin, cache: Path) -> None:
    with pytest.raises(CorruptClone), Repository(Remote(damaged.url), cache) as repository:
        repository.sync().read("production.yaml")
    with Repository(Remote(damaged.url), cache) as repository:
        assert repository.sync().read("production.yaml") == DEFINITION.encode()


def test_forced_branches(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one"))
        origin.push({"README.md": "another history"}, replace=True)
        assert set(repository.sync().entries()) == {"README.md"}
        put(repository, wanted("a/one"))
        assert (set(origin.files()), origin.count()) == (paths("a/one") | {"README.md"}, 2)


@pytest.mark.parametrize("now", ["deleted", "renamed", "recreated"])
def test_a_deleted_branch_continues_only_when_asked_for(origin: Origin, cache: Path, now: str) -> None:
    """Its files of others and the versions of its clusters are nowhere else, and no longer where Fleet looks."""
    origin.push({"README.md": "x"})
    before = origin.push({"README.md": "y", "OWNERS": "z"})
    with Repository(Remote(origin.url), cache) as repository:
        assert repository.sync().commit == before
    if now == "recreated":
        shutil.rmtree(origin.folder)
        Origin.make(origin.folder)
    elif now == "renamed":
        git(origin.folder, "branch", "--move", "main", "trunk")
    else:
        origin.remove_branch("main")
    remedy = f"git push {origin.url} {before}:refs/heads/main"
    for remote in (Remote(origin.url), Remote(origin.url, review="caphv/x", create_branch=True)):
        with Repository(remote, cache) as repository:
            for call in (repository.sync, lambda one=repository: put(one, wanted("a/one"))):
                with pytest.raises(MissingBranch, match=remedy):
                    call()
    assert origin.branches() == (["trunk"] if now == "renamed" else [])
    with Repository(Remote(origin.url, create_branch=True), cache) as repository:
        assert repository.sync().read("README.md") == b"y"
        put(repository, wanted("a/one"))
        put(repository, wanted("a/one", mtu=9000))
    assert set(origin.files()) == paths("a/one") | {"README.md", "OWNERS"}
    # The clone has no history; the repository has, if another branch holds it.
    assert origin.count() == (4 if now == "renamed" else 3)
    if now != "renamed":
        assert before in git(origin.folder, "log", "--format=%s", "main")


def test_a_cache_that_served_another_branch_has_not_seen_this_one(origin: Origin, cache: Path, tmp_path: Path) -> None:
    publish(origin, cache, 1500)
    new = Origin.make(tmp_path / "new.git")
    publish(new, cache, 1500)
    with Repository(Remote(origin.url, branch="other", create_branch=True), cache) as repository:
        assert repository.sync().commit == ""


def test_an_empty_repository_has_no_heads(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        assert repository.heads().target == ""
        assert repository.sync().entries() == {}


def test_heads_fetch_nothing(origin: Origin, cache: Path) -> None:
    head = origin.push({"README.md": "x"})
    with Repository(Remote(origin.url), cache) as repository:
        assert repository.heads().target == head
        assert not (cache / "clone.git").exists()


def test_no_room(origin: Origin, cache: Path) -> None:
    """No file may grow beyond 64 KiB: what a disk does that is full, to Git and whatever it starts."""
    publish(origin, cache, 1500)
    before = origin.head()
    noise = random.Random(1)
    big = {"a/one": Folder({"cni/values.yaml": noise.randbytes(300_000)})}

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        with Repository(Remote(origin.url), cache) as repository:
            try:
                put(repository, big)
            except DiskFull as error:
                os._exit(7 if "free space" in str(error) else 8)

    assert os.WEXITSTATUS(in_child(fill)) == 7
    assert origin.head() == before
    with Repository(Remote(origin.url), cache) as repository:
        assert put(repository, big).commit == origin.head()


def test_a_cache_folder_is_for_one_process(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache):
        other = Repository(Remote(origin.url, timeout=1), cache)
        with pytest.raises(CloneLocked, match="its own cache folder"):
            other.__enter__()
    publish(origin, cache, 1500)


def test_nothing_changed_writes_nothing(origin: Origin, cache: Path) -> None:
    def state() -> dict[str, int]:
        folders = (cache / "clone.git", origin.folder)
        return {
            str(path): path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*") if path.is_file()
        }

    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one"))
        before = state()
        for _ in range(3):
            assert put(repository, wanted("a/one")).commit == ""
        assert state() == before
