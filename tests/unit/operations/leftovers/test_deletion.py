"""Leftovers are deleted one by one, each as it is right before, on servers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api import names, resources
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Obj,
    annotations_of,
)
from caphv.api.ownership import Owner
from caphv.runtime.errors import Forbidden, Unreachable
from operations.leftovers import deletion, release
from operations.leftovers.reading import read_state
from operations.leftovers.release import Outcome
from operations.read.owners import read_owners
from tests.support.leftovers import (
    BALANCERS,
    CLUSTER,
    KINDS,
    MACHINE,
    OTHERS,
    POOLS,
    US,
    VMS,
    Sides,
    again,
    everything,
    obj,
    pool,
    vm,
)

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def test_everything_is_deleted_in_an_order_in_which_nothing_that_remains_is_needed() -> None:
    sides = Sides.of(*everything())
    outcomes = await sides.delete()
    assert list(outcomes.items()) == [
        ("VirtualMachine vms/gone", Outcome.DELETED),
        ("PersistentVolumeClaim vms/gone-disk-0-abcde", Outcome.DELETED),
        ("Secret vms/gone-cloud-init", Outcome.DELETED),
        ("Secret vms/shop-token", Outcome.DELETED),
        ("LoadBalancer vms/team-shop-lb", Outcome.DELETED),
        ("Service vms/team-shop-lb", Outcome.DELETED),
        ("VirtualMachineBackup vms/former-replaced", Outcome.DELETED),
        ("ClusterRoleBinding shop", Outcome.DELETED),
        ("ServiceAccount vms/shop", Outcome.DELETED),
        ("address 10.0.0.10 of IPPool team-shop-vm-ippool", Outcome.RELEASED),
        ("IPPool team-shop-vm-ippool", Outcome.DELETED),
    ]
    assert sides.left() == ["ClusterRoleBinding caphv-guests:vms"]
    (shared,) = sides.harvester.stored(CLUSTER_ROLE_BINDINGS)
    assert [subject["name"] for subject in shared["subjects"]] == ["other"]
    assert await sides.delete() == {}


async def set_state(sides: Sides, state: str) -> None:
    await sides.harvester.patch(VMS, "gone", "vms", {"status": {"printableStatus": state}})


async def test_a_cluster_whose_vm_is_at_work_loses_nothing_unless_asked() -> None:
    sides = Sides.of(*everything())
    await set_state(sides, "Running")
    before = sides.left()
    assert await sides.delete() == {}
    assert sides.left() == before
    outcomes = await sides.delete(running=True)
    assert set(outcomes.values()) == {Outcome.DELETED, Outcome.RELEASED}
    assert sides.left() == ["ClusterRoleBinding caphv-guests:vms"]


async def test_a_vm_that_was_started_since_it_was_listed_stays_with_all_that_it_needs() -> None:
    sides = Sides.of(*everything())
    report, _ = await sides.read()
    before = sides.left()
    await set_state(sides, "Running")
    outcomes = await sides.delete(report)
    assert set(outcomes.values()) == {Outcome.KEPT}
    assert sides.left() == before


@pytest.mark.parametrize("kind", [kind.kind for kind in KINDS if kind is not resources.VIRTUAL_MACHINE_INSTANCES])
async def test_a_failure_in_between_loses_nothing(kind: str) -> None:
    sides = Sides.of(*everything())
    sides.harvester.errors[f"delete {kind}"] = Forbidden(403, "Forbidden", f"may not delete {kind}")
    outcomes = await sides.delete()
    failed = {name for name, outcome in outcomes.items() if outcome is Outcome.FAILED}
    assert failed == {name for name in outcomes if name.startswith(f"{kind} ")}
    if kind == "VirtualMachine":
        # The VM still needs its disk and Secret, and has the address.
        kept = {name for name, outcome in outcomes.items() if outcome is Outcome.KEPT}
        assert {"PersistentVolumeClaim vms/gone-disk-0-abcde", "Secret vms/gone-cloud-init"} <= kept
        assert "address 10.0.0.10 of IPPool team-shop-vm-ippool" in kept
    sides.harvester.errors.clear()
    await sides.delete()
    assert sides.left() == ["ClusterRoleBinding caphv-guests:vms"]


async def test_a_vm_that_is_slow_to_stop_keeps_its_disk_until_another_run() -> None:
    slow = Owner("HarvesterMachine", "team", "slow", "slow-uid", US)
    sides = Sides.of(*everything(), vm("slow", slow, finalizers=["example.com/slow"]))
    sides.harvester.put(obj(PERSISTENT_VOLUME_CLAIMS, "slow-disk-0-abcde", slow))
    outcomes = await sides.delete()
    assert outcomes["VirtualMachine vms/slow"] is Outcome.DELETING
    assert outcomes["PersistentVolumeClaim vms/slow-disk-0-abcde"] is Outcome.KEPT
    assert outcomes["VirtualMachine vms/gone"] is Outcome.DELETED
    assert any("example.com/slow" in each.message for each in sides.reported)

    await sides.harvester.patch(VMS, "slow", "vms", {"metadata": {"finalizers": []}})
    outcomes = await sides.delete()
    assert outcomes["PersistentVolumeClaim vms/slow-disk-0-abcde"] is Outcome.DELETED
    assert sides.left() == ["ClusterRoleBinding caphv-guests:vms"]


async def test_harvester_deletes_no_disk_with_the_vm() -> None:
    """The list on the VM may name the disk that a person attached; disks of the record are deleted on their own."""
    listed = {names.REMOVED_VOLUMES_ANNOTATION: "gone-disk-0-abcde,data"}
    machine = vm(finalizers=["x"])
    machine["metadata"]["annotations"] |= listed
    sides = Sides.of(machine)
    await sides.delete(seconds=1)
    (stored,) = sides.harvester.stored(VMS)
    assert annotations_of(stored)[names.REMOVED_VOLUMES_ANNOTATION] == ""
    assert "deletionTimestamp" in stored["metadata"]


def an_owner_exists_again(sides: Sides) -> None:
    sides.management.put(again(resources.HARVESTER_MACHINES, "gone", "gone-uid"))
    sides.management.put(again(resources.HARVESTER_CLUSTERS, "shop", "shop-uid"))


def an_owner_adopts(sides: Sides) -> None:
    for kind, name in ((resources.HARVESTER_MACHINES, "gone"), (resources.HARVESTER_CLUSTERS, "shop")):
        owner = again(kind, name, "new")
        owner["metadata"]["annotations"] = {names.ADOPT_ANNOTATION: "true"}
        sides.management.put(owner)


def others_adopted(sides: Sides) -> None:
    for kind in KINDS:
        for each in sides.harvester.stored(kind):
            if names.OWNER_CLUSTER_ANNOTATION in annotations_of(each):
                each["metadata"]["annotations"][names.OWNER_CLUSTER_ANNOTATION] = OTHERS
                sides.harvester.put(each)


def the_management_cluster_is_another(sides: Sides) -> None:
    sides.management.put(obj(NAMESPACES, "kube-system", None, metadata={"uid": OTHERS}))


@pytest.mark.parametrize(
    "change", [an_owner_exists_again, an_owner_adopts, others_adopted, the_management_cluster_is_another]
)
async def test_what_changed_since_it_was_listed_is_decided_again(change: Callable[[Sides], None]) -> None:
    sides = Sides.of(*everything())
    report, _ = await sides.read()
    before = sides.left()
    change(sides)
    outcomes = await sides.delete(report)
    addresses = {name for name in outcomes if name.startswith("address")}
    assert {outcomes[name] for name in outcomes if name not in addresses} == {Outcome.KEPT}
    assert sides.left() == before


async def test_another_object_of_the_name_is_not_deleted() -> None:
    sides = Sides.of(*everything())
    report, _ = await sides.read()
    await sides.harvester.delete(SECRETS, "gone-cloud-init", "vms")
    sides.harvester.put(obj(SECRETS, "gone-cloud-init", MACHINE))
    await sides.delete(report)
    assert "Secret gone-cloud-init" in sides.left()


async def test_a_write_between_check_and_deletion_has_it_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adoption right before the request: the precondition fails, and the object belongs to others then."""
    sides = Sides.of(obj(BALANCERS, "team-shop-lb", CLUSTER))
    report, _ = await sides.read()
    original = sides.harvester.delete

    async def delete(*arguments: Any, **options: Any) -> Any:
        others_adopted(sides)
        return await original(*arguments, **options)

    monkeypatch.setattr(sides.harvester, "delete", delete)
    assert await sides.delete(report) == {"LoadBalancer vms/team-shop-lb": Outcome.KEPT}
    assert sides.left() == ["LoadBalancer team-shop-lb"]


