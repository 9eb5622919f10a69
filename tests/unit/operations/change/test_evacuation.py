"""The plan to empty a host, and how far it is."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.evacuation import describe_left
from caphv.api.names import (
    CLUSTER_LABEL,
    EVACUATE_ANNOTATION,
    MAINTENANCE_ANNOTATION,
    MAINTENANCE_STRATEGY_LABEL,
    WITNESS_LABEL,
)
from caphv.api.object import Key, Obj
from operations.change.changes import ChangeError
from operations.change.evacuation import (
    HostMachines,
    clusters_on,
    find_host,
    machines_on,
    plan_evacuation,
    progress_of,
)
from operations.status.check import Result
from tests.support.clusters import Builder, condition

pytestmark = pytest.mark.unit

KEY = Key("team", "shop")


def host(
    name: str,
    *,
    evacuate: str = "",
    maintenance: str = "",
    ready: str = "True",
    labels: Any = None,
    gpus: str = "2",
    **spec: Any,
) -> Obj:
    annotations = {EVACUATE_ANNOTATION: evacuate} if evacuate else {}
    annotations |= {MAINTENANCE_ANNOTATION: maintenance} if maintenance else {}
    metadata = {"name": name, "resourceVersion": "1", "annotations": annotations, "labels": labels or {}}
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"gpu": gpus}}
    return {"metadata": metadata, "spec": spec, "status": status}


def instance(name: str, *, on: str = "h0", strategy: str = "LiveMigrateIfPossible", **more: Any) -> Obj:
    devices = {"hostDevices": [{"deviceName": "gpu"}]} if more.pop("device", False) else {}
    cpu = {"dedicatedCpuPlacement": more.pop("pinned", False)}
    labels = {CLUSTER_LABEL: more.pop("cluster", "team.shop"), MAINTENANCE_STRATEGY_LABEL: more.pop("stops", "Migrate")}
    metadata = {"name": name, "namespace": "vms", "labels": labels}
    spec = {"evictionStrategy": strategy, "domain": {"devices": devices, "cpu": cpu}}
    return {"metadata": metadata, "spec": spec, "status": {"nodeName": on, **more}}


def test_machines_are_sorted_by_what_happens_to_them() -> None:
    local = [{"type": "LiveMigratable", "status": "False"}]
    instances = [
        instance("gpu", device=True),
        instance("disk", conditions=local),
        instance("web"),
        instance("off", stops="ShutdownAndRestartAfterEnable"),
        instance("old", strategy=""),
        instance("elsewhere", on="h1", device=True),
        instance("foreign", cluster="team.other", device=True),
        instance("a-gpu", device=True),
    ]
    del instances[-2]["metadata"]["labels"]
    instances.append(instance("not-scheduled", device=True))
    del instances[-1]["status"]["nodeName"]
    (group,) = machines_on("h0", [host("h0"), host("h1")], {KEY: False}, instances)
    assert group == HostMachines(
        cluster=KEY, moves=("a-gpu", "gpu"), migrates=("web",), restarts=("old",), stays=("disk",), stops=("off",)
    )


@pytest.mark.parametrize(
    ("gpus", "on_other", "finds_device"), [("1", 0, True), ("1", 1, False), ("2", 1, True), ("0", 0, False)]
)
def test_machine_with_a_device_needs_another_host_with_a_free_one(gpus: str, on_other: int, finds_device: bool) -> None:
    hosts = [host("h0"), host("h1", gpus=gpus)]
    instances = [instance(f"other-{number}", on="h1", device=True) for number in range(on_other)]
    groups = machines_on("h0", hosts, {KEY: False}, [instance("a", device=True), *instances])
    (group,) = groups
    assert (group.moves, group.lacking) == ((("a",), ()) if finds_device else ((), ("a",)))
    checks = plan_evacuation(find_host(hosts, "h0"), hosts, groups, "true").checks
    warnings = [check.message for check in checks if check.result is Result.WARNING]
    expected = "team/shop: no other host has the devices of these free, so they stay: a"
    assert warnings == ([] if finds_device else [expected])


PINS = {"cpumanager": "true"}


@pytest.mark.parametrize(
    ("other", "finds_host"),
    [
        (host("h1", labels=PINS), True),
        (host("h1", labels={"cpumanager": "false"}), False),
        (host("h1"), False),
        (host("h1", labels=PINS, unschedulable=True), False),
        (host("h1", labels=PINS, ready="False"), False),
    ],
)
def test_pinned_cpus_need_another_host_with_its_cpu_manager_enabled(other: Obj, finds_host: bool) -> None:
    local = [{"type": "LiveMigratable", "status": "False"}]
    instances = [
        instance("gpu", device=True, pinned=True),
        instance("web", pinned=True),
        instance("old", strategy="", pinned=True),
        instance("disk", conditions=local, pinned=True),
        instance("off", stops="ShutdownAndRestartAfterEnable", pinned=True),
    ]
    hosts = [host("h0", labels=PINS), other]
    groups = machines_on("h0", hosts, {KEY: False}, instances)
    (group,) = groups
    common = {"stays": ("disk",), "stops": ("off",)}
    if finds_host:
        assert group == HostMachines(cluster=KEY, moves=("gpu",), migrates=("web",), restarts=("old",), **common)
        return

    assert group == HostMachines(cluster=KEY, pinned=("gpu", "old", "web"), **common)
    checks = plan_evacuation(find_host(hosts, "h0"), hosts, groups, "true").checks
    warning = next(check for check in checks if "pinned" in check.message)
    assert (warning.result, warning.message, warning.remedy) == (
        Result.WARNING,
        "team/shop: these have pinned CPUs, and no other host that takes VMs has its CPU manager enabled (label "
        "cpumanager=true), so they stay: gpu, old, web",
        "Enable the CPU manager of another host on Harvester",
    )


def test_clusters_of_a_harvester_are_known_by_its_uid() -> None:
    one, other = Builder(), Builder("other")
    other.harvester_cluster["status"]["harvester"] = {"uid": "another"}
    one.harvester_cluster["status"]["harvester"] = {"uid": "uid"}
    one.cluster["spec"]["paused"] = True
    infrastructures = {
        Key("team", each.harvester_cluster["metadata"]["name"]): each.harvester_cluster for each in (one, other)
    }
    assert clusters_on([one.cluster, other.cluster], infrastructures, "uid") == {KEY: True}


def test_an_unknown_host_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ChangeError, match="its hosts: h0, h1"):
        find_host([host("h0"), host("h1")], "h2")


@pytest.mark.parametrize(
    ("former", "value", "changes"),
    [("", "true", 1), ("true", "true", 0), ("true", "force", 1), ("true", None, 1), ("", None, 0)],
)
def test_the_annotation_is_changed_if_it_has_to_be(former: str, value: str | None, changes: int) -> None:
    hosts = [host("h0", evacuate=former), host("h1")]
    plan = plan_evacuation(find_host(hosts, "h0"), hosts, [], value)
    shown = [(former, value or "(removed)")] if changes else []
    assert [(change.before, change.after) for change in plan.changes] == shown
    assert len(plan.patches) == changes
    for patch in plan.patches:
        assert (patch.kind, patch.key.name) == ("Node", "h0")
        assert patch.body == {"metadata": {"annotations": {EVACUATE_ANNOTATION: value}}}


@pytest.mark.parametrize(
    "other",
    [
        host("h1", unschedulable=True),
        host("h1", ready="False"),
        host("h1", evacuate="true"),
        host("h1", maintenance="completed"),
        host("h1", labels={WITNESS_LABEL: "true"}),
    ],
)
def test_without_another_host_nothing_is_begun_but_it_can_be_ended(other: Obj) -> None:
    hosts = [host("h0"), other]
    assert [check.id for check in plan_evacuation(find_host(hosts, "h0"), hosts, [], "true").errors] == ["hosts"]
    assert not plan_evacuation(find_host(hosts, "h0"), hosts, [], None).checks


def test_checks_name_what_moves_what_stays_and_what_would_restart() -> None:
    groups = [
        HostMachines(
            cluster=KEY, moves=("gpu",), migrates=("web",), restarts=("old",), stays=("disk",), stops=("off",)
        ),
        HostMachines(cluster=Key("team", "idle"), moves=("gpu-2",), paused=True),
    ]
    hosts = [host("h0"), host("h1")]
    checks = plan_evacuation(find_host(hosts, "h0"), hosts, groups, "true").checks
    found = [(check.result, check.message) for check in checks]
    assert found == [
        (Result.OK, "1 other host ready for its VMs"),
        (Result.OK, "team/shop: stopped and started elsewhere, one at a time: gpu"),
        (
            Result.WARNING,
            "team/shop: KubeVirt cannot migrate these, and a disk may be local to the host, so they stay: disk",
        ),
        (
            Result.OK,
            "team/shop: Harvester shuts these down, as label harvesterhci.io/maintain-mode-strategy asks: off",
        ),
        (Result.OK, "team/shop: left to Harvester, which migrates: web"),
        (
            Result.WARNING,
            "team/shop: their eviction strategy takes effect with their next restart, so Harvester stops and starts "
            "them without a drain: old",
        ),
        (Result.WARNING, "team/idle is paused, so these stay: gpu-2"),
    ]


def test_a_paused_cluster_without_machines_to_move_gets_no_warning_of_its_pause() -> None:
    groups = [HostMachines(cluster=KEY, migrates=("web",), paused=True)]
    hosts = [host("h0"), host("h1")]
    checks = plan_evacuation(find_host(hosts, "h0"), hosts, groups, "true").checks
    assert [check.message for check in checks if check.id == "machines"] == [
        "team/shop: left to Harvester, which migrates: web"
    ]


DONE = condition("HostsEvacuated", "True", message=describe_left(["h0", "h1"]))
OTHERS = {**DONE, "message": f"{describe_left(['h1', 'h00', 'h0.example'])}; it migrates h0"}
LEAVING = condition("HostsEvacuated", "False", "Evacuating", "gpu leaves h0")
BLOCKED = condition("HostsEvacuated", "False", "EvacuationBlocked", "no device")


@pytest.mark.parametrize(
    ("reported", "cancel", "expected"),
    [
        (None, False, (False, False, "waiting for the provider")),
        (LEAVING, False, (False, False, "gpu leaves h0")),
        (BLOCKED, False, (False, True, "no device")),
        (DONE, False, (True, False, DONE["message"])),
        (OTHERS, False, (False, False, OTHERS["message"])),
        (None, True, (True, False, "done")),
        (LEAVING, True, (False, False, "gpu leaves h0")),
        (DONE, True, (False, False, DONE["message"])),
        (OTHERS, True, (True, False, "done")),
        (BLOCKED, True, (False, True, "no device")),
    ],
)
def test_progress(reported: Obj | None, cancel: bool, expected: tuple[bool, bool, str]) -> None:
    builder = Builder()
    if reported:
        builder.harvester_cluster["status"]["conditions"].append(reported)
    progress = progress_of(builder.harvester_cluster, "h0", cancel=cancel)
    assert (progress.done, progress.blocked, progress.text) == expected
