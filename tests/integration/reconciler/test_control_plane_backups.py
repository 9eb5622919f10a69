"""Backups of control plane machines that a rollout replaces, with the shipped rights on Harvester."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from caphv.api.names import RECONCILE_AT_ANNOTATION, VM_BACKUP_ANNOTATION
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, annotations_of
from caphv.api.virtualmachine import claims_of
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from sandbox.harvester import kinds, vmbackups
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_true
from tests.support.reconciler.uses import outdate

pytestmark = pytest.mark.integration

BACKUPS = kinds.VM_BACKUPS
REPORTED = "ControlPlaneBackupsReady"


async def use_account(case: Case, *, backups: bool) -> None:
    """Have the cluster use an account with the shipped roles in its target namespace alone."""
    account = Account(case.name, "caphv-system", (case.target,), backups=backups)
    await case.identity(await identityaccount.create(case.harvester, account, case.environment.harvester.url))


async def slow_backups(case: Case, machine: str, seconds: float) -> None:
    annotations = {vmbackups.SECONDS: str(seconds)}
    await case.patch(kinds.VIRTUAL_MACHINES, machine, {"metadata": {"annotations": annotations}})


@asynccontextmanager
async def unreachable_target(case: Case, machine: str) -> AsyncIterator[None]:
    """Keep the machine's backup like Harvester, which cannot delete it without the backup target."""
    name = f"{machine}-replaced"
    await case.patch(BACKUPS, name, {"metadata": {"finalizers": ["wrangler.cattle.io/harvester-vm-backup-remove"]}})
    try:
        yield
    finally:
        await case.patch(BACKUPS, name, {"metadata": {"finalizers": None}})


async def until_reported(case: Case, text: str) -> Obj:
    return await case.until(
        HARVESTER_CLUSTERS, case.name, lambda obj: text in condition_of(obj, REPORTED).get("message", "")
    )


async def test_replaced_machines_are_backed_up_although_the_provider_dies_in_between(case: Case) -> None:
    await case.ready_cluster(controlPlaneBackups={"keep": 1})
    await use_account(case, backups=True)
    await case.ready_machine("new", control_plane=True)
    await until_reported(case, "no machine was replaced yet")

    await case.ready_machine("first", control_plane=True)
    await outdate(case, "first")
    await slow_backups(case, "first", 3600)
    await case.ask_deletion(HARVESTER_MACHINES, "first")
    await case.until(BACKUPS, "first-replaced", lambda backup: "status" in backup)
    begun = await case.until(HARVESTER_MACHINES, "first", lambda obj: VM_BACKUP_ANNOTATION in annotations_of(obj))
    await case.environment.provider.kill()
    await case.environment.provider.start()
    waits = is_false("VMProvisioningReady", "VMProvisioningInProgress", "waiting for VirtualMachineBackup")
    waiting = await case.until(HARVESTER_MACHINES, "first", waits)
    assert annotations_of(waiting)[VM_BACKUP_ANNOTATION] == annotations_of(begun)[VM_BACKUP_ANNOTATION]
    assert "deletionTimestamp" not in (await case.vm("first"))["metadata"]
    await slow_backups(case, "first", 0)
    await case.until_gone(HARVESTER_MACHINES, "first")
    assert (await case.get(BACKUPS, "first-replaced"))["status"]["readyToUse"] is True
    await until_reported(case, "VirtualMachineBackup first-replaced")
    await case.ask_deletion(MACHINES, "first")
    await case.patch(MACHINES, "first", {"metadata": {"finalizers": None}})

    await case.ready_machine("second", control_plane=True)
    await outdate(case, "second")
    await case.delete_machine("second")
    await case.until_gone(BACKUPS, "first-replaced")
    await until_reported(case, "VirtualMachineBackup second-replaced")

    # A machine that no rollout replaces, and one of a deleted cluster.
    await case.ready_machine("third", control_plane=True)
    await case.delete_machine("third")
    assert await case.names(BACKUPS) == ["second-replaced"]
    await outdate(case, "new")
    await case.delete()
    assert await case.names(BACKUPS) == []


