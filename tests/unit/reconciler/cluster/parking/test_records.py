"""What parking records on Nodes, on the Cluster and on VMs next to what others write there."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from caphv.api.names import PARK_ANNOTATION, PARKED_SINCE_ANNOTATION, PARKED_STRATEGY_ANNOTATION, STOPS_LAST_ANNOTATION
from caphv.api.object import Obj, annotations_of
from caphv.api.resources import clusters
from caphv.runtime.errors import Conflict, NotFound, Unreachable
from caphv.runtime.etcd import Member
from caphv.runtime.exec import ExecError
from reconciler.cluster.parking import writing
from tests.support.reconciler.evacuation import add_pod
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import stall
from tests.support.reconciler.parking import (
    SINCE,
    add_node,
    add_vm,
    change_cluster,
    is_cordoned,
    node_of,
    park,
    resume,
    vm_of,
)

pytestmark = pytest.mark.unit


async def test_parking_cordons_and_uncordons_only_nodes_that_no_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "free", "held"):
        add_vm(case, name, control_plane=name == "cp")
        add_node(case, name, unschedulable=name == "held")
    await case.reconcile()
    assert annotations_of(node_of(case, "free"))["caphv.io/cordoned-by-park"] == SINCE
    assert "caphv.io/cordoned-by-park" not in annotations_of(node_of(case, "held"))
    assert is_cordoned(case, "free")
    for name in ("free", "held"):
        assert annotations_of(node_of(case, name))["caphv.io/parked-boot"] == f"{name}-run/boot"

    resume(case)
    case.harvester.put({**vm_of(case, "free"), "spec": {**vm_of(case, "free")["spec"], "runStrategy": "Always"}})
    await case.reconcile()
    assert not is_cordoned(case, "free")
    assert is_cordoned(case, "held"), "its user has cordoned it"
    assert "caphv.io/parked-boot" not in annotations_of(node_of(case, "held"))


async def test_a_node_that_is_deleted_while_it_is_marked_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "gone", "w"):
        add_vm(case, name, control_plane=name == "cp")
        add_node(case, name, unschedulable=False)
    case.workload.errors["patch Node gone"] = NotFound(404, "NotFound", "nodes gone not found")
    await case.reconcile()
    assert is_cordoned(case, "w")
    assert "gone" not in case.scope().memory.parking.refused_nodes


async def test_a_vm_that_did_not_start_since_it_was_parked_keeps_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    park(case)
    add_vm(case, "w", strategy="Always", former="RerunOnFailure")
    await case.reconcile()
    vm = vm_of(case, "w")
    assert (vm["spec"]["runStrategy"], annotations_of(vm)[PARKED_STRATEGY_ANNOTATION]) == ("Halted", "RerunOnFailure")


async def test_a_cluster_that_lost_its_pause_while_it_is_parked_is_paused_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true", PARKED_SINCE_ANNOTATION: SINCE})
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is True
    assert annotations_of(case.cluster)[PARKED_SINCE_ANNOTATION] == SINCE


async def test_a_cluster_that_was_changed_meanwhile_is_not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true"})
    stall(monkeypatch, case.management, clusters("v1beta2"))
    change_cluster(case, paused=False, annotations={})
    with contextlib.suppress(Conflict):
        await case.reconcile()
    assert not case.cluster["spec"]["paused"]
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)


@pytest.mark.parametrize(
    ("leader", "last"),
    [
        ("cp-1-0a1b2c3d", "cp-1"),
        ("cp", "cp"),
        ("cp-0a1b2c3d", "cp"),
        ("elsewhere", "cp-2"),
        (ExecError("no etcdctl"), "cp-2"),
        (Unreachable("no route"), "cp-2"),
    ],
)
async def test_the_leader_of_etcd_stops_last_or_else_the_last_by_name(
    monkeypatch: pytest.MonkeyPatch, leader: str | Exception, last: str
) -> None:
    """A leader that stops hands over to one that stops next."""

    async def pods(_client: object) -> list[str]:
        return ["silent", "etcd"]

    async def find(_client: object, pod: object) -> Member:
        if isinstance(leader, Exception):
            raise leader
        # Where the first Pod does not answer, the second one is asked.
        if pod == "silent":
            raise ExecError("deadline exceeded")
        return Member(1, leader)

    monkeypatch.setattr(writing, "find_pods", pods)
    monkeypatch.setattr(writing, "find_leader", find)
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "cp-1", "cp-2"):
        add_vm(case, name, control_plane=True)
        add_node(case, name, unschedulable=False)
    await case.reconcile()
    assert annotations_of(case.cluster)[STOPS_LAST_ANNOTATION] == last


async def test_pods_of_workers_are_evicted_before_their_vms_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    evicted: list[str] = []

    async def request(method: str, path: str, **_: object) -> None:
        evicted.append(f"{method} {path.split('/')[-2]}")

    case = await ready(monkeypatch)
    list_all = case.workload.list

    async def list_selected(*arguments: Any, field_selector: str = "", **options: Any) -> Obj:
        answer = await list_all(*arguments, **options)
        node = field_selector.removeprefix("spec.nodeName=")
        items = [pod for pod in answer["items"] if not node or pod["spec"]["nodeName"] == node]
        return {**answer, "items": items}

    park(case)
    for name in ("cp", "stopped", "w"):
        strategy = "Halted" if name == "stopped" else "RerunOnFailure"
        add_vm(case, name, control_plane=name == "cp", strategy=strategy, former="Always" if name == "stopped" else "")
        add_node(case, name, parked_boot=f"{name}-run/boot", cordoned_by_park=SINCE)
        add_pod(case, f"pod-of-{name}", name)
    monkeypatch.setattr(case.workload, "request", request)
    monkeypatch.setattr(case.workload, "list", list_selected)
    await case.reconcile()
    assert evicted == ["POST pod-of-w"], "others have no other place, or have ended with their VM"
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"

    pod = case.workload.find("Pod", "pod-of-w", "default")
    assert pod is not None
    case.workload.put({**pod, "status": {"phase": "Succeeded"}})
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