async def test_a_management_cluster_that_does_not_answer_deletes_nothing() -> None:
    sides = Sides.of(*everything())
    report, _ = await sides.read()
    before = sides.left()
    for kind in ("HarvesterMachine", "HarvesterCluster"):
        sides.management.errors[f"list {kind}"] = Unreachable("https://management: timed out")
    outcomes = await sides.delete(report)
    assert set(outcomes.values()) == {Outcome.FAILED}
    assert sides.left() == before


async def test_counts_and_leaked_addresses_of_pools_of_others_are_corrected() -> None:
    machines = pool("machines", None, _10_0_0_10="team/gone", _10_0_0_11="team/here")
    machines["status"]["available"] = 3
    here = obj(resources.HARVESTER_MACHINES, "here", None, metadata={"namespace": "team"})
    sides = Sides.of(machines, pool("wrong", None), management=(here,))
    sides.harvester.stored(POOLS)[1]["status"]["available"] = 4
    assert await sides.delete() == {
        "IPPool machines": Outcome.CORRECTED,
        "address 10.0.0.10 of IPPool machines": Outcome.RELEASED,
        "IPPool wrong": Outcome.CORRECTED,
    }
    status = {each["metadata"]["name"]: each["status"] for each in sides.harvester.stored(POOLS)}
    assert (status["machines"]["allocated"], status["machines"]["available"]) == ({"10.0.0.11": "team/here"}, 9)
    assert status["wrong"]["available"] == 10


