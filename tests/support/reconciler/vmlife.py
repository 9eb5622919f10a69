"""One machine whose VM a test moves from state to state, at times that the test chooses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import conditions
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from caphv.runtime.queue import WorkQueue
from reconciler.context import Context
from reconciler.machine import controller, running
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics

KEY = Key("team", "one")
CLAIM = "one-disk-0-abcde"
NICS = [{"name": "nic-1", "ipAddress": "10.0.0.1"}]
SILENT_NICS = [{"name": "nic-1", "mac": "52:54:00:00:00:01", "infoSource": "domain"}]
AGENT = {"type": "AgentConnected", "status": "True"}
UUID = "6c3f1c9e-0000-4000-8000-000000000001"


class VmLife:
    """A HarvesterMachine and its VM; reconciles record Events and each change of a condition's status.

    The clock moves only in `passes`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "one", "uid": "m"}
        metadata = {"namespace": "team", "name": "one", "uid": "u", "ownerReferences": [owner]}
        self.obj: Obj = {"metadata": metadata, "spec": spec, "status": {}}
        self.vm = vm_of("", "Always")
        self.vmi: Obj | None = None
        self.claims: dict[str, str] = {}
        self.hosts: list[Obj] = []
        self.other_instances: list[Obj] = []
        self.node: Obj | None = None
        self.events: list[tuple[str, str, str]] = []
        self.transitions: list[tuple[str, str]] = []
        self.requeue_after: float | None = None
        self.now = 1000.0
        self._memory = Memory()

        async def ensure_vm(scope: Any) -> Obj:
            return self.vm

        monkeypatch.setattr(controller, "ensure_vm", ensure_vm)
        monkeypatch.setattr(controller, "report_drift", lambda *_: None)
        monkeypatch.setattr(controller, "ensure_vm_proof", _nothing)
        monkeypatch.setattr(controller, "initialize_node", _nothing)
        monkeypatch.setattr(running.time, "monotonic", lambda: self.now)

    async def passes(self, seconds: float) -> None:
        """Let time pass, and reconcile when the machine asked to be and at the end."""
        end = self.now + seconds
        while self.requeue_after is not None and self.now + self.requeue_after < end:
            self.now += max(self.requeue_after, 0.1)
            await self.reconcile()
        self.now = end
        await self.reconcile()

    async def state(
        self, word: str, phase: str | None = None, *, strategy: str = "Always", uid: str = "i", **status: Any
    ) -> None:
        """Give the VM a `printableStatus` and an instance in this phase, and reconcile.

        :param phase: None for no instance
        :param status: further fields of the instance's status
        """
        self.vm = vm_of(word, strategy)
        self.vmi = None
        if phase is not None:
            metadata: Obj = {"name": "one", "namespace": "vms", "uid": uid}
            if status.pop("deleting", False):
                metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            firmware = {"domain": {"firmware": {"uuid": UUID}}}
            status = {"nodeName": "h1", **status} if phase in ("Scheduled", "Running") else status
            self.vmi = {"metadata": metadata, "spec": firmware, "status": {"phase": phase, **status}}
        await self.reconcile()

    async def runs(self, *, agent: bool = True, uid: str = "i", host: str = "h1") -> None:
        """Let the VM run; with `agent`, the guest agent answers."""
        status: Obj = {"interfaces": NICS, "conditions": [AGENT]} if agent else {"interfaces": SILENT_NICS}
        await self.state("Running", "Running", uid=uid, nodeName=host, **status)

    def restart_provider(self) -> None:
        """Forget what is only in the memory of the provider."""
        self._memory = Memory()

    async def reconcile(self) -> None:
        """Reconcile once."""
        result = await controller.MachineReconciler(cast(Context, self._context())).reconcile(KEY)
        self.requeue_after = result.requeue_after if result else None

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition; empty if it is absent."""
        found = conditions.get_condition(self.obj["status"].get("conditions") or [], kind) or {}
        return str(found.get("status", "")), str(found.get("reason", "")), str(found.get("message", ""))

    def warnings(self) -> list[str]:
        """Reasons of the Events of type Warning."""
        return [reason for kind, reason, _ in self.events if kind == "Warning"]

    def flips(self, kind: str = "Ready") -> list[str]:
        """The values that a condition had, one after the other."""
        return [status for condition, status in self.transitions if condition == kind]

    def _context(self) -> Any:
        spec = {"targetNamespace": "vms"}
        cluster = {
            "metadata": {"namespace": "team", "name": "demo", "uid": "c"},
            "spec": spec,
            "status": {"initialization": {"infrastructureProvisioned": True}},
        }
        claims = {name: {"metadata": {"name": name}, "status": {"phase": phase}} for name, phase in self.claims.items()}
        namespace = SimpleNamespace(
            synced=True,
            instances=SimpleNamespace(get=lambda *_: self.vmi, store=self.other_instances),
            claims=SimpleNamespace(get=lambda _namespace, name: claims.get(name)),
        )
        hosts = SimpleNamespace(get=lambda *_: None, store=self.hosts)
        session = SimpleNamespace(
            error=None,
            synced=True,
            fingerprint="h",
            hosts=hosts,
            namespaces={"vms": namespace},
            watch_namespace=lambda _: namespace,
        )
        caches = SimpleNamespace(
            harvester_machines=SimpleNamespace(
                get=lambda *_: self.obj, observe=lambda _: None, resource=SimpleNamespace()
            ),
            machines=SimpleNamespace(get=lambda *_: {"metadata": {}}),
            cluster_of=lambda _: cluster,
            harvester_cluster_of=lambda _: cluster,
            publishes_failure_domains=True,
        )
        workloads = SimpleNamespace(node=lambda *_: self.node, hint=lambda _: None)
        return SimpleNamespace(
            client=self,
            caches=caches,
            memory=self._memory,
            updates_in_place=False,
            topics=Topics(),
            queues=SimpleNamespace(machines=WorkQueue[Key]("test")),
            sessions=SimpleNamespace(of=lambda _: session),
            workloads=workloads,
            ensure_finalizer=_nothing,
            write_status=self._write,
            owner=lambda *_: Owner("HarvesterMachine", "team", "one", "u", "here"),
            event=lambda _resource, _obj, kind, reason, message: self.events.append((kind, reason, message)),
        )

    async def patch(self, _resource: Any, _name: str, _namespace: str, patch: Obj) -> Obj:
        """Apply the patch of the machine's spec, as its API server does."""
        self.obj = {**self.obj, "spec": {**self.obj["spec"], **patch.get("spec", {})}}
        return self.obj

    async def _write(self, _informer: Any, _obj: Obj, draft: StatusDraft) -> None:
        before = {entry["type"]: entry["status"] for entry in self.obj["status"].get("conditions") or ()}
        for entry in draft.fields.get("conditions") or ():
            if before.get(entry["type"]) != entry["status"]:
                self.transitions.append((entry["type"], entry["status"]))
        self.obj = {**self.obj, "status": draft.fields}
        draft.confirm(self.obj)


def vm_of(word: str, strategy: str) -> Obj:
    """Return a VM with one disk."""
    volumes = [{"name": "disk-0", "persistentVolumeClaim": {"claimName": CLAIM}}]
    return {
        "metadata": {"namespace": "vms", "name": "one", "uid": "vm"},
        "spec": {"runStrategy": strategy, "template": {"spec": {"volumes": volumes}}},
        "status": {"printableStatus": word} if word else {},
    }


async def _nothing(*_: Any) -> None:
    return
