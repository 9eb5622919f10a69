"""The states that real virt-controllers reported, seen by a machine: nothing that is healthy is a Warning."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from tests.support.observed import Record, records
from tests.support.reconciler.vmlife import VmLife

pytestmark = pytest.mark.unit

LIFE = [*records("kubevirt/life-v1.7.0.yaml"), *records("kubevirt/life-v1.4.0.yaml")]
REQUESTED = {"creation", "migrate", "restart", "poweroff"}


def conditions_of(state: Obj) -> list[Obj]:
    found = []
    for kind in ("Synchronized", "PodScheduled"):
        if kind in state:
            status, _, rest = state[kind].partition(" ")
            reason, _, message = rest.partition(": ")
            found.append({"type": kind, "status": status, "reason": reason, "message": message})
    return found


async def show(life: VmLife, state: Obj, *, uid: str, strategy: str) -> None:
    """Show the machine a state, for two seconds: longer than transient states are withheld."""
    more: dict[str, Any] = {"conditions": conditions_of(state)}
    if state.get("host"):
        more["nodeName"] = state["host"]
    if state.get("deleting"):
        more["deleting"] = True
    exists = ("instance" in state and state["instance"] != "") or "deleting" in state
    await life.state(state["vm"], state["instance"] if exists else None, strategy=strategy, uid=uid, **more)
    await life.passes(2)


@pytest.mark.parametrize("record", LIFE, ids=str)
async def test_life_as_a_real_controller_reported_it(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    life = VmLife(monkeypatch)
    if record.name != "creation":
        await life.runs()
        life.events.clear()
        life.transitions.clear()

    uid, strategy = "i", "Halted" if record.name == "stop" else "Always"
    for state in record.outcome["states"]:
        if not state["instance"]:
            uid = "j"
        await show(life, state, uid=uid, strategy=strategy)
    if record.name != "stop":
        await life.runs(uid=uid, host=record.outcome["states"][-1]["host"])

    if record.name in REQUESTED:
        assert life.warnings() == []
        assert life.flips() == (["False", "True"] if record.name == "creation" else [])
    else:
        assert life.warnings()
        assert life.flips()[0] == "False"
