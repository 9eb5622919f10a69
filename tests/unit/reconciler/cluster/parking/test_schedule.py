"""A schedule parks and resumes a Cluster on time, and holds where a user or a move does something else."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from caphv.api.conditions import get_condition
from caphv.api.names import (
    ETCD_RESTORE_ANNOTATION,
    MOVING_ANNOTATION,
    PARK_ANNOTATION,
    PARK_SCHEDULE_ANNOTATION,
    PARKED_BY_SCHEDULE_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    PAUSED_BY_PARK_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of
from caphv.api.ownership import record
from caphv.api.parking import is_wanted
from caphv.runtime.errors import Forbidden, RequestError, ServerFault
from reconciler.cluster import controller
from reconciler.cluster.parking.schedule import follow_schedule
from reconciler.predicates import cluster_fields
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import TARGET, MemoryCase

pytestmark = pytest.mark.unit

SCHEDULE = {PARK_SCHEDULE_ANNOTATION: "Mon-Fri 20:00-06:00 Europe/Berlin; Sat-Sun"}
RECORDED = {**SCHEDULE, PARKED_BY_SCHEDULE_ANNOTATION: "true"}
DAY = datetime(2026, 11, 26, 12, tzinfo=UTC)
NIGHT = datetime(2026, 11, 26, 22, tzinfo=UTC)


def annotate(case: MemoryCase, annotations: dict[str, str], *, paused: bool = False, **metadata: Any) -> None:
    metadata = {**case.cluster["metadata"], "annotations": annotations, **metadata}
    case.management.put({**case.cluster, "metadata": metadata, "spec": {"paused": paused}})


def is_recorded(case: MemoryCase) -> bool:
    return PARKED_BY_SCHEDULE_ANNOTATION in annotations_of(case.cluster)


async def test_a_window_parks_the_cluster_and_its_end_resumes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    annotate(case, SCHEDULE)
    assert await follow_schedule(case.scope(), DAY) == 3600
    assert not is_wanted(case.cluster)
    # 19:30 in Berlin: the timer ends a moment after the change, and not before.
    assert 1800 < (await follow_schedule(case.scope(), DAY.replace(hour=18, minute=30)) or 0) <= 1801

    assert await follow_schedule(case.scope(), NIGHT) == 3600
    assert is_wanted(case.cluster)
    await follow_schedule(case.scope(), DAY)
    assert not is_recorded(case)


async def test_the_record_is_removed_with_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    annotate(case, {PARKED_BY_SCHEDULE_ANNOTATION: "true"})
    assert await follow_schedule(case.scope(), NIGHT) is None
    assert not is_recorded(case)


@pytest.mark.parametrize(("by_hand", "wanted"), [("true", True), ("false", False), ("yes", False)])
@pytest.mark.parametrize("now", [DAY, NIGHT])
async def test_what_a_user_has_set_wins(
    monkeypatch: pytest.MonkeyPatch, by_hand: str, wanted: bool, now: datetime
) -> None:
    case = await ready(monkeypatch)
    annotate(case, {**SCHEDULE, PARK_ANNOTATION: by_hand})
    await follow_schedule(case.scope(), now)
    assert is_wanted(case.cluster) is wanted


DELETED = {"deletionTimestamp": "2026-11-26T10:00:00Z", "finalizers": ["x"]}
PAUSED_WHEN_PARKED = {PARKED_SINCE_ANNOTATION: "x"}
PARKED = {PARKED_SINCE_ANNOTATION: "x", PAUSED_BY_PARK_ANNOTATION: "true"}
RESTORED = {PARKED_SINCE_ANNOTATION: "x", PAUSED_BY_PARK_ANNOTATION: "restore"}
RESTORING_ETCD = {ETCD_RESTORE_ANNOTATION: "{}"}
MOVING = {MOVING_ANNOTATION: "https://target"}


@pytest.mark.parametrize(
    ("annotations", "paused", "metadata"),
    [
        ({}, False, DELETED),
        (PAUSED_WHEN_PARKED, True, {}),
        (RESTORED, True, {}),
        (PARKED | MOVING, True, {}),
        (MOVING, True, {}),
        (RESTORING_ETCD, True, {}),
        (RESTORING_ETCD, False, {}),
    ],
    ids=[
        *("deleted", "paused before it was parked", "restored", "moved while parked", "moved"),
        *("etcd is restored", "etcd is restored without a pause"),
    ],
)
@pytest.mark.parametrize(("schedule", "now"), [(SCHEDULE, NIGHT), (RECORDED, DAY)])
async def test_a_cluster_that_is_held_or_deleted_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
    annotations: dict[str, str],
    paused: bool,
    metadata: Any,
    schedule: dict[str, str],
    now: datetime,
) -> None:
    case = await ready(monkeypatch)
    annotate(case, schedule | annotations, paused=paused, **metadata)
    assert await follow_schedule(case.scope(), now) is None
    assert annotations_of(case.cluster) == schedule | annotations


@pytest.mark.parametrize(("annotations", "now"), [(SCHEDULE, NIGHT), (RECORDED, DAY), (RECORDED, NIGHT)])
async def test_a_pause_holds_a_cluster_that_is_not_parked_without_an_old_record(
    monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str], now: datetime
) -> None:
    case = await ready(monkeypatch)
    annotate(case, annotations, paused=True)
    assert await follow_schedule(case.scope(), now) is None
    assert annotations_of(case.cluster) == SCHEDULE


async def test_a_parked_cluster_whose_pause_is_that_of_parking_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    annotate(case, RECORDED | PARKED, paused=True)
    await follow_schedule(case.scope(), DAY)
    assert not is_recorded(case)


def add_vm(case: MemoryCase, strategy: str, **annotations: str) -> None:
    """Add a worker with its VM."""
    vm = case.add_machine("w", control_plane=False)
    annotations = record(case.context.owner("HarvesterMachine", case.machines[-1])) | annotations
    metadata = {**vm["metadata"], "annotations": annotations}
    case.harvester.put({**vm, "metadata": metadata, "spec": {**vm["spec"], "runStrategy": strategy}})


def strategy_of(case: MemoryCase) -> str:
    vm = case.harvester.find("VirtualMachine", "w", TARGET)
    assert vm is not None
    return str(vm["spec"]["runStrategy"])


@pytest.mark.parametrize("error", [None, Forbidden(403, "Forbidden", "no"), ServerFault(500, "", "etcd")])
async def test_a_record_of_the_night_stops_no_cluster_that_a_user_has_paused(
    monkeypatch: pytest.MonkeyPatch, error: RequestError | None
) -> None:
    """The user had kept it running at night with `caphv.io/park: "false"`, and removes that by day."""
    monkeypatch.setattr(controller, "datetime", Clock)
    case = await ready(monkeypatch)
    add_vm(case, "RerunOnFailure")
    annotate(case, RECORDED, paused=True)
    if error:
        case.management.errors["patch Cluster demo"] = error
    with suppress(ServerFault):
        await case.reconcile()
    assert strategy_of(case) == "RerunOnFailure"
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)


@pytest.mark.parametrize("schedule", [SCHEDULE, RECORDED])
@pytest.mark.parametrize("annotations", [RESTORED, PARKED | MOVING], ids=["restored", "moved"])
async def test_a_parked_cluster_that_is_restored_or_moved_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str], schedule: dict[str, str]
) -> None:
    """Neither its record nor its VMs change, whether it is to be parked or resumed."""
    monkeypatch.setattr(controller, "datetime", Clock)
    case = await ready(monkeypatch)
    add_vm(case, "Halted", **{PARKED_STRATEGY_ANNOTATION: "RerunOnFailure"})
    annotate(case, schedule | annotations, paused=True)
    await case.reconcile()
    assert strategy_of(case) == "Halted"
    assert annotations_of(case.cluster) == schedule | annotations
    assert case.cluster["spec"]["paused"] is True
    is_restored = annotations is RESTORED
    assert case.condition("Parked") == (("False", "ParkBlocked") if is_restored else ("", ""))


@pytest.mark.parametrize("former", [{}, PARKED], ids=["running", "parked"])
async def test_a_cluster_whose_move_was_given_up_follows_its_schedule(
    monkeypatch: pytest.MonkeyPatch, former: dict[str, str]
) -> None:
    """A user has ended its pause, and left the annotation, which must not count with the pause of parking."""
    monkeypatch.setattr(controller, "datetime", Clock)
    monkeypatch.setattr(Clock, "current", NIGHT)
    case = await ready(monkeypatch)
    add_vm(case, "RerunOnFailure")
    annotate(case, SCHEDULE | former | MOVING)
    for _ in range(3):
        await case.reconcile()
    assert strategy_of(case) == "Halted"
    assert case.cluster["spec"]["paused"] is True
    assert MOVING_ANNOTATION not in annotations_of(case.cluster)

    annotate(case, {**annotations_of(case.cluster), PARK_ANNOTATION: "false"}, paused=True)
    await case.reconcile()
    assert strategy_of(case) == "RerunOnFailure"


@pytest.mark.parametrize("wanted", [{PARK_ANNOTATION: "true"}, RECORDED], ids=["by hand", "by schedule"])
async def test_vms_of_a_cluster_whose_etcd_is_restored_keep_running(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    """A server that stops in the middle of a reset loses its database."""
    monkeypatch.setattr(controller, "datetime", Clock)
    case = await ready(monkeypatch)
    add_vm(case, "RerunOnFailure")
    annotate(case, wanted | RESTORING_ETCD, paused=True)
    await case.reconcile()
    assert strategy_of(case) == "RerunOnFailure"
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)
    assert case.condition("Parked") == ("False", "ParkBlocked")


@pytest.mark.parametrize("annotations", [SCHEDULE, RECORDED])
async def test_an_invalid_schedule_changes_nothing_and_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str]
) -> None:
    case = await ready(monkeypatch)
    annotate(case, annotations | {PARK_SCHEDULE_ANNOTATION: "weekends"})
    for _ in range(2):
        assert await follow_schedule(case.scope(), NIGHT) is None
    assert is_recorded(case) is (annotations is RECORDED)
    assert case.events.count(("Warning", "ParkBlocked")) == 1
    assert "annotation caphv.io/park-schedule is weekends" in case.scope().memory.parking.schedule_problem


async def test_a_missing_right_is_reported_once_until_it_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    annotate(case, SCHEDULE)
    case.management.errors["patch Cluster demo"] = Forbidden(403, "Forbidden", "no")
    for _ in range(3):
        assert await follow_schedule(case.scope(), NIGHT) == 60
    assert "grant the provider's ServiceAccount patch" in case.scope().memory.parking.schedule_problem
    assert case.events.count(("Warning", "ParkBlocked")) == 1

    case.management.errors.clear()
    await follow_schedule(case.scope(), NIGHT)
    assert is_recorded(case)
    assert case.scope().memory.parking.schedule_problem == ""


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no"), ServerFault(500, "", "etcd")])
async def test_a_record_that_cannot_be_written_delays_nothing_else(
    monkeypatch: pytest.MonkeyPatch, error: RequestError
) -> None:
    monkeypatch.setattr(controller, "datetime", Clock)
    monkeypatch.setattr(Clock, "current", NIGHT)
    case = await ready(monkeypatch)
    annotate(case, SCHEDULE)
    case.management.put({**case.obj, "status": {}})
    case.management.errors["patch Cluster demo"] = error
    with suppress(ServerFault):
        await case.reconcile()
    assert case.condition("Ready")[0] == "True", "the phases have run"


async def test_a_parked_cluster_says_why_its_schedule_does_not_resume_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "datetime", Clock)
    monkeypatch.setattr(Clock, "current", NIGHT)
    case = await ready(monkeypatch)
    add_vm(case, "Halted", **{PARKED_STRATEGY_ANNOTATION: "Always"})
    annotate(case, RECORDED | PARKED, paused=True)
    await case.reconcile()
    before = parked_message(case)

    case.session.available = False
    for _ in range(2):
        annotate(case, RECORDED | PARKED | {PARK_SCHEDULE_ANNOTATION: "weekends"}, paused=True)
        await case.reconcile()
        assert case.condition("Parked")[0] == "True"
        assert parked_message(case).startswith(
            f"{before}; its schedule does not resume it: annotation caphv.io/park-schedule is weekends"
        )
        assert parked_message(case).count("weekends") == 2
    annotate(case, RECORDED | PARKED, paused=True)
    await case.reconcile()
    assert parked_message(case) == before


def parked_message(case: MemoryCase) -> str:
    """The message of condition `Parked`."""
    return str((get_condition(case.obj["status"]["conditions"], "Parked") or {}).get("message") or "")


class Clock(datetime):
    """A clock that a test sets."""

    current = DAY

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return cls.current


async def test_a_reconcile_follows_the_schedule_and_comes_back_for_its_next_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "datetime", Clock)
    case = await ready(monkeypatch)
    annotate(case, SCHEDULE)
    assert await case.reconcile() == 3600
    assert case.condition("Parked") == ("", "")

    monkeypatch.setattr(Clock, "current", NIGHT)
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is True
    assert case.condition("Parked")[0] == "True"

    monkeypatch.setattr(Clock, "current", DAY.replace(day=27))
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is False
    assert case.condition("Parked") == ("", "")

    annotate(case, {PARK_SCHEDULE_ANNOTATION: "weekends"})
    await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert ("Warning", "ParkBlocked") in case.events
    annotate(case, {})
    await case.reconcile()
    assert case.condition("Parked") == ("", "")


@pytest.mark.parametrize(
    "name", [PARK_SCHEDULE_ANNOTATION, PARKED_BY_SCHEDULE_ANNOTATION, MOVING_ANNOTATION, ETCD_RESTORE_ANNOTATION]
)
def test_a_changed_schedule_requeues_the_cluster(name: str) -> None:
    cluster: Obj = {"metadata": {"name": "demo"}}
    assert cluster_fields(cluster) != cluster_fields({"metadata": {"name": "demo", "annotations": {name: "x"}}})