async def test_a_pool_with_invalid_ranges_is_no_success() -> None:
    broken = pool("broken", None)
    broken["spec"]["ranges"] = [{"subnet": "nonsense"}]
    assert await Sides.of(broken).delete() == {"IPPool broken": Outcome.FAILED}


# With the rights of an identity


def limited(sides: Sides) -> None:
    """Forbid what the shipped roles do not allow: to list Secrets and accounts."""
    for kind in (SECRETS, SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS):
        sides.harvester.errors[f"list {kind.kind}"] = Forbidden(403, "Forbidden", f"may not list {kind}")


async def test_an_account_that_may_not_list_secrets_finds_them_by_what_else_is_there() -> None:
    sides = Sides.of(*everything())
    limited(sides)
    report, unseen = await sides.read()
    assert {each.name for each in report.leaked if each.kind == "Secret"} == {"gone-cloud-init", "shop-token"}
    assert "ServiceAccount vms/shop" in {each.subject for each in report.leaked}
    assert [each.what for each in unseen] == [
        "secrets of other names on Harvester",
        "serviceaccounts of other names on Harvester",
        "clusterrolebindings.rbac.authorization.k8s.io of other names on Harvester",
    ]
    await sides.delete()
    assert sides.left() == ["ClusterRoleBinding caphv-guests:vms"]


async def test_content_of_secrets_is_not_kept() -> None:
    sides = Sides.of(vm(), obj(SECRETS, "gone-cloud-init", MACHINE, data={"userdata": "c2VjcmV0"}))
    limited(sides)
    state, _ = await read_state(sides.client, await read_owners(sides.management, "team"), include_running=False)
    assert [set(each) for each in state.of(SECRETS)] == [{"apiVersion", "kind", "metadata"}]


# Whatever the records say

OWNERS = st.builds(
    Owner,
    st.sampled_from(["HarvesterMachine", "HarvesterCluster", "Other"]),
    st.just("team"),
    st.sampled_from(["here", "gone"]),
    st.sampled_from(["here-uid", "gone-uid"]),
    st.sampled_from([US, OTHERS]),
)
GENERATED = {
    VMS: "{}",
    PERSISTENT_VOLUME_CLAIMS: "{}-disk-0-abcde",
    SECRETS: "{}-cloud-init",
    BALANCERS: "team-{}-lb",
    SERVICES: "team-{}-lb",
    CLUSTER_ROLE_BINDINGS: "{}",
    SERVICE_ACCOUNTS: "{}",
}
RECORDED = [kind for kind in KINDS if kind not in (resources.VIRTUAL_MACHINE_INSTANCES, POOLS)]
HARVESTER = st.lists(
    st.builds(obj, st.sampled_from(RECORDED), st.sampled_from("abc"), OWNERS)
    | st.builds(
        lambda kind, owner: obj(kind, GENERATED[kind].format(owner.name), owner),
        st.sampled_from(list(GENERATED)),
        OWNERS,
    )
    | st.builds(vm, st.sampled_from(["a", "b", "gone"]), st.none() | OWNERS)
    | st.builds(pool, st.sampled_from("abc"), st.none() | OWNERS),
    max_size=8,
)


@settings(deadline=None)
@given(HARVESTER)
def test_no_deletion_meets_what_another_record_names_or_an_owner_has(objs: list[Obj]) -> None:
    async def run() -> None:
        here = again(resources.HARVESTER_MACHINES, "here", "here-uid")
        cluster = again(resources.HARVESTER_CLUSTERS, "here", "here-uid")
        sides = Sides.of(*objs, management=(here, cluster))
        before = {kind: {each["metadata"]["uid"]: each for each in sides.harvester.stored(kind)} for kind in KINDS}
        await sides.delete()
        for kind in KINDS:
            remaining = {each["metadata"]["uid"] for each in sides.harvester.stored(kind)}
            for uid, deleted in before[kind].items():
                if uid in remaining:
                    continue
                annotations = annotations_of(deleted)
                assert annotations[names.OWNER_CLUSTER_ANNOTATION] == US
                assert "gone" in annotations[names.OWNER_ANNOTATION] + annotations[names.OWNER_UID_ANNOTATION]
                assert not annotations[names.OWNER_ANNOTATION].startswith("Other/")

    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        for module in (deletion, release):
            context.setattr(module, "_POLL_SECONDS", 0.0)
        asyncio.run(run())
