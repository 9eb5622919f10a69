"""Commits that no user can make with Git's own commands: refused at once, with a message, and without a new clone."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import resource
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from packager.controller.definition_source import DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig
from packager.definitions import source, sourcefile
from packager.git.errors import UnusableContent
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.git.snapshot import MAX_BYTES, MAX_DEPTH
from tests.support.packager.git_servers import HttpBackend
from tests.support.packager.repositories import Origin, git

pytestmark = pytest.mark.integration

FILE, FOLDER = b"100644", b"40000"
GOOD = b"apiVersion: caphv.io/v1beta1\nkind: ClusterDefinition\nmetadata: {name: good, namespace: team-a}\nspec: {}\n"
MIB = 1024 * 1024


class Forge:
    """Writes objects as they are, and commits that Git's commands would refuse."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def object(self, kind: str, content: bytes, times: int = 1) -> bytes:
        """Store an object of repeated content and return its id."""
        digest, compressor = hashlib.sha1(usedforsecurity=False), zlib.compressobj(1)
        packed = []
        for part in (f"{kind} {len(content) * times}\0".encode(), *[content] * times):
            digest.update(part)
            packed.append(compressor.compress(part))
        name = digest.hexdigest()
        path = self.origin.folder / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(packed) + compressor.flush())
        return bytes.fromhex(name)

    def tree(self, *entries: tuple[bytes, bytes, bytes]) -> bytes:
        """Store a tree of entries (mode, name, id)."""
        return self.object("tree", b"".join(mode + b" " + name + b"\0" + one for mode, name, one in entries))

    def commit(self, tree: bytes) -> None:
        """Make the tree the content of branch main."""
        author = "other <other@example.com> 1 +0000"
        text = f"tree {tree.hex()}\nauthor {author}\ncommitter {author}\n\nmine\n"
        commit = self.object("commit", text.encode()).hex()
        git(self.origin.folder, "update-ref", "refs/heads/main", commit)


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(Origin.make(tmp_path / "origin.git"))


@pytest.fixture
def repository(forge: Forge, tmp_path: Path) -> Iterator[Repository]:
    with Repository(Remote(forge.origin.url), tmp_path / "cache") as repository:
        yield repository


@pytest.fixture
def followed(forge: Forge, tmp_path: Path) -> Iterator[DefinitionSource]:
    """The repository as one of definitions, of which a commit was read."""
    forge.commit(forge.tree((FILE, b"good.yaml", forge.object("blob", GOOD))))
    config = RepositoryConfig(Remote(forge.origin.url), tmp_path / "cache")
    source = DefinitionSource(SourceOptions(config, lambda _: []))
    source.refresh()
    try:
        yield source
    finally:
        source.close()


def files_of_one(blob: bytes, count: int) -> list[tuple[bytes, bytes, bytes]]:
    """Many files with one content: a few bytes each in the repository."""
    return [(FILE, b"%05d.yaml" % number, blob) for number in range(count)]


def refusal(repository: Repository, caplog: pytest.LogCaptureFixture) -> str:
    """Why all files of the newest commit cannot be listed or read; found within seconds."""
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(UnusableContent) as error:
        dict(repository.sync().tree)
    assert time.monotonic() - started < 20
    assert "recreating the clone" not in caplog.text
    assert len(str(error.value)) < 500
    return str(error.value)


