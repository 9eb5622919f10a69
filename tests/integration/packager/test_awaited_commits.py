"""Which commit of its branch Fleet must reach before the bundles of a cluster can be ready; with real repositories."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Key
from packager.addons.versions import load_table
from packager.controller import condition
from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import Publisher, PublisherOptions
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from tests.support.packager.examples import cluster
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.integration


class Waves:
    """A publisher of clusters a and b; `known` are the commits of conditions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.origin = Origin.make(folder / "fleet.git")
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
        return {key.name: outcome.expected.commit for key, outcome in outcomes.items() if outcome.expected}


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_cluster_waits_for_a_commit_that_its_condition_does_not_name_yet(tmp_path: Path, is_cached: bool) -> None:
    waves = Waves(tmp_path)
    older = load_table().releases[1]
    first = waves.publish(pins={Key("clusters", name): older for name in "ab"})
    before = waves.known
    waves.publish(pins={Key("clusters", "a"): load_table().newest})
    # The process ends before it writes the conditions.
    waves.known = before
    waves.publisher.close()
    if not is_cached:
        shutil.rmtree(tmp_path / "cache")
    waves.restart()
    found = waves.publish()
    # Without the former commit, nothing shows that the files of b are unchanged.
    assert found == {"a": waves.origin.head(), "b": first["b"] if is_cached else waves.origin.head()}
    assert waves.publisher.is_before(first["a"], found["a"])
    assert waves.publish() == found
    waves.publisher.close()


def test_a_cluster_waits_for_the_commit_of_another_client(tmp_path: Path) -> None:
    waves = Waves(tmp_path)
    older = load_table().releases[1]
    first = waves.publish()
    with Repository(Remote(waves.origin.url), tmp_path / "other") as other:
        chosen = (cluster("a"),)
        commit_plan(other, Planner(Bundler()), ManagementState(chosen, live=False, pins={chosen[0].key: older}))
    found = waves.publish()
    assert found == {"a": waves.origin.head(), "b": first["b"]}
    assert waves.publisher.is_before(first["a"], found["a"])
    # A commit that changes no file of theirs is nothing to wait for.
    waves.origin.push({"README.md": "ours"})
    assert waves.publish() == found
    waves.publisher.close()
