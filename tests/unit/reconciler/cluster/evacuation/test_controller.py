"""What a reconcile does for a cluster on a host that is evacuated, with everything around it in memory."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api import resources
from caphv.api.conditions import get_condition, rfc3339
from caphv.api.evacuation import hosts_left
from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    CORDONED_BY_EVACUATION_ANNOTATION,
    EVACUATE_ANNOTATION,
    EVACUATED_BOOT_ANNOTATION,
    EVACUATED_FROM_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
    SKIPPED_BY_US,
)
from caphv.api.object import NODES, PODS, Obj, annotations_of
from caphv.api.ownership import record
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, ServerFault, Unreachable
from reconciler.cluster.evacuation.plan import STAGE_SECONDS, Stage
from reconciler.machine.placement import REQUIRED
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import CORE, INFRASTRUCTURE, TARGET, Cached, MemoryCase

pytestmark = pytest.mark.unit

GPU = "nvidia.com/GPU"
HOSTS = ("h0", "h1")


def add_host(case: MemoryCase, name: str, *, evacuate: str = "", devices: int = 4) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: str(devices)}}
    annotations = {EVACUATE_ANNOTATION: evacuate} if evacuate else {}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations}
    case.harvester.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status})


async def cluster(monkeypatch: pytest.MonkeyPatch, *names: str, evacuate: str = "true", devices: int = 4) -> MemoryCase:
    """A ready cluster with a machine with a GPU on host h0 for each name; those with c are of the control plane."""
    case = await ready(monkeypatch)
    caches: Any = case.context.caches
    caches.harvester_machines = Cached(case.management, resources.HARVESTER_MACHINES)
    caches.machines = Cached(case.management, resources.machines("v1beta2"))
    caches.machines_of = lambda _: case.management.stored(resources.HARVESTER_MACHINES)
    add_host(case, "h0", evacuate=evacuate)
    add_host(case, "h1", devices=devices)
    for name in names:
        add_machine(case, name)
    case.guests_answer = True
    return case


def add_machine(case: MemoryCase, name: str, *, devices: int = 1, conditions: list[Obj] | None = None) -> None:
    owner = {"apiVersion": CORE, "kind": "Machine", "name": f"m-{name}", "uid": f"m-{name}", "controller": True}
    labels = {"cluster.x-k8s.io/control-plane": ""} if name.startswith("c") else {}
    metadata = {"name": name, "namespace": "team", "uid": f"{name}-uid", "labels": labels, "ownerReferences": [owner]}
    owner_metadata, status = {"name": f"m-{name}", "namespace": "team"}, {"nodeRef": {"name": name}}
    case.management.put(
        {"apiVersion": CORE, "kind": "Machine", "metadata": owner_metadata, "spec": {}, "status": status}
    )
    machine = case.management.put(
        {"apiVersion": INFRASTRUCTURE, "kind": "HarvesterMachine", "metadata": metadata, "spec": {}}
    )
    spec = {"domain": {"devices": {"hostDevices": [{"deviceName": GPU}] * devices}}}
    annotations = record(case.context.owner("HarvesterMachine", machine))
    vm = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": TARGET, "annotations": annotations},
        "spec": {"runStrategy": "RerunOnFailure", "template": {"spec": spec}},
    }
    case.harvester.put(vm)
    run(case, name, "h0", conditions=conditions)
    add_node(case, name)


def run(
    case: MemoryCase,
    name: str,
    host: str,
    *,
    conditions: list[Obj] | None = None,
    started: str = "2026-11-27T10:00:00Z",
) -> None:
    """Have an instance of a VM on a host, which an eviction would migrate."""
    found = vm_of(case, name)
    spec = {**found["spec"]["template"]["spec"], "evictionStrategy": "LiveMigrateIfPossible"}
    status = {"phase": "Running", "nodeName": host, "conditions": conditions or []}
    metadata = {"name": name, "namespace": TARGET, "uid": f"{name}-{host}"} | {"creationTimestamp": started}
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata}
    case.harvester.put({**obj, "spec": spec, "status": status})


def add_node(
    case: MemoryCase, name: str, *, boot: str = "first", is_ready: bool = True, reported: str = "2026-11-27T10:00:00Z"
) -> None:
    found = case.workload.find("Node", name) or {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "creationTimestamp": "2026-11-27T10:00:00Z"},
        "spec": {},
    }
    condition = {"type": "Ready", "status": str(is_ready), "lastHeartbeatTime": reported}
    status = {"conditions": [condition], "nodeInfo": {"bootID": boot}}
    case.workload.put({**found, "status": status})


def add_pod(case: MemoryCase, name: str, node: str) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "x", "controller": True}
    metadata = {"name": name, "namespace": "default", "ownerReferences": [owner]}
    spec = {"nodeName": node, "containers": []}
    case.workload.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def found(case: MemoryCase, kind: str, name: str) -> Obj:
    obj = case.management.find(kind, name, "team")
    assert obj is not None
    return obj


def vm_of(case: MemoryCase, name: str) -> Obj:
    obj = case.harvester.find("VirtualMachine", name, TARGET)
    assert obj is not None
    return obj


def node_of(case: MemoryCase, name: str) -> Obj:
    obj = case.workload.find("Node", name)
    assert obj is not None
    return obj


async def stop(case: MemoryCase, name: str) -> None:
    """What KubeVirt does with a halted VM."""
    assert vm_of(case, name)["spec"]["runStrategy"] == "Halted"
    await case.harvester.delete(resources.VIRTUAL_MACHINE_INSTANCES, name, TARGET)


def message_of(case: MemoryCase) -> str:
    condition = get_condition(case.obj["status"]["conditions"], "HostsEvacuated") or {}
    return str(condition.get("message") or "")


def records(case: MemoryCase, name: str) -> set[str]:
    """Names of all that an evacuation has recorded about a machine."""
    ours = {
        EVACUATED_FROM_ANNOTATION,
        EVACUATED_STRATEGY_ANNOTATION,
        EVACUATION_STARTED_ANNOTATION,
        EVACUATED_BOOT_ANNOTATION,
        CORDONED_BY_EVACUATION_ANNOTATION,
        SKIP_REMEDIATION_ANNOTATION,
        AVOIDED_HOSTS_ANNOTATION,
    }
    objs = (
        found(case, "HarvesterMachine", name),
        found(case, "Machine", f"m-{name}"),
        vm_of(case, name),
        node_of(case, name),
    )
    return ours & {annotation for obj in objs for annotation in annotations_of(obj)}


async def test_a_machine_leaves_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    await case.reconcile()
    assert annotations_of(found(case, "HarvesterMachine", "w"))[EVACUATED_FROM_ANNOTATION] == "h0"
    assert annotations_of(found(case, "Machine", "m-w"))[SKIP_REMEDIATION_ANNOTATION] == SKIPPED_BY_US
    assert node_of(case, "w")["spec"]["unschedulable"] is True
    term = vm_of(case, "w")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term == [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["h0"]}]}]
    assert case.condition("HostsEvacuated") == ("False", "Evacuating")
    assert case.condition("Ready")[0] == "True", "the cluster itself is as ready as before"

    await stop(case, "w")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert "to start on another host" in message_of(case)
    run(case, "w", "h1")
    await case.reconcile()
    assert "waiting for its Node on h1" in message_of(case), "what it reported before its stop is no report"
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert "unschedulable" not in node_of(case, "w")["spec"]
    assert records(case, "w") == {AVOIDED_HOSTS_ANNOTATION}, "it must not return while its host is evacuated"
    assert case.condition("HostsEvacuated") == ("True", "HostsEvacuated")
    assert [event for event in case.events if "vacuat" in event[1]] == [
        ("Normal", "EvacuationStarted"),
        ("Normal", "Evacuated"),
    ]

    add_host(case, "h0")
    await case.reconcile()
    assert records(case, "w") == set()
    assert vm_of(case, "w")["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {}}
    assert case.condition("HostsEvacuated") == ("", "")


def drained(case: MemoryCase, name: str, kind: str) -> None:
    """Have Harvester drain a host."""
    add_host(case, name)
    host = case.harvester.find("Node", name)
    assert host is not None
    if kind == "taint":
        host["spec"]["taints"] = [{"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}]
    else:
        host["metadata"]["annotations"][f"harvesterhci.io/{kind}"] = "true"
    case.harvester.put(host)


async def halted(case: MemoryCase, name: str, *, ago: float = 5.0, **annotations: str) -> None:
    """Have a VM halted some time ago, that ran on host h0 before."""
    machine = found(case, "HarvesterMachine", name)
    case.management.put({**machine, "status": {"virtualMachine": {"host": "h0"}}})
    vm = vm_of(case, name)
    vm["spec"]["runStrategy"] = "Halted"
    vm["metadata"]["annotations"] |= {key.replace("__", "/"): value for key, value in annotations.items()}
    since = rfc3339(datetime.now(UTC) - timedelta(seconds=ago))
    vm["status"] = {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": since}]}
    case.harvester.put(vm)
    await stop(case, name)


@pytest.mark.parametrize("kind", ["taint", "drain-forced", "maintain-status"])
async def test_what_harvester_has_halted_is_started_again(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    case = await cluster(monkeypatch, "a", "w", evacuate="")
    for name in ("a", "w"):
        await halted(case, name)
    drained(case, "h0", kind)
    await case.reconcile()
    for name in ("a", "w"):
        assert vm_of(case, name)["spec"]["runStrategy"] == "Always"
        assert SKIP_REMEDIATION_ANNOTATION in records(case, name)
        avoids = annotations_of(vm_of(case, name)).get(AVOIDED_HOSTS_ANNOTATION)
        # The taint and the maintenance keep it from there. Before that, nothing else does.
        assert avoids == ("h0" if kind == "drain-forced" else None)
        run(case, name, "h1")
        add_node(case, name, boot="second")
    assert case.events.count(("Normal", "StoppedByHarvester")) == 2
    assert ("Normal", "EvacuationStarted") not in case.events
    add_host(case, "h0")
    await case.reconcile()
    assert records(case, "a") | records(case, "w") == set()
    assert case.condition("HostsEvacuated") == ("", "")


@pytest.mark.parametrize(
    ("ago", "annotations", "kind"),
    [
        (3600.0, {}, "taint"),
        (5.0, {}, ""),
        (5.0, {}, "drain-requested"),
        (5.0, {"caphv.io__parked-run-strategy": "Always"}, "taint"),
        (5.0, {"harvesterhci.io__maintain-mode-strategy-node-name": "h0"}, "taint"),
        (5.0, {"harvesterhci.io__insufficient-resource-quota": "cpu"}, "taint"),
    ],
    ids=["long-ago", "host-not-drained", "drain-not-forced", "parked", "label", "quota"],
)
async def test_what_a_user_has_stopped_stays_so(
    monkeypatch: pytest.MonkeyPatch, ago: float, annotations: dict[str, str], kind: str
) -> None:
    case = await cluster(monkeypatch, "w", evacuate="")
    await halted(case, "w", ago=ago, **annotations)
    if kind:
        drained(case, "h0", kind)
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
    assert records(case, "w") == set()


async def test_a_vm_whose_user_wants_it_stopped_for_maintenance_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", evacuate="")
    await halted(case, "w")
    vm = vm_of(case, "w")
    vm["metadata"]["labels"] = {"harvesterhci.io/maintain-mode-strategy": "Shutdown"}
    case.harvester.put(vm)
    drained(case, "h0", "taint")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_a_label_that_forced_maintenance_ignores_keeps_no_vm_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", evacuate="")
    await halted(case, "w")
    vm = vm_of(case, "w")
    vm["metadata"]["labels"] = {"harvesterhci.io/maintain-mode-strategy": "Migrate"}
    case.harvester.put(vm)
    drained(case, "h0", "drain-forced")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"


@pytest.mark.parametrize("kind", ["drain-requested", "maintain-status", "taint"])
async def test_no_machine_is_remediated_while_harvester_migrates_it(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    case = await cluster(monkeypatch, evacuate="")
    for name in ("w", "x"):
        add_machine(case, name, devices=0)
    machine = found(case, "Machine", "m-x")
    machine["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: "by a user"}
    case.management.put(machine)
    drained(case, "h0", kind)
    assert await case.reconcile() is not None
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert case.condition("HostsEvacuated") == ("", "")

    for name in ("w", "x"):
        run(case, name, "h1")
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {}
    assert annotations_of(found(case, "Machine", "m-x")) == {SKIP_REMEDIATION_ANNOTATION: "by a user"}

    # The provider does not run, or the host is back before the VM has left it.
    machine = found(case, "Machine", "m-w")
    machine["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    case.management.put(machine)
    add_host(case, "h0")
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {}


async def test_a_machine_whose_vm_is_deleted_during_its_move_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    await stop(case, "w")
    await case.harvester.delete(resources.VIRTUAL_MACHINES, "w", TARGET)
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {}
    assert EVACUATED_FROM_ANNOTATION not in annotations_of(found(case, "HarvesterMachine", "w"))
    assert ("Normal", "Evacuated") not in case.events


@pytest.mark.parametrize("status", ["Unknown", "False"])
async def test_a_host_that_dies_while_it_is_drained_migrates_nothing(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    case = await cluster(monkeypatch, evacuate="")
    add_machine(case, "w", devices=0)
    drained(case, "h0", "maintain-status")
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    host = case.harvester.find("Node", "h0")
    assert host is not None
    # The API server gives it to each new Node, and only a controller removes it.
    host["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    case.harvester.put(host)
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    host["status"]["conditions"] = [{"type": "Ready", "status": status}]
    case.harvester.put(host)
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {}


@pytest.mark.parametrize("is_halted", [False, True])
async def test_without_the_right_to_keep_machines_from_remediation_harvester_is_not_in_the_way(
    monkeypatch: pytest.MonkeyPatch, is_halted: bool
) -> None:
    case = await cluster(monkeypatch, "w" if is_halted else "x", evacuate="")
    add_machine(case, "a", devices=0)
    if is_halted:
        await halted(case, "w")
    drained(case, "h0", "taint")
    case.management.errors["patch Machine"] = Forbidden(403, "Forbidden", "machines.cluster.x-k8s.io is forbidden")
    await case.reconcile()
    assert ("Warning", "EvacuationBlocked") not in case.events
    if is_halted:
        assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"
    else:
        assert case.condition("HostsEvacuated") == ("", "")


async def test_nothing_is_asked_while_no_host_is_evacuated(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", "c", evacuate="")
    for server in (case.harvester, case.workload):
        server.errors = {"list": ServerFault(500, "x", "asked"), "get": ServerFault(500, "x", "asked")}
    await case.reconcile()
    case.harvester.requests.clear()
    await case.reconcile()
    assert case.harvester.requests == []
    assert case.condition("HostsEvacuated") == ("", "")


async def test_a_cluster_without_vms_on_the_host_is_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, evacuate="")
    quiet = await case.reconcile()
    add_host(case, "h0", evacuate="true")
    assert await case.reconcile() == quiet
    assert case.condition("HostsEvacuated")[0] == "True"
    add_machine(case, "w", devices=0)
    assert (await case.reconcile() or 0.0) <= 30.0
    assert quiet is None or quiet > 30.0


async def test_hosts_are_reported_by_the_names_of_their_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch)
    host = case.harvester.find("Node", "h0")
    assert host is not None
    host["metadata"]["labels"] = {"kubernetes.io/hostname": "other"}
    case.harvester.put(host)
    await case.reconcile()
    assert hosts_left(message_of(case)) == {"h0"}


async def test_machines_that_can_migrate_are_left_to_harvester(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch)
    add_machine(case, "w", devices=0)
    add_machine(case, "old", devices=0)
    instance = case.harvester.find("VirtualMachineInstance", "old", TARGET)
    assert instance is not None
    instance["spec"].pop("evictionStrategy")
    case.harvester.put(instance)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    reported = "Harvester migrates w; Harvester restarts old, whose VMs have no eviction strategy"
    assert reported in message_of(case)
    assert records(case, "w") | records(case, "old") == set()

    # A user wants it stopped for maintenance.
    vm = vm_of(case, "old")
    vm["metadata"]["labels"] = {"harvesterhci.io/maintain-mode-strategy": "ShutdownAndRestartAfterDisable"}
    case.harvester.put(vm)
    await case.reconcile()
    assert "Harvester migrates w; Harvester shuts down old, as label" in message_of(case)
    assert "restarts" not in message_of(case)

    # Its disk may be local to the host, as it turns out.
    bound = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable"}
    run(case, "w", "h0", conditions=[bound])
    await case.reconcile()
    assert "w stays on h0: KubeVirt cannot migrate it (DisksNotLiveMigratable), so a disk may be" in message_of(case)
    assert records(case, "w") == set()


@pytest.mark.parametrize(("mode", "moves"), [("ReadWriteOnce", False), ("ReadWriteMany", True)])
async def test_a_machine_with_a_device_and_a_disk_that_may_be_local_stays(
    monkeypatch: pytest.MonkeyPatch, mode: str, moves: bool
) -> None:
    case = await cluster(monkeypatch, "w")
    vm = vm_of(case, "w")
    vm["spec"]["template"]["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "disk-w"}}]
    case.harvester.put(vm)
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"accessModes": [mode]}}
    case.harvester.put({**claim, "metadata": {"name": "disk-w", "namespace": TARGET}})
    await case.reconcile()
    assert ("disk disk-w is not ReadWriteMany" in message_of(case)) is not moves
    assert (vm_of(case, "w")["spec"]["runStrategy"] == "Halted") is moves


async def test_control_plane_machines_leave_one_at_a_time_after_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "c1", "c2", "w")
    add_node(case, "c2", is_ready=False)
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert "c1 leaves h0: waiting for other control plane Nodes: c2" in message_of(case)
    assert "unschedulable" not in node_of(case, "c1")["spec"], "it may take long"

    # Its kubelet is ready before etcd is.
    add_node(case, "c2")
    container = {"name": "etcd"}
    metadata = {"name": "etcd-c2", "namespace": "kube-system", "labels": {"component": "etcd"}}
    unready = {"conditions": [{"type": "Ready", "status": "False"}]}
    spec = {"nodeName": "c2", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": unready}
    case.workload.put(pod)
    await case.reconcile()
    assert "waiting for other control plane Nodes: c2" in message_of(case)
    case.workload.put({**pod, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    await case.reconcile()
    strategies = {name: vm_of(case, name)["spec"]["runStrategy"] for name in ("c1", "c2")}
    assert strategies == {"c1": "Halted", "c2": "RerunOnFailure"}


@pytest.mark.parametrize("lost", ["VirtualMachine", "HarvesterMachine", "Machine"])
async def test_a_server_without_a_vm_or_in_deletion_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    case = await cluster(monkeypatch, "c1", "c2", "c3")
    if lost == "VirtualMachine":
        await case.harvester.delete(resources.VIRTUAL_MACHINES, "c3", TARGET)
    else:
        obj = found(case, lost, "m-c3" if lost == "Machine" else "c3")
        obj["metadata"] |= {"deletionTimestamp": "2026-11-27T10:00:00Z", "finalizers": ["x"]}
        case.management.put(obj)
    await case.reconcile()
    assert "c1 leaves h0: waiting for other control plane Nodes: c3" in message_of(case)
    assert vm_of(case, "c1")["spec"]["runStrategy"] == "RerunOnFailure"


async def test_a_server_that_has_just_started_is_not_ready_until_its_kubelet_and_etcd_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch, "c1", "c2")
    run(case, "c2", "h1", started="2026-11-27T10:05:00Z")
    await case.reconcile()
    assert "c1 leaves h0: waiting for other control plane Nodes: c2" in message_of(case)

    add_node(case, "c2", reported="2026-11-27T10:05:20Z")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-27T10:00:20Z"}
    metadata = {"name": "etcd-c2", "namespace": "kube-system", "labels": {"component": "etcd"}}
    spec = {"nodeName": "c2", "containers": [{"name": "etcd"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    case.workload.put({**pod, "status": {"conditions": [ready]}})
    await case.reconcile()
    assert "c1 leaves h0: waiting for other control plane Nodes: c2" in message_of(case)
    assert vm_of(case, "c1")["spec"]["runStrategy"] == "RerunOnFailure"

    case.workload.put({**pod, "status": {"conditions": [{**ready, "lastTransitionTime": "2026-11-27T10:05:30Z"}]}})
    await case.reconcile()
    assert vm_of(case, "c1")["spec"]["runStrategy"] == "Halted"


async def test_a_vm_that_harvester_has_halted_is_not_back_until_its_kubelet_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch, "w", evacuate="")
    await halted(case, "w")
    drained(case, "h0", "taint")
    await case.reconcile()
    run(case, "w", "h1", started="2026-11-27T10:05:00Z")
    await case.reconcile()
    assert EVACUATED_STRATEGY_ANNOTATION in records(case, "w")
    assert "waiting for its Node on h1" in message_of(case)
    add_node(case, "w", reported="2026-11-27T10:05:20Z")
    await case.reconcile()
    assert EVACUATED_STRATEGY_ANNOTATION not in records(case, "w")


@pytest.mark.parametrize("has_api", [True, False])
async def test_a_guest_that_joins_is_not_stopped(monkeypatch: pytest.MonkeyPatch, has_api: bool) -> None:
    case = await cluster(monkeypatch, "c1")
    await case.workload.delete(NODES, "c1")
    if not has_api:
        case.guests_answer = False
    machine = found(case, "Machine", "m-c1")
    case.management.put({**machine, "status": {}})
    await case.reconcile()
    assert "waiting for its guest to join" in message_of(case)
    assert vm_of(case, "c1")["spec"]["runStrategy"] == "RerunOnFailure"

    machine = found(case, "Machine", "m-c1")
    case.management.put({**machine, "status": {"nodeRef": {"name": "c1"}}})
    if has_api:
        await case.reconcile()
        assert vm_of(case, "c1")["spec"]["runStrategy"] == "Halted"


async def test_nothing_is_stopped_that_could_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", devices=0)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert f"w stays on h0: no other host has 1 {GPU} free" in message_of(case)
    assert records(case, "w") == set()
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1
    await case.reconcile()
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1

    add_host(case, "h1")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_devices_of_other_namespaces_count_as_far_as_they_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    spec = vm_of(case, "w")["spec"]["template"]["spec"]
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec}
    case.harvester.put({**obj, "metadata": {"name": "x", "namespace": "other"}, "status": {"nodeName": "h1"}})
    await case.reconcile()
    assert "no other host has" in message_of(case)

    listing = case.harvester.list

    async def only_own(resource: Any, namespace: str = "", **options: Any) -> Obj:
        if resource.kind == "VirtualMachineInstance" and not namespace:
            raise Forbidden(403, "Forbidden", "cannot list virtualmachineinstances")
        return await listing(resource, namespace, **options)

    monkeypatch.setattr(case.harvester, "list", only_own)
    messages: list[str] = []
    events: Any = case.context.events
    events.event = lambda _about, _kind, _reason, message: messages.append(message)
    await case.reconcile()
    assert any("devices in other namespaces were not counted: cannot list" in message for message in messages)


async def test_a_vm_whose_machine_has_lost_its_record_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    await case.reconcile()
    await stop(case, "w")
    add_host(case, "h0")
    machine = found(case, "HarvesterMachine", "w")
    machine["metadata"].pop("annotations")
    case.management.put(machine)
    vm = vm_of(case, "w")
    vm["metadata"]["annotations"].pop(AVOIDED_HOSTS_ANNOTATION)
    case.harvester.put(vm)
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert records(case, "w") == set()


async def test_a_machine_that_finds_no_host_keeps_no_other_from_its_return(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "a", "w", evacuate="")
    for name in ("a", "w"):
        await halted(case, name)
    drained(case, "h0", "taint")
    await case.reconcile()
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert EVACUATED_STRATEGY_ANNOTATION not in records(case, "w")
    assert EVACUATED_STRATEGY_ANNOTATION in records(case, "a")
    assert "a leaves h0: waiting for its VM to start" in message_of(case)
    later(monkeypatch, Stage.START)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[1] == "EvacuationBlocked"


@pytest.mark.parametrize("stage", [Stage.DRAIN, Stage.START, Stage.RETURN])
async def test_a_user_who_halts_the_vm_ends_its_move(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    case = await cluster(monkeypatch, "w")
    if stage is Stage.DRAIN:
        add_pod(case, "web", "w")
        case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    if stage is not Stage.DRAIN:
        await stop(case, "w")
        await case.reconcile()
        assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
        run(case, "w", "h1")
    if stage is Stage.RETURN:
        await case.reconcile()
    await halted(case, "w")
    await case.reconcile()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
    assert records(case, "w") <= {AVOIDED_HOSTS_ANNOTATION}
    assert "unschedulable" not in node_of(case, "w")["spec"]
    assert {("Normal", "StoppedByHarvester"), ("Normal", "Evacuated")}.isdisjoint(case.events)


@pytest.mark.parametrize("host", ["h1", ""], ids=["started", "starting"])
async def test_a_device_that_another_vm_takes_during_the_drain_ends_the_move(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    assert EVACUATED_FROM_ANNOTATION in records(case, "w")
    spec = vm_of(case, "w")["spec"]["template"]["spec"]
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec}
    case.harvester.put({**obj, "metadata": {"name": "x", "namespace": "other"}, "status": {"nodeName": host}})
    await case.workload.delete(PODS, "web", "default")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert records(case, "w") == set()
    assert f"w stays on h0: no other host has 1 {GPU} free" in message_of(case)


async def test_what_hosts_have_free_is_read_seldom_during_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    case.harvester.errors = {"list": ServerFault(500, "x", "listed")}
    for _ in range(2):
        await case.reconcile()
        assert "draining its Node, default/web left" in message_of(case)

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    await case.reconcile()
    assert "listed" in message_of(case)


async def test_nothing_is_stopped_while_what_hosts_have_free_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    case.harvester.errors = {"list": ServerFault(500, "x", "listed")}
    await case.workload.delete(PODS, "web", "default")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert "listed" in message_of(case)


@pytest.mark.parametrize("kind", ["Machine", "HarvesterMachine"])
async def test_a_machine_that_is_paused_stays(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    case = await cluster(monkeypatch, "w")
    obj = found(case, kind, "m-w" if kind == "Machine" else "w")
    obj["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    case.management.put(obj)
    await case.reconcile()
    assert "w stays on h0: it is paused" in message_of(case)
    assert records(case, "w") == set()

    drained(case, "h0", "taint")
    await halted(case, "w")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
    assert records(case, "w") == set()


@pytest.mark.parametrize(("former", "strategy"), [("Manual", "Manual"), ("Halted", "Always"), ("x" * 40000, "Always")])
async def test_a_run_strategy_that_does_not_exist_is_not_restored(
    monkeypatch: pytest.MonkeyPatch, former: str, strategy: str
) -> None:
    case = await cluster(monkeypatch, "w")
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    vm = vm_of(case, "w")
    vm["metadata"]["annotations"][EVACUATED_STRATEGY_ANNOTATION] = former
    case.harvester.put(vm)
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == strategy
    assert EVACUATED_STRATEGY_ANNOTATION not in records(case, "w")


def later(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Let the time for a stage pass."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + STAGE_SECONDS[stage] + 1)


@pytest.mark.parametrize("force", [False, True])
async def test_a_node_that_cannot_be_drained_is_reported_and_can_be_forced(
    monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    case = await cluster(monkeypatch, "w", evacuate="force" if force else "true")
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    assert "draining its Node, default/web left, 1 of them kept" in message_of(case)
    assert case.condition("HostsEvacuated") == ("False", "Evacuating")
    later(monkeypatch, Stage.DRAIN)
    await case.reconcile()
    is_halted = vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
    assert is_halted is force
    assert case.condition("HostsEvacuated")[1] == ("Evacuating" if force else "EvacuationBlocked")

    warnings = case.events.count(("Warning", "EvacuationBlocked"))
    assert warnings == (0 if force else 1)
    add_pod(case, "another", "w")
    await case.reconcile()
    assert ("default/another" in message_of(case)) is not force
    assert case.events.count(("Warning", "EvacuationBlocked")) == warnings, "it is the same wait"


def evicts(case: MemoryCase) -> Any:
    """A workload API whose budgets keep all Pods."""

    async def request(method: str, path: str, **_: Any) -> Any:
        assert (method, path.endswith("/eviction")) == ("POST", True)
        raise ApiError(429, "TooManyRequests", "budget")

    return request


async def test_a_dead_workload_api_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    case.workload.errors = {"get": ServerFault(503, "x", "no leader")}
    await case.reconcile()
    assert "its Node cannot be drained" in message_of(case)
    assert "no leader" in message_of(case)
    later(monkeypatch, Stage.DRAIN)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"

    add_host(case, "h0")
    await case.reconcile()
    later(monkeypatch, Stage.DRAIN)
    await case.reconcile()
    assert "to uncordon its Node, no leader; repair it" in message_of(case)


async def test_an_evacuation_that_is_cancelled_leaves_the_machine_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    assert node_of(case, "w")["spec"]["unschedulable"] is True
    add_host(case, "h0")
    await case.reconcile()
    assert records(case, "w") == set()
    assert "unschedulable" not in node_of(case, "w")["spec"]
    assert ("Normal", "Evacuated") not in case.events
    assert case.condition("HostsEvacuated") == ("", "")


async def test_a_vm_that_finds_no_host_returns_when_the_evacuation_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch, "w")
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    instance = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "status": {"phase": "Scheduling"}}
    case.harvester.put({**instance, "metadata": {"name": "w", "namespace": TARGET}})
    case.harvester.put({**vm_of(case, "w"), "status": {"printableStatus": "ErrorUnschedulable"}})
    await case.reconcile()
    later(monkeypatch, Stage.START)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "(ErrorUnschedulable); to let it start there again: caphv evacuate h0 --cancel" in message_of(case)

    add_host(case, "h0")
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {}}
    run(case, "w", "h0")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert records(case, "w") == set()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"


async def test_what_users_have_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    machine = found(case, "Machine", "m-w")
    machine["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: ""}
    case.management.put(machine)
    case.workload.put({**node_of(case, "w"), "spec": {"unschedulable": True}})
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: ""}
    assert node_of(case, "w")["spec"]["unschedulable"] is True


async def test_a_machine_whose_record_is_of_another_owner_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    vm = vm_of(case, "w")
    vm["metadata"]["annotations"] = {}
    case.harvester.put(vm)
    await case.reconcile()
    assert "w stays on h0: its VirtualMachine is not recorded as this cluster's" in message_of(case)
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"


async def test_machines_in_deletion_are_left_to_their_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    machine = found(case, "Machine", "m-w")
    machine["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
    case.management.put(machine)
    await case.reconcile()
    assert records(case, "w") == set()
    assert case.condition("HostsEvacuated") == ("False", "Evacuating")
    assert message_of(case) == "waiting for the deletion of w"
    await case.harvester.delete(resources.VIRTUAL_MACHINE_INSTANCES, "w", TARGET)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"


async def test_a_value_without_a_meaning_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, evacuate="yes")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "of host h0 is yes: write true" in message_of(case)

    add_host(case, "h2", evacuate="true")
    for _ in range(2):
        await case.reconcile()
        assert case.condition("HostsEvacuated") == ("True", "HostsEvacuated")
        assert hosts_left(message_of(case)) == {"h2"}
        assert "of host h0 is yes: write true" in message_of(case)
    assert case.events.count(("Warning", "EvacuationBlocked")) == 2
    add_host(case, "h2")
    drained(case, "h1", "drain-requested")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    add_host(case, "h1")
    add_host(case, "h0")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("", "")


@pytest.mark.parametrize("place", ["value", "status"])
async def test_texts_of_harvester_are_cut(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    long = "\x1b[31m" + "x" * 40_000
    case = await cluster(monkeypatch, "w", evacuate=long if place == "value" else "true")
    await case.reconcile()
    if place == "status":
        await stop(case, "w")
        case.harvester.put({**vm_of(case, "w"), "status": {"printableStatus": long}})
        await case.reconcile()
        later(monkeypatch, Stage.START)
    await case.reconcile()
    await case.reconcile()
    assert "xxx" in message_of(case)
    assert len(message_of(case)) < 512
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1


@pytest.mark.parametrize(
    ("server", "where", "part"),
    [
        ("management", "patch Machine", "grant its ServiceAccount patch on machines.cluster.x-k8s.io"),
        ("workload", "patch Node", "Node w cannot be cordoned"),
        ("harvester", "patch VirtualMachine", "a request was refused"),
    ],
)
async def test_what_a_server_refuses_is_reported(
    monkeypatch: pytest.MonkeyPatch, server: str, where: str, part: str
) -> None:
    case = await cluster(monkeypatch, "w")
    resource = "machines.cluster.x-k8s.io" if server == "management" else where
    getattr(case, server).errors[where] = Forbidden(403, "Forbidden", f"{resource} is forbidden")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert part in message_of(case)
    assert case.condition("Ready")[0] == "True"

    getattr(case, server).errors.clear()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("patch VirtualMachine", ServerFault(500, "x", "no webhook")),
        ("patch VirtualMachine", Unreachable("no webhook")),
        ("list Node", ServerFault(500, "x", "no webhook")),
    ],
    ids=["fault", "unreachable", "read"],
)
async def test_a_request_that_fails_for_long_holds_nothing_else_up(
    monkeypatch: pytest.MonkeyPatch, where: str, error: ApiError | Unreachable
) -> None:
    case = await cluster(monkeypatch, "w")
    case.harvester.errors[where] = error
    result = await case.reconcile()
    assert result is not None, "later phases have run, and it is repeated"
    assert message_of(case) == "a request failed, which is repeated: no webhook"
    assert ("Warning", "EvacuationBlocked") not in case.events
    case.harvester.errors.clear()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_an_eviction_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    add_pod(case, "web", "w")

    async def request(*_: Any, **__: Any) -> Any:
        raise Unreachable("no route")

    case.workload.request = request  # type: ignore[method-assign]
    assert await case.reconcile() is not None
    assert "draining its Node, default/web left; no route" in message_of(case)


async def test_an_annotation_that_a_user_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    patch = case.management.patch

    async def after_user(resource: Any, name: str, namespace: str = "", *args: Any, **options: Any) -> Obj:
        if resource.kind == "Machine":
            machine = found(case, "Machine", name)
            machine["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: "by a user"}
            case.management.put(machine)
            monkeypatch.setattr(case.management, "patch", patch)
        return await patch(resource, name, namespace, *args, **options)

    monkeypatch.setattr(case.management, "patch", after_user)
    with pytest.raises(Conflict):
        await case.reconcile()
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: "by a user"}
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_a_node_that_is_deleted_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    case.workload.errors["patch Node"] = NotFound(404, "NotFound", "deleted")
    case.workload.errors["get Node"] = NotFound(404, "NotFound", "deleted")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_hosts_that_were_evacuated_are_unknown_while_harvester_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    monkeypatch.setattr(case.session.hosts, "current", False)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "Unknown"
    assert hosts_left(message_of(case)) == set()
    monkeypatch.setattr(case.session.hosts, "current", True)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"


@pytest.mark.parametrize("source", ["namespace", "hosts"])
async def test_caches_that_do_not_follow_harvester_are_waited_for(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    case = await cluster(monkeypatch, "w")
    cache = case.namespace if source == "namespace" else case.session.hosts
    monkeypatch.setattr(cache, "current", False)
    await case.reconcile()
    assert records(case, "w") == set()
    monkeypatch.setattr(cache, "current", True)
    await case.reconcile()
    assert EVACUATED_STRATEGY_ANNOTATION in records(case, "w")
