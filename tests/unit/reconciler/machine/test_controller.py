"""A workload API that fails does not keep a machine from reporting its VM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import conditions
from caphv.api.names import MACHINE_FINALIZER, ConditionType
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from caphv.runtime.errors import ApiError, Forbidden, NotFound, ServerFault, Unreachable
from caphv.runtime.queue import WorkQueue
from reconciler.blocked import Blocked, Cause
from reconciler.context import Context
from reconciler.machine import controller
from reconciler.machine.scope import MachineScope
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics, Watched

pytestmark = pytest.mark.unit

KEY = Key("team", "one")
VM_READY = ConditionType.VM_PROVISIONING_READY
NODE: Obj = {
    "metadata": {"name": "one"},
    "spec": {"taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized"}]},
}
CLUSTER: Obj = {
    "metadata": {"namespace": "team", "name": "demo", "uid": "c"},
    "spec": {"targetNamespace": "vms"},
    "status": {"initialization": {"infrastructureProvisioned": True}},
}
RUNNING = {"printableStatus": "Running"}
ADDRESS = {"interfaces": [{"name": "nic-0", "ipAddress": "10.0.0.1"}], "phase": "Running"}


class Machine:
    """A machine with a Node, which the workload API does not let anyone patch, and a VM with this status."""

    def __init__(self, error: Exception, vm_status: Obj, *, ready: bool) -> None:
        self.error = error
        self.events: list[str] = []
        self.patches = 0
        self.memory = Memory()
        self.clusters = WorkQueue[Key]("clusters")
        metadata: Obj = {"namespace": "vms", "name": "one", "uid": "vm", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.vm: Obj = {"metadata": metadata, "spec": {"template": {"spec": {}}}, "status": vm_status}
        owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "one", "uid": "m"}
        metadata = {"namespace": "team", "name": "one", "uid": "u", "ownerReferences": [owner]}
        status = {"ready": ready, "initialization": {"provisioned": True}} if ready else {}
        self.obj: Obj = {"metadata": metadata, "spec": {"providerID": "harvester://vm"}, "status": status}

    async def reconcile(self) -> None:
        await controller.MachineReconciler(cast(Context, self._context())).reconcile(KEY)

    def reason_and_message(self, condition: str = "VMProvisioningReady") -> tuple[str, str]:
        found = conditions.get_condition(self.obj["status"]["conditions"], condition)
        assert found
        return found["reason"], found.get("message", "")

    @property
    def lost_namespace(self) -> bool:
        """Whether the cluster is to create its target namespace again."""
        return self.memory.cluster(CLUSTER).namespace_lost

    def _context(self) -> Any:
        instances = SimpleNamespace(get=lambda *_: {"metadata": {"uid": "i"}, "status": ADDRESS})
        claims = SimpleNamespace(get=lambda *_: None)
        namespace = SimpleNamespace(synced=True, instances=instances, claims=claims)
        session = SimpleNamespace(error=None, synced=True, fingerprint="h", watch_namespace=lambda _: namespace)
        caches = SimpleNamespace(
            harvester_machines=SimpleNamespace(get=lambda *_: self.obj),
            machines=SimpleNamespace(get=lambda *_: {"metadata": {}}),
            cluster_of=lambda _: CLUSTER,
            harvester_cluster_of=lambda _: CLUSTER,
        )
        workloads = SimpleNamespace(node=lambda *_: NODE, client=lambda _: self, ensure=_nothing, hint=lambda _: None)
        return SimpleNamespace(
            caches=caches,
            memory=self.memory,
            updates_in_place=False,
            topics=Topics(),
            queues=SimpleNamespace(machines=WorkQueue[Key]("test"), clusters=self.clusters),
            sessions=SimpleNamespace(of=lambda _: session),
            workloads=workloads,
            ensure_finalizer=_nothing,
            write_status=self._write,
            owner=lambda *_: Owner("HarvesterMachine", "team", "one", "u", "here"),
            event=lambda _resource, _obj, _type, reason, message: self.events.append(f"{reason}: {message}"),
        )

    async def patch(self, *_: Any, **_more: Any) -> Obj:
        self.patches += 1
        raise self.error

    async def _write(self, _informer: Any, _obj: Obj, draft: StatusDraft) -> None:
        self.obj = {**self.obj, "status": draft.fields}


async def _nothing(*_: Any) -> None:
    return


@pytest.fixture(autouse=True)
def phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The VM exists and is as the machine wants it."""

    async def ensure_vm(scope: Any) -> Obj:
        vm: Obj = scope.context.workloads.client(None).vm
        return vm

    monkeypatch.setattr(controller, "ensure_vm", ensure_vm)
    monkeypatch.setattr(controller, "report_drift", lambda *_: None)


