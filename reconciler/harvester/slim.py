"""What caches keep of objects on Harvester: only the fields that reconciles read."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj, annotations_of

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def virtual_machine(vm: Obj) -> Obj:
    """Its spec, which is compared with what the machine asks for, and the state of the VM."""
    metadata = {name: value for name, value in vm["metadata"].items() if name != "managedFields"}
    if _LAST_APPLIED in annotations_of(vm):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _LAST_APPLIED}
    status = {name: value for name, value in (vm.get("status") or {}).items() if name != "volumeSnapshotStatuses"}
    return {**vm, "metadata": metadata, "status": status}


def instance(vmi: Obj) -> Obj:
    """Phase, host, addresses and conditions."""
    kept = ("phase", "nodeName", "interfaces", "conditions", "reason")
    return {"metadata": _metadata(vmi, "labels", "ownerReferences"), "status": _kept(vmi.get("status"), kept)}


def claim(claim: Obj) -> Obj:
    """Its existence and owner."""
    annotations = {name: value for name, value in annotations_of(claim).items() if name.startswith("caphv.io/")}
    return {"metadata": {**_metadata(claim), "annotations": annotations}}


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
    """The name that machines refer to, and the storage class of its copies."""
    return {
        "metadata": _metadata(image),
        "spec": _kept(image.get("spec"), ("displayName",)),
        "status": _kept(image.get("status"), ("storageClassName",)),
    }


def key_pair(pair: Obj) -> Obj:
    """The public key."""
    return {"metadata": _metadata(pair), "spec": _kept(pair.get("spec"), ("publicKey",))}


def _kept(section: Obj | None, names: tuple[str, ...]) -> Obj:
    return {name: section[name] for name in names if name in section} if section else {}


def _metadata(obj: Obj, *names: str) -> dict[str, Any]:
    kept = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *names)
    return {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}
