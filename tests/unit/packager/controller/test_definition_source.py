"""A repository of definitions is asked no more often than needed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from packager.controller.definition_source import DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig
from packager.git.clone import Clone
from packager.git.errors import GitError
from packager.git.remote import Remote
from packager.git.repository import Repository
from tests.support.packager.repositories import Origin, damage_last_file, git


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands of Git that went to a remote."""
    found: list[str] = []
    run_with_remote = Clone.run_with_remote

    def recorded(self: Clone, action: str, arguments: list[str]) -> bytes:
        found.append(arguments[0])
        return run_with_remote(self, action, arguments)

    monkeypatch.setattr(Clone, "run_with_remote", recorded)
    return found


def test_a_new_commit_asks_the_remote_once_before_the_fetch(tmp_path: Path, requests: list[str]) -> None:
    origin = Origin.make(tmp_path / "origin")
    config = RepositoryConfig(Remote(origin.url), tmp_path / "cache")
    source = DefinitionSource(SourceOptions(config, lambda _: []))
    try:
        with pytest.raises(GitError, match="has no branch main"):
            source.refresh()
        origin.push({"README": "one\n"})
        requests.clear()
        source.refresh()
        assert requests == ["ls-remote", "fetch"]
        requests.clear()
        source.refresh()
        assert requests == ["ls-remote"]
        commit = origin.push({"README": "two\n"})
        requests.clear()
        source.refresh()
        assert requests == ["ls-remote", "fetch"]
        assert source.last
        assert source.last.origin.endswith(commit)
    finally:
        source.close()


DEFINITION = (
    "apiVersion: caphv.io/v1beta1\nkind: ClusterDefinition\nmetadata: {name: good, namespace: team-a}\nspec: {}\n"
)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"


def test_what_may_stand_for_a_definition_is_reported(tmp_path: Path) -> None:
    """Whatever hides a definition looks like its removal, which the user could confirm by mistake."""
    origin = Origin.make(tmp_path / "origin")
    origin.push({"good.yaml": DEFINITION, "lfs.yaml": POINTER, "list.yaml": "- hosts: all\n", "empty.yaml": "# x\n"})
    origin.push({"text.yml": "../real/text.yml\n", "real/one.txt": DEFINITION, "kustomization.yaml": "resources: []\n"})
    links = {"link.yaml": "real/one.txt", "teams": "real", "README": "real/one.txt", ".hidden.yaml": "x", "out": "../x"}
    origin.push(links, mode="120000")
    entries = git(origin.folder, "ls-tree", "main") + f"\n160000 commit {origin.head()}\tmodule\n"
    entries += f"160000 commit {origin.head()}\tmodule.yaml\n"
    tree = git(origin.folder, "mktree", "--missing", stdin=entries.encode())
    git(origin.folder, "update-ref", "refs/heads/main", git(origin.folder, "commit-tree", "-m", "x", tree))
    source = DefinitionSource(SourceOptions(RepositoryConfig(Remote(origin.url), tmp_path / "cache"), lambda _: []))
    try:
        source.refresh()
        assert source.last
        found = source.last.source
    finally:
        source.close()
    assert not found.complete
    assert [entry.key.name for entry in found.clusters] == ["good"]
    problems = {problem.file: (problem.advice, problem.message) for problem in found.problems}
    assert problems.keys() == {"lfs.yaml", "link.yaml", "module", "module.yaml", "teams", "text.yml"}
    assert {file for file, (advice, _) in problems.items() if advice} == {"module", "teams"}
    assert "is a pointer of Git LFS" in problems["lfs.yaml"][1]
    assert "is a symbolic link, which is not followed: put the file itself here" in problems["link.yaml"][1]
    assert "is a submodule, which is not read" in problems["module"][1]
    assert "is text, not an object" in problems["text.yml"][1]


def test_a_damaged_clone_is_recreated(tmp_path: Path) -> None:
    origin = Origin.make(tmp_path / "origin")
    origin.push({"good.yaml": f"{DEFINITION}# {random.Random(1).randbytes(1000).hex()}\n"})
    config = RepositoryConfig(Remote(origin.url), tmp_path / "cache")
    with Repository(config.remote, config.cache) as repository:
        repository.sync()
    damage_last_file(config.cache / "clone.git")
    source = DefinitionSource(SourceOptions(config, lambda _: []))
    try:
        source.refresh()
        assert source.last
        assert [entry.key.name for entry in source.last.source.clusters] == ["good"]
    finally:
        source.close()
