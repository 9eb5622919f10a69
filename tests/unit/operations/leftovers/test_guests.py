"""A lost guest's objects on Harvester: deleted only if the proof names a cluster that is lost, and no VM needs them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from caphv.api import names, resources
from caphv.api.guestparts import entry_of, proof_annotations
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Key, Obj, Resource, annotations_of, key_of
from caphv.api.ownership import Owner, record
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.leftovers.decision import ADDRESS, HarvesterState, OwnedObject, examine
from operations.read.owners import OwnerObjects

pytestmark = pytest.mark.unit

US, OTHERS = "management-us", "management-others"
SHOP = Owner("HarvesterCluster", "team", "shop-x7k2p", "shop-uid", US)
BALANCERS, CLAIMS, VMS = resources.LOAD_BALANCERS, PERSISTENT_VOLUME_CLAIMS, resources.VIRTUAL_MACHINES
BOTH = pytest.mark.parametrize("resource", [BALANCERS, CLAIMS], ids=str)


def proven(resource: Resource, *owners: Owner, policy: str = "Delete", **annotations: str) -> Obj:
    """A LoadBalancer or claim that guests have had, by the proof on it."""
    name = "shop-web" if resource is BALANCERS else "pvc-1"
    labels = {names.BALANCER_CLUSTER_LABEL: "shop"} if resource is BALANCERS else {}
    metadata: Obj = {"name": name, "namespace": "vms", "uid": f"{name}-uid", "labels": labels}
    proof = proof_annotations({"metadata": metadata}, map(entry_of, owners or (SHOP,)))
    if policy:
        annotations[names.RECLAIM_POLICY_ANNOTATION] = policy
    obj = {"metadata": {**metadata, "annotations": proof | annotations}}
    return obj | ({"spec": {"workloadType": "cluster"}} if resource is BALANCERS else {})


def vm(name: str, owner: Owner | None = None, *, claim: str = "", status: str = "Running", **labels: str) -> Obj:
    named = {"cluster": names.CLUSTER_LABEL, "guest": names.GUEST_CLUSTER_LABEL}
    metadata: Obj = {
        "name": name,
        "namespace": "vms",
        "uid": f"{name}-uid",
        "labels": {named[key]: value for key, value in labels.items()},
        "annotations": record(owner) if owner else {},
    }
    volumes = [{"persistentVolumeClaim": {"claimName": claim, "hotpluggable": True}}] if claim else []
    spec = {"template": {"spec": {"volumes": volumes}}}
    return {"metadata": metadata, "spec": spec, "status": {"printableStatus": status}}


def owners(*clusters: Obj, uid: str = US, namespaces: frozenset[str] | None = None) -> OwnerObjects:
    return OwnerObjects(uid, {}, namespaces, (), {key_of(cluster): cluster for cluster in clusters})


def cluster(name: str, uid: str) -> Obj:
    return {"kind": "HarvesterCluster", "metadata": {"namespace": "team", "name": name, "uid": uid}}


def examined(
    resource: Resource, obj: Obj, vms: list[Obj] | None = None, have: OwnerObjects | None = None, **fields: Any
) -> OwnedObject | None:
    """What is known of an object; None if it is in use by an owner that exists."""
    state = HarvesterState("https://h", have or owners(), {resource: [obj], VMS: vms or []}, **fields)
    found = [each for each in examine(state).objects if each.kind == resource.kind]
    return found[0] if found else None


@BOTH
def test_what_a_lost_guest_had_is_left_over_with_its_former_owner(resource: Resource) -> None:
    obj = proven(resource)
    obj["metadata"]["creationTimestamp"] = "2026-05-01T00:00:00Z"
    found = examined(resource, obj)
    assert found is not None
    assert (found.verdict, found.detail) == (Verdict.LEAKED, "its owner no longer exists")
    assert (found.owner, found.management_cluster) == ("guest of HarvesterCluster team/shop-x7k2p", US)
    assert found.created == "2026-05-01T00:00:00Z"


@BOTH
def test_what_the_guest_of_a_parked_vm_had_stays(resource: Resource) -> None:
    """Its volumes are detached while it is parked."""
    machine = Owner("HarvesterMachine", "team", "shop-0", "m", US)
    parked = vm("shop-0", machine, status="Stopped", cluster="team.shop", guest="shop")
    stopped = copy.deepcopy(parked)
    parked["metadata"]["annotations"][names.PARKED_STRATEGY_ANNOTATION] = "Always"
    verdicts = []
    for machine_vm in (parked, stopped):
        found = examined(resource, proven(resource), [machine_vm])
        assert found is not None
        verdicts.append(found.verdict)
    assert verdicts == [Verdict.IN_USE, Verdict.LEAKED]


@pytest.mark.parametrize(("former", "verdict"), [(US, Verdict.IN_USE), ("management-third", Verdict.LEAKED)])
def test_a_volume_is_in_use_while_a_vm_that_was_moved_from_here_may_need_it(former: str, verdict: Verdict) -> None:
    """Its machine has another namespace there, and the volume was detached when it was adopted."""
    machine = Owner("HarvesterMachine", "elsewhere", "shop-0", "m", OTHERS)
    moved = vm("shop-0", machine, cluster="elsewhere.shop")
    moved["metadata"]["annotations"][names.FORMER_CLUSTERS_ANNOTATION] = former
    found = examined(CLAIMS, proven(CLAIMS), [moved])
    assert found is not None
    assert found.verdict is verdict


@BOTH
def test_what_a_living_guest_has_is_not_listed(resource: Resource) -> None:
    assert examined(resource, proven(resource), have=owners(cluster("shop-x7k2p", "shop-uid"))) is None


def other(**fields: str) -> Owner:
    values = {"namespace": "team", "name": "blog", "uid": "blog-uid", "management_cluster": US} | fields
    return Owner("HarvesterCluster", **values)


@BOTH
@pytest.mark.parametrize(
    ("change", "have", "verdict", "detail"),
    [
        (lambda _: None, owners(cluster("shop-x7k2p", "next")), Verdict.UNKNOWN, "was created again"),
        (lambda _: None, owners(uid=""), Verdict.UNKNOWN, "uid of this management cluster"),
        (lambda _: None, owners(uid=OTHERS), Verdict.FOREIGN, f"of management cluster {US}"),
        (lambda _: None, owners(namespaces=frozenset({"b"})), Verdict.UNKNOWN, "of namespace team are not seen"),
        (lambda obj: obj["metadata"].update(uid="copy"), owners(), Verdict.UNRECORDED, "of which it is a copy"),
        (lambda obj: obj["metadata"].update(annotations={}), owners(), Verdict.UNRECORDED, ""),
    ],
    ids=["recreated", "no uid", "foreign", "unseen owners", "copy", "by hand"],
)
def test_without_proof_that_its_guest_is_lost_it_is_kept(
    resource: Resource, change: Callable[[Obj], None], have: OwnerObjects, verdict: Verdict, detail: str
) -> None:
    obj = proven(resource)
    change(obj)
    found = examined(resource, obj, have=have)
    assert found is not None
    assert (found.verdict, detail in found.detail) == (verdict, True)


@BOTH
@pytest.mark.parametrize("second", [other(), other(management_cluster=OTHERS)])
def test_what_several_guests_have_had_is_kept(resource: Resource, second: Owner) -> None:
    found = examined(resource, proven(resource, SHOP, second))
    assert found is not None
    assert (found.verdict, "several owners" in found.detail) == (Verdict.UNKNOWN, True)


@BOTH
def test_what_a_vm_without_a_cluster_has_had_is_kept(resource: Resource) -> None:
    obj = proven(resource)
    annotations_of(obj)[names.GUEST_OF_ANNOTATION] += ",another"
    found = examined(resource, obj)
    assert found is not None
    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("policy", "part"), [("Retain", "reclaim policy Retain"), ("", "unknown reclaim policy")])
def test_a_volume_that_a_user_keeps_is_kept(policy: str, part: str) -> None:
    found = examined(CLAIMS, proven(CLAIMS, policy=policy))
    assert found is not None
    assert (found.verdict, part in found.detail) == (Verdict.UNKNOWN, True)


def test_a_disk_of_a_machine_is_that_of_its_record() -> None:
    disk = proven(CLAIMS)
    annotations_of(disk).update(record(Owner("HarvesterMachine", "team", "lost", "lost-uid", US)))
    found = examined(CLAIMS, disk)
    assert found is not None
    assert (found.owner, found.verdict) == ("HarvesterMachine team/lost", Verdict.UNKNOWN), "it has another name"


def test_a_load_balancer_without_the_label_of_its_guest_is_kept() -> None:
    """A user has removed it to keep the load balancer."""
    balancer = proven(BALANCERS)
    del balancer["metadata"]["labels"]
    found = examined(BALANCERS, balancer)
    assert found is not None
    assert (found.verdict, "no longer names its guest" in found.detail) == (Verdict.UNKNOWN, True)


@BOTH
@pytest.mark.parametrize(
    "user",
    [
        vm("of-the-cluster", cluster="team.shop"),
        vm("stopped", cluster="team.shop", status="Stopped"),
        vm("moved", Owner("HarvesterMachine", "team", "moved", "uid", OTHERS), cluster="team.shop"),
        vm("unclear", Owner("HarvesterMachine", "team", "lost", "uid", US), status="Stopped-"),
    ],
    ids=key_of,
)
def test_while_a_vm_may_be_of_the_guest_it_is_in_use(resource: Resource, user: Obj) -> None:
    """As after `clusterctl move`, when the other side has not seen all that the guest has."""
    found = examined(resource, proven(resource), [user])
    assert found is not None
    assert (found.verdict, str(key_of(user)) in found.detail) == (Verdict.IN_USE, True)


def test_a_load_balancer_is_in_use_while_another_guest_has_its_name() -> None:
    """Its cloud provider writes the same objects, whichever management cluster has it."""
    namesake = vm("namesake", cluster="other.shop", guest="shop")
    found = examined(BALANCERS, proven(BALANCERS), [namesake])
    assert found is not None
    assert found.verdict is Verdict.IN_USE
    elsewhere = {**namesake, "metadata": {**namesake["metadata"], "namespace": "elsewhere"}}
    found = examined(BALANCERS, proven(BALANCERS), [elsewhere])
    assert found is not None
    assert found.verdict is Verdict.LEAKED


def test_a_volume_is_in_use_while_any_vm_has_it() -> None:
    found = examined(CLAIMS, proven(CLAIMS), [vm("rescue", claim="pvc-1")])
    assert found is not None
    assert (found.verdict, "vms/rescue uses it" in found.detail) == (Verdict.IN_USE, True)


@BOTH
def test_vms_that_are_not_seen_may_need_it(resource: Resource) -> None:
    found = examined(resource, proven(resource), vm_namespaces=frozenset())
    assert found is not None
    assert found.verdict is Verdict.UNKNOWN


def test_the_address_of_a_load_balancer_is_released_after_it() -> None:
    entry = Entry(
        pool="guests", address="10.0.0.10", id="vms/shop-web", verdict=Verdict.HELD, owner="LoadBalancer vms/shop-web"
    )
    pools = (PoolReport(harvester="https://h", name="guests", total=10, available=9, expected=9, entries=(entry,)),)
    state = HarvesterState("https://h", owners(), {BALANCERS: [proven(BALANCERS)]}, pools)
    assert {obj.kind for obj in examine(state).leaked} == {BALANCERS.kind, ADDRESS}
    assert Key("vms", "shop-web") in state.balancers
