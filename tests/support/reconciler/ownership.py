"""VMs that an earlier provider left behind, and the ownership records on them."""

from __future__ import annotations

import json

from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj
from sandbox.harvester import kinds
from tests.support.reconciler.case import (
    Case,
)
from tests.support.simulation import virtual_machine

CLUSTER, OWNER, OWNER_UID = "caphv.io/management-cluster", "caphv.io/owner", "caphv.io/owner-uid"


ELSEWHERE = "5e1f0e4c-elsewhere"


def recorded(case: Case, name: str, *, kind: str = "HarvesterMachine") -> Obj:
    """The record of a former management cluster for a machine, or another owner, of this name."""
    return {CLUSTER: ELSEWHERE, OWNER: f"{kind}/{case.name}/{name}", OWNER_UID: "before"}


async def left_behind(case: Case, name: str, annotations: Obj, *, marked: bool = True) -> Obj:
    """A VM with disk and cloud-init Secret that another owner made, with these annotations on all three."""
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    metadata = {"name": f"{name}-cloud-init", "namespace": case.target, "annotations": annotations}
    text = "#cloud-config\npackages: [qemu-guest-agent]\n"
    await case.harvester.create(SECRETS, {"metadata": metadata, "stringData": {"userdata": text}})
    vm = virtual_machine(case.target, name)
    (claim,) = json.loads(vm["metadata"]["annotations"][kinds.CLAIM_TEMPLATES])
    claim["metadata"] = {"name": f"{name}-disk-0-x7k2p", "annotations": annotations}
    vm["metadata"]["annotations"] = {kinds.CLAIM_TEMPLATES: json.dumps([claim]), **annotations}
    vm["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = claim["metadata"]["name"]
    if marked:  # by the Go provider
        metadata = vm["spec"]["template"].setdefault("metadata", {})
        metadata["annotations"] = {"harvestercluster/machinetype": f"controlplane-{case.name}"}
    return await case.harvester.create(kinds.VIRTUAL_MACHINES, vm)


async def remove_from_harvester(case: Case, name: str) -> None:
    """Remove a VM that its machine left, with its disks and Secret, as an operator does."""
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, name)
    await case.until_gone(kinds.VIRTUAL_MACHINES, name)
    for disk in await case.names(PERSISTENT_VOLUME_CLAIMS):
        await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, disk)
        await case.until_gone(PERSISTENT_VOLUME_CLAIMS, disk)
    await case.ask_deletion(SECRETS, f"{name}-cloud-init")
