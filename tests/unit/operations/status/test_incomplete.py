"""Objects that were created a moment ago, or are incomplete: nothing in them is taken for granted."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from operations.capacity.addresspools import Owners, audit
from operations.change.deletionreport import forcible, leftovers_of, pending_deletions, pending_remains
from operations.status.assembly import overview_of, parts_of
from operations.status.page.content import latest_events
from tests.support.clusters import NOW, Builder

pytestmark = pytest.mark.unit

KINDS = ("cluster", "control_plane", "deployment", "harvester_cluster", "machine", "harvester_machine")
FIELDS = ("spec", "status", "labels", "annotations", "conditions")


def without(kind: str, field: str, *, empty: bool) -> Builder:
    """Return a cluster one of whose objects lacks a field, or has it without a value."""
    builder = Builder(workers=1)
    objs = {"machine": builder.machines, "harvester_machine": builder.harvester_machines}.get(kind)
    obj: Obj = objs["worker-1"] if objs else getattr(builder, kind)
    place = obj["status"] if field == "conditions" else obj if field in ("spec", "status") else obj["metadata"]
    place.pop(field, None)
    if empty:
        place[field] = None
    return builder


@pytest.mark.parametrize("empty", [False, True], ids=["absent", "null"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_with_an_incomplete_object_is_shown(kind: str, field: str, empty: bool) -> None:
    objects = without(kind, field, empty=empty).objects()
    found = overview_of(objects, NOW)
    assert [cluster.name for cluster in found.clusters] in (["shop"], [])
    for parts in parts_of(objects):
        assert isinstance(pending_deletions(parts, NOW), tuple)
        assert isinstance(pending_remains(parts, NOW), tuple)
        assert isinstance(leftovers_of(parts), tuple)
        assert isinstance(forcible(parts), tuple)


@pytest.mark.parametrize("status", [{}, {"status": None}, {"status": {}}])
def test_a_machine_without_a_status_holds_its_address_by_name(status: Obj) -> None:
    machine = {"metadata": {"name": "m", "namespace": "team"}, **status}
    pool: Obj = {"metadata": {"name": "p"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}}
    pool["status"] = {"allocated": {"10.0.0.5": "team/m"}}
    (report,) = audit([pool], Owners("uid", machines={Key("team", "m"): machine}), "https://h")
    (entry,) = report.entries
    assert (entry.owner, entry.id) == ("HarvesterMachine team/m", "team/m")


def test_an_event_about_nothing_is_listed() -> None:
    events: list[Any] = [{"metadata": {"name": "e", "namespace": "team"}, "message": "text"}]
    (found,) = latest_events(events)
    assert (found["message"], found["namespace"], found["count"]) == ("text", "", 1)
