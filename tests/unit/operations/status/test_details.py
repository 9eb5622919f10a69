"""What Harvester and the workload cluster add to a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from caphv.api.object import Key, Obj, well_formed
from operations.read.objects import HarvesterObjects, Unseen
from operations.status.assembly import overview_of
from operations.status.details import pools_of, with_details, with_harvester, with_nodes
from operations.status.model import Cluster, Overview, Severity, as_json
from tests.support.clusters import NOW, VERSION, Builder, ago, condition


def cluster(builder: Builder | None = None) -> Cluster:
    (found,) = overview_of((builder or Builder()).objects(), NOW).clusters
    return found


def vm(name: str, status: str = "Running") -> Obj:
    volumes = [{"name": "disk-0", "persistentVolumeClaim": {"claimName": f"{name}-disk-0"}}, {"name": "cloudinitdisk"}]
    return {
        "metadata": {"name": name, "namespace": "vms"},
        "spec": {"template": {"spec": {"volumes": volumes}}},
        "status": {"printableStatus": status},
    }


def harvester(*names: str, host_ready: bool = True) -> HarvesterObjects:
    """A Harvester with VMs on one host, each with a disk and an address."""
    interface = {"name": "nic-1", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5", "fd00::5"]}
    inside = {"interfaceName": "cni0", "ipAddress": "10.42.0.1"}
    instance = {"nodeName": "harvester-1", "interfaces": [interface, inside]}
    claim = {
        "spec": {"storageClassName": "longhorn-sles"},
        "status": {"phase": "Bound", "capacity": {"storage": "40Gi"}},
    }
    return HarvesterObjects(
        server="https://harvester:6443",
        hosts=[{"metadata": {"name": "harvester-1"}, "status": {"conditions": [condition("Ready", str(host_ready))]}}],
        vms=[vm(name) for name in names],
        instances=[{"metadata": {"name": name, "namespace": "vms"}, "status": instance} for name in names],
        claims=[{"metadata": {"name": f"{name}-disk-0", "namespace": "vms"}, **claim} for name in names],
        namespaces=frozenset({"vms"}),
    )


ALL = ("cp-1", "worker-1", "worker-2")


def test_machines_get_their_vm_with_host_disks_and_addresses() -> None:
    machine = with_harvester(cluster(), harvester(*ALL)).machines[0]
    assert machine.vm is not None
    assert (machine.vm.status, machine.vm.host) == ("Running", "harvester-1")
    assert machine.vm.addresses == ("10.0.0.5", "fd00::5")
    (disk,) = machine.vm.disks
    assert (disk.name, disk.size, disk.storage_class, disk.phase) == ("cp-1-disk-0", "40Gi", "longhorn-sles", "Bound")


def test_a_disk_that_does_not_exist_is_missing() -> None:
    found = harvester(*ALL)
    found.claims = []
    machine = with_harvester(cluster(), found).machines[0]
    assert machine.vm is not None
    assert machine.vm.disks[0].phase == "missing"


def test_a_vm_whose_loss_is_not_reported_yet_is_a_problem() -> None:
    (problem,) = with_harvester(cluster(), harvester("cp-1", "worker-1")).problems
    assert problem.objects == ("HarvesterMachine/worker-2",)
    assert "the provider has not noticed" in problem.cause


def test_a_lost_vm_that_its_machine_reports_is_one_problem() -> None:
    builder = Builder()
    builder.break_machine("worker-2", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    assert len(with_harvester(cluster(builder), harvester("cp-1", "worker-1")).problems) == 1


def test_vms_that_may_not_be_read_are_not_lost() -> None:
    found = harvester()
    found.unseen = [Unseen("virtualmachines.kubevirt.io of namespace vms", "forbidden", forbidden=True)]
    assert with_harvester(cluster(), found).problems == ()


def test_a_host_that_is_not_ready_is_named_with_its_machines() -> None:
    (problem,) = with_harvester(cluster(), harvester(*ALL, host_ready=False)).problems
    assert problem.severity is Severity.ERROR
    assert "host harvester-1" in problem.cause
    assert len(problem.objects) == 3


def test_hosts_that_failed_and_run_nothing_any_more_are_one_note_for_all_clusters() -> None:
    failed = harvester(*ALL)
    failed.hosts.append(
        {"metadata": {"name": "harvester-2"}, "status": {"conditions": [condition("Ready", "Unknown")]}}
    )
    (note,) = with_harvester(cluster(), failed).problems
    assert (note.severity, note.objects) == (Severity.NOTE, ("Host/harvester-2",))
    assert note.cause == "hosts of Harvester are not ready: harvester-2"
    assert note.since == ago(minutes=1)
    assert "caphv doctor team/shop" in note.next_step

    # All clusters on the Harvester have it in common, however many machines each of them has.
    overview = Overview("https://management:6443", (cluster(Builder("shop")), cluster(Builder("pay"))))
    (cause,) = with_details(overview, {Key("team", "identity"): failed}, {}, NOW).causes
    assert (cause.subject, cause.cause) == ("Harvester https://harvester:6443", note.cause)
    assert cause.clusters == ("team/shop", "team/pay")


def has_name(obj: Any) -> bool:
    """Whether a client takes an object of a server that is not trusted."""
    return well_formed(obj) and bool(obj["metadata"].get("name"))


def node(name: str, ready: str = "True") -> Obj:
    info = {"nodeInfo": {"kubeletVersion": VERSION}, "conditions": [condition("Ready", ready)]}
    return {"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "zone-2"}}, "status": info}


def test_nodes_come_from_the_workload_cluster() -> None:
    found = with_nodes(cluster(), [node(name) for name in ALL], NOW)
    assert [machine.node and machine.node.zone for machine in found.machines] == ["zone-2"] * 3
    assert found.problems == ()


def test_a_node_that_joined_just_now_is_found_by_the_harvester_machine() -> None:
    builder = Builder(workers=0)
    builder.machines["cp-1"]["spec"]["infrastructureRef"]["name"] = "shop-infra-1"
    builder.harvester_machines["cp-1"]["metadata"]["name"] = "shop-infra-1"
    del builder.machines["cp-1"]["status"]["nodeRef"]
    (machine,) = with_nodes(cluster(builder), [node("shop-infra-1")], NOW).machines
    assert (machine.name, machine.node and machine.node.name) == ("cp-1", "shop-infra-1")


def test_a_node_that_is_not_ready_is_a_problem_of_its_machine() -> None:
    (problem,) = with_nodes(cluster(), [node("cp-1"), node("worker-1", "Unknown"), node("worker-2")], NOW).problems
    assert problem.objects == ("Node/worker-1",)
    assert "kubectl delete machine worker-1 -n team" in problem.next_step


@pytest.mark.parametrize(
    ("ready", "minutes", "severity"),
    [
        ("False", 14, Severity.WAITING),
        ("False", 16, Severity.ERROR),
        ("Unknown", 14, Severity.ERROR),
    ],
)
def test_a_node_that_has_just_joined_gets_time(ready: str, minutes: float, severity: Severity) -> None:
    joined = node("worker-1")
    joined["status"]["conditions"] = [condition("Ready", ready, minutes=minutes)]
    found = with_nodes(cluster(), [node("cp-1"), joined, node("worker-2")], NOW)
    (problem,) = found.problems
    assert (problem.severity, problem.since) == (severity, ago(minutes=minutes))
    assert found.wrong is (severity is Severity.ERROR)


def test_a_node_that_does_not_say_since_when_it_is_not_ready_gets_no_time() -> None:
    silent = node("worker-1")
    silent["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    (problem,) = with_nodes(cluster(), [node("cp-1"), silent, node("worker-2")], NOW).problems
    assert (problem.severity, problem.since) == (Severity.ERROR, "")


def test_the_only_node_with_etcd_is_not_to_be_replaced() -> None:
    (problem,) = with_nodes(cluster(), [node("cp-1", "Unknown")], NOW).problems
    assert problem.objects == ("Node/cp-1",)
    assert "kubectl delete" not in problem.next_step

    several = cluster(Builder(control_planes=3))
    problem = with_nodes(several, [node("cp-1", "Unknown")], NOW).problems[0]
    assert "kubectl delete machine cp-1 -n team" in problem.next_step


def test_a_cluster_that_does_not_answer_keeps_what_its_machines_remember() -> None:
    overview = overview_of(Builder().objects(), NOW)
    silent = Unseen("Nodes of cluster team/shop", "no answer within 6 s")
    found = with_details(overview, {Key("team", "identity"): harvester(*ALL)}, {Key("team", "shop"): silent}, NOW)
    assert found.unseen == ("Nodes of cluster team/shop: no answer within 6 s",)
    assert found.clusters[0].machines[0].node is not None
    assert found.clusters[0].machines[0].vm is not None


HOSTILE: tuple[Any, ...] = (None, 1, "x", [], {}, [1], ["x"], [{}], {"name": {}}, {"x": [1]})


def changed(value: Any) -> Iterator[Any]:
    """Yield a value with each of its parts replaced by what no API server would answer."""
    yield from HOSTILE
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        for other in changed(inner):
            copy = value.copy()
            copy[key] = other
            yield copy


def test_a_server_of_a_tenant_that_answers_anything_breaks_nothing() -> None:
    overview = overview_of(Builder().objects(), NOW)
    identity, key = Key("team", "identity"), Key("team", "shop")
    hostile_disk = {"name": "disk-0", "dataVolume": {"name": "x"}}

    whole = harvester(*ALL)
    whole.vms[0]["spec"]["template"]["spec"]["volumes"].append(hostile_disk)
    whole.pools = [
        {
            "metadata": {"name": "machines"},
            "spec": {"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}]},
            "status": {"allocated": {"10.0.0.10": "team/cp-1"}},
        }
    ]
    count = 0
    for kind in ("hosts", "vms", "instances", "claims", "pools"):
        for obj in filter(has_name, changed(getattr(whole, kind)[0])):
            answer: Any = {kind: [obj]}
            as_json(with_details(overview, {identity: replace(whole, **answer)}, {key: []}, NOW))
            count += 1

    for field in ("conditions", "v1beta2"):
        worker = node("worker-1", "False")
        worker["status"][field] = {"conditions": [condition("Ready", "False")]} if field == "v1beta2" else []
        for obj in filter(has_name, changed(worker)):
            as_json(with_details(overview, {}, {key: [obj]}, NOW))
            count += 1
    assert count > 500


def test_pools_say_what_is_free_unless_they_are_invalid() -> None:
    found = harvester()
    ranges = [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}]
    found.pools = [
        {"metadata": {"name": "good"}, "spec": {"ranges": ranges}, "status": {"allocated": {"10.0.0.10": "team/cp-1"}}},
        {"metadata": {"name": "bad"}, "spec": {"ranges": [{"subnet": "nonsense"}]}},
    ]
    assert [(pool.name, pool.free, pool.total) for pool in pools_of(found)] == [("bad", None, 0), ("good", 9, 10)]
