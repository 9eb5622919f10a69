"""The steps of a move: their order, what stops them, and what they wait for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from caphv.api.object import Key
from caphv.api.objectid import ObjectId
from caphv.runtime.errors import ServerFault, Unreachable
from operations.backup import adoption, movedobjects, preflight, writing
from operations.backup.adoption import VirtualMachines
from operations.change import move as protocol
from operations.status.check import Check, Result
from operations.status.query import Query
from tests.support.movesides import Sides, replace_steps, vms

pytestmark = pytest.mark.unit

AWAY = Unreachable("https://source: no answer")


@dataclass(frozen=True)
class Outcome:
    """Why a move stopped, if it did, and what it reported."""

    problems: tuple[str, ...]
    reports: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((*self.reports, *self.problems))


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    return replace_steps(monkeypatch)


async def move(*, timeout: float = 10.0) -> Outcome:
    """Plan a move and run it."""
    client: Any = None
    clients, query = protocol.Sides(client, client), Query("team", frozenset([Key("team", "shop")]))
    backup = await protocol.read_source(client, query)
    plan = await protocol.plan_move(clients, backup, await writing.prepare(client, backup))

    reports: list[str] = []
    problems: tuple[str, ...] = ()
    try:
        await protocol.Move(clients, plan, query, False, timeout, reports.append).run()
    except protocol.MoveError as error:
        problems = error.problems
    return Outcome(problems, tuple(reports))


@pytest.mark.parametrize("step", ["read", "vms"])
async def test_a_server_that_does_not_answer_is_asked_again(step: str, sides: Sides) -> None:
    sides.failures = {step: [AWAY, ServerFault(503, "", "starting"), AWAY]}
    result = await move()
    assert result.problems == ()


async def test_nothing_is_deleted_before_harvester_says_that_the_target_has_the_vms(sides: Sides) -> None:
    sides.vms = [vms("source"), vms("source"), VirtualMachines(unread={"team/cp-1"}), vms("target")]
    result = await move()
    assert result.problems == ()
    after_pause = sides.steps[sides.steps.index("pause") :]
    assert after_pause[-5:] == ["vms", "vms", "vms", "prepare", "delete"]
    assert "the target has adopted 1 VM; none was restarted" in result.text
    assert result.reports[-1].startswith("deleted on the source. Follow the clusters on the target: ")


async def test_vms_that_the_target_does_not_adopt_in_time_are_named(sides: Sides) -> None:
    sides.vms = [vms("source")]
    result = await move(timeout=1.0)
    assert "delete" not in sides.steps
    assert any(
        problem.startswith("the target has not adopted the VMs of team/cp-1: check the provider of the target")
        for problem in result.problems
    )


async def test_a_server_that_never_answers_is_named_as_the_reason(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_vms(*_: object) -> VirtualMachines:
        if "pause" in sides.steps:
            await asyncio.sleep(60)
        return vms("source")

    monkeypatch.setattr(adoption, "read_vms", read_vms)
    result = await move(timeout=0.01)
    assert result.problems == ("a request failed: no answer within 0.01 seconds",)


@pytest.mark.parametrize("now", [vms("target", uid="another"), vms("target", instance="another")])
async def test_a_vm_that_was_replaced_or_restarted_is_named_and_nothing_deleted(
    sides: Sides, now: VirtualMachines
) -> None:
    sides.vms = [vms("source"), now]
    result = await move()
    assert "delete" not in sides.steps
    assert any(
        problem.startswith("the VMs of team/cp-1 were replaced or restarted meanwhile") for problem in result.problems
    )


async def test_a_vm_that_was_absent_before_is_not_waited_for(sides: Sides) -> None:
    sides.vms = [VirtualMachines(absent={"team/cp-1"})]
    assert (await move()).problems == ()


async def test_what_is_absent_on_the_target_is_not_deleted_on_the_source(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ObjectId("cluster.x-k8s.io", "Machine", "team", "shop-0")
    monkeypatch.setattr(movedobjects, "uncopied_objects", lambda _: [lost])
    result = await move()
    assert "delete" not in sides.steps
    assert f"does not exist on the target: {lost}" in result.text
    assert "deleted on the source" not in result.text


async def test_what_cannot_be_deleted_on_the_source_is_named(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete_source(*_: object) -> list[str]:
        return ["Machine team/shop-0: refused"]

    monkeypatch.setattr(movedobjects, "delete_source", delete_source)
    result = await move()
    assert "adopted by the target, and not deleted on the source: Machine team/shop-0: refused" in result.text
    assert "deleted on the source. Follow" not in result.text


async def test_clusters_are_checked_again_once_they_are_paused(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check("target", "Move", Result.ERROR, "Machine team/new exists", "delete it")
    monkeypatch.setattr(preflight, "checks", lambda *_: [wrong] if "pause" in sides.steps else [])
    result = await move()
    assert "create" not in sides.steps
    assert any(problem.startswith("Machine team/new exists. delete it") for problem in result.problems)


@pytest.mark.parametrize("step", ["create", "verify", "unpause"])
async def test_objects_that_are_not_as_wanted_on_the_target_stop_the_move(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def failed(*_: object) -> list[str]:
        return ["Machine team/shop-0: refused"]

    monkeypatch.setattr(writing, step, failed)
    result = await move()
    assert "delete" not in sides.steps
    assert any(problem.startswith("Machine team/shop-0: refused") for problem in result.problems)


async def test_a_resumed_move_creates_nothing(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movedobjects, "is_resumed", lambda _: True)
    result = await move()
    assert result.problems == ()
    assert sides.steps.count("unpause") == 1
    assert not {"try", "create", "verify"} & {*sides.steps}
    assert "created" not in result.text
