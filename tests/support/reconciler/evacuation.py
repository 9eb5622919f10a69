"""A cluster on a host that is evacuated, with everything around it in memory."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api import resources
from caphv.api.conditions import get_condition, rfc3339
from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    CORDONED_BY_EVACUATION_ANNOTATION,
    EVACUATE_ANNOTATION,
    EVACUATED_BOOT_ANNOTATION,
    EVACUATED_FROM_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of
from caphv.api.ownership import record
from caphv.runtime.errors import ApiError
from reconciler.cluster.evacuation.plan import STAGE_SECONDS, Stage
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import CORE, INFRASTRUCTURE, TARGET, Cached, MemoryCase

GPU = "nvidia.com/GPU"


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


def later(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Let the time for a stage pass."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + STAGE_SECONDS[stage] + 1)


def evicts(case: MemoryCase) -> Any:
    """A workload API whose budgets keep all Pods."""

    async def request(method: str, path: str, **_: Any) -> Any:
        assert (method, path.endswith("/eviction")) == ("POST", True)
        raise ApiError(429, "TooManyRequests", "budget")

    return request
