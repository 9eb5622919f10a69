"""VMs that can grow while they run."""

from __future__ import annotations

import pytest

from caphv.api import names, resources
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, at
from sandbox.harvester import kinds
from tests.support.reconciler.case import HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_true

pytestmark = pytest.mark.integration

ANNOTATION = "harvesterhci.io/enableCPUAndMemoryHotplug"


async def test_vm_with_maxima_can_grow_and_one_without_keeps_its_topology(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("grows", cpu=2, cpuMax=8, memory="4Gi", memoryMax="16Gi")
    await case.ready_machine("plain", cpu=2, memory="4Gi")

    vm, plain = await case.vm("grows"), await case.vm("plain")
    assert vm["metadata"]["annotations"][ANNOTATION] == "true"
    domain = vm["spec"]["template"]["spec"]["domain"]
    assert domain["cpu"] == {"cores": 1, "sockets": 2, "threads": 1, "maxSockets": 8}
    assert domain["memory"] == {"guest": "4Gi", "maxGuest": "16Gi"}
    assert domain["resources"]["limits"] == {"cpu": "8", "memory": "16Gi"}
    assert ANNOTATION not in plain["metadata"]["annotations"]
    assert plain["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] == 2
    for name in ("grows", "plain"):
        await case.until(HARVESTER_MACHINES, name, is_true("VMUpToDate"))


async def test_vm_that_grows_on_harvester_migrates_and_differs_from_its_machine(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one", cpu=2, cpuMax=8)
    before = await case.until(kinds.INSTANCES, "one", lambda vmi: at(vmi, "status", "nodeName"))
    sockets = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 4}}}}}}
    await case.patch(resources.VIRTUAL_MACHINES, "one", sockets)

    after = await case.until(
        kinds.INSTANCES, "one", lambda vmi: at(vmi, "status", "currentCPUTopology", "sockets") == 4
    )
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["nodeName"] != before["status"]["nodeName"]
    await case.until(HARVESTER_MACHINES, "one", is_false("VMUpToDate", "VMDiffers", "cores is 4, not 2"))


async def test_vm_grows_while_cluster_api_updates_its_machine_in_place(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one", cpu=2, cpuMax=8, memory="4Gi", memoryMax="16Gi")
    await case.until(HARVESTER_MACHINES, "one", is_true("VMCanGrow"))
    before = (await case.vm("one"))["metadata"]["uid"], (await case.get(kinds.INSTANCES, "one"))["metadata"]["uid"]
    progress = {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: ""}}}
    await case.patch(HARVESTER_MACHINES, "one", {**progress, "spec": {"cpu": 4, "memory": "8Gi"}})

    def has_grown(machine: Obj) -> bool:
        condition = condition_of(machine, "VMUpToDate")
        return (condition["status"], condition["message"]) == (
            "True",
            "the VM has 4 CPUs, 8Gi of memory, disks of 40Gi",
        )

    machine = await case.until(HARVESTER_MACHINES, "one", has_grown)
    vmi = await case.get(kinds.INSTANCES, "one")
    assert (vmi["status"]["currentCPUTopology"]["sockets"], vmi["status"]["memory"]["guestCurrent"]) == (4, "8Gi")
    assert ((await case.vm("one"))["metadata"]["uid"], vmi["metadata"]["uid"]) == before
    assert machine["status"]["ready"]

    complete = {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: None}}}
    await case.patch(HARVESTER_MACHINES, "one", complete)
    await case.until(HARVESTER_MACHINES, "one", lambda obj: not condition_of(obj, "VMUpToDate").get("message"))


async def test_affinity_follows_its_machine_in_place_in_both_directions(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    before = await case.vm("one")
    weight = {"weight": 5, "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}}
    rules = {"preferredDuringSchedulingIgnoredDuringExecution": [weight]}
    progress = {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: ""}}

    def is_complete(machine: Obj) -> bool:
        return str(condition_of(machine, "VMUpToDate").get("message")).startswith("the VM has ")

    for wanted in (rules, None):
        await case.patch(HARVESTER_MACHINES, "one", {"metadata": progress, "spec": {"nodeAffinity": wanted}})
        await case.until(HARVESTER_MACHINES, "one", is_complete)
        vm = await case.vm("one")
        affinity = vm["spec"]["template"]["spec"]["affinity"]
        preferred = at(affinity, "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
        assert (preferred or None) == ([weight] if wanted else None)
        # Rules of Harvester, and those that keep VMs apart, stay.
        assert affinity["podAntiAffinity"] == before["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        assert vm["metadata"]["uid"] == before["metadata"]["uid"]
        await case.patch(
            HARVESTER_MACHINES, "one", {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: None}}}
        )
        await case.until(HARVESTER_MACHINES, "one", lambda obj: not condition_of(obj, "VMUpToDate").get("message"))


EMPTY: Obj = {"volumeType": "storageClass", "volumeSize": "10Gi", "accessMode": "ReadWriteMany"}


async def test_disks_grow_and_are_added_while_the_vm_runs_and_are_deleted_with_it(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one")
    (disk,) = machine["spec"]["volumes"]
    instance = (await case.get(kinds.INSTANCES, "one"))["metadata"]["uid"]
    (boot,) = await case.names(PERSISTENT_VOLUME_CLAIMS)
    storage_class = (await case.get(PERSISTENT_VOLUME_CLAIMS, boot))["spec"]["storageClassName"]
    empty = {**EMPTY, "storageClass": storage_class}
    volumes = [{**disk, "volumeSize": "60Gi"}, empty]
    progress = {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: ""}}}
    await case.patch(HARVESTER_MACHINES, "one", {**progress, "spec": {"volumes": volumes}})

    done = "disks of 60Gi and 10Gi"
    updated = await case.until(
        HARVESTER_MACHINES, "one", lambda obj: done in condition_of(obj, "VMUpToDate").get("message", "")
    )
    assert condition_of(updated, "VMUpToDate")["status"] == "True"
    vmi = await case.get(kinds.INSTANCES, "one")
    states = {entry["name"]: entry for entry in vmi["status"]["volumeStatus"]}
    assert states["disk-0"]["persistentVolumeClaimInfo"]["capacity"] == {"storage": "60Gi"}
    (added,) = [state for name, state in states.items() if name.startswith("disk-1-")]
    assert (added["phase"], added["persistentVolumeClaimInfo"]["capacity"]) == ("Ready", {"storage": "10Gi"})
    assert vmi["metadata"]["uid"] == instance
    assert len(await case.names(PERSISTENT_VOLUME_CLAIMS)) == 2

    complete = {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: None}}}
    await case.patch(HARVESTER_MACHINES, "one", complete)
    # The hot-plugged disk is no difference. The condition was true before, so its message tells the end of the update.
    after = await case.until(HARVESTER_MACHINES, "one", lambda obj: not condition_of(obj, "VMUpToDate").get("message"))
    assert condition_of(after, "VMUpToDate")["status"] == "True"
    await case.delete_machine("one")
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == []
