"""The newest backups of replaced machines stay, and a condition says before an upgrade what would fail."""

from __future__ import annotations

import pytest

from caphv.api import names
from caphv.api.ownership import Owner
from caphv.runtime.errors import Forbidden, Invalid, ServerFault, Unreachable
from reconciler.blocked import Blocked
from reconciler.cluster import backups
from reconciler.cluster.backups import delete_backups
from tests.support.reconciler.vmbackups import BACKUPS, NO_TARGET, BackupCase, Leaving

pytestmark = pytest.mark.unit

OTHER = Owner("HarvesterCluster", "team", "other", "other-uid", "elsewhere")
FORBIDDEN = Forbidden(403, "Forbidden", 'cannot list resource "virtualmachinebackups"')
ASKED = Unreachable("asked")
RESTORED = Invalid(400, "BadRequest", "vmrestore vms/former is in progress")


async def test_without_the_field_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch)
    case.running("one")
    case.harvester.errors |= {"list VirtualMachineBackup": ASKED, "dry-run create VirtualMachineBackup": ASKED}
    assert await case.keep() == {}
    await delete_backups(case.scope())


async def test_condition_says_that_backups_are_possible_and_is_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = BackupCase(monkeypatch, keep=2)
    assert await case.keep() == {}, "no machine runs yet"
    case.running("one")
    condition = await case.keep()
    assert (condition["status"], condition["message"]) == ("True", "no machine was replaced yet")
    assert case.harvester.requests == [], "a dry run makes nothing"
    case.harvester.errors["list VirtualMachineBackup"] = ASKED
    assert await case.keep() == condition


async def test_older_backups_are_deleted_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("new")
    for age, name in enumerate("abcd"):
        case.backup(name, age=age)
    case.backup("foreign", age=99, owner=OTHER)
    unrecorded = case.backup("nightly", age=99)
    unrecorded["metadata"]["annotations"] = {}
    case.harvester.put(unrecorded)

    condition = await case.keep()
    assert case.names == ["a-replaced", "b-replaced", "foreign-replaced", "nightly-replaced"]
    assert condition["message"] == "VirtualMachineBackup a-replaced, b-replaced"
    assert case.messages == [("BackupsDeleted", "deleted as 2 are kept: VirtualMachineBackup c-replaced, d-replaced")]


async def test_backup_in_progress_does_not_replace_a_complete_one(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=1)
    case.running("new")
    case.backup("former", age=60)
    leaving = Leaving(case)
    with pytest.raises(Blocked):
        await leaving.back_up()
    await case.keep()
    assert case.names == ["former-replaced", "one-replaced"]

    leaving.complete()
    await leaving.back_up()
    await case.keep()
    assert case.names == ["one-replaced"], "the machine still exists, but its backup is complete"


async def test_backup_of_a_machine_that_was_deleted_while_the_provider_was_stopped_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = BackupCase(monkeypatch, keep=1)
    case.running("new")
    case.backup("former", age=60)
    case.running("leaving")
    case.backup("leaving")
    await case.keep()
    assert case.names == ["former-replaced", "leaving-replaced"]
    case.machines.pop()
    await case.keep()
    assert case.names == ["leaving-replaced"]


async def test_what_an_upgrade_would_meet_is_reported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    case.refuse(NO_TARGET)
    condition = await case.keep()
    assert (condition["status"], condition["reason"]) == ("False", "BackupsRefused")
    assert "backup target is not set" in condition["message"]
    assert case.requeue_after
    assert [reason for reason, _ in case.messages] == ["BackupsRefused"]

    case.harvester.errors.clear()
    case.requeue_after = None
    assert (await case.keep())["status"] == "False", "it is not asked again at once"
    assert case.requeue_after
    monkeypatch.setattr(backups, "_REFUSED_SECONDS", 0.0)
    assert (await case.keep())["status"] == "True"
    assert len(case.messages) == 1


@pytest.mark.parametrize("message", ["vm vms/one is in migration", "The one-replaced backup is already existent."])
async def test_passing_refusal_says_nothing_of_an_upgrade(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    case.refuse(Invalid(422, "Invalid", message))
    assert (await case.keep())["status"] == "True"


async def test_missing_right_is_named_with_the_command_that_grants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    case.harvester.errors["list VirtualMachineBackup"] = FORBIDDEN
    condition = await case.keep()
    assert condition["reason"] == "BackupsRefused"
    assert "--target-namespace vms --back-up-vms" in condition["message"]


async def test_failed_backup_stays_in_the_condition_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2, timeoutSeconds=60)
    case.running("new")
    case.refuse(NO_TARGET)
    await Leaving(case, waited=61).back_up()
    case.machines.pop()
    case.harvester.errors.clear()
    condition = await case.keep()
    assert condition["reason"] == "BackupFailed"
    assert "machine one: " in condition["message"]

    # Also after a restart of the provider.
    case.context.memory.forget_cluster(case.scope().key)
    assert await case.keep() == condition
    case.context.memory.forget_cluster(case.scope().key)
    case.backup("two", age=-5)
    assert (await case.keep())["status"] == "True"


