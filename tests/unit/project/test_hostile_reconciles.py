"""No object on Harvester or in a workload cluster holds up the reconcile that reads it for 50 ms.

Caches hold what their transforms leave of an object. That receiving it is fast as well shows `test_heartbeat.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import pytest

from caphv.api import names, resources
from caphv.api.object import NODES, SERVICES, Obj, Resource, key_of
from caphv.runtime.store import IndexFunction, Store
from reconciler.harvester import slim
from reconciler.harvester.watchedcollections import collections_of
from reconciler.remote import workloadcluster
from tests.support.heartbeat import fault
from tests.support.reconciler import memorycase
from tests.support.reconciler.memorycase import TARGET, MemoryCase
from tests.support.reconciler.vmlife import VmLife, vm_of
from tests.support.worstobjects import worst_objects

pytestmark = pytest.mark.unit

LARGEST_OBJECT = 1_500_000
MANAGEMENT = "management-uid"
_MONOTONIC = time.monotonic


def merged(base: Obj, hostile: Obj) -> Obj:
    """Return an object with all fields of both; those of `hostile` win, except identity."""
    result = dict(base)
    for name, value in hostile.items():
        before = result.get(name)
        result[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def running_vmi() -> Obj:
    metadata = {"namespace": "vms", "name": "one", "uid": "i"}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running", "nodeName": "h1"}}


def node() -> Obj:
    return {"metadata": {"name": "one", "uid": "n"}, "spec": {}, "status": {}}


def own_vm() -> Obj:
    vm = vm_of("Running", "Always")
    return merged(vm, {"metadata": {"annotations": {names.OWNER_CLUSTER_ANNOTATION: "here"}}})


async def test_no_object_holds_up_a_machine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    faults: dict[str, str] = {}
    for hostile in worst_objects(LARGEST_OBJECT):
        for part in ("vm", "vmi", "node"):
            life = VmLife(monkeypatch)
            await life.runs()
            # The loop's clock, which the life holds, must run for the heartbeat.
            monkeypatch.setattr(time, "monotonic", _MONOTONIC)
            if part == "vm":
                life.vm = slim.virtual_machine(merged(own_vm(), hostile), "here")
            elif part == "vmi":
                life.vmi = slim.instance(merged(running_vmi(), hostile))
            else:
                life.node = workloadcluster._slim(merged(node(), hostile))
            if text := await fault(life.reconcile):
                faults[f"{part}: {str(hostile)[:120]}"] = text
    assert not faults


class Held(memorycase.Cached):
    """A cache that has its objects already: the copies of a server in memory are not the provider's work."""

    held: Mapping[Resource, list[Obj]] = {}

    def __init__(self, server: Any, resource: Resource, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        super().__init__(server, resource, indexes)
        self._filled: Store | None = None

    @property
    def store(self) -> Store:
        if self.resource not in self.held:
            return super().store

        if self._filled is None:
            self._filled = Store(self._indexes)
            for obj in self.held[self.resource]:
                self._filled.put(key_of(obj), obj)
        return self._filled


def of_cluster(hostile: Obj, count: int) -> dict[Resource, list[Obj]]:
    """What a Harvester would have of each collection that a cluster reads, in as many copies."""
    vms, instances, _, _ = collections_of(TARGET, MANAGEMENT)
    held: dict[Resource, list[Obj]] = {}
    transforms: dict[Resource, Any] = {
        resources.VIRTUAL_MACHINES: vms.options["transform"],
        resources.VIRTUAL_MACHINE_INSTANCES: instances.options["transform"],
        resources.LOAD_BALANCERS: lambda obj: obj,
        resources.IP_POOLS: lambda obj: obj,
        SERVICES: lambda obj: obj,
        NODES: slim.host,
    }
    for resource, transform in transforms.items():
        held[resource] = []
        for number in range(count):
            labels = {names.GUEST_CLUSTER_LABEL: "demo", names.MACHINE_TYPE_LABEL: "controlplane"}
            metadata = {
                "name": f"cp-{number}",
                "namespace": "" if resource in (NODES, resources.IP_POOLS) else TARGET,
                "uid": f"{number}",
                "labels": labels,
                "annotations": {names.OWNER_CLUSTER_ANNOTATION: MANAGEMENT},
            }
            held[resource].append(transform(merged({"metadata": metadata, "spec": {}, "status": {}}, hostile)))
    return held


@pytest.mark.parametrize("count", [1, 500])
async def test_no_object_holds_up_a_cluster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """One object of the largest size, or as many as a page has."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(memorycase, "Cached", Held)
    faults: dict[str, str] = {}
    for hostile in worst_objects(LARGEST_OBJECT // count):
        held = of_cluster(hostile, count)
        for resource, objs in held.items():
            Held.held = {resource: objs}
            case = MemoryCase(monkeypatch)
            case.add_machine("cp-0")
            await case.reconcile()
            if text := await fault(case.reconcile):
                faults[f"{count} {resource.kind}: {str(hostile)[:120]}"] = text
    Held.held = {}
    assert not faults
