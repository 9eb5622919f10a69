"""A repository of definitions is asked no more often than needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.controller.definition_source import DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig
from packager.git.clone import Clone
from packager.git.errors import GitError
from packager.git.remote import Remote
from tests.support.packager.repositories import Origin


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands of Git that went to a remote."""
    found: list[str] = []
    remotely = Clone.remotely

    def recorded(self: Clone, action: str, arguments: list[str]) -> bytes:
        found.append(arguments[0])
        return remotely(self, action, arguments)

    monkeypatch.setattr(Clone, "remotely", recorded)
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
