"""Which commit of its branch Fleet must reach before the bundles of a cluster can be ready; with real repositories."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Key
from packager.bundler import Bundler
from packager.controller import condition
from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import Publisher, PublisherOptions
from packager.git.errors import GitError
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.planner import ManagementState, Planner, publish
from packager.rendering import branches
from tests.support.packager.examples import cluster
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.integration


class Waves:
    """A publisher of clusters a and b, whose group has a branch of its own; `known` are the commits of conditions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.origin = Origin.make(folder / "fleet.git")
        self.origin.push({"caphv-branches.yaml": "groups: [clusters]\n"})
        self.known: dict[Key, str] = {}
        self.restart()

    def restart(self) -> None:
        place = RepositoryConfig(Remote(self.origin.url), self._folder / "cache")
        self.publisher = Publisher(PublisherOptions(place))

    def publish(self, **work: Any) -> dict[str, str]:
        """Publish, and return the commit that each cluster waits for."""
        published = self.publisher.publish(ManagementState(tuple(map(cluster, "ab")), **work), self.known)
        outcomes = condition.outcomes(published, self.known, "")
        self.known = {key: outcome.commit for key, outcome in outcomes.items()}
        return {key.name: outcome.wanted.commit for key, outcome in outcomes.items() if outcome.wanted}

    def group(self) -> str:
        return self.origin.head("main-groups/clusters/clusters")

    @contextlib.contextmanager
    def protected(self) -> Iterator[None]:
        """Refuse pushes to the branches of groups."""
        hook = self.origin.folder / "hooks" / "update"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ncase $1 in refs/heads/main-groups/*) echo protected >&2; exit 1;; esac\n")
        hook.chmod(0o755)
        yield
        hook.unlink()


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_cluster_waits_for_a_commit_that_its_condition_does_not_name_yet(tmp_path: Path, is_cached: bool) -> None:
    waves = Waves(tmp_path)
    older = waves.publisher.table.releases[1]
    first = waves.publish(pins={Key("clusters", name): older for name in "ab"})
    before = waves.known
    waves.publish(pins={Key("clusters", "a"): waves.publisher.table.newest})
    # The process ends before it writes the conditions.
    waves.known = before
    waves.publisher.close()
    if not is_cached:
        shutil.rmtree(tmp_path / "cache")
    waves.restart()
    found = waves.publish()
    # Without the former commit, nothing shows that the files of b are unchanged.
    assert found == {"a": waves.group(), "b": first["b"] if is_cached else waves.group()}
    assert waves.publisher.is_before(first["a"], found["a"])
    assert waves.publish() == found
    waves.publisher.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_cluster_waits_for_the_commit_whose_push_failed_half_way(tmp_path: Path, is_restarted: bool) -> None:
    waves = Waves(tmp_path)
    older = waves.publisher.table.releases[1]
    first = waves.publish(pins={Key("clusters", name): older for name in "ab"})
    assert first == dict.fromkeys("ab", waves.group())
    with waves.protected(), pytest.raises(GitError):
        waves.publish(pins={Key("clusters", "a"): waves.publisher.table.newest})
    if is_restarted:
        waves.publisher.close()
        waves.restart()
    # Main has it already, so this call changes nothing there.
    found = waves.publish()
    assert waves.group() != first["a"]
    assert found["a"] == waves.group()
    assert waves.publisher.may_be_before(first["a"], found["a"])
    assert is_restarted or found["b"] == first["b"]
    assert waves.publish() == found
    waves.publisher.close()


def test_a_cluster_waits_for_the_commit_of_another_client(tmp_path: Path) -> None:
    waves = Waves(tmp_path)
    older = waves.publisher.table.releases[1]
    first = waves.publish()
    with Repository(Remote(waves.origin.url), tmp_path / "other", split=branches.folders) as other:
        chosen = (cluster("a"),)
        publish(other, Planner(Bundler()), ManagementState(chosen, live=False, pins={chosen[0].key: older}))
    found = waves.publish()
    assert found == {"a": waves.group(), "b": first["b"]}
    assert waves.publisher.is_before(first["a"], found["a"])
    # A commit that changes no file of theirs is nothing to wait for.
    waves.origin.push({"README.md": "ours"})
    assert waves.publish() == found
    waves.publisher.close()
