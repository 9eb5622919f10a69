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


async def restore(case: Case, former: str) -> list[Obj]:
    """Write what Harvester v1.8.0 writes, by pkg/controller/master/backup/restore.go."""
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

    volumes = with_claim(vm["spec"]["template"]["spec"]["volumes"], former, RESTORED)
    annotations = {"restore.harvesterhci.io/name": "nightly", names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: None}
    spec = {"runStrategy": "Halted", "template": {"spec": {"volumes": volumes}}}
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"annotations": annotations}, "spec": spec})
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Always"}})
    return volumes


async def test_a_vm_that_is_restored_in_place_stays_that_of_its_machine(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one")
    vm = await case.vm("one")
    claims = (at(volume, "persistentVolumeClaim", "claimName") for volume in vm["spec"]["template"]["spec"]["volumes"])
    former = next(filter(None, claims))

    await case.pause(paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Halted"}})
    await case.until_gone(kinds.INSTANCES, "one")
    volumes = await restore(case, former)
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
