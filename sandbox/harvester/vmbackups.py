"""Harvester's controller of VM backups and snapshots.

Modelled after harvester v1.8.2: `OnBackupChange` and `initBackup` in
pkg/controller/master/backup/backup.go, `updateConditions` in backup_status.go,
`removeVMBackupSnapshot` in pkg/controller/master/virtualmachine/vm_controller.go, and the webhooks
in pkg/webhook/resources/virtualmachinebackup. Not modelled: VolumeSnapshots, the files on the
backup target, restores, and quotas of snapshots.
"""

from __future__ import annotations

import contextlib
import time

from caphv.api.conditions import current_time
from caphv.api.object import SECRETS, Key, Obj, annotations_of, at, being_deleted, key_of, uid_of
from caphv.api.virtualmachine import secrets_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds
from sandbox.harvester.admission_rules import Denial
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers, claims_of

SECONDS = "simulator.caphv.io/backup-seconds"
"""Annotation of a VM: how long its backups take, instead of the setting."""
_LONGHORN = "driver.longhorn.io"


def check_backup(backup: Obj, informers: Informers, config: SimulatorConfig) -> Denial | None:
    """Deny a new backup as Harvester's webhooks do."""
    namespace, name = key_of(backup)
    kind = backup["spec"].get("type", "backup")
    if informers.vm_backups.get(namespace, name):
        message = f"The {name} {kind} is already existent. Please use another name for it."
        return Denial(message, 400, "BadRequest")

    source = str(at(backup, "spec", "source", "name") or "")
    vm = informers.vms.get(namespace, source)
    if vm is None:
        message = f'virtualmachines.kubevirt.io "{source}" not found'
        return Denial(f"{message}: spec.source.name", 422, "Invalid")
    vmi = informers.vmis.get(namespace, source)
    if at(vmi, "status", "migrationState") and not at(vmi, "status", "migrationState", "completed"):
        return Denial(f"vm {namespace}/{source} is in migration: spec.source.name", 422, "Invalid")

    problem = next(
        filter(None, (_volume_problem(vm, name, kind, informers) for name in claims_of(vm))), ""
    )
    if not problem and kind == "backup" and not config.backup_target:
        problem = "backup target is not set: spec.type"
    return Denial(problem, 422, "Invalid") if problem else None


def _volume_problem(vm: Obj, claim_name: str, kind: str, informers: Informers) -> str:
    """Return the reason why the volume of a claim cannot be backed up; empty if it can."""
    namespace = key_of(vm).namespace
    claim = informers.claims.get(namespace, claim_name)
    if claim is None:
        return f"failed to get PVC {namespace}/{claim_name}: spec.source.name"
    class_name = str(at(claim, "spec", "storageClassName") or "")
    storage_class = informers.storage_classes.get("", class_name) or {}
    provisioner = storage_class.get("provisioner", "")
    if kind == "snapshot" or provisioner == _LONGHORN:
        return ""
    return f"provisioner {provisioner} is not supported for type {kind}: spec.source.name"


