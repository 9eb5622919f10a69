"""Whose the load balancers and volumes of guests are, and which of them are deleted."""

import dataclasses
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.guestparts import (
    Guest,
    Proof,
    balancer_proof,
    belongs_to_others,
    entry_of,
    former_clusters,
    moved_from,
    proof_annotations,
    reclaim_policy,
    recorded_guest,
    service_of,
    used_claims,
    volume_entries,
    why_kept,
)
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner, record
from reconciler.harvester.slim import virtual_machine
from reconciler.machine.placement import cluster_label, control_plane_selector

pytestmark = pytest.mark.unit

UID = "uid-of-the-object"
SHOP = Guest(Owner("HarvesterCluster", "team", "shop", "uid-1", "hub"), "team.shop", "shop")
BLOG = Guest(Owner("HarvesterCluster", "team", "blog", "uid-2", "hub"), "team.blog", "blog")
AWAY = dataclasses.replace(SHOP, owner=dataclasses.replace(SHOP.owner, uid="uid-9", management_cluster="hub-2"))
MOVED = dataclasses.replace(AWAY, former_clusters=frozenset({"hub"}))


def vm(name: str, guest: Guest | None, *hotplugged: str, disks: tuple[str, ...] = (), labelled: bool = True) -> Obj:
    labels, annotations = {}, {}
    if guest:
        labels[names.CLUSTER_LABEL] = guest.label
        annotations[names.OWNER_CLUSTER_ANNOTATION] = guest.owner.management_cluster
        if labelled:
            labels[names.GUEST_CLUSTER_LABEL] = guest.name
    volumes = [{"persistentVolumeClaim": {"claimName": claim, "hotpluggable": True}} for claim in hotplugged]
    volumes += [{"persistentVolumeClaim": {"claimName": claim}} for claim in disks]
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"template": {"spec": {"volumes": volumes}}},
    }


def balancer(name: str = "shop", *entries: str, workload: str = "cluster") -> Obj:
    return {
        "metadata": {
            "name": f"{name}-default-web-1",
            "uid": UID,
            "labels": {
                names.BALANCER_CLUSTER_LABEL: name,
                names.BALANCER_SERVICE_NAMESPACE_LABEL: "default",
                names.BALANCER_SERVICE_LABEL: "web",
            },
            "annotations": proof_annotations({"metadata": {"uid": UID}}, entries),
        },
        "spec": {"workloadType": workload},
    }


def claim(name: str, *entries: str, policy: str = "") -> Obj:
    metadata: Obj = {"name": name, "uid": UID}
    metadata["annotations"] = proof_annotations({"metadata": metadata}, entries) if entries else {}
    if policy:
        metadata["annotations"][names.RECLAIM_POLICY_ANNOTATION] = policy
    return {"metadata": metadata}


def test_vms_of_the_cluster_prove_its_load_balancer() -> None:
    assert balancer_proof(balancer(), SHOP, [vm("a", SHOP), vm("b", BLOG), vm("c", None)]) is Proof.OURS
    assert service_of(balancer()) == "default/web"


def test_the_name_alone_proves_nothing() -> None:
    assert balancer_proof(balancer(), SHOP, [vm("b", BLOG)]) is Proof.UNPROVEN


def test_a_proof_outlives_the_vms() -> None:
    assert balancer_proof(balancer("shop", entry_of(SHOP.owner)), SHOP, []) is Proof.OURS


def test_another_guest_of_the_name_contests_it() -> None:
    rancher = vm("pool-1", None)
    rancher["metadata"]["labels"][names.GUEST_CLUSTER_LABEL] = "shop"
    assert balancer_proof(balancer(), SHOP, [vm("a", SHOP), rancher]) is Proof.CONTESTED
    # Of two clusters with a name, the VMs of one lack the label of guests.
    twin = Guest(dataclasses.replace(BLOG.owner, namespace="other"), "other.shop", "shop")
    for vms in permutations([vm("a", SHOP), vm("b", twin, labelled=False)]):
        assert balancer_proof(balancer(), SHOP, vms) is Proof.CONTESTED
    # A cluster of the same namespace and name on another management cluster.
    elsewhere = vm("z", SHOP)
    elsewhere["metadata"]["annotations"][names.OWNER_CLUSTER_ANNOTATION] = "hub-3"
    assert balancer_proof(balancer(), SHOP, [elsewhere]) is Proof.CONTESTED


@pytest.mark.parametrize("namespace", ["n" * 50, "n" * 60, "team"])
def test_long_names_of_another_guest_contest_it(namespace: str) -> None:
    """Their label is the start and a hash, and the guest that lost the name has no label of guests."""
    name = "shop" if namespace != "team" else "s" * 63
    guest = Guest(dataclasses.replace(SHOP.owner, name=name), cluster_label(Key("team", name)), name)
    label = cluster_label(Key(namespace, "shop-of-the-east" if namespace == "n" * 60 else name))
    twin = Guest(dataclasses.replace(SHOP.owner, management_cluster="hub-2"), label, name)
    nodes = [vm("a", guest), vm("b", twin, labelled=False)]
    assert balancer_proof(balancer(name), guest, nodes) is Proof.CONTESTED
    stranger = Guest(twin.owner, cluster_label(Key("n" * 40, "blog" * 10)), "blog" * 10)
    assert balancer_proof(balancer(name), guest, [vm("a", guest), vm("b", stranger, labelled=False)]) is Proof.OURS


