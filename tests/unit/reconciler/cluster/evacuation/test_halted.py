"""What Harvester halts or migrates by itself, for forced maintenance or an upgrade."""

from __future__ import annotations

import time

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
from caphv.runtime.errors import Forbidden, Invalid
from reconciler.cluster.evacuation.plan import HOLD_SECONDS, Stage
from tests.support.reconciler.evacuation import (
    add_host,
    add_machine,
    add_node,
    add_pod,
    cluster,
    drained,
    evicts,
    found,
    halted,
    later,
    message_of,
    node_of,
    records,
    run,
    stop,
    vm_of,
)
from tests.support.reconciler.memorycase import TARGET

pytestmark = pytest.mark.unit


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
    assert await case.reconcile() == 60.0, "a migration requeues the cluster"
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


@pytest.mark.parametrize("kind", ["drain-requested", "maintain-status", "taint"])
async def test_a_drain_that_is_stuck_keeps_no_machine_from_remediation_for_long(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def is_held() -> bool:
        return annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}

    async def after(seconds: float) -> bool:
        monkeypatch.setattr(time, "monotonic", lambda: begin + seconds)
        await case.reconcile()
        return is_held()

    case = await cluster(monkeypatch, evacuate="")
    add_machine(case, "w", devices=0)
    drained(case, "h0", kind)
    begin = time.monotonic()
    assert await after(0)
    assert await after(HOLD_SECONDS - 1)
    for seconds in (1, 2, 2 * HOLD_SECONDS):
        assert not await after(HOLD_SECONDS + seconds)

    # Each host has its own time, and a VM that comes back gets no more of it.
    drained(case, "h1", kind)
    run(case, "w", "h1")
    assert await after(3 * HOLD_SECONDS)
    run(case, "w", "h0")
    assert not await after(3 * HOLD_SECONDS + 1)

    # The next drain is another one, although nothing concerned the cluster in between.
    for name in ("h0", "h1"):
        add_host(case, name)
    assert not await after(3 * HOLD_SECONDS + 2)
    drained(case, "h0", kind)
    assert await after(3 * HOLD_SECONDS + 3)

    # Nor does a host hold anything that no longer exists.
    await case.harvester.delete(NODES, "h0")
    assert not await after(4 * HOLD_SECONDS)
    drained(case, "h0", kind)
    assert await after(4 * HOLD_SECONDS + 4)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_vm_that_has_ended_on_a_drained_host_does_not_migrate(
    monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    case = await cluster(monkeypatch, evacuate="")
    add_machine(case, "w", devices=0)
    drained(case, "h0", "maintain-status")
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    instance = case.harvester.find("VirtualMachineInstance", "w", TARGET)
    assert instance is not None
    if is_deleted:
        instance["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
    else:
        instance["status"]["phase"] = "Failed"
    case.harvester.put(instance)
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
    if is_halted:
        assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"


FORBIDDEN = Forbidden(403, "Forbidden", 'machines.cluster.x-k8s.io "m-a" is forbidden')
GRANT = "grant its ServiceAccount patch on machines.cluster.x-k8s.io"


@pytest.mark.parametrize("evacuate", ["", "true"])
async def test_a_missing_right_to_keep_machines_from_remediation_is_named(
    monkeypatch: pytest.MonkeyPatch, evacuate: str
) -> None:
    case = await cluster(monkeypatch, evacuate="")
    add_machine(case, "a", devices=0)
    drained(case, "h0", "taint")
    if evacuate:
        add_host(case, "h2", evacuate=evacuate)
    case.management.errors["patch Machine"] = FORBIDDEN
    for _ in range(2):
        result = await case.reconcile()
        assert 0 < (result or 0) <= 60, "a right that is granted is noticed"
        assert case.condition("HostsEvacuated")[0] == ("True" if evacuate else "False")
        assert "may not keep a Machine from remediation (a may be replaced while its host is emptied)" in message_of(
            case
        )
        assert GRANT in message_of(case)
        assert hosts_left(message_of(case)) == ({"h2"} if evacuate else set())
        assert case.condition("Ready")[0] == "True"
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1

    case.management.errors.clear()
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-a")) == {SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US}
    assert GRANT not in message_of(case)
    assert case.condition("HostsEvacuated")[0] == ("True" if evacuate else "")


async def test_a_missing_right_is_named_while_others_move(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", evacuate="")
    add_machine(case, "a", devices=0)
    await halted(case, "w")
    drained(case, "h0", "taint")
    case.management.errors["patch Machine"] = FORBIDDEN
    for _ in range(2):
        await case.reconcile()
        assert "w leaves h0: waiting for its VM to start" in message_of(case)
        assert "(a, w may be replaced while its host is emptied)" in message_of(case)
        assert GRANT in message_of(case)
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1
    later(monkeypatch, Stage.START)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert GRANT in message_of(case)


async def test_a_right_that_is_withdrawn_meanwhile_is_named_until_the_hold_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch, evacuate="")
    add_machine(case, "a", devices=0)
    drained(case, "h0", "taint")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("", "")
    add_host(case, "h0")
    case.management.errors["patch Machine"] = FORBIDDEN
    await case.reconcile()
    assert "may not keep a Machine from remediation (a stays without it)" in message_of(case)
    assert GRANT in message_of(case)

    case.management.errors.clear()
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-a")) == {}
    assert case.condition("HostsEvacuated") == ("", "")


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


async def test_a_vm_whose_start_is_refused_keeps_no_other_from_its_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota is too small by now, or its network was deleted."""
    case = await cluster(monkeypatch, "a", "w", evacuate="")
    for name in ("a", "w"):
        await halted(case, name)
    drained(case, "h0", "taint")
    case.harvester.errors["patch VirtualMachine a"] = Invalid(422, "Invalid", "quota is too small")
    for _ in range(2):
        await case.reconcile()
    assert [vm_of(case, name)["spec"]["runStrategy"] for name in ("a", "w")] == ["Halted", "Always"]
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "quota is too small" in message_of(case)
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1

    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert EVACUATED_STRATEGY_ANNOTATION not in records(case, "w")
    assert SKIP_REMEDIATION_ANNOTATION in records(case, "a")

    case.harvester.errors.clear()
    await case.reconcile()
    assert vm_of(case, "a")["spec"]["runStrategy"] == "Always"
    assert not case.scope().memory.evacuation.refusals


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
