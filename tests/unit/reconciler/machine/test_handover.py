"""When the older of two control plane machines may leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.names import ENDPOINT_HOOK
from caphv.api.object import Key, Obj
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from reconciler.blocked import Blocked
from reconciler.machine import handover
from reconciler.machine.handover import MAX_WAIT_SECONDS, ensure_handover
from reconciler.machine.scope import MachineScope
from reconciler.memory.machine import MachineMemory
from reconciler.triggers import Watched

pytestmark = pytest.mark.unit

PROBED = 6.0
"""Seconds that the default health check takes, with those of a request."""
CONTROL_PLANE = {"cluster.x-k8s.io/control-plane": ""}
NEW_ADDRESS = "10.0.0.2"


def machine(name: str, minute: int, *, deleting: bool = False, held: bool = False) -> Obj:
    metadata: Obj = {"namespace": "team", "name": name, "creationTimestamp": f"2026-11-24T21:{minute:02}:00Z"}
    metadata["annotations"] = {ENDPOINT_HOOK: "caphv"} if held else {}
    return {"metadata": metadata | ({"deletionTimestamp": "2026-11-24T22:00:00Z"} if deleting else {})}


def infrastructure(owner: str, address: str, *, deleting: bool = False) -> Obj:
    reference = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": owner, "uid": owner}
    metadata: Obj = {
        "namespace": "team",
        "name": f"{owner}-vm",
        "labels": CONTROL_PLANE,
        "ownerReferences": [reference],
    }
    metadata |= {"deletionTimestamp": "2026-11-24T22:00:00Z"} if deleting else {}
    return {"metadata": metadata, "status": {"addresses": [{"type": "InternalIP", "address": address}]}}


class Cluster:
    """A control plane of Machines, with a load balancer; the scope is that of Machine `old`."""

    def __init__(self, *machines: Obj, balancer: Obj | None = None, error: ApiError | None = None) -> None:
        self.machines = {entry["metadata"]["name"]: entry for entry in machines}
        self.objs = [infrastructure(name, f"10.0.0.{n}") for n, name in enumerate(self.machines, 1)]
        self.cluster: Obj = {"metadata": {"namespace": "team", "name": "demo"}}
        self.balancer, self.error = balancer, error
        self.unreachable = False
        self.ipam_type = "dhcp"
        self.memory = MachineMemory("u")
        self.patches: list[Any] = []
        self.events: list[str] = []
        self.delays: list[float] = []

    async def look(self) -> bool | None:
        """Run the step; return whether it sets the hook, or None if it writes nothing."""
        self.patches.clear()
        self.delays.clear()
        await ensure_handover(cast(MachineScope, self._scope()))
        if not self.patches:
            return None
        (patch,) = self.patches
        return bool(patch["metadata"]["annotations"][ENDPOINT_HOOK])

    def _scope(self) -> Any:
        machines = SimpleNamespace(
            resource="machines",
            get=lambda _, name: self.machines.get(name),
            observe=lambda obj: self.machines.update({obj["metadata"]["name"]: obj}),
        )
        caches = SimpleNamespace(machines=machines, machines_of=lambda _: self.objs)
        return SimpleNamespace(
            machine=self.machines.get("old"),
            obj=self.objs[0],
            cluster=self.cluster,
            cluster_spec={"loadBalancerConfig": {"ipamType": self.ipam_type}},
            harvester_cluster={"metadata": {"namespace": "team", "name": "demo"}},
            control_plane=True,
            key=Key("team", "old-vm"),
            target_namespace="vms",
            memory=self.memory,
            context=SimpleNamespace(caches=caches, client=SimpleNamespace(patch=self._patch)),
            namespace=self._namespace,
            requeue_in=self.delays.append,
            event=lambda reason, _: self.events.append(reason),
            warning_event=lambda reason, message: self.events.append(f"{reason}: {message}"),
        )

    def _namespace(self) -> Any:
        if self.unreachable:
            raise Blocked("Ready", "HarvesterUnreachable", "Harvester is unreachable", Watched.CONNECTION)
        return SimpleNamespace(load_balancers=SimpleNamespace(get=lambda *_: self.balancer))

    async def _patch(self, resource: str, name: str, namespace: str, patch: Obj) -> Obj:
        assert (resource, name, namespace) == ("machines", "old", "team")
        if self.error:
            raise self.error
        self.patches.append(patch)
        old = self.machines[name]
        return {**old, "metadata": {**old["metadata"], "annotations": patch["metadata"]["annotations"]}}


def balancer(*backends: str, ready: str = "True") -> Obj:
    status = {"backendServers": list(backends), "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"namespace": "vms", "name": "demo-lb"}, "status": status}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(handover.time, "monotonic", lambda: now[0])
    return now


async def test_older_of_two_is_held_and_the_newer_is_not() -> None:
    assert await Cluster(machine("old", 1), machine("new", 2)).look() is True
    assert await Cluster(machine("old", 3), machine("new", 2)).look() is None
    assert await Cluster(machine("old", 1, held=True), machine("new", 2)).look() is None


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="only machine"),
        pytest.param([machine("b", 2), machine("c", 3)], id="one of three"),
        pytest.param([machine("b", 2, deleting=True)], id="the newer one is deleted"),
    ],
)
async def test_machine_without_one_newer_one_is_not_held(others: list[Obj]) -> None:
    assert await Cluster(machine("old", 1), *others).look() is None
    assert await Cluster(machine("old", 1, held=True), *others).look() is False
    assert await Cluster(machine("old", 1, held=True, deleting=True), *others).look() is False


async def test_deletion_of_the_cluster_or_of_the_infrastructure_does_not_wait() -> None:
    whole = Cluster(machine("old", 1, held=True, deleting=True), machine("new", 2), balancer=balancer(NEW_ADDRESS))
    whole.cluster["metadata"]["deletionTimestamp"] = "2026-11-24T22:00:00Z"
    assert await whole.look() is False

    lost = Cluster(machine("old", 1, held=True), machine("new", 2), balancer=balancer(NEW_ADDRESS))
    lost.objs[0] = infrastructure("old", "10.0.0.1", deleting=True)
    assert await lost.look() is False


async def test_hook_comes_too_late_for_a_machine_that_is_deleted() -> None:
    assert await Cluster(machine("old", 1, deleting=True), machine("new", 2)).look() is None


async def test_deletion_waits_for_the_probe_of_the_newer_machine(clock: list[float]) -> None:
    served = balancer("10.0.0.1", NEW_ADDRESS)
    cluster = Cluster(machine("old", 1, held=True, deleting=True), machine("new", 2), balancer=served)
    assert await cluster.look() is None
    assert cluster.delays == [PROBED]
    clock[0] += PROBED - 0.5
    assert await cluster.look() is None
    assert cluster.delays == [pytest.approx(0.5)]
    clock[0] += 0.5
    assert await cluster.look() is False
    assert cluster.events == ["EndpointHandover"]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "does not exist"),
        (balancer("10.0.0.1"), "is no backend"),
        (balancer(NEW_ADDRESS, ready="False"), "is not ready"),
    ],
)
async def test_deletion_that_waits_for_a_load_balancer_ends(clock: list[float], found: Obj | None, reason: str) -> None:
    cluster = Cluster(machine("old", 1, held=True, deleting=True), machine("new", 2), balancer=found)
    assert await cluster.look() is None
    clock[0] += PROBED + MAX_WAIT_SECONDS - 0.1
    assert await cluster.look() is None
    assert cluster.delays == [1.0]
    clock[0] += 0.1
    assert await cluster.look() is False
    assert cluster.events[1].startswith("EndpointHandoverTimedOut")
    assert reason in cluster.events[1]


async def test_external_load_balancer_gets_the_time_of_its_health_check(clock: list[float]) -> None:
    cluster = Cluster(machine("old", 1, held=True, deleting=True), machine("new", 2))
    cluster.ipam_type = "none"
    assert await cluster.look() is None
    clock[0] += PROBED - 0.1
    assert await cluster.look() is None
    clock[0] += 0.1
    assert await cluster.look() is False
    assert cluster.events == ["EndpointHandover"]


async def test_deletion_ends_although_harvester_is_unreachable(clock: list[float]) -> None:
    cluster = Cluster(machine("old", 1, held=True, deleting=True), machine("new", 2))
    cluster.unreachable = True
    assert await cluster.look() is None
    clock[0] += PROBED + MAX_WAIT_SECONDS
    assert await cluster.look() is False
    assert "Harvester is unreachable" in cluster.events[1]


@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "may not patch machines"), NotFound(404, "NotFound", "")]
)
async def test_without_the_right_there_is_no_hook(error: ApiError) -> None:
    cluster = Cluster(machine("old", 1), machine("new", 2), error=error)
    assert await cluster.look() is None
    assert await cluster.look() is None