@pytest.mark.parametrize("name", ["shop", "s" * 63])
def test_vms_of_the_go_provider_contest_it(name: str) -> None:
    guest = Guest(dataclasses.replace(SHOP.owner, name=name), cluster_label(Key("team", name)), name)
    old = vm("old", None)
    old["metadata"]["labels"][names.MACHINE_TYPE_LABEL] = control_plane_selector(name)
    assert balancer_proof(balancer(name), guest, [vm("a", guest), old]) is Proof.CONTESTED
    old["metadata"]["labels"][names.MACHINE_TYPE_LABEL] = control_plane_selector("blog")
    assert balancer_proof(balancer(name), guest, [vm("a", guest), old]) is Proof.OURS


def test_load_balancers_of_other_guests_and_of_vms_are_not_ours() -> None:
    assert balancer_proof(balancer("blog"), SHOP, [vm("a", SHOP)]) is Proof.CONTESTED
    assert balancer_proof(balancer(workload="vm"), SHOP, [vm("a", SHOP)]) is Proof.CONTESTED
    assert balancer_proof(balancer("shop", entry_of(BLOG.owner)), SHOP, [vm("a", SHOP)]) is Proof.CONTESTED


def test_a_move_is_proven_by_vms_only() -> None:
    former = balancer("shop", entry_of(SHOP.owner))
    assert balancer_proof(former, MOVED, [vm("a", MOVED)]) is Proof.OURS
    assert balancer_proof(former, MOVED, []) is Proof.UNPROVEN
    assert volume_entries(claim("pvc-1", entry_of(SHOP.owner)), MOVED, [vm("a", MOVED, "pvc-1")]) == {
        entry_of(MOVED.owner)
    }


def test_a_cluster_of_another_management_cluster_is_no_former_self() -> None:
    """It has namespace and name, too, and may still run."""
    theirs = entry_of(SHOP.owner)
    assert balancer_proof(balancer("shop", theirs), AWAY, [vm("a", AWAY)]) is Proof.CONTESTED
    entries = volume_entries(claim("pvc-1", theirs), AWAY, [vm("a", AWAY, "pvc-1")])
    assert entries == {theirs, entry_of(AWAY.owner)}
    # One that was recreated here no longer exists.
    recreated = dataclasses.replace(SHOP, owner=dataclasses.replace(SHOP.owner, uid="uid-8"))
    assert balancer_proof(balancer("shop", theirs), recreated, [vm("a", recreated)]) is Proof.OURS


def test_load_balancer_that_is_older_than_the_cluster_needs_a_record() -> None:
    """A former guest of the name left it, or a user who named a guest by hand."""
    guest = dataclasses.replace(SHOP, created="2026-05-01T00:00:00Z")
    recreated = dataclasses.replace(guest, owner=dataclasses.replace(SHOP.owner, uid="uid-8"))
    for created, outcome in (("2026-04-30T23:59:59Z", Proof.UNPROVEN), ("2026-05-01T00:00:00Z", Proof.OURS)):
        without, before = balancer(), balancer("shop", entry_of(SHOP.owner))
        for obj in (without, before):
            obj["metadata"]["creationTimestamp"] = created
        assert balancer_proof(without, guest, [vm("a", guest)]) is outcome
        assert balancer_proof(before, guest, []) is Proof.OURS
        assert balancer_proof(before, recreated, [vm("a", recreated)]) is Proof.OURS


def test_a_vm_names_the_management_clusters_from_which_it_was_moved() -> None:
    moved = vm("a", SHOP)
    for _ in range(2):
        for uid in (*(f"hub-{number}" for number in range(1, 12)), "hub"):
            owner = Owner("HarvesterMachine", "team", "a", "m", uid)
            moved["metadata"]["annotations"] |= moved_from(moved, owner, by_hand=False)
            moved["metadata"]["annotations"] |= record(owner)
            assert uid not in former_clusters(moved), "it is the present one"
    assert former_clusters(moved) == [f"hub-{number}" for number in range(4, 12)]

    owner = Owner("HarvesterMachine", "team", "a", "m", "hub")
    assert moved_from(moved, owner, by_hand=False) == {}
    assert moved_from(vm("b", None), owner, by_hand=False) == {}
    assert moved_from(moved, owner, by_hand=True) == {names.FORMER_CLUSTERS_ANNOTATION: None}


def test_a_hot_plugged_volume_is_the_guests() -> None:
    entries = volume_entries(claim("pvc-1"), SHOP, [vm("a", SHOP, "pvc-1"), vm("b", BLOG)])
    assert entries == {entry_of(SHOP.owner)}
    assert recorded_guest(claim("pvc-1", *entries)) == SHOP.owner
    # A disk of a machine is not.
    assert volume_entries(claim("a-disk-0"), SHOP, [vm("a", SHOP, disks=("a-disk-0",))]) == frozenset()