@pytest.mark.parametrize("name", [".", "..", ".git", ".GIT", "git~1", ".git ", ".g\u200cit", "a/b", ".git:x"])
def test_names_that_no_checkout_allows(
    forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    blob = forge.object("blob", b"x")
    forge.commit(forge.tree((FILE, name.encode(), blob)))
    assert "that Git does not check out" in refusal(repository, caplog)


def test_two_entries_of_one_name(forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
    blob = forge.object("blob", b"x")
    forge.commit(forge.tree((FILE, b"a.yaml", blob), (FILE, b"a.yaml", blob)))
    assert "two entries of one name" in refusal(repository, caplog)


def test_nested_folders(forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
    tree = forge.tree((FILE, b"a.yaml", forge.object("blob", b"x")))
    for _ in range(3000):
        tree = forge.tree((FOLDER, b"d", tree))
    forge.commit(tree)
    assert f"more than {MAX_DEPTH} levels" in refusal(repository, caplog)


@pytest.mark.parametrize("leaf", ["file", "nothing"])
def test_folder_that_is_its_own_neighbour_many_times(
    forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture, leaf: str
) -> None:
    """Eight levels of ten names for one tree: 10^8 paths from a kilobyte."""
    blob = forge.object("blob", b"x")
    tree = forge.tree(*([(FILE, b"a.yaml", blob)] if leaf == "file" else []))
    for _ in range(8):
        tree = forge.tree(*((FOLDER, b"%d" % number, tree) for number in range(10)))
    forge.commit(tree)
    assert "more than 200,000 files" in refusal(repository, caplog)


def test_large_file_is_not_read(forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
    blob = forge.object("blob", b"\0" * (MAX_BYTES + 1))
    forge.commit(forge.tree((FILE, b"a.yaml", blob)))
    assert f"more than {MAX_BYTES:,}" in refusal(repository, caplog)
    assert "a.yaml" in repository.sync().files("")


def test_repository_is_read_again_once_it_is_corrected(
    forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    blob = forge.object("blob", b"x")
    forge.commit(forge.tree((FILE, b"..", blob)))
    refusal(repository, caplog)
    forge.commit(forge.tree((FILE, b"a.yaml", blob)))
    assert dict(repository.sync().tree) == {"a.yaml": b"x"}


def test_empty_commit_is_read(forge: Forge, repository: Repository) -> None:
    forge.commit(forge.tree())
    assert dict(repository.sync().tree) == {}


@pytest.mark.parametrize("place", ["file", "http"])
def test_fetch_is_bounded_in_bytes(forge: Forge, tmp_path: Path, place: str) -> None:
    """Random bytes do not compress; nothing is left of them, and a smaller commit is fetched afterwards."""
    blob = forge.object("blob", random.Random(1).randbytes(3 * 1024 * 1024))
    forge.commit(forge.tree((FILE, b"a.bin", blob)))
    folder = tmp_path / "cache"
    with contextlib.ExitStack() as stack:
        url = forge.origin.url
        if place == "http":
            url = f"{stack.enter_context(HttpBackend(tmp_path).serve()).url}/origin.git"
        remote = Remote(url, max_size=1)
        with Repository(remote, folder) as repository:
            for _ in range(2):
                with pytest.raises(UnusableContent) as error:
                    repository.sync()
                assert "--git-max-size 1 (MiB)" in str(error.value)
                assert "raise --git-max-size" in str(error.value)
            assert sum(path.stat().st_size for path in folder.rglob("*")) < 300_000
            forge.commit(forge.tree((FILE, b"a.yaml", forge.object("blob", b"x"))))
            assert dict(repository.sync().tree) == {"a.yaml": b"x"}
        with Repository(replace(remote, max_size=8), folder) as repository:
            forge.commit(forge.tree((FILE, b"a.bin", blob)))
            assert len(dict(repository.sync().tree)["a.bin"]) == 3 * 1024 * 1024


def test_remote_that_prints_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for Git here repeats what a server sends, as its `remote: …` lines do."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text("#!/bin/sh\nexec yes remote: hello >&2\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    remote = Remote("https://git.example.com/fleet.git")
    with (
        Repository(remote, tmp_path / "cache") as repository,
        pytest.raises(UnusableContent, match="prints more than 64 MiB"),
    ):
        repository.heads()


def test_a_file_that_grows_when_it_is_unpacked_takes_no_memory(
    forge: Forge, repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    git(forge.origin.folder, "config", "core.bigFileThreshold", "1m")  # the server is a child, too
    blob = forge.object("blob", bytes(1024 * 1024), times=200)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    forge.commit(forge.tree((FILE, b"zeros", blob)))
    assert "remove it" in refusal(repository, caplog)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < before + 50 * 1024


@pytest.mark.parametrize(("count", "refused"), [(40, True), (30, False)])
def test_many_files_of_one_large_blob_take_little_memory(
    forge: Forge, followed: DefinitionSource, count: int, refused: bool
) -> None:
    blob = forge.object("blob", b" " * MIB, times=15)
    before = followed.last
    forge.commit(forge.tree(*files_of_one(blob, count), (FILE, b"good.yaml", forge.object("blob", GOOD))))
    tracemalloc.start()
    try:
        if refused:
            with pytest.raises(UnusableContent, match="more than 67,108,864 bytes"):
                followed.refresh()
        else:
            followed.refresh()
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 112 * MIB
    assert left < 4 * MIB
    assert (followed.last is before) is refused
    assert followed.last
    # Large files are reported by their names, and the others are read.
    assert [entry.key.name for entry in followed.last.source.clusters] == ["good"]
    assert len(followed.last.source.problems) == (0 if refused else count)


def test_values_of_all_definitions_are_bounded(
    forge: Forge, followed: DefinitionSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_MAX_VALUES", 3000)
    monkeypatch.setattr(sourcefile, "_MAX_VALUES", 2000)
    before = followed.last
    forge.commit(forge.tree(*files_of_one(forge.object("blob", GOOD.replace(b"{}", b"[" + b"a," * 900 + b"]")), 4)))
    with pytest.raises(UnusableContent, match="more than 3,000 values"):
        followed.refresh()
    assert followed.last is before
    forge.commit(forge.tree(*files_of_one(forge.object("blob", GOOD.replace(b"{}", b"[" + b"a," * 2100 + b"]")), 1)))
    followed.refresh()
    assert followed.last
    assert "more than 2,000 values" in str(followed.last.source.problems)


def test_one_cluster_in_many_files_is_reported_with_a_few_names(forge: Forge, followed: DefinitionSource) -> None:
    forge.commit(forge.tree(*files_of_one(forge.object("blob", GOOD), 1000)))
    followed.refresh()
    assert followed.last
    problems = [problem.message for problem in followed.last.source.problems]
    assert len(problems) == 1000
    assert max(map(len, problems)) < 200
    assert "also defined in 00000.yaml, 00001.yaml, 00002.yaml:" in problems[-1]
