"""Which machines are backed up before they are replaced, and which backups stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.object import Obj
from caphv.api.ownership import Owner, Ownership, ownership_of
from caphv.api.vmbackup import (
    BackupPolicy,
    backup_name,
    backup_object,
    backup_policy,
    backup_problem,
    is_backup_name,
    is_ready,
    is_replaced,
    is_retained,
    surplus,
)

pytestmark = pytest.mark.unit

OWNER = Owner("HarvesterCluster", "team", "demo", "uid-demo", "management")
CLUSTER: Obj = {"metadata": {"name": "demo", "namespace": "team"}, "spec": {}}
CONTROL_PLANE = {names.CONTROL_PLANE_LABEL: ""}


def machine(
    name: str = "one", *, version: str = "v1.35.0", created: str = "2026-01-01T00:00:00Z", **status: Any
) -> Obj:
    metadata = {"name": name, "labels": CONTROL_PLANE, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"version": version}, "status": status}


def conditions(**statuses: str) -> list[Obj]:
    return [{"type": kind, "status": status} for kind, status in statuses.items()]


@pytest.mark.parametrize(
    ("status", "replaced"),
    [
        ({"conditions": conditions(UpToDate="False")}, True),
        ({"v1beta2": {"conditions": conditions(UpToDate="False")}}, True),
        ({"conditions": conditions(UpToDate="True")}, False),
        ({"conditions": conditions(UpToDate="Unknown")}, False),
        ({}, False),
        ({"conditions": conditions(UpToDate="False", HealthCheckSucceeded="True")}, True),
        ({"conditions": conditions(UpToDate="False", HealthCheckSucceeded="False")}, False),
        ({"conditions": conditions(UpToDate="False", OwnerRemediated="False")}, False),
        (
            {
                "conditions": conditions(UpToDate="False"),
                "deprecated": {"v1beta1": {"conditions": conditions(OwnerRemediated="False")}},
            },
            False,
        ),
    ],
)
def test_outdated_machine_is_replaced_by_a_rollout_and_a_failed_one_is_not(status: Obj, replaced: bool) -> None:
    assert is_replaced(machine(**status), CLUSTER, []) is replaced


def test_machines_of_a_deleted_cluster_are_not_replaced() -> None:
    cluster = copy.deepcopy(CLUSTER)
    cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_replaced(machine(conditions=conditions(UpToDate="False")), cluster, [])


def test_machine_that_a_user_wants_remediated_has_failed() -> None:
    obj = machine(conditions=conditions(UpToDate="False"))
    obj["metadata"]["annotations"] = {names.REMEDIATE_ANNOTATION: ""}
    assert not is_replaced(obj, CLUSTER, [])


@pytest.mark.parametrize(("intended", "replaced"), [("v1.36.2", True), ("v1.35.0", False)])
def test_version_of_the_topology_tells_without_a_condition(intended: str, replaced: bool) -> None:
    cluster = {**CLUSTER, "spec": {"topology": {"version": intended}}}
    newer = machine("two", version="v1.36.2", created="2026-01-02T00:00:00Z")
    assert is_replaced(machine(), cluster, [newer]) is replaced


def test_newer_machine_of_another_version_tells_without_a_topology() -> None:
    newer = machine("two", version="v1.36.2", created="2026-01-02T00:00:00Z")
    assert is_replaced(machine(), CLUSTER, [newer])
    # A scale-down during the upgrade removes a new machine, and a machine that leaves replaces none.
    assert not is_replaced(newer, CLUSTER, [machine()])
    leaving = copy.deepcopy(newer)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-03T00:00:00Z"
    assert not is_replaced(machine(), CLUSTER, [leaving])
    worker = {**newer, "metadata": {**newer["metadata"], "labels": {}}}
    assert not is_replaced(machine(), CLUSTER, [worker])
    assert not is_replaced(machine(), CLUSTER, [machine("two", created="2026-01-02T00:00:00Z")])


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        (None, None),
        ({"keep": 3}, BackupPolicy(3, 1800, retain=False)),
        (
            {"keep": 1, "timeoutSeconds": 60, "deletionPolicy": "Retain"},
            BackupPolicy(1, 60, retain=True),
        ),
        ({"keep": 2, "deletionPolicy": "Delete"}, BackupPolicy(2)),
    ],
)
def test_policy_is_what_the_spec_says(field: Obj | None, policy: BackupPolicy | None) -> None:
    assert backup_policy({} if field is None else {"controlPlaneBackups": field}) == policy


@pytest.mark.parametrize("retain", [False, True])
def test_backup_is_copied_to_the_backup_target_and_names_its_owner(retain: bool) -> None:
    backup = backup_object("cp-1", "vms", "team.demo", OWNER, retain=retain)
    assert backup["spec"] == {
        "source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "cp-1"},
        "type": "backup",
    }
    assert ownership_of(backup, OWNER) is Ownership.OURS
    assert is_retained(backup) is retain
    assert is_backup_name(backup["metadata"]["name"])
    assert not is_backup_name("nightly")


def test_only_a_complete_backup_of_the_same_vm_is_ready() -> None:
    ready = {"status": {"readyToUse": True, "sourceUID": "a"}}
    assert is_ready(ready, "a")
    assert not is_ready(ready, "b")
    assert not is_ready({"status": {"readyToUse": False, "sourceUID": "a"}}, "a")
    assert not is_ready({}, "a")
    assert backup_problem({"status": {"error": {"message": "no space"}}}) == "no space"
    assert backup_problem({}) == ""


def backup(name: str, day: int, *, deleted: bool = False) -> Obj:
    metadata = {"name": backup_name(name), "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}
    return {"metadata": {**metadata, "deletionTimestamp": "x"} if deleted else metadata}


@given(
    days=st.lists(st.tuples(st.integers(1, 28), st.booleans()), max_size=8),
    living=st.sets(st.integers(0, 7)),
    keep=st.integers(1, 5),
)
def test_newest_complete_backups_stay(days: list[tuple[int, bool]], living: set[int], keep: int) -> None:
    backups = [backup(str(number), day, deleted=deleted) for number, (day, deleted) in enumerate(days)]
    machines = {str(number) for number in living}
    gone = surplus(backups, machines, keep)
    complete = [
        obj for number, obj in enumerate(backups) if number not in living and "deletionTimestamp" not in obj["metadata"]
    ]
    stay = [obj for obj in complete if obj not in gone]
    assert len(stay) == min(keep, len(complete))
    assert all(obj in complete for obj in gone)
    times = [obj["metadata"]["creationTimestamp"] for obj in stay]
    assert all(obj["metadata"]["creationTimestamp"] <= min(times) for obj in gone)
