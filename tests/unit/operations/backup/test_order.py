"""In which order and form objects are restored."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj, annotations_of, uid_of
from caphv.api.objectid import ObjectId, id_of
from operations.backup.files import Backup
from operations.backup.order import (
    Action,
    Source,
    absent_in_use,
    created_form,
    differences,
    is_held,
    managed_fields,
    plan,
    requested_deletions,
    unpause_patch,
)
from operations.read.graph import belongings
from tests.support.backup import whole_cluster

pytestmark = pytest.mark.unit


def backup_of(objs: list[Obj]) -> Backup:
    return Backup(objects=belongings([Key("team", "shop")], objs).objects)


@given(st.randoms(use_true_random=False))
def test_owners_and_clusters_come_first(order: random.Random) -> None:
    objs = whole_cluster()
    order.shuffle(objs)
    steps = plan(backup_of(objs), {}, "b")
    levels = {step.identity: step.level for step in steps}
    known = {uid_of(obj): id_of(obj) for obj in objs}
    for step in steps:
        for owner in step.obj["metadata"].get("ownerReferences") or ():
            assert levels[known[owner["uid"]]] < step.level
    (cluster,) = (step for step in steps if step.identity.kind == "Cluster")
    before = {step.identity.kind for step in steps if step.level < cluster.level}
    assert before == {"Secret", "ClusterClass", "HarvesterMachineTemplate"}
    assert all(step.level > cluster.level for step in steps if "Machine" in step.identity.kind[:20]
               and not step.identity.kind.endswith("Template"))  # fmt: skip


def test_everything_is_created_paused_with_new_owners_and_nothing_of_the_server() -> None:
    objs = whole_cluster()
    for obj in objs:
        obj["status"] = {"ready": True}
        obj["metadata"] |= {"managedFields": [{}], "deletionTimestamp": "2026-11-22T12:00:00Z"}
        obj["metadata"]["finalizers"] = ["core", "foregroundDeletion", "identity.caphv.io/in-use"]
    uids = {id_of(obj): f"new-{uid_of(obj)}" for obj in objs}
    for obj in objs:
        created = created_form(obj, uids, Source("b", "old"))
        assert not {"uid", "resourceVersion", "managedFields", "deletionTimestamp"} & created["metadata"].keys()
        assert "status" not in created
        assert created["metadata"]["finalizers"] == ["core"]
        assert all(owner["uid"].startswith("new-") for owner in created["metadata"]["ownerReferences"])
        paused = (created.get("spec") or {}).get("paused") or "cluster.x-k8s.io/paused" in annotations_of(created)
        assert bool(paused) == (obj["kind"] in ("Cluster", "ClusterClass", "ClusterResourceSet"))
        assert (unpause_patch(obj, obj) is not None) == bool(paused)


def test_what_was_paused_stays_paused() -> None:
    objs = {obj["kind"]: obj for obj in whole_cluster()}
    objs["Cluster"]["spec"]["paused"] = True
    objs["ClusterClass"]["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    assert unpause_patch(objs["Cluster"], objs["Cluster"]) is None
    assert unpause_patch(objs["ClusterClass"], objs["ClusterClass"]) is None


def test_what_was_parked_stays_parked_and_is_released_for_adoption_with_the_end_of_the_pause() -> None:
    cluster = next(obj for obj in whole_cluster() if obj["kind"] == "Cluster")
    cluster["spec"]["paused"] = True
    parked = {"caphv.io/park": "true", "caphv.io/parked-since": "x", "caphv.io/paused-by-park": "true"}
    cluster["metadata"]["annotations"] = parked
    created = created_form(cluster, {}, Source("b"))
    assert created["spec"]["paused"] is True
    assert annotations_of(created)["caphv.io/paused-by-park"] == "restore"
    assert is_held(created)

    assert unpause_patch(cluster, created) == {"metadata": {"annotations": {"caphv.io/paused-by-park": "true"}}}
    released = created_form(cluster, {}, Source("b"), paused=False)
    assert (released["spec"]["paused"], is_held(released)) == (True, False)
    assert parked.items() <= annotations_of(released).items()

    # Without the record, nothing would resume the cluster, so its pause ends at once.
    del created["metadata"]["annotations"]["caphv.io/parked-since"]
    assert unpause_patch(cluster, created) == {
        "metadata": {"annotations": {"caphv.io/paused-by-park": None}},
        "spec": {"paused": None},
    }


def test_what_the_provider_records_about_parking_is_no_difference() -> None:
    """It may resume the cluster between two calls of the restore."""
    cluster = next(obj for obj in whole_cluster() if obj["kind"] == "Cluster")
    cluster["spec"]["paused"] = True
    by_schedule = {"caphv.io/parked-by-schedule": "true", "caphv.io/park-schedule": "Sat-Sun"}
    parked = {"caphv.io/parked-since": "x", "caphv.io/paused-by-park": "true", "caphv.io/parked-stops-last": "cp"}
    cluster["metadata"]["annotations"] = by_schedule | parked
    live = created_form(cluster, {}, Source("b"))
    live["metadata"]["annotations"] = {"caphv.io/restored-from": "b", "caphv.io/park-schedule": "Sat-Sun"}
    live["spec"]["paused"] = False
    assert differences(created_form(cluster, {}, Source("b"), paused=False), live) == ()
    live["metadata"]["annotations"]["caphv.io/park-schedule"] = "Sun"
    (path,) = differences(created_form(cluster, {}, Source("b"), paused=False), live)
    assert path == "metadata.annotations.caphv.io/park-schedule"


def refers_to_secret(kind: str, name: str) -> Obj:
    metadata = {"name": f"{kind.lower()}-{name}", "namespace": "team"}
    return {
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": kind,
        "metadata": metadata,
        "spec": {"identitySecret": {"name": name}},
    }


def test_placeholders_of_templates_are_not_reported_as_absent() -> None:
    objs = [
        refers_to_secret("HarvesterClusterTemplate", "placeholder"),
        refers_to_secret("HarvesterClusterTemplate", "lost"),
        refers_to_secret("HarvesterCluster", "lost"),
    ]
    absent = {"Secret team/placeholder", "Secret team/lost", "Machine team/owner"}
    backup = Backup(objects={id_of(obj): obj for obj in objs}, absent=frozenset(absent))
    assert absent_in_use(backup) == ["Machine team/owner", "Secret team/lost"]


def test_an_owner_that_is_not_there_is_left_out() -> None:
    machine = next(obj for obj in whole_cluster() if obj["kind"] == "Machine")
    assert created_form(machine, {}, Source("b"))["metadata"]["ownerReferences"] == []


def test_objects_that_exist_are_compared() -> None:
    objs = whole_cluster()
    existing = {id_of(obj): copy.deepcopy(obj) for obj in objs}
    secret, machine = ObjectId("", "Secret", "team", "identity"), id_of(objs[-2])
    existing[secret]["data"]["kubeconfig"] = "b3RoZXI="
    existing[machine]["metadata"]["annotations"] = {"caphv.io/restored-from": "b"}
    existing[machine]["spec"]["more"] = "of a webhook"
    steps = {step.identity: step.action for step in plan(backup_of(objs), existing, "b")}
    assert steps.pop(secret) is Action.DIFFERENT
    assert steps.pop(machine) is Action.RESTORED
    assert set(steps.values()) == {Action.SAME}


def test_what_a_server_adds_is_no_difference() -> None:
    wanted = {"metadata": {"finalizers": ["a"]}, "spec": {"list": [{"a": 1}], "empty": {}}}
    found = {"metadata": {"finalizers": ["b", "a"], "uid": "x"}, "spec": {"list": [{"a": 1, "b": 2}], "c": 3}}
    assert differences(wanted, found) == ()
    changed = {"metadata": {"finalizers": ["b"]}, "spec": {"list": [{"a": 2}, {}]}}
    assert differences(wanted, changed) == ("spec.list", "metadata.finalizers")


def test_managers_of_fields_are_kept_where_fields_are_applied() -> None:
    objs = whole_cluster()
    machine = next(obj for obj in objs if obj["kind"] == "Machine")
    owner = machine["metadata"]["ownerReferences"][0]["uid"]
    applied = {
        "manager": "capi",
        "operation": "Apply",
        "fieldsV1": {"f:ownerReferences": {f'k:{{"uid":"{owner}"}}': {}}},
    }
    machine["metadata"]["managedFields"] = [applied, {"manager": "m", "operation": "Update", "subresource": "status"}]
    uids = {id_of(obj): "new" for obj in objs}
    (entry,) = managed_fields(machine, uids)
    assert entry["fieldsV1"] == {"f:ownerReferences": {'k:{"uid":"new"}': {}}}
    machine["metadata"]["managedFields"] = [{**applied, "operation": "Update"}]
    assert managed_fields(machine, uids) == []


def test_what_was_being_deleted_is_listed() -> None:
    objs = whole_cluster()
    objs[-4]["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    steps = plan(backup_of(objs), {}, "b")
    assert [str(each) for each in requested_deletions(steps)] == ["Machine team/shop-1"]


def test_owners_of_objects_on_harvester_say_who_they_were() -> None:
    former = {}
    for obj in whole_cluster():
        annotations = annotations_of(created_form(obj, {}, Source("b", "old")))
        former[obj["kind"]] = annotations.get("caphv.io/former-owner") == f"old/{uid_of(obj)}"
    assert {kind for kind, known in former.items() if known} == {"HarvesterCluster", "HarvesterMachine"}
    machine = whole_cluster()[-2]
    assert "caphv.io/former-owner" not in annotations_of(created_form(machine, {}, Source("b")))