async def test_missing_right_is_named_before_an_upgrade_and_granted_by_the_command(case: Case) -> None:
    await case.ready_cluster(controlPlaneBackups={"keep": 1})
    await use_account(case, backups=False)
    await case.ready_machine("cp", control_plane=True)
    command = f"--target-namespace {case.target} --back-up-vms"
    await case.until(HARVESTER_CLUSTERS, case.name, is_false(REPORTED, "BackupsRefused", command))

    await use_account(case, backups=True)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {RECONCILE_AT_ANNOTATION: "1"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(REPORTED))


async def test_upgrade_continues_when_the_field_is_removed(case: Case) -> None:
    await case.ready_cluster(controlPlaneBackups={"keep": 1})
    await case.ready_machine("new", control_plane=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(REPORTED))
    await case.ready_machine("old", control_plane=True)
    await outdate(case, "old")
    await slow_backups(case, "old", 3600)
    await case.ask_deletion(HARVESTER_MACHINES, "old")
    waits = is_false("VMProvisioningReady", "VMProvisioningInProgress", "waiting for VirtualMachineBackup")
    await case.until(HARVESTER_MACHINES, "old", waits)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"controlPlaneBackups": None}})
    await case.until_gone(HARVESTER_MACHINES, "old")
    await case.until_gone(BACKUPS, "old-replaced")
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, REPORTED))


async def test_deleted_cluster_does_not_wait_for_the_backup_target(case: Case) -> None:
    await case.ready_cluster(controlPlaneBackups={"keep": 1})
    await case.ready_machine("new", control_plane=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(REPORTED))
    await case.ready_machine("old", control_plane=True)
    await outdate(case, "old")
    await case.delete_machine("old")
    async with unreachable_target(case, "old"):
        await case.delete_machine("new")
        await case.delete()
        backup = await case.get(BACKUPS, "old-replaced")
        assert "deletionTimestamp" in backup["metadata"]


async def test_machine_does_not_wait_for_the_backup_target(case: Case) -> None:
    """The snapshotter keeps disks until Harvester deletes the unfinished backup."""
    await case.ready_cluster(controlPlaneBackups={"keep": 1})
    await case.ready_machine("new", control_plane=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(REPORTED))
    await case.ready_machine("old", control_plane=True)
    await outdate(case, "old")
    await slow_backups(case, "old", 3600)
    await case.ask_deletion(HARVESTER_MACHINES, "old")
    await case.until(BACKUPS, "old-replaced", lambda backup: "status" in backup)
    claims = claims_of(await case.vm("old"))
    async with unreachable_target(case, "old"):
        for claim in claims:
            finalizers = ["kubernetes.io/pvc-protection", "snapshot.storage.kubernetes.io/pvc-as-source-protection"]
            await case.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"finalizers": finalizers}})
        await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"controlPlaneBackups": None}})
        await case.until_gone(HARVESTER_MACHINES, "old")
        for claim in claims:
            assert "deletionTimestamp" in (await case.get(PERSISTENT_VOLUME_CLAIMS, claim))["metadata"]
            await case.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"finalizers": None}})


async def test_foreign_backup_of_the_name_delays_a_machine_until_a_user_deletes_it(case: Case) -> None:
    await case.ready_cluster(controlPlaneBackups={"keep": 1})
    await case.ready_machine("cp", control_plane=True)
    await outdate(case, "cp")
    metadata = {"name": "cp-replaced", "namespace": case.target}
    source = {"source": {"kind": "VirtualMachine", "name": "cp"}}
    await case.harvester.create(BACKUPS, kinds.typed(BACKUPS, {"metadata": metadata, "spec": source}))
    await case.ask_deletion(HARVESTER_MACHINES, "cp")
    waits = is_false("VMProvisioningReady", "VMProvisioningInProgress", "of another owner has the name: delete it")
    await case.until(HARVESTER_MACHINES, "cp", waits)
    assert "deletionTimestamp" not in (await case.vm("cp"))["metadata"]
    await case.ask_deletion(BACKUPS, "cp-replaced")
    await case.until_gone(HARVESTER_MACHINES, "cp")
    assert await case.names(BACKUPS) == ["cp-replaced"]
