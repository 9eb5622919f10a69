"""What users and controllers do to the volumes of a VM on Harvester, as merge patches of the VM."""

from __future__ import annotations

import asyncio
import json

from caphv.api.object import Obj, annotations_of
from caphv.runtime.client import ApiClient
from sandbox.harvester import kinds


def volume(namespace: str, name: str) -> Obj:
    """A claim that a user or the CSI driver of a workload cluster creates."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "volumeMode": "Block",
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "harvester-longhorn",
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def hot_plug(vm: Obj, claim: str) -> Obj:
    """KubeVirt's hot-plug, as the CSI driver uses it: the spec has the volume, the annotation does not."""
    spec = vm["spec"]["template"]["spec"]
    disk = {"name": claim, "disk": {"bus": "scsi"}}
    source = {"name": claim, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": True}}
    disks = {"devices": {"disks": [*spec["domain"]["devices"]["disks"], disk]}}
    return _patch({"domain": disks, "volumes": [*spec["volumes"], source]})


async def hot_plug_twice(client: ApiClient, namespace: str, claim: str, *vms: str) -> None:
    """Hot-plug a claim to two VMs at once, so that the webhook has not heard of one when it admits the other.

    That is how real VMs come to share a volume (harvester#6749, #9761).
    """
    for _ in range(100):
        before = [await client.get(kinds.VIRTUAL_MACHINES, name, namespace) for name in vms]
        patches = (
            client.patch(kinds.VIRTUAL_MACHINES, vm["metadata"]["name"], namespace, hot_plug(vm, claim))
            for vm in before
        )
        answers = await asyncio.gather(*patches, return_exceptions=True)
        if not any(isinstance(answer, Exception) for answer in answers):
            return
        for vm in before:
            spec = vm["spec"]["template"]["spec"]
            disks = {"devices": {"disks": spec["domain"]["devices"]["disks"]}}
            patch = _patch({"domain": disks, "volumes": spec["volumes"]})
            await client.patch(kinds.VIRTUAL_MACHINES, vm["metadata"]["name"], namespace, patch)
    raise AssertionError(f"the webhook always noticed that two VMs want {claim}")


def add_volume(vm: Obj, claim: Obj) -> Obj:
    """ "Add Volume": also appends the claim to the annotation (harvester: `addVolume` in pkg/api/vm/handler.go)."""
    name = claim["metadata"]["name"]
    listed = json.loads(annotations_of(vm)[kinds.CLAIM_TEMPLATES])
    listed.append({"metadata": {"name": name, "creationTimestamp": None}, "spec": claim["spec"], "status": {}})
    return {**hot_plug(vm, name), **_annotation(listed)}


def save(vm: Obj, claims: list[Obj]) -> Obj:
    """A VM is saved in the UI, which writes the annotation from all disks of the spec.

    harvester-ui-extension: `parseDiskRows` in pkg/harvester/mixins/harvester-vm/index.js.
    """
    specs = {claim["metadata"]["name"]: claim["spec"] for claim in claims}
    sources = [each["persistentVolumeClaim"] for each in _volumes(vm) if "persistentVolumeClaim" in each]
    names = [source["claimName"] for source in sources]
    return _annotation([{"metadata": {"name": name}, "spec": specs[name]} for name in names])


def _volumes(vm: Obj) -> list[Obj]:
    volumes: list[Obj] = vm["spec"]["template"]["spec"]["volumes"]
    return volumes


def _patch(spec: Obj) -> Obj:
    return {"spec": {"template": {"spec": spec}}}


def _annotation(listed: list[Obj]) -> Obj:
    return {"metadata": {"annotations": {kinds.CLAIM_TEMPLATES: json.dumps(listed)}}}
