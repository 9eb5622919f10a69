"""From plain objects to the model of clusters."""

from __future__ import annotations

import pytest

from caphv.api.names import DEPLOYMENT_LABEL
from caphv.api.object import Obj
from operations.doctor import clusters as doctor
from operations.read.objects import ManagementObjects, Unseen
from operations.status.assembly import overview_of
from operations.status.model import Cluster, State, as_json
from tests.support.clusters import CLUSTER_LABEL, NOW, VERSION, Builder, ago, condition


def only(found: ManagementObjects) -> Cluster:
    (cluster,) = overview_of(found, NOW).clusters
    return cluster


def test_a_healthy_cluster_is_available_and_has_no_problems() -> None:
    cluster = only(Builder().objects())
    assert (cluster.state, cluster.problems) == (State.AVAILABLE, ())
    assert (str(cluster.control_plane), str(cluster.workers)) == ("1/1", "2/2")
    assert (cluster.version, cluster.class_name, cluster.endpoint) == (VERSION, "harvester-rke2", "10.0.0.9:6443")
    assert (cluster.harvester, cluster.target_namespace) == ("https://harvester:6443", "vms")
    assert cluster.identity == "team/identity"


def test_machines_belong_to_their_control_plane_or_deployment() -> None:
    groups = only(Builder().objects()).groups
    found = {(group.kind, group.name): [machine.name for machine in group.machines] for group in groups}
    assert found == {
        ("RKE2ControlPlane", "shop"): ["cp-1"],
        ("MachineDeployment", "shop-md-0"): ["worker-1", "worker-2"],
    }


def test_a_machine_shows_where_its_vm_runs_and_its_node() -> None:
    machine = only(Builder().objects()).machines[0]
    assert (machine.host, machine.zone, machine.pool) == ("harvester-1", "zone-1", "machines")
    assert machine.node is not None
    assert (machine.node.name, machine.node.ready, machine.node.version) == ("cp-1", "True", VERSION)


def test_machines_without_an_owner_that_is_known_are_shown() -> None:
    builder = Builder(workers=1)
    found = builder.objects()
    found.machine_deployments = []
    assert [machine.name for machine in only(found).machines] == ["cp-1", "worker-1"]


def test_a_scaling_cluster_is_progressing() -> None:
    builder = Builder()
    builder.cluster["status"]["workers"]["desiredReplicas"] = 5
    assert only(builder.objects()).state is State.PROGRESSING


def test_an_upgrade_is_progressing_until_its_last_machine() -> None:
    builder = Builder()
    new = "v1.36.10+rke2r1"
    builder.cluster["spec"]["topology"]["version"] = new
    assert only(builder.objects()).state is State.PROGRESSING, "before the first machine"
    builder.machines["cp-1"]["spec"]["version"] = builder.machines["worker-1"]["spec"]["version"] = new
    assert only(builder.objects()).state is State.PROGRESSING, "between two machines, when the counts are complete"
    builder.machines["worker-2"]["spec"]["version"] = new
    assert only(builder.objects()).state is State.AVAILABLE


def test_workers_without_a_topology_may_keep_their_version() -> None:
    builder = Builder()
    del builder.cluster["spec"]["topology"]
    builder.control_plane["spec"]["version"] = builder.machines["cp-1"]["spec"]["version"] = "v1.36.10+rke2r1"
    assert only(builder.objects()).state is State.AVAILABLE
    builder.cluster["status"]["conditions"].append(condition("RollingOut", "True"))
    assert only(builder.objects()).state is State.PROGRESSING


def test_a_cluster_without_a_topology_has_the_version_of_its_control_plane() -> None:
    builder = Builder()
    builder.control_plane["spec"]["version"] = "v1.36.10+rke2r1"
    assert only(builder.objects()).version == VERSION
    del builder.cluster["spec"]["topology"]
    assert only(builder.objects()).version == "v1.36.10+rke2r1"


def test_machines_of_groups_that_name_no_version_are_not_replaced() -> None:
    builder = Builder(workers=0)
    del builder.cluster["spec"]["topology"]
    del builder.control_plane["spec"]["version"]
    cluster = only(builder.objects())
    assert (cluster.version, cluster.versions, cluster.state) == ("", (VERSION,), State.AVAILABLE)


def test_an_upgrade_shows_all_versions_oldest_first() -> None:
    builder = Builder()
    builder.machines["cp-1"]["spec"]["version"] = "v1.36.10+rke2r1"
    assert only(builder.objects()).versions == (VERSION, "v1.36.10+rke2r1")


def test_counts_of_a_core_with_v1beta1_are_found() -> None:
    builder = Builder()
    status = builder.cluster["status"]
    status["v1beta2"] = {name: status.pop(name) for name in ("controlPlane", "workers", "conditions")}
    cluster = only(builder.objects())
    assert (str(cluster.workers), cluster.state) == ("2/2", State.AVAILABLE)


