"""A VM that Harvester restores from a backup, as docs/tasks/backup-and-restore.md says."""

from __future__ import annotations

import pytest

from caphv.api import names
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, annotations_of, at, uid_of
from sandbox.harvester import kinds
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true

pytestmark = pytest.mark.integration

RESTORED = "restore-nightly-5b2c9d-disk-0"


def with_claim(volumes: list[Obj], former: str, claim: str) -> list[Obj]:
    return [
        {**volume, "persistentVolumeClaim": {"claimName": claim}}
        if at(volume, "persistentVolumeClaim", "claimName") == former
        else volume
        for volume in volumes
    ]


async def restore(case: Case, former: str, saved: Obj) -> list[Obj]:
    """Write what Harvester v1.8.0 writes, by pkg/controller/master/backup/restore.go.

    :param case: the case
    :param former: the claim that is replaced
    :param saved: the VM as it was backed up, whose spec returns
    """
    vm, claim = await case.vm("one"), await case.get(PERSISTENT_VOLUME_CLAIMS, former)
    # The VirtualMachineRestore owns the claim, and the VM owns that.
    owner = {"apiVersion": vm["apiVersion"], "kind": vm["kind"], "name": "one", "uid": uid_of(vm)}
    fields = ("accessModes", "resources", "storageClassName", "volumeMode")
    copied = {
        "metadata": {
            "name": RESTORED,
            "namespace": case.target,
            "annotations": annotations_of(claim),
            "ownerReferences": [owner],
        },
        "spec": {field: claim["spec"][field] for field in fields if field in claim["spec"]},
    }
    await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, kinds.typed(PERSISTENT_VOLUME_CLAIMS, copied))

    template = saved["spec"]["template"]
    volumes = with_claim(template["spec"]["volumes"], former, RESTORED)
    annotations = {"restore.harvesterhci.io/name": "nightly", names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: None}
    spec = {"runStrategy": "Halted", "template": {**template, "spec": {**template["spec"], "volumes": volumes}}}
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"annotations": annotations}, "spec": spec})
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Always"}})
    return volumes


def first_claim(vm: Obj) -> str:
    claims = (at(volume, "persistentVolumeClaim", "claimName") for volume in vm["spec"]["template"]["spec"]["volumes"])
    return next(filter(None, claims))


async def stop(case: Case) -> None:
    """Pause the cluster, and stop its VM."""
    await case.pause(paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Halted"}})
    await case.until_gone(kinds.INSTANCES, "one")


async def test_a_vm_that_is_restored_in_place_stays_that_of_its_machine(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one")
    vm = await case.vm("one")
    former = first_claim(vm)

    await stop(case)
    volumes = await restore(case, former, vm)
    await case.until(kinds.INSTANCES, "one", lambda instance: at(instance, "status", "phase") == "Running")

    await case.pause(paused=False)
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("Paused", "NotPaused"))
    again = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert again["spec"]["providerID"] == machine["spec"]["providerID"] == f"harvester://{uid_of(vm)}"
    assert (await case.vm("one"))["spec"]["template"]["spec"]["volumes"] == volumes, "the provider changes no disk"

    # Kubernetes deletes the restored disk with its owner, and the provider the former one.
    await case.delete_machine("one")
    await case.until_gone(HARVESTER_MACHINES, "one")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "one")
    await case.until_gone(PERSISTENT_VOLUME_CLAIMS, former)


async def test_a_restored_vm_that_is_older_than_its_machine_is_kept_and_reported(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one", cpu=2, cpuMax=8, memory="4Gi", memoryMax="16Gi")
    await case.until(HARVESTER_MACHINES, "one", is_true("VMCanGrow"))
    saved = await case.vm("one")

    progress = {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: ""}}}
    await case.patch(HARVESTER_MACHINES, "one", {**progress, "spec": {"cpu": 4}})
    await case.until(
        kinds.INSTANCES, "one", lambda instance: at(instance, "status", "currentCPUTopology", "sockets") == 4
    )
    complete = {"metadata": {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: None}}}
    await case.patch(HARVESTER_MACHINES, "one", complete)
    await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))

    await stop(case)
    await restore(case, first_claim(saved), saved)
    await case.until(kinds.INSTANCES, "one", lambda instance: at(instance, "status", "phase") == "Running")
    instance = await case.get(kinds.INSTANCES, "one")
    await case.pause(paused=False)
    again = await case.until(HARVESTER_MACHINES, "one", is_false("VMUpToDate", "VMDiffers", "cores is 2, not 4"))
    assert again["spec"]["providerID"] == machine["spec"]["providerID"] == f"harvester://{uid_of(saved)}"
    await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert uid_of(await case.get(kinds.INSTANCES, "one")) == uid_of(instance), "the provider restarts nothing"