async def test_without_the_field_what_remains_is_reported_until_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    case.backup("former")
    await case.keep()
    case.management.put({**case.obj, "spec": {**case.obj["spec"], "controlPlaneBackups": None}})
    assert (await case.keep())["message"].startswith("no more backups are made; deleted with the cluster")
    case.harvester.remove(BACKUPS, "former-replaced", "vms")
    case.context.memory.forget_cluster(case.scope().key)
    assert await case.keep() == {}


async def test_without_the_field_a_missing_right_says_nothing_of_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    case.backup("former")
    before = await case.keep()
    case.management.put({**case.obj, "spec": {**case.obj["spec"], "controlPlaneBackups": None}})
    case.harvester.errors["list VirtualMachineBackup"] = FORBIDDEN
    assert await case.keep() == before
    assert case.messages == []


async def test_backups_of_a_moved_cluster_are_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    former = Owner("HarvesterCluster", "team", "demo", "former-uid", "former-management")
    case.backup("former", owner=former)
    assert (await case.keep())["message"] == "no machine was replaced yet", "nothing proves whose it is"

    metadata = {**case.obj["metadata"], "annotations": {names.FORMER_OWNER_ANNOTATION: "former-management/former-uid"}}
    case.management.put({**case.obj, "metadata": metadata})
    case.context.memory.forget_cluster(case.scope().key)
    assert "former-replaced" in (await case.keep())["message"]
    assert case.harvester.requests == ["patch VirtualMachineBackup former-replaced"]


async def test_user_lets_a_cluster_adopt_backups(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.running("one")
    await case.keep()
    case.backup("former", owner=OTHER)
    case.management.put(
        {**case.obj, "metadata": {**case.obj["metadata"], "annotations": {names.ADOPT_ANNOTATION: "true"}}}
    )
    assert "former-replaced" in (await case.keep())["message"]


async def test_backups_are_deleted_with_their_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.backup("former")
    case.backup("foreign", owner=OTHER)
    await delete_backups(case.scope())
    assert case.names == ["foreign-replaced"]
    assert [reason for reason, _ in case.messages] == ["BackupsDeleted"]


async def test_deleted_cluster_does_not_wait_for_the_backup_target(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    backup = case.backup("former")
    case.harvester.put({**backup, "metadata": {**backup["metadata"], "finalizers": ["wrangler.cattle.io/remove"]}})
    await delete_backups(case.scope())
    (backup,) = case.harvester.stored(BACKUPS)
    assert "deletionTimestamp" in backup["metadata"]
    assert [reason for reason, _ in case.messages] == ["BackupsDeleted"]
    assert "once its backup target answers" in case.messages[0][1]

    await delete_backups(case.scope())
    assert case.messages[1][0] == "BackupsKept"
    assert "former-replaced" in case.messages[1][1]


async def test_deleted_cluster_does_not_wait_for_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.backup("former")
    case.backup("restored")
    case.harvester.errors["delete VirtualMachineBackup restored-replaced"] = RESTORED
    await delete_backups(case.scope())
    assert case.names == ["restored-replaced"]
    assert [reason for reason, _ in case.messages] == ["BackupsDeleted", "BackupsKept"]
    assert "restored-replaced" in case.messages[1][1]


async def test_deleted_cluster_does_not_wait_for_server_faults_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.backup("former")
    case.harvester.errors["delete VirtualMachineBackup"] = ServerFault(500, "InternalError", "failed calling webhook")
    with pytest.raises(ServerFault):
        await delete_backups(case.scope())
    monkeypatch.setattr(backups, "_FAULT_SECONDS", 0.0)
    await delete_backups(case.scope())
    assert [reason for reason, _ in case.messages] == ["BackupsKept"]


async def test_backup_that_is_being_restored_is_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=1)
    case.running("new")
    for age, name in enumerate("abc"):
        case.backup(name, age=age)
    case.harvester.errors["delete VirtualMachineBackup c-replaced"] = RESTORED
    condition = await case.keep()
    assert (condition["status"], condition["message"]) == ("True", "VirtualMachineBackup a-replaced, c-replaced")
    assert case.names == ["a-replaced", "c-replaced"]
    assert case.requeue_after

    case.harvester.errors.clear()
    await case.keep()
    assert case.names == ["a-replaced", "c-replaced"], "it is not asked again at once"
    monkeypatch.setattr(backups, "_REFUSED_SECONDS", 0.0)
    assert (await case.keep())["message"] == "VirtualMachineBackup a-replaced"
    assert case.names == ["a-replaced"]


async def test_retained_backups_outlive_their_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2, deletionPolicy="Retain")
    case.backup("former")
    await delete_backups(case.scope())
    (backup,) = case.harvester.stored(BACKUPS)
    assert backup["metadata"]["annotations"][names.RETAINED_ANNOTATION] == "true"
    assert [reason for reason, _ in case.messages] == ["BackupsRetained"]


async def test_deletion_of_a_cluster_does_not_depend_on_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackupCase(monkeypatch, keep=2)
    case.harvester.errors["list VirtualMachineBackup"] = FORBIDDEN
    await delete_backups(case.scope())
    assert [reason for reason, _ in case.messages] == ["BackupsKept"]