def test_counts_that_an_old_core_does_not_know_come_from_the_control_plane() -> None:
    builder = Builder()
    status = builder.cluster["status"]
    status["v1beta2"] = {name: status.pop(name) for name in ("controlPlane", "workers", "conditions")}
    # A control plane of contract v1beta1 tells neither.
    for name in ("availableReplicas", "upToDateReplicas"):
        status["v1beta2"]["controlPlane"].pop(name, None)
    cluster = only(builder.objects())
    assert (str(cluster.control_plane), cluster.control_plane.up_to_date, cluster.state) == ("1/1", 1, State.AVAILABLE)


def test_counts_of_an_old_core_come_from_the_owners_of_machines() -> None:
    builder = Builder()
    builder.cluster["status"] = {"infrastructureReady": True}
    cluster = only(builder.objects())
    assert (str(cluster.control_plane), str(cluster.workers), cluster.state) == ("1/1", "2/2", State.AVAILABLE)


@pytest.mark.parametrize(
    ("status", "up_to_date"), [({}, 0), ({"updatedReplicas": 1}, 1), ({"upToDateReplicas": 1, "updatedReplicas": 0}, 1)]
)
def test_control_plane_of_another_contract_is_counted_by_what_it_tells(status: Obj, up_to_date: int) -> None:
    builder = Builder()
    builder.cluster["status"] = {}
    builder.control_plane["status"] = {"readyReplicas": 1, **status}
    cluster = only(builder.objects())
    assert (str(cluster.control_plane), cluster.control_plane.up_to_date) == ("1/1", up_to_date)


def test_clusters_elsewhere_are_left_out() -> None:
    builder = Builder()
    builder.cluster["spec"]["infrastructureRef"]["kind"] = "VSphereCluster"
    assert overview_of(builder.objects(), NOW).clusters == ()


def test_a_paused_cluster_is_paused_whatever_else_is_wrong() -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = True
    assert only(builder.objects()).state is State.PAUSED


def test_a_cluster_that_does_not_work_has_failed_and_one_that_does_is_degraded() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "VMProvisioningFailed", "the VM cannot start")
    assert only(builder.objects()).state is State.DEGRADED
    builder.cluster["status"]["conditions"] = [condition("Available", "False")]
    assert only(builder.objects()).state is State.DEGRADED
    builder.machines["cp-1"]["status"]["conditions"] = [condition("Ready", "False")]
    assert only(builder.objects()).state is State.FAILED


def test_a_deletion_shows_before_everything_else() -> None:
    builder = Builder()
    builder.cluster["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert only(builder.objects()).state is State.DELETING


def test_what_may_not_be_seen_is_named_and_never_taken_for_absent() -> None:
    builder = Builder()
    found = builder.objects()
    found.harvester_clusters = []
    found.unseen = [Unseen("harvesterclusters.infrastructure.cluster.x-k8s.io", "forbidden", forbidden=True)]
    overview = overview_of(found, NOW)
    assert overview.unseen == ("harvesterclusters.infrastructure.cluster.x-k8s.io: forbidden",)
    assert overview.clusters[0].problems == ()


def test_json_has_camel_case_names_empty_lists_and_says_whether_something_is_wrong() -> None:
    content: Obj = as_json(overview_of(Builder().objects(), NOW))
    (cluster,) = content["clusters"]
    assert (cluster["state"], cluster["wrong"], cluster["problems"]) == ("Available", False, [])
    assert cluster["controlPlane"]["upToDate"] == 1


def test_an_old_number_of_the_core_does_not_keep_a_k3s_cluster_progressing() -> None:
    """CAPK3s omits `unavailableReplicas` at 0, and the core keeps the `availableReplicas` that it derived before."""
    builder = Builder()
    builder.cluster["status"]["controlPlane"]["availableReplicas"] = 0
    builder.control_plane["status"] = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "ready": True}
    cluster = only(builder.objects())
    assert (cluster.control_plane.available, cluster.state) == (1, State.AVAILABLE)


def test_a_user_who_may_not_read_machines_sees_the_numbers_of_the_core() -> None:
    builder = Builder()
    found = builder.objects()
    found.machines = []
    assert only(found).control_plane.available == 1


def test_machines_that_may_not_be_read_exist_as_often_as_their_owners_say() -> None:
    builder = Builder()
    builder.deployment["status"]["replicas"] = 2
    found = builder.objects()
    found.machines = []
    assert [(group.name, group.replicas.current, group.replicas.complete) for group in only(found).groups] == [
        ("shop", 1, True),
        ("shop-md-0", 2, True),
    ]


def talos() -> Builder:
    """A cluster whose control plane counts no machines that are up to date, as its core does not either."""
    builder = Builder(control_planes=3)
    builder.control_plane["kind"] = builder.cluster["spec"]["controlPlaneRef"]["kind"] = "TalosControlPlane"
    builder.control_plane["status"] = {"replicas": 3, "readyReplicas": 3, "ready": True}
    del builder.cluster["status"]["controlPlane"]["upToDateReplicas"]
    return builder


