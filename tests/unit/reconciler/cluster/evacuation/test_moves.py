"""How machines leave a host that is evacuated, and which ones."""

from __future__ import annotations

import pytest

from caphv.api import resources
from caphv.api.evacuation import hosts_left
from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    EVACUATED_FROM_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
    SKIPPED_BY_US,
)
from caphv.api.object import NODES, annotations_of
from caphv.runtime.errors import ServerFault
from reconciler.cluster.evacuation import phase
from reconciler.cluster.evacuation.plan import Stage
from reconciler.machine.placement import REQUIRED
from tests.support.reconciler.evacuation import (
    add_host,
    add_machine,
    add_node,
    add_pod,
    cluster,
    evicts,
    found,
    later,
    message_of,
    node_of,
    records,
    run,
    stop,
    vm_of,
)
from tests.support.reconciler.memorycase import TARGET, MemoryCase

pytestmark = pytest.mark.unit


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


async def test_steps_that_other_clusters_interrupt_are_continued_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    monkeypatch.setattr(phase, "_MAX_STEPS", 1)
    assert await case.reconcile() == 0.01
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    for _ in range(5):
        await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_remediation_is_allowed_again_when_cluster_api_sees_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the core knows of Nodes may be older than what the provider knows."""
    case = await returned(monkeypatch)
    see_node(case, "w", "Unknown")
    await case.reconcile()
    assert "waiting for Cluster API to see its Node" in message_of(case)
    assert annotations_of(found(case, "Machine", "m-w"))[SKIP_REMEDIATION_ANNOTATION] == SKIPPED_BY_US

    see_node(case, "w", "True")
    await case.reconcile()
    assert SKIP_REMEDIATION_ANNOTATION not in annotations_of(found(case, "Machine", "m-w"))
    assert case.condition("HostsEvacuated") == ("True", "HostsEvacuated")


async def test_a_node_that_cluster_api_never_sees_healthy_is_remediated(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await returned(monkeypatch)
    see_node(case, "w", "False")
    await case.reconcile()
    stages = case.scope().memory.evacuation.stages
    stages["w"] = stages["w"]._replace(since=stages["w"].since - 301)
    await case.reconcile()
    assert SKIP_REMEDIATION_ANNOTATION not in annotations_of(found(case, "Machine", "m-w"))


async def returned(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    """A cluster whose worker runs on another host, and whose Node has reported from there."""
    case = await cluster(monkeypatch, "w")
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    return case


def see_node(case: MemoryCase, name: str, status: str) -> None:
    """Have the core report the health of a machine's Node."""
    machine = found(case, "Machine", f"m-{name}")
    conditions = [{"type": "NodeHealthy", "status": status}]
    case.management.put({**machine, "status": {**(machine.get("status") or {}), "conditions": conditions}})


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
