"""Backups of replaced control plane machines on servers in memory."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api import names, resources
from caphv.api.conditions import get_condition, rfc3339
from caphv.api.labels import cluster_label
from caphv.api.object import Key, Obj, annotations_of, key_of, uid_of
from caphv.api.ownership import Owner, record
from caphv.api.vmbackup import backup_name
from caphv.runtime.errors import ApiError, Invalid
from reconciler.cluster.backups import keep_backups
from reconciler.machine.scope import MachineScope
from reconciler.machine.vmbackup import back_up_replaced
from reconciler.memory.machine import MachineMemory
from reconciler.statusdraft import StatusDraft
from tests.support.reconciler.memorycase import TARGET, MemoryCase

BACKUPS = resources.VM_BACKUPS
OUTDATED = {"conditions": [{"type": "UpToDate", "status": "False"}]}
NO_TARGET = Invalid(422, "Invalid", "backup target is not set")


def ago(seconds: float) -> str:
    return rfc3339(datetime.now(UTC) - timedelta(seconds=seconds))


class BackupCase(MemoryCase):
    """HarvesterCluster `team/demo` with `spec.controlPlaneBackups`, and Harvester with the kind of backups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **field: Any) -> None:
        super().__init__(monkeypatch, **({"controlPlaneBackups": field} if field else {}))
        self.harvester.serve(BACKUPS.api_version, BACKUPS.kind)
        self.messages: list[tuple[str, str]] = []
        self.context.events.event = lambda _obj, _kind, reason, message: self.messages.append((reason, message))  # type: ignore[method-assign,assignment,misc]

    @property
    def owner(self) -> Owner:
        return self.scope().owner

    def running(self, name: str) -> None:
        """Add a control plane machine that is ready, with its VM."""
        self.add_machine(name)
        self.machines[-1]["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}

    def backup(self, machine: str, *, age: float = 0.0, owner: Owner | None = None, **status: Any) -> Obj:
        """Store a backup, by default one of the cluster's own."""
        metadata = {
            "name": backup_name(machine),
            "namespace": TARGET,
            "creationTimestamp": ago(age),
            "labels": {names.CLUSTER_LABEL: cluster_label(Key("team", "demo"))},
            "annotations": record(owner or self.owner),
        }
        head = {"apiVersion": BACKUPS.api_version, "kind": BACKUPS.kind}
        return self.harvester.put({**head, "metadata": metadata, "spec": {}, "status": status})

    @property
    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.harvester.stored(BACKUPS)]

    def refuse(self, error: ApiError) -> None:
        """Have Harvester refuse backups."""
        self.harvester.errors["create VirtualMachineBackup"] = error
        self.harvester.errors["dry-run create VirtualMachineBackup"] = error

    async def keep(self) -> Obj:
        """Run the phase of the cluster, and return its condition, empty without one."""
        scope = self.scope()
        await keep_backups(scope)
        self.requeue_after = scope.requeue_after
        self.written(scope.draft)
        found = get_condition((self.obj.get("status") or {}).get("conditions") or [], "ControlPlaneBackupsReady")
        return found or {}


class Leaving:
    """A control plane machine of a `BackupCase` that is being deleted.

    Its deletion waits since so many seconds for a backup, if the wait has begun.
    """

    def __init__(
        self, case: BackupCase, *, waited: float | None = None, control_plane: bool = True, **status: Any
    ) -> None:
        self.case = case
        case.add_machine("one", control_plane=control_plane)
        self.obj = case.machines[-1]
        self.obj["apiVersion"] = resources.HARVESTER_MACHINES.api_version
        self.obj["metadata"] |= {"deletionTimestamp": ago(9999), "finalizers": ["caphv.io/machine"]}
        if waited is not None:
            self.wait_since(waited)
        case.management.put(self.obj)
        metadata = {"name": "one", "namespace": "team", "labels": self.obj["metadata"]["labels"]}
        self.machine = {"metadata": metadata, "spec": {"version": "v1.35.0"}, "status": status or OUTDATED}

    @property
    def vm(self) -> Obj:
        found = self.case.harvester.find("VirtualMachine", "one", TARGET)
        assert found
        return found

    @property
    def memory(self) -> MachineMemory:
        return self.case.context.memory.machine(self.obj)

    def wait_since(self, seconds: float) -> None:
        """Let the wait begin so many seconds ago, without an outage since then."""
        self.obj["metadata"]["annotations"] = {names.VM_BACKUP_ANNOTATION: ago(seconds)}
        self.memory.backup.answers_since = time.monotonic() - seconds
        self.memory.backup.answered_at = time.monotonic()

    def end_outage(self) -> None:
        """Let the last answer about the backup be hours ago."""
        self.memory.backup.answered_at = time.monotonic() - 9999

    def restart_provider(self) -> None:
        """Forget what is in the provider's memory alone."""
        self.case.context.memory.forget_machine(key_of(self.obj))

    async def back_up(self) -> None:
        """Run the step of the machine once."""
        scope = MachineScope(
            self.case.context, self.obj, self.machine, self.case.cluster, self.case.obj, StatusDraft(self.obj)
        )
        try:
            await back_up_replaced(scope, self.vm)
        finally:
            self.obj["metadata"]["annotations"] = annotations_of(scope.obj)

    def complete(self) -> None:
        """Let Harvester complete the backup."""
        backup = self.case.harvester.find("VirtualMachineBackup", backup_name("one"), TARGET)
        assert backup
        backup["metadata"]["creationTimestamp"] = ago(0)
        self.case.harvester.put({**backup, "status": {"readyToUse": True, "sourceUID": uid_of(self.vm)}})

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.case.messages]
