"""The simulated Harvester stops no VM of which a backup is being made or has failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from caphv.api.object import Obj
from sandbox.harvester.admission_rules import check_stop
from sandbox.harvester.informers import Informers

pytestmark = pytest.mark.unit

RUNNING: Obj = {"runStrategy": "Always"}
HALTED: Obj = {"runStrategy": "Halted"}
MAKING: Obj = {"sourceUID": "uid", "readyToUse": False}


def vm(spec: Obj, *actions: str) -> Obj:
    requests = [{"action": action} for action in actions]
    metadata = {"namespace": "vms", "name": "one", "uid": "uid"}
    return {"metadata": metadata, "spec": spec, "status": {"stateChangeRequests": requests}}


def message(before: Obj, after: Obj, *backups: Obj) -> str:
    store = [{"metadata": {"name": "nightly"}, **({"status": status} if status else {})} for status in backups]
    informers = cast(Informers, SimpleNamespace(vm_backups=SimpleNamespace(store=store)))
    denial = check_stop(after, before, informers)
    assert denial is None or (denial.code, denial.reason) == (400, "BadRequest")
    return denial.message if denial else ""


@pytest.mark.parametrize(
    ("backup", "denied"),
    [
        ({}, False),
        (MAKING, True),
        ({**MAKING, "sourceUID": "another"}, False),
        ({**MAKING, "readyToUse": True}, False),
        ({**MAKING, "error": {"message": "in error state"}}, True),
    ],
)
def test_stop_waits_for_backups(backup: Obj, denied: bool) -> None:
    text = message(vm(RUNNING), vm(HALTED), backup)
    assert text.startswith("there is vmbackup in progress for vm vms/one, please wait") is denied


@pytest.mark.parametrize(
    ("before", "after", "denied"),
    [
        (vm(RUNNING), vm(RUNNING), False),
        (vm({"running": True}), vm({"running": False}), True),
        (vm({"runStrategy": "RerunOnFailure"}), vm(HALTED), False),
        (vm(HALTED), vm(RUNNING), False),
        (vm(RUNNING), vm(RUNNING, "Stop", "Start"), True),
        (vm(RUNNING), vm(RUNNING, "Start"), False),
    ],
)
def test_only_stops_and_restarts_wait(before: Obj, after: Obj, denied: bool) -> None:
    assert bool(message(before, after, MAKING)) is denied