class VmBackups:
    """The controller of all backups on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._controller = Controller("vmbackups", self._reconcile)
        # The time (monotonic) at which a backup began, by uid.
        self._start_times: dict[str, float] = {}

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.vm_backups.add_handler(lambda change: self._controller.enqueue(change.key))
        self._informers.vms.add_handler(self._enqueue_backups)
        await self._controller.run()

    def _enqueue_backups(self, change: Change) -> None:
        is_faster = _annotated_seconds(change.old) != _annotated_seconds(change.new)
        if change.new is not None and not being_deleted(change.new) and not is_faster:
            return
        for backup in self._informers.vm_backups.store:
            source = Key(key_of(backup).namespace, str(at(backup, "spec", "source", "name")))
            if source == change.key:
                self._controller.enqueue(key_of(backup))

    async def _reconcile(self, key: Key) -> Result | None:
        backup = self._informers.vm_backups.get(*key)
        if backup is None or being_deleted(backup):
            return None

        vm = self._informers.vms.get(key.namespace, str(at(backup, "spec", "source", "name")))
        if backup["spec"].get("type") == "snapshot" and (vm is None or being_deleted(vm)):
            # Harvester deletes the snapshots of a VM with it.
            with contextlib.suppress(NotFound):
                await self._informers.client.delete(
                    kinds.VM_BACKUPS, key.name, key.namespace, uid=uid_of(backup)
                )
            return None
        return None if at(backup, "status", "readyToUse") else await self._continue(backup, vm)

    async def _continue(self, backup: Obj, vm: Obj | None) -> Result | None:
        """Begin or complete a backup."""
        key = key_of(backup)
        if at(backup, "status", "source") is None:
            if vm is None or being_deleted(vm):
                await self._report(key, _failure(f"vm {key.namespace}/{key.name} is being deleted"))
                return None
            await self._report(key, await self._initial_status(backup, vm))
            self._start_times[uid_of(backup)] = time.monotonic()

        if missing := self._missing_claim(key.namespace, backup):
            await self._report(key, _failure(f"VolumeSnapshot {missing} in error state"))
            return None
        seconds = float(_annotated_seconds(vm) or self._config.backup_seconds)
        started = self._start_times.setdefault(uid_of(backup), time.monotonic())
        remaining = started + seconds - time.monotonic()
        if remaining > 0:
            return Result(requeue_after=remaining)
        await self._report(key, _completion(self._informers.vm_backups.get(*key) or backup))
        return None

    async def _initial_status(self, backup: Obj, vm: Obj) -> Obj:
        """Return the status with copies of the VM's spec and of the Secrets that it uses."""
        namespace = key_of(vm).namespace
        secrets = []
        for name in sorted(secrets_of(vm)):
            with contextlib.suppress(NotFound):
                secret = await self._informers.client.get(SECRETS, name, namespace)
                secrets.append({"name": name, "data": secret.get("data") or {}})
        metadata = {
            name: vm["metadata"].get(name)
            for name in ("name", "namespace", "labels", "annotations")
        }
        volumes = [
            {
                "name": f"{key_of(backup).name}-volume-{claim}",
                "volumeName": f"disk-{index}",
                "csiDriverName": _LONGHORN,
                "persistentVolumeClaim": {"metadata": {"name": claim, "namespace": namespace}},
                "readyToUse": False,
            }
            for index, claim in enumerate(claims_of(vm))
        ]
        return {
            "sourceUID": uid_of(vm),
            "source": {"metadata": metadata, "spec": vm["spec"]},
            "readyToUse": False,
            "volumeBackups": volumes,
            "secretBackups": secrets,
            "conditions": [
                kinds.condition("InProgress", True, message="Operation in progress"),
                kinds.condition("Ready", False, message="Not ready"),
            ],
        }

    def _missing_claim(self, namespace: str, backup: Obj) -> str:
        """Return the volume whose claim was deleted before its backup was complete."""
        stored = self._informers.vm_backups.get(*key_of(backup)) or backup
        for volume in at(stored, "status", "volumeBackups") or ():
            claim = at(volume, "persistentVolumeClaim", "metadata", "name")
            if self._informers.claims.get(namespace, claim) is None:
                return str(volume["name"])
        return ""

    async def _report(self, key: Key, status: Obj) -> None:
        with contextlib.suppress(NotFound):
            await self._informers.patch(self._informers.vm_backups, key, {"status": status})


def _annotated_seconds(vm: Obj | None) -> str | None:
    return annotations_of(vm).get(SECONDS) if vm is not None else None


def _failure(message: str) -> Obj:
    return {
        "error": {"time": current_time(), "message": message},
        "conditions": [
            kinds.condition("InProgress", False, "Error", message),
            kinds.condition("Ready", False, message="Not Ready"),
        ],
    }


def _completion(backup: Obj) -> Obj:
    volumes = [
        {**volume, "readyToUse": True, "progress": 100}
        for volume in at(backup, "status", "volumeBackups") or ()
    ]
    return {
        "readyToUse": True,
        "creationTime": current_time(),
        "error": None,
        **({"volumeBackups": volumes} if volumes else {}),
        "conditions": [
            kinds.condition("InProgress", False, message="Operation complete"),
            kinds.condition("Ready", True, message="Operation complete"),
        ],
    }
