"""A machine that was restored while its cluster was parked adopts its VM, and nothing else happens to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from caphv.runtime.queue import WorkQueue
from reconciler.blocked import Blocked, Cause
from reconciler.context import Context
from reconciler.machine import controller
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics, Watched

pytestmark = pytest.mark.unit

KEY = Key("team", "one")
VM: Obj = {"metadata": {"namespace": "vms", "name": "one", "uid": "vm"}}
PARKED = {names.PARK_ANNOTATION: "true", names.PARKED_SINCE_ANNOTATION: "x", names.PAUSED_BY_PARK_ANNOTATION: "true"}


class Machine:
    """A paused machine, and the VMs that it adopts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vm: Obj | None = VM
        self.refusal: Blocked | None = None
        self.adopted: list[Obj] = []
        self.memory = Memory()
        self.annotations: dict[str, str] = dict(PARKED)
        owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "one", "uid": "m"}
        metadata = {"namespace": "team", "name": "one", "uid": "u", "ownerReferences": [owner]}
        self.obj: Obj = {"metadata": metadata, "spec": {}, "status": {"ready": True}}
        monkeypatch.setattr(controller, "adopt_or_refuse", self._adopt)

    async def reconcile(self) -> float | None:
        result = await controller.MachineReconciler(cast(Context, self._context())).reconcile(KEY)
        return result.requeue_after if result else None

    async def _adopt(self, _scope: Any, vm: Obj) -> Obj:
        if self.refusal:
            raise self.refusal
        self.adopted.append(vm)
        return vm

    def _context(self) -> Any:
        metadata = {"namespace": "team", "name": "demo", "uid": "c", "annotations": self.annotations}
        cluster = {"metadata": metadata, "spec": {"paused": True, "targetNamespace": "vms"}}
        namespace = SimpleNamespace(synced=True, vms=SimpleNamespace(get=lambda *_: self.vm))
        session = SimpleNamespace(error=None, synced=True, fingerprint="h", watch_namespace=lambda _: namespace)
        caches = SimpleNamespace(
            harvester_machines=SimpleNamespace(get=lambda *_: self.obj),
            machines=SimpleNamespace(get=lambda *_: {"metadata": {}}),
            cluster_of=lambda _: cluster,
            harvester_cluster_of=lambda _: cluster,
        )
        return SimpleNamespace(
            caches=caches,
            memory=self.memory,
            topics=Topics(),
            queues=SimpleNamespace(machines=WorkQueue[Key]("test")),
            sessions=SimpleNamespace(of=lambda _: session),
            write_status=self._write,
            owner=lambda *_: Owner("HarvesterMachine", "team", "one", "u", "here"),
        )

    async def _write(self, _informer: Any, _obj: Obj, draft: StatusDraft) -> None:
        self.obj = {**self.obj, "status": draft.fields}


async def test_the_vm_of_a_parked_machine_is_adopted_and_its_status_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert await machine.reconcile() is None
    assert machine.adopted == [VM]
    assert machine.obj["status"]["ready"] is True
    assert [condition["type"] for condition in machine.obj["status"]["conditions"]] == ["Paused"]


def pause_by_user(machine: Machine) -> None:
    del machine.annotations[names.PAUSED_BY_PARK_ANNOTATION]


def await_confirmation(machine: Machine) -> None:
    machine.annotations[names.PAUSED_BY_PARK_ANNOTATION] = "restore"


def move(machine: Machine) -> None:
    machine.annotations[names.MOVING_ANNOTATION] = "https://target"


def pause_machine(machine: Machine) -> None:
    machine.obj["metadata"]["annotations"] = {names.PAUSED_ANNOTATION: ""}


def delete(machine: Machine) -> None:
    machine.obj["metadata"] |= {"deletionTimestamp": "2026-11-27T10:00:00Z", "finalizers": ["x"]}


def lose_vm(machine: Machine) -> None:
    machine.vm = None


@pytest.mark.parametrize(
    "change",
    [pause_by_user, await_confirmation, move, pause_machine, delete, lose_vm],
    ids=lambda change: change.__name__,
)
async def test_nothing_else_of_a_paused_machine_is_touched(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    machine = Machine(monkeypatch)
    change(machine)
    assert await machine.reconcile() is None
    assert machine.adopted == []


async def test_a_machine_waits_for_a_harvester_that_is_shut_down_without_looking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    refusal = Blocked(
        ConditionType.VM_PROVISIONING_READY, Reason.VM_PROVISIONING_FAILED, "no", Watched.VM, cause=Cause.OUTAGE
    )
    machine.refusal = refusal
    assert await machine.reconcile() is None


async def test_a_refused_adoption_changes_no_condition_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.refusal = Blocked(ConditionType.VM_PROVISIONING_READY, Reason.VM_PROVISIONING_FAILED, "no", Watched.VM)
    assert await machine.reconcile() == 60
    assert [condition["type"] for condition in machine.obj["status"]["conditions"]] == ["Paused"]
    assert machine.memory.machine(machine.obj).adoption_refusal == "no"
    machine.refusal = None
    await machine.reconcile()
    assert machine.memory.machine(machine.obj).adoption_refusal == ""
