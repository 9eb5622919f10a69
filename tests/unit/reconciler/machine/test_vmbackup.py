"""The VM of a machine that a rollout replaces is deleted after its backup, and does not wait forever."""

from __future__ import annotations

import pytest

from caphv.api.names import VM_BACKUP_ANNOTATION
from caphv.api.object import Obj, annotations_of
from caphv.api.ownership import Owner
from caphv.runtime.errors import Forbidden, ServerFault, Unreachable
from reconciler.blocked import Blocked
from reconciler.triggers import Watched
from tests.support.reconciler.vmbackups import NO_TARGET, BackupCase, Leaving, ago

pytestmark = pytest.mark.unit

FORBIDDEN = Forbidden(403, "Forbidden", 'cannot get resource "virtualmachinebackups" in API group "harvesterhci.io"')
FAULT = ServerFault(500, "InternalError", 'failed calling webhook "validator.harvesterhci.io": connection refused')


async def test_without_the_field_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch)
    case.harvester.errors["get VirtualMachineBackup"] = Unreachable("asked")
    await Leaving(case).back_up()
    assert case.harvester.requests == []
    assert case.messages == []


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "UpToDate", "status": "True"}]},
        {"conditions": [{"type": "UpToDate", "status": "False"}, {"type": "OwnerRemediated", "status": "False"}]},
    ],
)
async def test_machine_that_no_rollout_replaces_is_not_backed_up(monkeypatch: pytest.MonkeyPatch, status: Obj) -> None:
    case = BackupCase(monkeypatch, keep=2)
    await Leaving(case, **status).back_up()
    assert case.names == []


async def test_worker_and_machine_of_a_deleted_cluster_are_not_backed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    await Leaving(case, control_plane=False).back_up()
    case.cluster["metadata"]["deletionTimestamp"] = ago(1)
    await Leaving(case).back_up()
    assert case.names == []


async def test_vm_is_deleted_once_its_backup_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    leaving = Leaving(case)
    for _ in range(2):  # the second time after a crash
        with pytest.raises(Blocked, match="waiting for VirtualMachineBackup one-replaced") as blocked:
            await leaving.back_up()
        assert Watched.HARVESTER_CLUSTER in blocked.value.triggers
        assert blocked.value.requeue_after
        assert not blocked.value.warn
    assert case.harvester.requests == ["create VirtualMachineBackup one-replaced"]

    leaving.complete()
    await leaving.back_up()
    assert leaving.reasons == ["VMBackupStarted", "VMBackedUp"]
    assert len(case.context.queues.clusters) == 1
    case.harvester.errors["get VirtualMachineBackup"] = Unreachable("asked again")
    await leaving.back_up()


async def test_refused_backup_delays_the_deletion_for_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=600)
    case.refuse(NO_TARGET)
    leaving = Leaving(case, waited=500)
    with pytest.raises(Blocked, match=r"backup target is not set.*spec\.controlPlaneBackups") as blocked:
        await leaving.back_up()
    assert blocked.value.warn
    assert blocked.value.requeue_after is not None
    assert blocked.value.requeue_after <= 30

    late = Leaving(case, waited=601)
    await late.back_up()
    (reason, message), *_ = case.messages
    assert reason == "VMBackupFailed"
    assert "backup target is not set" in message
    assert "backup target is not set" in case.context.memory.cluster(case.obj).backups.failure


async def test_missing_right_is_named_with_the_command_that_grants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.harvester.errors["get VirtualMachineBackup"] = FORBIDDEN
    with pytest.raises(Blocked, match=r"--target-namespace vms --back-up-vms"):
        await Leaving(case).back_up()


