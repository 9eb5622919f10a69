"""A cluster that is parked or resumed, with everything around it in memory."""

from __future__ import annotations

from typing import Any

from caphv.api.conditions import get_condition
from caphv.api.names import (
    PARK_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    PAUSED_BY_PARK_ANNOTATION,
)
from caphv.api.object import Obj
from caphv.api.ownership import record
from caphv.runtime.errors import ServerFault
from tests.support.reconciler.memorycase import TARGET, MemoryCase

SINCE = "2026-11-27T10:00:00Z"
RECORD = {PARKED_SINCE_ANNOTATION: SINCE, PAUSED_BY_PARK_ANNOTATION: "true"}


def change_cluster(case: MemoryCase, *, paused: bool, annotations: dict[str, str], **metadata: Any) -> None:
    """Give the Cluster annotations, and a pause."""
    metadata = {**case.cluster["metadata"], "annotations": annotations, **metadata}
    case.management.put({**case.cluster, "metadata": metadata, "spec": {"paused": paused}})


def park(case: MemoryCase, **metadata: Any) -> None:
    """Have the Cluster parked, and paused by parking."""
    change_cluster(case, paused=True, annotations={PARK_ANNOTATION: "true", **RECORD}, **metadata)


def message_of(case: MemoryCase) -> str:
    """The message of condition `Parked`."""
    return str((get_condition(case.obj["status"]["conditions"], "Parked") or {}).get("message") or "")


def resume(case: MemoryCase, *, paused: bool = True) -> None:
    """Have the parked Cluster resumed."""
    change_cluster(case, paused=paused, annotations=dict(RECORD))


def add_vm(case: MemoryCase, name: str, *, strategy: str = "RerunOnFailure", former: str = "", **more: Any) -> Obj:
    """Add a machine whose VM is recorded as its own, with an instance unless it is halted."""
    vm = case.add_machine(name, control_plane=more.pop("control_plane", False))
    annotations = record(case.context.owner("HarvesterMachine", case.machines[-1]))
    annotations |= {PARKED_STRATEGY_ANNOTATION: former} if former else {}
    metadata = {**vm["metadata"], "annotations": annotations | more.pop("annotations", {})}
    if strategy != "Halted":
        run_instance(case, name, **more)
    return case.harvester.put({**vm, "metadata": metadata, "spec": {**vm["spec"], "runStrategy": strategy}})


def run_instance(case: MemoryCase, name: str, *, status: Obj | None = None, **metadata: Any) -> None:
    """Have an instance of a VM."""
    metadata = {"name": name, "namespace": TARGET, "uid": f"{name}-run", **metadata}
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata}
    case.harvester.put({**obj, "status": status or {"phase": "Running"}})


def vm_of(case: MemoryCase, name: str) -> Obj:
    found = case.harvester.find("VirtualMachine", name, TARGET)
    assert found is not None
    return found


def add_node(
    case: MemoryCase, name: str, *, ready: bool = True, unschedulable: bool = True, **annotations: str
) -> None:
    """Add the Node of a VM; names of annotations are those of caphv.io."""
    named = {f"caphv.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    status = {"conditions": [{"type": "Ready", "status": str(ready)}], "nodeInfo": {"bootID": "boot"}}
    spec = {"unschedulable": True} if unschedulable else {}
    metadata = {"name": name, "annotations": named, "creationTimestamp": SINCE}
    case.workload.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})
    case.guests_answer = True


def node_of(case: MemoryCase, name: str) -> Obj:
    found = case.workload.find("Node", name)
    assert found is not None
    return found


def is_cordoned(case: MemoryCase, name: str) -> bool:
    return bool(node_of(case, name)["spec"].get("unschedulable"))


HELD = {"parked_boot": "former/former", "cordoned_by_park": SINCE}
REFUSED = ServerFault(500, "InternalError", "failed calling webhook")
