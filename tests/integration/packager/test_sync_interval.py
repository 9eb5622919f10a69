"""`caphv packager sync --interval`: new commits, refused objects and removals, round by round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import Result

from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin
from tests.support.packager.sync import Management, call

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_environment")]


def rounds_of(
    definitions: Origin, origin: Origin, monkeypatch: pytest.MonkeyPatch, each: Callable[[int], None], *more: object
) -> Result:
    """Keep syncing, and call `each` after each round with its number, from one, until it raises KeyboardInterrupt."""
    count = 0
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal count, now
        count += 1
        now += seconds
        each(count)

    monkeypatch.setattr("packager.contents.uninstall.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("commands.packager.sync.time", SimpleNamespace(sleep=sleep))
    return call("sync", "--source-repo", definitions.url, "--repo", origin.url, *more)


def test_with_an_interval_new_commits_are_seen_and_nothing_else_is_done(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"a.yaml": yaml.safe_dump(definition("a"))})
    rounds: list[int] = []

    def sleep(_seconds: float) -> None:
        rounds.append(origin.count())
        if len(rounds) == 2:
            definitions.push({"b.yaml": yaml.safe_dump(definition("b"))})
        if len(rounds) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("commands.packager.sync.time", SimpleNamespace(sleep=sleep))
    result = call("sync", "--source-repo", definitions.url, "--repo", origin.url, "--interval", 5)
    assert rounds == [1, 1, 2, 2]
    assert result.stdout.count("pushed") == 2
    assert f"Source: {definitions.url}@{definitions.head()}" in origin.message()
    assert call("sync", tmp_path, "--repo", origin.url, "--interval", 5).exit_code == 2


def test_with_an_interval_refused_objects_are_applied_again(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    management = Management(monkeypatch)
    management.refused = {"team-a/a"}
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"a.yaml": yaml.safe_dump(definition("a"))})
    applied: list[int] = []

    def each(number: int) -> None:
        applied.append(management.applied)
        if number == 2:
            management.refused = set()
        if number == 5:
            raise KeyboardInterrupt

    rounds_of(definitions, origin, monkeypatch, each, "--interval", 5, "--apply")
    assert applied == [1, 2, 3, 3, 3]


def test_with_an_interval_a_disabled_add_on_is_removed_once_fleet_had_time_to_deploy_that(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"a.yaml": yaml.safe_dump(definition("a"))})
    held: list[bool] = []

    def each(number: int) -> None:
        held.append("clusters/team-a/a/csi/fleet.yaml" in origin.files())
        if number == 1:
            definitions.push({"a.yaml": yaml.safe_dump(definition("a", addons={"csi": {"enabled": False}}))})
        if number in (3, 4, 5):
            # Other commits do not shorten the wait.
            definitions.push({"note.yaml": f"number: {number}"})
        if number == 7:
            raise KeyboardInterrupt

    rounds_of(definitions, origin, monkeypatch, each, "--interval", 300)
    # The second round makes the first commit, and the third one reads it. 900 seconds later the second commit follows.
    assert held == [True, True, True, True, True, False, False]
    assert origin.count() == 3


def test_with_an_interval_a_confirmed_cluster_is_removed_once_fleet_had_time_to_lift_its_protection(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"a.yaml": yaml.safe_dump(definition("a")), "b.yaml": yaml.safe_dump(definition("b"))})
    held: list[bool] = []

    def each(number: int) -> None:
        held.append("manifests/team-a/a/cluster/cluster.yaml" in origin.files())
        if number == 1:
            definitions.remove("a.yaml")
        if number in (2, 3, 4, 5):
            # Commits of other clients do not shorten the wait.
            origin.push({f"note-{number}.txt": "another client"})
        if number == 6:
            raise KeyboardInterrupt

    options = ("--interval", 300, "--confirm", "team-a/a", "--max-prune", 10)
    rounds_of(definitions, origin, monkeypatch, each, *options)
    assert held == [True, True, True, True, True, False]