async def test_unfinished_backup_is_deleted_before_the_vm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could never be completed, and may keep the disks of the VM."""
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=60)
    leaving = Leaving(case)
    case.backup("one", age=30, readyToUse=False, error={"message": "no space left"})
    with pytest.raises(Blocked, match="no space left"):
        await leaving.back_up()
    leaving.wait_since(61)
    await leaving.back_up()
    assert case.names == []
    assert leaving.reasons == ["VMBackupFailed"]


async def test_removed_field_ends_the_wait_and_deletes_what_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("new")
    await case.keep()
    leaving = Leaving(case)
    with pytest.raises(Blocked):
        await leaving.back_up()
    case.management.put({**case.obj, "spec": {**case.obj["spec"], "controlPlaneBackups": None}})
    await leaving.back_up()
    assert case.names == []
    assert "VMBackupFailed" not in leaving.reasons


async def test_backup_of_another_owner_is_neither_used_nor_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=60)
    leaving = Leaving(case, waited=61)
    case.backup("one", age=99, owner=Owner("HarvesterCluster", "team", "other", "u", "elsewhere"), readyToUse=True)
    await leaving.back_up()
    assert case.names == ["one-replaced"]
    assert "of another owner" in case.messages[0][1]


@pytest.mark.parametrize("begun", ["yes", "", ago(-999999)], ids=["invalid", "empty", "future"])
async def test_wait_that_begins_never_or_later_begins_now(monkeypatch: pytest.MonkeyPatch, begun: str) -> None:
    """A user has written it, or the clock was ahead. The clock of Harvester may be so, too."""
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=60)
    case.backup("one", age=-999999)
    leaving = Leaving(case)
    leaving.obj["metadata"]["annotations"] = {VM_BACKUP_ANNOTATION: begun}
    case.management.put(leaving.obj)
    with pytest.raises(Blocked):
        await leaving.back_up()
    assert ago(60) < annotations_of(leaving.obj)[VM_BACKUP_ANNOTATION] <= ago(0)
    leaving.wait_since(61)
    await leaving.back_up()
    assert leaving.reasons[-1] == "VMBackupFailed"


async def test_outage_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.harvester.errors["get VirtualMachineBackup"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        await Leaving(case, waited=9999).back_up()


async def test_outage_before_the_first_answer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.refuse(FAULT)
    leaving = Leaving(case)
    with pytest.raises(Blocked, match="failed calling webhook"):
        await leaving.back_up()
    case.harvester.errors.clear()
    with pytest.raises(Blocked):
        await leaving.back_up()
    assert case.names == ["one-replaced"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_backup_continues_after_an_outage(monkeypatch: pytest.MonkeyPatch, *, restarts: bool) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=1800)
    leaving = Leaving(case, waited=9999)
    case.backup("one", age=9999, readyToUse=False)
    case.harvester.errors["get VirtualMachineBackup"] = FAULT
    leaving.end_outage()
    if restarts:
        leaving.restart_provider()
    for _ in range(2):
        with pytest.raises(Blocked) as blocked:
            await leaving.back_up()
        assert (blocked.value.requeue_after or 0) <= 30
        case.harvester.errors.clear()
    leaving.complete()
    await leaving.back_up()
    assert leaving.reasons == ["VMBackedUp"]


async def test_server_faults_end_the_wait_with_the_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=1800)
    leaving = Leaving(case, waited=1700)
    case.backup("one", age=1700, readyToUse=False)
    with pytest.raises(Blocked):
        await leaving.back_up()
    case.harvester.errors["get VirtualMachineBackup"] = FAULT
    leaving.wait_since(1801)
    await leaving.back_up()
    assert leaving.reasons == ["VMBackupFailed"]
    assert case.names == [], "it could never be completed"


@pytest.mark.parametrize("refused", [False, True])
async def test_restart_continues_the_wait(monkeypatch: pytest.MonkeyPatch, *, refused: bool) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=1800)
    if refused:
        case.refuse(NO_TARGET)
    leaving = Leaving(case, waited=1801)
    leaving.restart_provider()
    with pytest.raises(Blocked) as blocked:
        await leaving.back_up()
    assert blocked.value.requeue_after

    leaving.memory.backup.answers_since -= 301
    await leaving.back_up()
    assert leaving.reasons[-1] == "VMBackupFailed"


async def test_restart_does_not_repeat_a_wait_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=60)
    leaving = Leaving(case, waited=61)
    case.backup("one", age=61, readyToUse=False)
    await leaving.back_up()
    leaving.restart_provider()
    await leaving.back_up()
    assert case.names == []
    assert leaving.reasons == ["VMBackupFailed"]
    assert leaving.memory.backup.ended, "its cluster counts on it"
