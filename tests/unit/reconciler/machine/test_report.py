"""Restarts and migrations of a VM are reported once, however late the status is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import Obj
from reconciler.machine.report import report_vm
from reconciler.machine.scope import MachineScope
from reconciler.memory.machine import MachineMemory
from reconciler.statusdraft import StatusDraft

pytestmark = pytest.mark.unit

VM: Obj = {"metadata": {"name": "one", "uid": "vm"}}


class Machine:
    """A machine whose status has instance `first` on host `h1`, until it is written again."""

    def __init__(self) -> None:
        self.memory = MachineMemory("u")
        self.events: list[str] = []
        virtual_machine = {"uid": "vm", "instanceUID": "first", "host": "h1"}
        self.obj: Obj = {"metadata": {"name": "one"}, "status": {"virtualMachine": virtual_machine}}

    def reconcile(self, instance: str, host: str, *, write: bool = False) -> list[str]:
        """Reconcile an instance on a host; return the Events of this reconcile."""
        self.events = []
        draft = StatusDraft(self.obj)
        scope = SimpleNamespace(
            draft=draft,
            cluster_spec={},
            memory=self.memory,
            failure_domains=(),
            host_of=lambda _: None,
            event=lambda reason, _message: self.events.append(reason),
            warning_event=lambda reason, _message: self.events.append(reason),
        )
        vmi: Any = {"metadata": {"uid": instance}, "status": {"nodeName": host}}
        report_vm(cast(MachineScope, scope), VM, vmi)
        if write:
            self.obj = {**self.obj, "status": draft.fields}
        return self.events


def test_restart_is_reported_once_before_the_status_is_written_and_the_next_one_again() -> None:
    machine = Machine()
    assert machine.reconcile("second", "h1") == ["VMRestarted"]
    assert machine.reconcile("second", "h1") == []
    assert machine.reconcile("second", "h1", write=True) == []
    assert machine.reconcile("second", "h1") == []
    assert machine.reconcile("third", "h1") == ["VMRestarted"]
    machine.memory = MachineMemory("u")
    assert machine.reconcile("third", "h1") == ["VMRestarted"], "a restart of the provider forgets it"


def test_migration_is_reported_once_and_the_way_back_too() -> None:
    machine = Machine()
    assert machine.reconcile("first", "h2") == ["VMMigrated"]
    assert machine.reconcile("first", "h2", write=True) == []
    assert machine.reconcile("first", "h1") == ["VMMigrated"]


def test_instance_of_an_adopted_vm_is_no_restart() -> None:
    machine = Machine()
    assert machine.reconcile("first", "h1") == []
    machine.obj["status"] = {"virtualMachine": {"uid": "adopted"}}
    assert machine.reconcile("other", "h2") == []


def test_what_happens_after_an_unwritten_restart_is_compared_with_it() -> None:
    machine = Machine()
    assert machine.reconcile("second", "h1") == ["VMRestarted"]
    assert machine.reconcile("second", "h2") == ["VMMigrated"]
    assert machine.reconcile("second", "h2", write=True) == []
