"""What changes of a cluster of a shipped class do to its machines, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from caphv.api.names import AUTOSCALER_MAX_SIZE, AUTOSCALER_MIN_SIZE
from caphv.api.object import Obj
from caphv.api.objectid import id_of
from operations.capacity.free import CapacityObjects
from operations.capacity.machinechanges import ClusterEffect, PoolEffect, effect_of, fields
from operations.capacity.machinepools import desired_state
from operations.capacity.needs import needs_and_free
from operations.read.objects import HarvesterObjects
from tests.support.clusters import condition
from tests.support.topologies import KEY, topology, variable, world

pytestmark = pytest.mark.unit

CLASSES = ["harvester-rke2", "harvester-k3s", "harvester-kubeadm"]


def change(edit: Callable[[Obj], None], name: str = "harvester-rke2") -> ClusterEffect:
    before, after = world(name), world(name)
    edit(topology(after))
    return effect_of(KEY, desired_state(KEY, before), desired_state(KEY, after))


def numbers(effect: ClusterEffect) -> dict[str, tuple[int, int, int]]:
    """Of each pool that changes: machines created, replaced and deleted."""
    return {
        pool.pool: (max(0, pool.after - pool.before), pool.replaced, max(0, pool.before - pool.after))
        for pool in effect.pools
    }


ALL = {"control plane": (0, 3, 0), "md-0": (0, 2, 0), "md-1": (0, 2, 0)}
WORKERS = {"md-0": (0, 2, 0), "md-1": (0, 2, 0)}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda _found: None, {}),
        (lambda found: found.update(version="v1.36.3"), ALL),
        (lambda found: found["controlPlane"].update(replicas=5), {"control plane": (2, 0, 0)}),
        (lambda found: found["workers"]["machineDeployments"][0].update(replicas=5), {"md-0": (3, 0, 0)}),
        (lambda found: found["workers"]["machineDeployments"][1].update(replicas=0), {"md-1": (0, 0, 2)}),
        (lambda found: found["workers"]["machineDeployments"].pop(), {"md-1": (0, 0, 2)}),
        (
            lambda found: found["workers"]["machineDeployments"].append(
                {"class": "default-worker", "name": "md-2", "replicas": 4}
            ),
            {"md-2": (4, 0, 0)},
        ),
        (variable("cpuCount", 4), ALL),
        (variable("memorySize", "8Gi"), ALL),
        (variable("image", "default/other"), ALL),
        (variable("sshKeyPair", "default/other"), ALL),
        (variable("vmNetworks", ["default/other"]), ALL),
        (variable("worker", {"cpuCount": 8}), WORKERS),
        (variable("worker", {"cpuCount": 2}), {}),
        (variable("controlPlane", {"memorySize": "16Gi"}), {"control plane": (0, 3, 0)}),
        (variable("firmware", "uefi"), ALL),
        (variable("diskSize", "80Gi"), ALL),
        (variable("ipPoolRef", "others"), {}),
        (variable("dnsServers", ["10.0.0.53"]), {}),
        (variable("failureDomains", ["north"]), {}),
    ],
)
def test_machines_are_replaced_for_what_they_are_made_of(
    name: str, edit: Callable[[Obj], None], expected: dict[str, tuple[int, int, int]]
) -> None:
    effect = change(edit, name)
    assert effect.unknown == ()
    assert numbers(effect) == expected


def test_number_of_an_autoscaled_pool_is_what_it_has() -> None:
    """The core leaves an omitted number alone. A new pool begins with the minimum, else with one machine."""
    before, after = world(), world()
    bounds = {"metadata": {"annotations": {AUTOSCALER_MIN_SIZE: "3", AUTOSCALER_MAX_SIZE: "9"}}}
    for objects in (before, after):
        pool = topology(objects)["workers"]["machineDeployments"][0]
        del pool["replicas"]
        pool.update(bounds)
    wanted = desired_state(KEY, before)
    actual = replace(wanted, pools={**wanted.pools, "md-0": replace(wanted.pools["md-0"], replicas=5)})
    assert numbers(effect_of(KEY, actual, desired_state(KEY, after))) == {}
    new = {"class": "default-worker", "name": "md-2"}
    topology(after)["workers"]["machineDeployments"] += [{**new, **bounds}, {**new, "name": "md-3"}]
    assert numbers(effect_of(KEY, actual, desired_state(KEY, after))) == {"md-2": (3, 0, 0), "md-3": (1, 0, 0)}
    topology(after).update(version="v1.36.3")
    assert numbers(effect_of(KEY, actual, desired_state(KEY, after)))["md-0"] == (0, 5, 0)


def test_overrides_of_a_pool_concern_that_pool() -> None:
    overrides = {"overrides": [{"name": "worker", "value": {"memorySize": "32Gi"}}]}
    effect = change(lambda found: found["workers"]["machineDeployments"][0].update(variables=overrides))
    assert numbers(effect) == {"md-0": (0, 2, 0)}
    assert [str(each) for each in effect.pools[0].reasons] == ["machine.memory: 4Gi → 32Gi"]


def test_the_infrastructure_changes_in_place() -> None:
    effect = change(variable("ipPoolRef", "others"))
    assert [str(each) for each in effect.infrastructure] == ["vmNetworkConfig.ipPoolRef: machines → others"]


def test_a_patch_that_is_not_understood_is_not_guessed() -> None:
    before, after = world(), world()
    for objects in (before, after):
        patches = next(obj for identity, obj in objects.items() if identity.kind == "ClusterClass")["spec"]["patches"]
        patches.append({"name": "x", "external": {"generateExtension": "x"}})
    topology(after)["version"] = "v1.36.3"
    effect = effect_of(KEY, desired_state(KEY, before), desired_state(KEY, after))
    assert (effect.pools, effect.unknown) == ((), ("patch x is made by an extension",))


def test_a_patch_of_the_infrastructure_gets_no_variables_of_the_control_plane() -> None:
    objects = world()
    cluster_class = next(obj for identity, obj in objects.items() if identity.kind == "ClusterClass")
    patch = {"op": "add", "path": "/spec/template/spec/x", "valueFrom": {"variable": "builtin.controlPlane.version"}}
    selector = {
        "apiVersion": cluster_class["spec"]["infrastructure"]["templateRef"]["apiVersion"],
        "kind": "HarvesterClusterTemplate",
        "matchResources": {"infrastructureCluster": True},
    }
    cluster_class["spec"]["patches"].append(
        {"name": "x", "definitions": [{"selector": selector, "jsonPatches": [patch]}]}
    )
    assert "builtin.controlPlane.version" in desired_state(KEY, objects).unknown[0]


def test_a_new_cluster_creates_all_its_machines_and_needs_room_for_them() -> None:
    after = world()
    del after[id_of(next(obj for identity, obj in after.items() if identity.kind == "Cluster"))]
    effect = effect_of(KEY, desired_state(KEY, after), desired_state(KEY, world()))
    assert numbers(effect) == {"control plane": (3, 0, 0), "md-0": (2, 0, 0), "md-1": (2, 0, 0)}
    assert (effect.needs.vms, effect.needs.cpu, effect.needs.addresses) == (7, 14, 7)
    assert effect.needs.memory == 28 * 1024**3
    assert effect.needs.storage == 7 * 40 * 1024**3


def test_a_rollout_needs_its_surge_and_what_machines_grow_by() -> None:
    same = change(lambda found: found.update(version="v1.36.3"))
    assert [pool.surge for pool in same.pools] == [1, 1, 1]
    assert (same.needs.vms, same.needs.cpu) == (3, 6)
    larger = change(variable("cpuCount", 4))
    assert larger.needs.cpu == (3 + 1) * 4 - 3 * 2 + 2 * ((2 + 1) * 4 - 2 * 2)


def test_maxima_count_because_harvester_reserves_for_them() -> None:
    assert change(variable("cpuMax", 4)).needs == change(variable("cpuCount", 4)).needs
    assert change(variable("memoryMax", "8Gi")).needs == change(variable("memorySize", "8Gi")).needs


def test_devices_are_needed_by_machines_that_exist_in_addition() -> None:
    devices = [{"resourceName": "n.com/a", "count": 2}, {"resourceName": "n.com/b"}]
    new = change(variable("worker", {"devices": devices}))
    assert numbers(new) == WORKERS
    # Two pools of two machines, each with a surge of one.
    assert new.needs.devices == {"n.com/a": 2 * 3 * 2, "n.com/b": 2 * 3}
    assert new.needs.smallest == {"n.com/a": 2, "n.com/b": 1}


def test_huge_pages_are_needed_instead_of_memory() -> None:
    new = change(variable("worker", {"cpuPinning": True, "hugepages": "1Gi"}))
    size = new.needs.smallest["hugepages-1Gi"]
    assert size > 0
    assert new.needs.devices == {"hugepages-1Gi": size * 3 * 2}
    assert new.needs.memory <= 0


def test_core_of_the_emulator_thread_counts() -> None:
    pinned = change(variable("worker", {"cpuPinning": True, "isolateEmulatorThread": True}))
    assert pinned.needs.cpu == 2 * ((2 + 1) * 3 - 2 * 2)


def test_maximum_of_workers_replaces_these() -> None:
    assert numbers(change(variable("worker", {"cpuMax": 4}))) == WORKERS


def test_a_rollout_that_is_under_way_counts() -> None:
    found = desired_state(KEY, world())
    effect = effect_of(KEY, found, found, {"md-0": 1})
    assert [(pool.pool, pool.replaced) for pool in effect.pools] == [("md-0", 1)]
    assert effect.pools == (PoolEffect(pool="md-0", before=2, after=2, replaced=1, surge=1),)


def test_needs_are_compared_with_what_is_free() -> None:
    needs = change(lambda found: found["workers"]["machineDeployments"][0].update(replicas=5)).needs
    host = {
        "metadata": {"name": "a"},
        "status": {"allocatable": {"cpu": "8", "memory": "10Gi"}, "conditions": [condition("Ready", "True")]},
    }
    pool = {"metadata": {"name": "machines"}, "spec": {"ranges": [{"subnet": "10.0.0.0/30"}]}, "status": {}}
    quota = {
        "metadata": {"namespace": "vms", "name": "q"},
        "spec": {"hard": {"limits.cpu": "10"}},
        "status": {"used": {"limits.cpu": "6"}},
    }
    cluster = {
        "metadata": {"name": "x"},
        "spec": {"targetNamespace": "vms", "vmNetworkConfig": {"ipPoolRef": "default/machines"}},
    }
    found = CapacityObjects(HarvesterObjects(hosts=[host], pools=[pool]), quotas=[quota], all_vms=True)
    short = {need.what: (need.needed, need.free) for need in needs_and_free(needs, cluster, found) if need.short}
    assert short == {
        "memory": (12.0 * 1024**3, 10.0 * 1024**3),
        "VMs that fit on a host": (3, 2),
        "addresses": (3, 1),
        "quota vms/q limits.cpu": (6.0, 4.0),
    }
    assert not any(need.short for need in needs_and_free(needs, cluster, None))
    notes = {need.what: need.note for need in needs_and_free(needs, cluster, found)}
    assert {notes[what] for what in ("CPU", "memory", "VMs that fit on a host")} == {
        "counted without overcommit, which no VM shows"
    }


def test_hosts_and_requests_are_compared_as_harvester_overcommits() -> None:
    needs = change(lambda found: found["workers"]["machineDeployments"][0].update(replicas=5)).needs
    assert (needs.cpu, needs.memory) == (6, 12 * 1024**3)
    host = {
        "metadata": {"name": "a"},
        "status": {"allocatable": {"cpu": "1", "memory": "10Gi"}, "conditions": [condition("Ready", "True")]},
    }
    resources = {"limits": {"cpu": "4", "memory": "3Gi"}, "requests": {"cpu": "250m", "memory": "2Gi"}}
    vm = {"metadata": {"namespace": "vms", "name": "other"}, "spec": {"domain": {"resources": resources}}}
    hard = {"limits.cpu": "5", "requests.cpu": "1", "memory": "8Gi", "limits.memory": "8Gi"}
    quota = {"metadata": {"namespace": "vms", "name": "q"}, "spec": {"hard": hard}, "status": {}}
    found = CapacityObjects(HarvesterObjects(hosts=[host], instances=[vm]), quotas=[quota], all_vms=True)
    compared = {need.what: need for need in needs_and_free(needs, {"spec": {"targetNamespace": "vms"}}, found)}
    # A sixteenth of the CPUs, and two thirds of the memory. Quotas of limits count all of them.
    assert (compared["CPU"].needed, compared["CPU"].free, compared["CPU"].note) == (0.375, 1.0, "")
    assert compared["memory"].needed == pytest.approx(8 * 1024**3)
    assert compared["quota vms/q requests.cpu"].needed == 0.375
    assert {what for what, need in compared.items() if need.short} == {
        "quota vms/q limits.cpu",
        "quota vms/q limits.memory",
    }


def test_fields_are_named_by_the_name_of_their_list_member() -> None:
    before = {"variables": [{"name": "a", "value": 1}], "list": [1], "same": {"x": 1}}
    after = {"variables": [{"name": "b", "value": 2}, {"name": "a", "value": 3}], "list": [1, 2], "same": {"x": 1}}
    assert [str(each) for each in fields(before, after)] == [
        "list: [1] → [1, 2]",
        "variables[a].value: 1 → 3",
        "variables[b]: (none) → {name: b, value: 2}",
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0, None, [("", "0", "")]),
        (None, 0, [("", "", "0")]),
        (False, None, [("", "False", "")]),
        (None, False, [("", "", "False")]),
        ("", None, []),
        ({}, None, []),
        (None, [], []),
        (1, 2, [("", "1", "2")]),
        ([{"a": 1}, 2], [{"a": 2}, 2], [("[0].a", "1", "2")]),
        ([{"name": ""}], [{"name": "a"}], [("[0].name", "", "a")]),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, [("a.c", "", "2")]),
        (["a"], ["a"], []),
        ("x" * 60, "x" * 61, [("", "x" * 60, "x" * 57 + "…")]),
    ],
)
def test_values_that_say_something_are_compared(before: Any, after: Any, expected: list[tuple[str, str, str]]) -> None:
    """Zero and false are values; what is empty is as good as absent."""
    assert [(field.path, field.before, field.after) for field in fields(before, after)] == expected


def test_pool_that_does_not_say_what_is_free_has_nothing_free() -> None:
    needs = change(lambda found: found["workers"]["machineDeployments"][0].update(replicas=3)).needs
    pools: list[Obj] = [{"metadata": {"name": "machines"}, "spec": {}, "status": {}}]
    found = CapacityObjects(HarvesterObjects(pools=pools))
    spec = {"vmNetworkConfig": {"ipPoolRef": "machines"}}
    (addresses,) = [need for need in needs_and_free(needs, {"spec": spec}, found) if need.what == "addresses"]
    assert (addresses.needed, addresses.free, addresses.short) == (1, 0, True)


def test_overrides_of_the_control_plane_concern_it_alone() -> None:
    overrides = {"overrides": [{"name": "controlPlane", "value": {"memorySize": "32Gi"}}]}
    effect = change(lambda found: found["controlPlane"].update(variables=overrides))
    assert [pool.pool for pool in effect.pools] == ["control plane"]


def test_template_of_a_class_that_cannot_be_read_makes_a_plan_unknown() -> None:
    objects = world()
    for identity in [each for each in objects if each.kind == "HarvesterMachineTemplate"]:
        del objects[identity]
    found = desired_state(KEY, objects)
    assert found.pools == {}
    assert found.unknown