@pytest.mark.parametrize("error", [Unreachable("no route"), Forbidden(403, "Forbidden", "may not patch nodes")])
@pytest.mark.parametrize("ready", [True, False])
async def test_vm_is_reported_although_the_node_cannot_be_patched(error: ApiError | Unreachable, ready: bool) -> None:
    machine = Machine(error, {"printableStatus": "Paused"}, ready=ready)
    with pytest.raises(type(error)):
        await machine.reconcile()
    reason, message = machine.reason_and_message()
    assert reason == "VMProvisioningFailed"
    assert "the VM is paused" in message
    assert not machine.obj["status"]["ready"]
    # An API that does not answer is normal for a while: its only machine may be migrating.
    refused = isinstance(error, Forbidden)
    assert any("cannot initialize Node one" in event for event in machine.events) is refused


async def test_machine_with_a_running_vm_gets_ready_and_its_node_is_tried_once_a_reconcile() -> None:
    machine = Machine(Unreachable("no route"), RUNNING, ready=False)
    with pytest.raises(Unreachable):
        await machine.reconcile()
    assert machine.obj["status"]["ready"]
    assert machine.patches == 1


async def test_refused_provider_id_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Node has registered with another ID, and the VM is paused."""

    async def refuse(*_: Any) -> None:
        raise Forbidden(403, "Forbidden", "providerID is immutable")

    monkeypatch.setattr(MachineScope, "patch", refuse)
    monkeypatch.setitem(NODE["spec"], "providerID", "k3s://one")
    machine = Machine(Unreachable("no route"), {"printableStatus": "Paused"}, ready=True)
    with pytest.raises(Unreachable):
        await machine.reconcile()
    assert "the VM is paused" in machine.reason_and_message()[1]
    assert any("cannot write providerID k3s://one of Node one" in event for event in machine.events)
    assert machine.patches == 1, "the taint is removed"


async def test_webhook_that_does_not_answer_is_what_a_new_machine_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'failed calling webhook "vharvestermachine.v1beta1.kb.io": connection refused'
    fault = ServerFault(500, "InternalError", text)

    async def refuse(*_: Any) -> str:
        raise fault

    monkeypatch.setattr(controller, "set_provider_id", refuse)
    machine = Machine(fault, RUNNING, ready=False)
    with pytest.raises(ServerFault):
        await machine.reconcile()
    assert machine.reason_and_message() == ("VMProvisioningFailed", f"a request was refused: {text}")


async def test_lost_target_namespace_is_reported_and_left_to_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    details = {"kind": "namespaces", "name": "vms"}
    lost = NotFound(404, "NotFound", 'namespaces "vms" not found', details)

    async def refuse(*_: Any) -> Obj:
        raise lost

    monkeypatch.setattr(controller, "ensure_vm", refuse)
    machine = Machine(lost, RUNNING, ready=False)
    with pytest.raises(NotFound):
        await machine.reconcile()
    reason, message = machine.reason_and_message()
    assert reason == "VMProvisioningFailed"
    assert 'namespaces "vms" not found' in message
    assert machine.lost_namespace
    assert machine.clusters.idle is False


LOST = "VirtualMachine vms/one no longer exists and will not be recreated"


@pytest.mark.parametrize("deleting", [False, True])
async def test_a_lost_vm_is_still_lost_during_an_outage(monkeypatch: pytest.MonkeyPatch, deleting: bool) -> None:
    async def unreachable(_scope: Any) -> Obj:
        raise Blocked(
            VM_READY, "HarvesterUnreachable", "Harvester is unreachable", Watched.CONNECTION, cause=Cause.UNKNOWN
        )

    monkeypatch.setattr(controller, "ensure_vm", unreachable)
    monkeypatch.setattr(controller, "delete_machine", unreachable)
    monkeypatch.setattr(controller, "GRACE_SECONDS", 0)
    machine = Machine(Unreachable("no route"), RUNNING, ready=False)
    lost = [
        {"type": kind, "status": "False", "reason": "MachineNotFound", "message": LOST} for kind in (VM_READY, "Ready")
    ]
    machine.obj["status"] = {"ready": False, "conditions": lost}
    if deleting:
        machine.obj["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [MACHINE_FINALIZER]}
    await machine.reconcile()
    # A deletion waits for Harvester, whatever happened to the VM.
    expected = ("HarvesterUnreachable", "Harvester is unreachable") if deleting else ("MachineNotFound", LOST)
    for condition in (VM_READY, "Ready"):
        assert machine.reason_and_message(condition) == expected
