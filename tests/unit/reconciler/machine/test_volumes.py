"""What is deleted with a VM needs proof that it is the machine's; volumes of users and of the CSI driver are kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from caphv.api.ownership import Owner, record
from caphv.api.virtualmachine import claims_of, deletion_list, listed_claims
from reconciler.machine.disks import pvc_name
from reconciler.machine.vmclaims import own_claims, without

pytestmark = pytest.mark.unit

OWN = Owner("HarvesterMachine", "team", "one", "uid-one", "management-cluster")
FORMER = replace(OWN, uid="uid-before-the-move", management_cluster="former")
OTHER = replace(OWN, name="other", uid="uid-other")
DISK = pvc_name("one", OWN.uid, 0)
OF_USERS = ["pvc-a5028fd3-bbb2-4288-8638-c7c11ad7e5e4", "photos", "one-disk-1-k2j5x", "two-disk-0-abcde", "one-disk-0"]


def claim(name: str, owner: Owner | None = None) -> Obj:
    return {"metadata": {"name": name, "annotations": record(owner) if owner else {}}}


def vm(listed: list[str], *, hotplugged: tuple[str, ...] = (), owner: Owner | None = OWN) -> Obj:
    templates = json.dumps([{"metadata": {"name": name}, "spec": {}} for name in listed])
    annotations = {"harvesterhci.io/volumeClaimTemplates": templates, **(record(owner) if owner else {})}
    volumes = [
        {"name": f"disk-{number}", "persistentVolumeClaim": {"claimName": name, "hotpluggable": name in hotplugged}}
        for number, name in enumerate(listed)
    ]
    spec = {"template": {"spec": {"volumes": [*volumes, {"name": "cloudinitdisk", "cloudInitNoCloud": {}}]}}}
    return {"metadata": {"name": "one", "annotations": annotations}, "spec": spec}


def own(machine: Obj, *claims: Obj, disks: int = 1) -> list[str]:
    return own_claims(machine, {each["metadata"]["name"]: each for each in claims}, OWN, disks)


@given(st.permutations([DISK, *OF_USERS]), st.sets(st.sampled_from(OF_USERS)), st.booleans())
def test_volumes_of_users_are_never_deleted(order: list[str], hotplugged: set[str], foreign: bool) -> None:
    machine = vm(order, hotplugged=tuple(hotplugged))
    others = [claim(name, OTHER if foreign else None) for name in OF_USERS]
    assert own(machine, claim(DISK, OWN), *others) == [DISK]


@given(st.lists(st.text("abc-disk0123", min_size=1, max_size=20), unique=True), st.integers(0, 3))
def test_what_has_neither_record_nor_name_of_a_disk_is_kept(listed: list[str], disks: int) -> None:
    assert own(vm(listed), *map(claim, listed), disks=disks) == []


@given(st.lists(st.sampled_from([OWN, FORMER, OTHER, None]), max_size=5))
def test_the_record_of_a_claim_decides_before_its_name(owners: list[Owner | None]) -> None:
    listed = [pvc_name("one", OWN.uid, index) for index in range(len(owners))]
    claims = [claim(name, owner) for name, owner in zip(listed, owners, strict=True)]
    expected = [name for name, owner in zip(listed, owners, strict=True) if owner in (OWN, None)]
    assert own(vm(listed), *claims, disks=5) == expected


def test_disks_of_the_go_provider_have_no_record() -> None:
    listed = ["one-disk-0-x7k2p", "one-disk-1-abc1d"]
    assert own(vm(listed), *map(claim, listed), disks=2) == listed
    assert own(vm(listed, owner=None), *map(claim, listed), disks=2) == listed


def test_disks_of_a_moved_machine_have_the_record_of_its_vm() -> None:
    assert own(vm([DISK], owner=FORMER), claim(DISK, FORMER)) == [DISK]
    assert own(vm([DISK], owner=OWN), claim(DISK, FORMER)) == []


def test_restored_disks_have_the_record_and_another_name() -> None:
    restored = "restore-one-5f0b-disk-0"
    assert own(vm([restored]), claim(restored, OWN)) == [restored]
    assert own(vm([restored], hotplugged=(restored,)), claim(restored, OWN)) == []


def test_volume_in_the_place_of_a_disk_is_kept() -> None:
    assert own(vm(["photos"]), claim("photos")) == []


def test_disk_that_does_not_exist_yet_is_listed_by_name() -> None:
    assert own(vm([DISK])) == [DISK]


@pytest.mark.parametrize(
    "annotation", ["", "[", "{}", "[{}]", "[1]", '[{"metadata": null}]', '[{"metadata": {"name": ["x"]}}]', "1", "null"]
)
def test_invalid_annotation_lists_nothing(annotation: str) -> None:
    machine = {"metadata": {"name": "one", "annotations": {"harvesterhci.io/volumeClaimTemplates": annotation}}}
    assert own(machine, claim(DISK, OWN)) == []
    assert claims_of(machine) == set()


@given(st.sets(st.sampled_from([DISK, *OF_USERS])), st.booleans())
def test_removed_volumes_go_with_their_disks_and_all_others_stay(claims: set[str], cloud_init: bool) -> None:
    machine = vm([DISK, *OF_USERS])
    spec = machine["spec"]["template"]["spec"]
    names = [each["name"] for each in spec["volumes"] if cloud_init or "persistentVolumeClaim" in each]
    spec["domain"] = {"devices": {"disks": [{"name": name} for name in names]}}
    patched = without(machine, claims)["template"]["spec"]
    left = [each for each in spec["volumes"] if each.get("persistentVolumeClaim", {}).get("claimName") not in claims]
    assert patched["volumes"] == left
    kept = {each["name"] for each in left}
    assert patched["domain"]["devices"]["disks"] == [{"name": name} for name in names if name in kept]
    assert claims_of({"spec": {"template": {"spec": patched}}}) == {DISK, *OF_USERS} - claims


@given(st.lists(st.sampled_from(OF_USERS), unique=True))
def test_listed_claims_are_read_as_harvester_reads_them(listed: list[str]) -> None:
    assert listed_claims({"metadata": deletion_list(listed)}) == set(listed)
    spaced = {"harvesterhci.io/removedPersistentVolumeClaims": " , ".join([*listed, ""])}
    assert listed_claims({"metadata": {"annotations": spaced}}) == set(listed)
