"""What a deletion waits for, and what a forced one leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caphv.api.object import Key, Obj
from operations.change.deletionreport import (
    PendingDeletion,
    forcible,
    leftovers_of,
    pending_deletions,
    pending_remains,
    remains_of,
)
from operations.read.objects import ManagementObjects
from operations.status.assembly import parts_of
from operations.status.conditionproblems import PATIENCE
from operations.status.parts import Parts
from tests.support.clusters import NOW, Builder, ago, condition


def parts(builder: Builder) -> Parts:
    (found,) = parts_of(builder.objects())
    return found


def waits(builder: Builder) -> tuple[PendingDeletion, ...]:
    return pending_deletions(parts(builder), NOW)


def deleting(builder: Builder, *names: str, **delta: float) -> Builder:
    """Have the cluster and some machines deleted some time ago."""
    since = ago(**(delta or {"minutes": 2}))
    for obj in (builder.cluster, *(builder.machines[name] for name in names)):
        obj["metadata"]["deletionTimestamp"] = since
    for name in names:
        builder.harvester_machines[name]["metadata"]["deletionTimestamp"] = since
    return builder


def test_a_cluster_that_is_not_being_deleted_waits_for_nothing() -> None:
    builder = Builder()
    assert waits(builder) == ()
    builder.cluster["spec"]["paused"] = True
    assert waits(builder) == ()


def test_a_cluster_without_infrastructure_waits_for_its_finalizers() -> None:
    builder = deleting(Builder(workers=0))
    found = replace(parts(builder), harvester_cluster=None, machines=())
    (wait,) = pending_deletions(found, NOW)
    assert (wait.object, wait.reason) == ("Cluster/shop", "its finalizers")
    message = "* 1 descendant of Cluster:\n  * MachinePool/mp"
    found.cluster["status"]["conditions"] = [condition("Deleting", "True", "WaitingForDescendants", message)]
    (wait,) = pending_deletions(found, NOW)
    assert wait.reason == "* 1 descendant of Cluster: * MachinePool/mp"


def test_a_machine_that_waits_for_its_infrastructure_is_named_once() -> None:
    builder = deleting(Builder(workers=0), "cp-1")
    left = remains_of(builder.objects(), Key("team", "shop"))
    assert left is not None
    assert [each.object for each in pending_remains(left, NOW)] == ["HarvesterMachine/cp-1", "HarvesterCluster/shop-x"]


def test_a_machine_says_why_its_vm_is_still_there() -> None:
    builder = deleting(Builder(workers=1), "worker-1", hours=1)
    message = "Harvester at https://harvester:6443 is unreachable; deletion is blocked"
    builder.harvester_machines["worker-1"]["status"]["conditions"] = [
        condition("Ready", "False", "HarvesterConnectionFailed", "the connection failed"),
        condition("VMProvisioningReady", "False", "HarvesterConnectionFailed", message),
    ]
    first, second = waits(builder)
    assert (first.object, first.stuck) == ("Machine/cp-1", False)
    assert (second.object, second.reason, second.stuck) == ("HarvesterMachine/worker-1", message, True)
    assert "caphv doctor team/shop" in second.next_step


RESUME = 'kubectl patch cluster shop -n team --type=merge -p \'{"spec":{"paused":false}}\''


def test_a_paused_cluster_says_first_that_no_controller_acts() -> None:
    builder = deleting(Builder(workers=1))
    builder.cluster["spec"]["paused"] = True
    first, *machines = waits(builder)
    assert (first.object, first.since, first.stuck) == ("Cluster/shop", ago(minutes=2), True)
    assert first.reason == "the end of its pause: no controller acts until then"
    assert first.next_step == f"Resume it: {RESUME}"
    assert [(wait.object, wait.stuck) for wait in machines] == [("Machine/cp-1", False), ("Machine/worker-1", False)]


def test_every_mark_of_a_pause_is_named() -> None:
    builder = deleting(Builder(workers=1), "worker-1")
    builder.cluster["spec"]["paused"] = True
    for obj in (builder.cluster, builder.harvester_machines["worker-1"]):
        obj["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    first, _, last = waits(builder)
    assert first.next_step == f"Resume it: {RESUME} && kubectl annotate cluster shop -n team cluster.x-k8s.io/paused-"
    assert (last.object, last.reason, last.stuck) == ("HarvesterMachine/worker-1", first.reason, True)
    assert last.next_step == "Resume it: kubectl annotate harvestermachine worker-1 -n team cluster.x-k8s.io/paused-"


def test_machines_whose_owner_does_not_delete_them_are_stuck_after_a_while() -> None:
    builder = deleting(Builder(workers=0), minutes=14)
    owner = {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "RKE2ControlPlane", "name": "shop"}
    builder.machines["cp-1"]["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    builder.machines["cp-1"]["metadata"]["ownerReferences"].append({**owner, "name": "no-controller"})
    (wait,) = waits(builder)
    assert (wait.since, wait.stuck, wait.next_step) == (ago(minutes=14), False, "")
    assert wait.reason == "its turn: RKE2ControlPlane/shop has not asked for its deletion yet"
    (wait,) = waits(deleting(builder, seconds=PATIENCE.total_seconds()))
    assert not wait.stuck
    (wait,) = waits(deleting(builder, hours=1))
    assert (wait.since, wait.stuck) == (ago(hours=1), True)
    assert "kubectl get pods -A -l cluster.x-k8s.io/provider" in wait.next_step


def test_a_machine_that_is_drained_quotes_the_core() -> None:
    builder = deleting(Builder(workers=1), "cp-1", "worker-1")
    del builder.harvester_machines["worker-1"]["metadata"]["deletionTimestamp"]
    builder.machines["worker-1"]["status"]["conditions"] = [
        condition("Deleting", "True", "DrainingNode", "Drain not completed yet:\n* Pod team/db: cannot evict")
    ]
    found = {wait.object: wait.reason for wait in waits(builder)}
    assert found["Machine/worker-1"] == "Drain not completed yet: * Pod team/db: cannot evict"


def test_a_hook_of_the_control_plane_provider_is_named() -> None:
    builder = deleting(Builder(workers=0), "cp-1")
    del builder.harvester_machines["cp-1"]["metadata"]["deletionTimestamp"]
    builder.machines["cp-1"]["metadata"]["annotations"] = {
        "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke2-cleanup": ""
    }
    (wait,) = waits(builder)
    assert wait.reason == "the hook rke2-cleanup of its control plane provider"


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        ({"reason": "DrainingNode", "message": "draining\nthe Node"}, "draining the Node"),
        ({"reason": "DrainingNode", "message": ""}, "DrainingNode"),
        ({"reason": "DrainingNode"}, "DrainingNode"),
        ({}, "Cluster API's core"),
    ],
)
def test_a_machine_without_infrastructure_says_what_the_core_waits_for(reported: dict[str, str], reason: str) -> None:
    builder = deleting(Builder(workers=0), "cp-1")
    builder.harvester_machines.clear()
    builder.machines["cp-1"]["status"]["conditions"] = [{"type": "Deleting", "status": "True", **reported}]
    (wait,) = waits(builder)
    assert (wait.object, wait.reason) == ("Machine/cp-1", reason)
    assert wait.next_step == "See kubectl describe machine cp-1 -n team"


def test_machines_of_a_paused_cluster_are_never_stuck_themselves() -> None:
    builder = deleting(Builder(workers=0), days=1)
    builder.cluster["spec"]["paused"] = True
    assert [(wait.object, wait.stuck) for wait in waits(builder)] == [("Cluster/shop", True), ("Machine/cp-1", False)]


def test_the_infrastructure_comes_after_the_machines() -> None:
    builder = deleting(Builder(workers=0))
    builder.machines, builder.harvester_machines = {}, {}
    builder.harvester_cluster["metadata"]["deletionTimestamp"] = ago(minutes=1)
    builder.harvester_cluster["status"]["conditions"] = [
        condition("Ready", "False", "InfrastructureProvisioningInProgress", "waiting for Service vms/lb to go")
    ]
    (wait,) = waits(builder)
    assert (wait.object, wait.reason) == ("HarvesterCluster/shop-x", "waiting for Service vms/lb to go")


def test_what_may_remain_is_named_with_its_place() -> None:
    builder = Builder(workers=0)
    builder.harvester_machines["cp-1"]["spec"]["volumes"] = [{}, {}]
    builder.harvester_cluster["spec"] |= {
        "controlPlaneEndpoint": {"host": "10.0.0.9"},
        "loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "load-balancers"},
    }
    found = {(left.kind, left.name, left.namespace or left.pool) for left in leftovers_of(parts(builder))}
    address = builder.harvester_machines["cp-1"]["status"]["allocatedIPAddress"]
    assert found == {
        ("VirtualMachine", "cp-1", "vms"),
        ("PersistentVolumeClaim", "cp-1-disk-0-*", "vms"),
        ("PersistentVolumeClaim", "cp-1-disk-1-*", "vms"),
        ("Secret", "cp-1-cloud-init", "vms"),
        ("address", address, "machines"),
        ("LoadBalancer", "team-shop-x-lb", "vms"),
        ("Service", "team-shop-x-lb", "vms"),
        ("address", "10.0.0.9", "load-balancers"),
    }


@pytest.mark.parametrize(
    ("balancer", "host", "remains"),
    [
        ({"ipamType": "pool", "ipPoolRef": "lb"}, "10.0.0.9", True),
        ({"ipamType": "pool", "ipPoolRef": "lb"}, "", False),
        ({"ipamType": "dhcp"}, "10.0.0.9", False),
        ({"ipamType": "none"}, "10.0.0.9", False),
        (None, "10.0.0.9", False),
    ],
)
def test_only_an_endpoint_of_a_pool_is_an_address_that_may_remain(
    balancer: dict[str, str] | None, host: str, remains: bool
) -> None:
    builder = Builder(workers=0)
    builder.harvester_machines.clear()
    more = {"controlPlaneEndpoint": {"host": host} if host else {}, "loadBalancerConfig": balancer}
    builder.harvester_cluster["spec"] |= more
    found = [(left.name, left.pool) for left in leftovers_of(parts(builder)) if left.kind == "address"]
    assert found == ([("10.0.0.9", "lb")] if remains else [])


@pytest.mark.parametrize(("spec", "status"), [({"providerID": "harvester://x"}, None), ({}, {"virtualMachine": {}})])
def test_a_machine_without_a_record_of_its_vm_or_address_names_only_what_it_has(spec: Obj, status: Obj | None) -> None:
    builder = Builder(workers=0)
    builder.harvester_machines["cp-1"] |= {"spec": spec, "status": status}
    found = {left.kind for left in leftovers_of(parts(builder)) if left.name.startswith("cp-1")}
    assert found == ({"VirtualMachine", "Secret"} if spec else set())


def test_addresses_of_all_interfaces_may_remain() -> None:
    builder = Builder(workers=0)
    addresses = [{"address": "10.1.0.5", "pool": "storage"}, {"address": "10.2.0.5", "pool": "backup"}]
    builder.harvester_machines["cp-1"]["status"]["interfaceAddresses"] = addresses
    found = {left.name: left.pool for left in leftovers_of(parts(builder)) if left.kind == "address"}
    assert {"10.1.0.5": "storage", "10.2.0.5": "backup"}.items() <= found.items()


def test_pools_that_were_created_for_a_cluster_may_remain() -> None:
    builder = Builder(workers=0)
    spec = builder.harvester_cluster["spec"]
    assert not {"IPPool"} & {left.kind for left in leftovers_of(parts(builder))}
    spec["vmNetworkConfig"] = {"ipPool": {}, "ipPoolRef": "x"}
    assert not {"IPPool"} & {left.kind for left in leftovers_of(parts(builder))}, "it describes none"
    spec["vmNetworkConfig"]["ipPool"] = {"subnet": "10.0.0.0/24"}
    spec["loadBalancerConfig"] = {"ipamType": "pool", "ipPool": {"subnet": "10.0.0.0/24"}}
    found = [(left.kind, left.name, left.pool) for left in leftovers_of(parts(builder))]
    assert ("IPPool", "team-shop-x-ippool", "") in found
    assert ("IPPool", "team-shop-x-vm-ippool", "") in found
    # The address of the endpoint is in the pool that was created for it.
    spec["controlPlaneEndpoint"] = {"host": "10.0.0.9"}
    found = [(left.kind, left.name, left.pool) for left in leftovers_of(parts(builder))]
    assert ("address", "10.0.0.9", "team-shop-x-ippool") in found


def test_an_address_whose_pool_is_not_recorded_names_none() -> None:
    builder = Builder(workers=0)
    del builder.harvester_machines["cp-1"]["status"]["allocatedPoolRef"]
    (address,) = (left for left in leftovers_of(parts(builder)) if left.kind == "address")
    assert address.pool == ""


def test_a_cluster_that_never_reached_harvester_leaves_nothing() -> None:
    builder = Builder(workers=0)
    del builder.harvester_cluster["spec"]["server"]
    del builder.harvester_machines["cp-1"]["status"]["virtualMachine"]
    assert leftovers_of(parts(builder)) == ()


def test_what_is_forced_already_is_not_forced_again() -> None:
    builder = Builder(workers=1)
    builder.harvester_machines["cp-1"]["metadata"]["annotations"] = {"caphv.io/force-delete": "true"}
    assert [(kind, obj["metadata"]["name"]) for kind, obj in forcible(parts(builder))] == [
        ("HarvesterMachine", "worker-1"),
        ("HarvesterCluster", "shop-x"),
    ]


def test_what_is_left_without_a_cluster_is_found_and_explained() -> None:
    builder = deleting(Builder(workers=1), "worker-1", hours=1)
    found = builder.objects()
    found.clusters = []
    left = remains_of(found, Key("team", "shop"))
    assert left is not None
    explained = {each.object: each for each in pending_remains(left, NOW)}
    assert explained["HarvesterMachine/worker-1"].since
    assert explained["Machine/cp-1"].next_step == "kubectl delete machine cp-1 -n team"
    assert "nothing else requests it" in explained["HarvesterCluster/shop-x"].reason
    assert explained["HarvesterCluster/shop-x"].stuck
    assert "Machine/worker-1" not in explained


def test_remains_that_are_being_deleted_say_since_when_and_what_they_wait_for() -> None:
    """Without Machines, which would name their infrastructure."""
    builder = deleting(Builder(workers=1), "worker-1", hours=1)
    builder.harvester_machines["worker-1"]["status"]["conditions"] = [condition("Ready", "False", "x", "the VM stops")]
    found = builder.objects()
    found.clusters, found.machines, found.harvester_clusters = [], [], []
    left = remains_of(found, Key("team", "shop"))
    assert left is not None
    explained = {each.object: (each.since, each.reason, each.stuck) for each in pending_remains(left, NOW)}
    assert explained.pop("HarvesterMachine/cp-1")[0] == ""
    assert explained == {"HarvesterMachine/worker-1": (ago(hours=1), "the VM stops", True)}


def test_nothing_is_left_of_a_cluster_that_never_was() -> None:
    assert remains_of(Builder().objects(), Key("team", "other")) is None


def test_a_cluster_with_an_external_endpoint_leaves_no_load_balancer() -> None:
    builder = Builder(workers=0)
    assert {"LoadBalancer", "Service"} <= {left.kind for left in leftovers_of(parts(builder))}
    builder.harvester_cluster["spec"]["loadBalancerConfig"] = {"ipamType": "none"}
    kinds = {left.kind for left in leftovers_of(parts(builder))}
    assert kinds
    assert not {"LoadBalancer", "Service"} & kinds


@pytest.mark.parametrize("kinds", ["machines", "harvester_clusters", "harvester_machines"])
def test_objects_of_any_kind_are_remains(kinds: str) -> None:
    whole = Builder().objects()
    left = remains_of(ManagementObjects(**{kinds: getattr(whole, kinds)}), Key("team", "shop"))
    assert left is not None
    assert (bool(left.machines), bool(left.harvester_cluster), bool(left.harvester_machines)) == (
        kinds == "machines",
        kinds == "harvester_clusters",
        kinds == "harvester_machines",
    )


def test_objects_of_a_namesake_in_another_namespace_are_no_remains() -> None:
    assert remains_of(Builder().objects(), Key("other", "shop")) is None
