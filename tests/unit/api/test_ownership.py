from dataclasses import replace
from typing import Any

import pytest

from caphv.api import names
from caphv.api.ownership import (
    Owner,
    Ownership,
    former_owner,
    has_former_owner,
    names_vm,
    ownership_of,
    record,
    same_name,
    wants_adoption,
)

pytestmark = pytest.mark.unit

OWNER = Owner("HarvesterMachine", "ns", "m", "uid-1", "cluster-1")


def vm(annotations: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "m", "uid": "vm-uid", "annotations": {"unrelated": "x", **annotations}}}


def test_record() -> None:
    assert record(OWNER) == {
        "caphv.io/management-cluster": "cluster-1",
        "caphv.io/owner": "HarvesterMachine/ns/m",
        "caphv.io/owner-uid": "uid-1",
    }


RECORDED = {
    "caphv.io/management-cluster": "cluster-1",
    "caphv.io/owner": "HarvesterMachine/ns/m",
    "caphv.io/owner-uid": "uid-1",
}


def test_what_is_recorded_is_ours() -> None:
    assert ownership_of(vm(RECORDED), OWNER) is Ownership.OURS


@pytest.mark.parametrize("field", ["kind", "namespace", "name", "uid", "management_cluster"])
def test_any_other_owner_is_foreign(field: str) -> None:
    assert ownership_of(vm(record(replace(OWNER, **{field: "other"}))), OWNER) is Ownership.FOREIGN


@pytest.mark.parametrize("missing", RECORDED)
def test_part_of_a_record_is_foreign(missing: str) -> None:
    part = {name: value for name, value in RECORDED.items() if name != missing}
    assert ownership_of(vm(part), OWNER) is Ownership.FOREIGN
    assert ownership_of(vm({missing: RECORDED[missing]}), OWNER) is Ownership.FOREIGN


def test_object_without_metadata_has_no_record() -> None:
    assert ownership_of({}, OWNER) is Ownership.UNRECORDED
    assert same_name({}, OWNER)
    assert not wants_adoption({})


def test_previous_record_of_a_restored_machine_is_formerly_ours() -> None:
    restored = {"metadata": {"name": "m", "annotations": {names.FORMER_OWNER_ANNOTATION: "cluster-0/uid-0"}}}
    former = {**RECORDED, "caphv.io/management-cluster": "cluster-0", "caphv.io/owner-uid": "uid-0"}
    assert former_owner(restored, OWNER) == replace(OWNER, management_cluster="cluster-0", uid="uid-0")
    assert has_former_owner(vm(former), restored, OWNER)
    assert not has_former_owner(vm(RECORDED), restored, OWNER)
    assert not has_former_owner(vm({}), restored, OWNER)


@pytest.mark.parametrize("noted", [None, "", "/", "cluster-0", "cluster-0/", "/uid-0"])
def test_note_that_names_no_former_owner_proves_nothing(noted: str | None) -> None:
    own = {"metadata": {"name": "m", "annotations": {} if noted is None else {names.FORMER_OWNER_ANNOTATION: noted}}}
    assert former_owner(own, OWNER) is None
    assert not has_former_owner(vm(RECORDED), own, OWNER)


def test_objects_of_the_go_provider_have_no_record() -> None:
    assert ownership_of(vm({}), OWNER) is Ownership.UNRECORDED
    assert ownership_of({"metadata": {"name": "m"}}, OWNER) is Ownership.UNRECORDED


def test_uid_of_the_vm_proves_ownership_after_a_move() -> None:
    moved = vm(record(replace(OWNER, uid="before", management_cluster="before")))
    assert names_vm(machine("harvester://vm-uid"), moved, OWNER)
    assert not names_vm(machine("harvester://another"), moved, OWNER)
    assert not names_vm(machine("harvester://"), {"metadata": {}}, OWNER)
    assert names_vm(machine("rke2://m", "vm-uid"), moved, OWNER)
    assert not names_vm(machine("rke2://m", "another"), moved, OWNER)
    assert not names_vm(machine("rke2://m", ""), {"metadata": {}}, OWNER)


def test_annotation_proves_nothing_against_the_record_of_another_machine() -> None:
    other = vm(record(replace(OWNER, name="other", management_cluster="before")))
    assert not names_vm(machine("rke2://m", "vm-uid"), other, OWNER)
    assert names_vm(machine("harvester://vm-uid"), other, OWNER)


def machine(provider_id: str, uid: str | None = None) -> dict[str, Any]:
    annotations = {} if uid is None else {"caphv.io/vm-uid": uid}
    return {"metadata": {"name": "m", "annotations": annotations}, "spec": {"providerID": provider_id}}


def test_after_a_move_the_record_still_names_the_owner() -> None:
    moved = vm(record(replace(OWNER, uid="before", management_cluster="before")))
    assert same_name(moved, OWNER)
    assert same_name(vm({}), OWNER)
    assert not same_name(vm(record(replace(OWNER, namespace="other"))), OWNER)


def test_only_the_word_true_asks_for_adoption() -> None:
    assert wants_adoption(vm({"caphv.io/adopt": "true"}))
    assert not wants_adoption(vm({"caphv.io/adopt": "false"}))
    assert not wants_adoption({"metadata": {}})
