"""What caches keep of objects on Harvester: only the fields that reconciles read."""

from __future__ import annotations

from typing import Any

from caphv.api import names
from caphv.api.object import Obj, annotations_of

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_INTERFACE = ("name", "interfaceName", "ipAddress", "ipAddresses")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
# Prefixes of the labels and annotations by which a provider marks its VMs.
_MARKS = ("caphv.io/", "guestcluster.harvesterhci.io/", names.MACHINE_TYPE_LABEL)


def virtual_machine(vm: Obj, management_cluster: str) -> Obj:
    """Spec and state of a VM that this management cluster recorded as its own; of another, what may affect ours.

    Namespaces are shared with VMs of other teams, which may be thousands. Whatever becomes ours is written first, with
    our record, and the response has all fields.
    """
    if annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION) != management_cluster:
        return _foreign_vm(vm)

    metadata = {name: value for name, value in vm["metadata"].items() if name != "managedFields"}
    if _LAST_APPLIED in annotations_of(vm):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _LAST_APPLIED}
    status = {name: value for name, value in (vm.get("status") or {}).items() if name != "volumeSnapshotStatuses"}
    return {**vm, "metadata": metadata, "status": status}


def _foreign_vm(vm: Obj) -> Obj:
    """The record and marks of its owner, and the claims that it uses."""
    template = (vm.get("spec") or {}).get("template") or {}
    claims = [volume["persistentVolumeClaim"] for volume in _volumes(template) if volume.get("persistentVolumeClaim")]
    slim_template: Obj = {}
    if marks := _marks(template.get("metadata") or {}):
        slim_template["metadata"] = marks
    if claims:
        slim_template["spec"] = {"volumes": [{"persistentVolumeClaim": claim} for claim in claims]}
    spec = {"template": slim_template} if slim_template else {}
    return {"metadata": {**_metadata(vm, "generation"), **_marks(vm["metadata"])}, "spec": spec}


def _volumes(template: Obj) -> list[Obj]:
    return (template.get("spec") or {}).get("volumes") or []


def instance(vmi: Obj) -> Obj:
    """Phase, host, addresses and conditions; of a provider's VM the UUID that its guest reports as the system's."""
    status = vmi.get("status") or {}
    slim_status = _kept(status, ("phase", "nodeName", "reason"))
    if interfaces := status.get("interfaces"):
        slim_status["interfaces"] = [_kept(interface, _INTERFACE) for interface in interfaces]
    if conditions := status.get("conditions"):
        slim_status["conditions"] = [_kept(condition, _CONDITION) for condition in conditions]

    marks = _marks(vmi["metadata"])
    firmware = ((vmi.get("spec") or {}).get("domain") or {}).get("firmware")
    spec = {"spec": {"domain": {"firmware": _kept(firmware, ("uuid",))}}} if marks else {}
    return {"metadata": {**_metadata(vmi), **marks}, **spec, "status": slim_status}


def claim(claim: Obj) -> Obj:
    """Its existence and owner, and its phase until it is bound."""
    phase = (claim.get("status") or {}).get("phase", "")
    status = {} if phase == "Bound" else {"status": {"phase": phase}}
    return {"metadata": {**_metadata(claim), **_marks(claim["metadata"])}, **status}


def deployment(deployment: Obj) -> Obj:
    """Its conditions."""
    return {"metadata": _metadata(deployment), "status": _kept(deployment.get("status"), ("conditions",))}


def host(node: Obj) -> Obj:
    """Labels, and whether new VMs may run there: cordoned, tainted or in Harvester's maintenance mode."""
    annotations = {name: value for name, value in annotations_of(node).items() if name.startswith("harvesterhci.io/")}
    spec = node.get("spec") or {}
    kept = {"unschedulable": spec.get("unschedulable", False), **_kept(spec, ("taints",))}
    return {"metadata": {**_metadata(node, "labels"), "annotations": annotations}, "spec": kept}


def image(image: Obj) -> Obj:
    """The name that machines refer to, whether it is imported, its size, and the storage class of its copies."""
    conditions = (image.get("status") or {}).get("conditions") or ()
    imported = [_kept(c, ("type", "status", "message")) for c in conditions if c.get("type") == "Imported"]
    status = _kept(image.get("status"), ("storageClassName", "progress", "virtualSize"))
    return {
        "metadata": _metadata(image),
        "spec": _kept(image.get("spec"), ("displayName",)),
        "status": {**status, "conditions": imported},
    }


def key_pair(pair: Obj) -> Obj:
    """The public key."""
    return {"metadata": _metadata(pair), "spec": _kept(pair.get("spec"), ("publicKey",))}


def _marks(metadata: Obj) -> Obj:
    """Labels and annotations that providers set."""
    marks = {}
    for section in ("labels", "annotations"):
        marked = {key: value for key, value in (metadata.get(section) or {}).items() if key.startswith(_MARKS)}
        if marked:
            marks[section] = marked
    return marks


def _kept(section: Obj | None, names: tuple[str, ...]) -> Obj:
    return {name: section[name] for name in names if name in section} if section else {}


def _metadata(obj: Obj, *names: str) -> dict[str, Any]:
    kept = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *names)
    return {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}
