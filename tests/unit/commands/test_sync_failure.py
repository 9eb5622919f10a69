"""`caphv packager sync --apply` tells what it did and what it could not do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.object import Key
from commands.errors import InputError
from commands.options.management import ManagementOptions
from commands.packager import management
from commands.packager.sync_push import push
from packager.definitions.apply import ApplyFailure
from packager.definitions.source import Source
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.errors import GitError
from packager.git.pruning import Removal
from packager.planning.state import Planned
from packager.rendering.bundler import Batch

pytestmark = pytest.mark.unit


class Planner:
    def plan(self, *_: object) -> Planned:
        return Planned(Batch(), None, Plan(removed=(Removal("manifests/team-a/old", "", ("x",), definition=True),)))


class Store:
    """Its host accepts a push, and the connection ends."""

    def commit(self, plan: Any, _reason: Reason) -> None:
        plan(None)
        raise GitError("pushing: connection reset")

    def sync(self) -> None:
        raise GitError("reading branches: no route")


def test_clusters_are_named_while_it_is_unknown_whether_their_removal_was_pushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(management, "delete", lambda _flags, _names, *, dry_run=False: asked.append(dry_run) or [])
    monkeypatch.setattr(management, "drop", lambda _flags, plan, _snapshot: management.Dropped(plan, []))
    options = SimpleNamespace(confirmed=(), message="", dry_run=False, applied=True)
    store, planner = Store(), Planner()
    with pytest.raises(InputError) as failed:
        push(Source(), Reason("x"), store, planner, options)  # type: ignore[arg-type]
    first, second = failed.value.message.split("\n")
    assert first == "pushing: connection reset"
    assert second.startswith("Cluster team-a/old: whether its removal was pushed is unknown")
    assert asked == [True], "no Cluster is deleted that the repository may hold"


def test_clusters_whose_removal_was_pushed_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    held = "manifests/team-a/kept"
    snapshot = SimpleNamespace(entry=lambda path: object() if path == held else None)
    store: Any = SimpleNamespace(sync=lambda: snapshot)
    asked: list[list[str]] = []

    def delete(_flags: object, names: list[str]) -> list[ApplyFailure]:
        asked.append(names)
        metadata = {"name": "refused", "namespace": "team-a"}
        return [ApplyFailure({"kind": "Cluster", "metadata": metadata}, "forbidden")]

    monkeypatch.setattr(management, "delete", delete)
    lines = management.after_failure(ManagementOptions(), store, ["team-a/kept", "team-a/gone", "team-a/refused"])
    assert asked == [["team-a/gone", "team-a/refused"]]
    assert lines[0] == "asked for the deletion of Clusters team-a/gone"
    assert "team-a/refused" in lines[1]
    assert "the repository no longer holds it" in lines[1]


def test_a_commit_names_no_change_that_was_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    check = b"{kind: MachineHealthCheck, metadata: {name: a-mhc}, spec: {clusterName: a}}"
    cluster = b"{kind: Cluster, metadata: {name: a}}"
    path = "manifests/team-a/a/cluster/cluster.yaml"
    details = {"team-a/a": ("MachineHealthCheck a-mhc removed",)}
    plan = Plan({path: cluster}, changed=("manifests/team-a/a",), subject="Update a", details=details)
    refused = {Key("team-a", "a"): [ApplyFailure({"kind": "MachineHealthCheck", "metadata": {}}, "forbidden")]}
    monkeypatch.setattr(management, "on_cluster", lambda *_: refused)
    snapshot: Any = SimpleNamespace(read={path: b"---\n".join([cluster + b"\n", check])}.get)
    assert management.drop(ManagementOptions(), plan, snapshot) == (Plan(), refused[Key("team-a", "a")])