def test_a_volume_that_another_vm_had_is_never_deleted() -> None:
    entries = volume_entries(claim("pvc-1", entry_of(SHOP.owner)), SHOP, [vm("w", None, disks=("pvc-1",))])
    shared = claim("pvc-1", *entries, policy="Delete")
    assert belongs_to_others(shared)
    assert recorded_guest(shared) is None
    assert "another owner" in why_kept(shared, SHOP.owner, ())
    # Also when only the other cluster has seen it.
    entries = volume_entries(claim("pvc-1", entry_of(SHOP.owner)), BLOG, [vm("b", BLOG, "pvc-1")])
    assert entries == {entry_of(SHOP.owner), entry_of(BLOG.owner)}


def test_a_vm_that_has_the_volume_by_a_data_volume_has_it() -> None:
    """CDI gives the claim of a DataVolume its name."""
    user = vm("w", None)
    user["spec"]["template"]["spec"]["volumes"] = [{"dataVolume": {"name": "pvc-1"}}]
    assert used_claims([user]) == {"pvc-1"}
    cached = virtual_machine(user, "hub")
    entries = volume_entries(claim("pvc-1", entry_of(SHOP.owner)), SHOP, [cached])
    assert "another owner" in why_kept(claim("pvc-1", *entries, policy="Delete"), SHOP.owner, ())


def test_a_claim_with_an_owner_record_is_never_a_guests() -> None:
    """It is the disk of a machine, which a user hot-plugged to another one by hand."""
    for owner in (SHOP.owner, BLOG.owner):
        disk = claim("pvc-1", entry_of(SHOP.owner), policy="Delete")
        disk["metadata"]["annotations"] |= record(owner)
        assert "another owner" in why_kept(disk, SHOP.owner, ())
        disk["metadata"]["annotations"] = record(owner)
        assert volume_entries(disk, SHOP, [vm("a", SHOP, "pvc-1")]) == frozenset()


def test_the_reclaim_policy_decides() -> None:
    own_entry = entry_of(SHOP.owner)
    assert why_kept(claim("pvc-1", own_entry, policy="Delete"), SHOP.owner, ()) == ""
    assert "Retain" in why_kept(claim("pvc-1", own_entry, policy="Retain"), SHOP.owner, ())
    assert "unknown" in why_kept(claim("pvc-1", own_entry), SHOP.owner, ())
    assert "volume of a VM" in why_kept(claim("pvc-1", own_entry, policy="Delete"), SHOP.owner, {"pvc-1"})
    assert "never" in why_kept(claim("pvc-1", policy="Delete"), SHOP.owner, ())


def test_proof_of_another_object_counts_for_nothing() -> None:
    """A claim that is restored from a backup has the annotations of the one that was saved."""
    own_entry = entry_of(SHOP.owner)
    restored, copied = claim("pvc-1", own_entry, policy="Delete"), balancer("shop", own_entry)
    for obj in (restored, copied):
        obj["metadata"]["uid"] = "uid-of-the-copy"
        assert recorded_guest(obj) is None
    assert "never" in why_kept(restored, SHOP.owner, ())
    assert reclaim_policy(restored) == ""
    assert balancer_proof(copied, SHOP, []) is Proof.UNPROVEN
    assert volume_entries(restored, SHOP, [vm("a", SHOP, "pvc-1")]) == {own_entry}


GUESTS = st.sampled_from([SHOP, BLOG, None])
VMS = st.lists(st.tuples(GUESTS, st.booleans(), st.booleans()), max_size=6)


@given(VMS)
def test_only_what_no_other_vm_ever_had_is_deleted(history: list[tuple[Guest | None, bool, bool]]) -> None:
    """VMs come and go one after the other; the outcome is that of all of them."""
    volume, others, hotplugged = claim("pvc-1", policy="Delete"), False, False
    for guest, has_volume, is_hotplugged in history:
        claims = ("pvc-1",) if has_volume else ()
        seen = vm("x", guest, *claims) if is_hotplugged else vm("x", guest, disks=claims)
        volume = claim("pvc-1", *volume_entries(volume, SHOP, [seen]), policy="Delete")
        others = others or (has_volume and guest is not SHOP)
        hotplugged = hotplugged or (has_volume and guest is SHOP and is_hotplugged)

    assert (why_kept(volume, SHOP.owner, ()) == "") == (hotplugged and not others)


@given(st.text(max_size=40) | st.text(max_size=40).map(lambda text: f"{UID}:{text}"))
def test_any_annotation_is_read(text: str) -> None:
    marked = claim("pvc-1")
    marked["metadata"]["annotations"][names.GUEST_OF_ANNOTATION] = text
    owner = recorded_guest(marked)
    assert owner is None or entry_of(owner) in text
    assert why_kept(marked, SHOP.owner, ()) != "" or entry_of(SHOP.owner) in text