def test_machines_of_talos_are_up_to_date_by_their_version() -> None:
    builder = talos()
    cluster = only(builder.objects())
    assert (cluster.control_plane.up_to_date, cluster.state) == (3, State.AVAILABLE)

    builder.machines["cp-1"]["spec"]["version"] = "v1.36.1"
    builder.machines["cp-2"]["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert only(builder.objects()).control_plane.up_to_date == 1


def test_no_machine_of_talos_is_up_to_date_while_another_change_is_rolled_out() -> None:
    builder = talos()
    outdated = condition("MachinesSpecUpToDate", "False", "RollingUpdateInProgress")
    builder.control_plane["status"]["conditions"] = [outdated]
    cluster = only(builder.objects())
    assert (cluster.control_plane.up_to_date, cluster.state) == (0, State.PROGRESSING)


def test_a_parked_cluster_is_no_alarm_whatever_its_objects_say() -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = True
    builder.cluster["metadata"]["annotations"] = {"caphv.io/park": "true", "caphv.io/parked-since": "x"}
    builder.cluster["status"]["conditions"] = [condition("Available", "False")]
    builder.break_machine("worker-1", "VMProvisioningFailed", "the VM is stopped")
    reported = builder.harvester_cluster["status"]["conditions"]
    reported.append(condition("HarvesterConnectionReady", "False", "HarvesterUnreachable", "no answer"))

    reported.append(condition("Parked", "True", message="parked since x: 3 VMs stopped"))
    cluster = only(builder.objects())
    assert (cluster.state, cluster.wrong) == (State.PARKED, False)
    (problem,) = cluster.problems
    assert "3 VMs stopped" in problem.cause
    assert "caphv resume team/shop" in problem.next_step
    assert {"Cluster/shop", "Machine/worker-1"} <= set(problem.consequences)

    reported[-1] = condition("Parked", "False", "Parking", "draining 2 workers")
    cluster = only(builder.objects())
    assert (cluster.state, cluster.wrong) == (State.PROGRESSING, False)
    assert cluster.problems[0].cause == "being parked: draining 2 workers"

    reported[-1] = condition("Parked", "False", "ParkBlocked", "a right is missing")
    assert only(builder.objects()).wrong


def by_rancher() -> Builder:
    """A cluster that Rancher provisions: its control plane is MachineDeployments, one of them with etcd alone."""
    builder = Builder(workers=1, control_planes=2)
    builder.control_plane = {
        "kind": "RKEControlPlane",
        "metadata": builder.control_plane["metadata"],
        "spec": {"kubernetesVersion": VERSION},
    }
    builder.cluster["spec"]["controlPlaneRef"] |= {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane"}
    builder.cluster["spec"].pop("topology")
    # The core counts all MachineDeployments as workers.
    builder.cluster["status"]["workers"] = dict.fromkeys(builder.cluster["status"]["workers"], 3)
    builder.cluster["status"].pop("controlPlane")
    roles = {"cp-1": "control-plane", "cp-2": "etcd", "worker-1": "worker"}
    for name, role in roles.items():
        labels = {CLUSTER_LABEL: "shop", f"rke.cattle.io/{role}-role": "true", DEPLOYMENT_LABEL: f"shop-{role}"}
        builder.machines[name]["metadata"]["labels"] = labels
        builder.machines[name]["spec"].pop("version", None)
    return builder


def deployment_of(role: str) -> Obj:
    """The MachineDeployment of a pool."""
    template = {"metadata": {"labels": {f"rke.cattle.io/{role}-role": "true"}}, "spec": {}}
    return {
        "kind": "MachineDeployment",
        "metadata": {"name": f"shop-{role}", "namespace": "team", "labels": {CLUSTER_LABEL: "shop"}},
        "spec": {"replicas": 1, "template": template},
        "status": {"availableReplicas": 1, "upToDateReplicas": 1},
    }


def test_pools_of_rancher_count_by_their_roles() -> None:
    found = by_rancher().objects()
    found.machine_deployments = [deployment_of(role) for role in ("control-plane", "etcd", "worker")]
    cluster = only(found)
    groups = {(group.kind, group.name): [machine.name for machine in group.machines] for group in cluster.groups}
    assert groups == {
        ("MachineDeployment", "shop-control-plane"): ["cp-1"],
        ("MachineDeployment", "shop-etcd"): ["cp-2"],
        ("MachineDeployment", "shop-worker"): ["worker-1"],
    }
    assert (str(cluster.control_plane), str(cluster.workers), cluster.version) == ("2/2", "1/1", VERSION)
    assert cluster.state is State.AVAILABLE
    assert [machine.name for machine in cluster.machines if machine.etcd] == ["cp-2"]
    assert [machine.name for machine in cluster.machines if machine.control_plane] == ["cp-1"]


def test_an_even_number_of_machines_without_etcd_is_no_problem() -> None:
    found = by_rancher().objects()
    found.machine_deployments = [deployment_of(role) for role in ("control-plane", "etcd", "worker")]
    assert not [check for check in doctor.checks([only(found)]) if check.id == "quorum"]
