"""What users and controllers do to the volumes of a VM on Harvester, as merge patches of the VM."""

from __future__ import annotations

import json

from caphv.api.object import Obj, annotations_of
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
