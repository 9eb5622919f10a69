"""What users and controllers do to the volumes of a VM on Harvester, as merge patches of the VM."""

from __future__ import annotations

import json

from caphv.api.object import MUTATING_WEBHOOK_CONFIGURATIONS, Obj, annotations_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Invalid
from sandbox.harvester import kinds
from sandbox.harvester.admission import MUTATOR
from tests.support.waiting import until


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
    """Hot-plug a claim to two VMs; the webhook is not asked about the second one.

    Real VMs come to share a volume when the webhook has not heard of one yet while it admits the other (harvester#6749,
    #9761). A test cannot rely on winning that race.
    """
    first, second = [await client.get(kinds.VIRTUAL_MACHINES, name, namespace) for name in vms]

    async def plug(vm: Obj) -> bool:
        try:
            await client.patch(kinds.VIRTUAL_MACHINES, vm["metadata"]["name"], namespace, hot_plug(vm, claim))
        except Invalid:
            return False
        return True

    assert await plug(first)
    config = await client.get(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATOR)
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}
    blind = [{**webhook, "namespaceSelector": {"matchExpressions": [others]}} for webhook in config["webhooks"]]
    await client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATOR, "", {"webhooks": blind})
    await until(lambda: plug(second), f"{vms} share {claim}")
    await client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATOR, "", {"webhooks": config["webhooks"]})

    async def is_asked() -> bool:
        patch = {"metadata": {"annotations": {"asked": "yes"}}}
        try:
            await client.patch(kinds.VIRTUAL_MACHINES, vms[1], namespace, patch, dry_run=True)
        except Invalid:
            return True
        return False

    await until(is_asked, "the webhook is asked again")


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
