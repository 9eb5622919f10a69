"""Reduce objects on Harvester to the fields that reconciles read."""

from __future__ import annotations

from typing import Any

from caphv.api import names
from caphv.api.hostresources import offered_resources
from caphv.api.object import Obj, annotations_of, at, labels_of, list_at
from caphv.api.virtualmachine import is_added_volume

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_INSTANCE = ("phase", "nodeName", "reason")
_SIZE = (("currentCPUTopology", ("sockets",)), ("memory", ("guestCurrent",)))
_CLAIM = ("claimName", "capacity")
_MAX_VOLUMES = 64
_INTERFACE = ("name", "interfaceName", "ipAddress", "ipAddresses")
# Each address is parsed when the machine is reconciled. A node that announces the addresses of its
# Services has hundreds of them, and a hostile Harvester sends as many as an event can carry.
_MAX_INTERFACES = 64
_MAX_ADDRESSES = 512
_MAX_DEVICES = 64
_MAX_RESOURCES = 256
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
# Prefixes of the labels and annotations by which a provider marks its VMs.
_MARKS = ("caphv.io/", "guestcluster.harvesterhci.io/", names.MACHINE_TYPE_LABEL)


def virtual_machine(vm: Obj, management_cluster: str) -> Obj:
    """Keep spec and state of a VM of this management cluster, and only a little of other VMs.

    :param management_cluster: uid of this management cluster
    """
    # Namespaces are shared with other teams, which may have thousands of VMs. When the provider
    # adopts a VM, it writes our record first, and the response to that write has all fields.
    if annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION) != management_cluster:
        return _foreign_vm(vm)

    metadata = {name: value for name, value in vm["metadata"].items() if name != "managedFields"}
    metadata["annotations"] = {
        name: value for name, value in annotations_of(vm).items() if name != _LAST_APPLIED
    }
    status = {
        name: value
        for name, value in (vm.get("status") or {}).items()
        if name != "volumeSnapshotStatuses"
    }
    return {**vm, "metadata": metadata, "status": status}


def _foreign_vm(vm: Obj) -> Obj:
    """Keep the record and marks of a VM's owner, and the claims that the VM uses.

    The claim of a DataVolume has its name.
    """
    template = (vm.get("spec") or {}).get("template") or {}
    volumes = [
        {source: volume[source]}
        for volume in _volumes(template)
        for source in ("persistentVolumeClaim", "dataVolume")
        if volume.get(source)
    ]
    slim_template: Obj = {}
    if marks := _marks(template.get("metadata") or {}):
        slim_template["metadata"] = marks
    if volumes:
        slim_template["spec"] = {"volumes": volumes}
    spec = {"template": slim_template} if slim_template else {}
    return {"metadata": {**_metadata(vm, "generation"), **_marks(vm["metadata"])}, "spec": spec}


def _volumes(template: Obj) -> list[Obj]:
    return (template.get("spec") or {}).get("volumes") or []


def instance(vmi: Obj) -> Obj:
    """Keep age, phase, host, addresses and conditions of an instance; its size with marks."""
    status = vmi.get("status") or {}
    slim_status = _pick(status, _INSTANCE)
    if interfaces := status.get("interfaces"):
        slim_status["interfaces"] = _interfaces(interfaces)
    if conditions := status.get("conditions"):
        slim_status["conditions"] = [_pick(condition, _CONDITION) for condition in conditions]

    # The guest reports the UUID as its system UUID, which identifies the VM of a Node.
    marks = _marks(vmi["metadata"])
    firmware = ((vmi.get("spec") or {}).get("domain") or {}).get("firmware")
    if marks:
        slim_status |= {
            section: size
            for section, fields in _SIZE
            if (size := _pick(status.get(section), fields))
        }
        if volumes := _machine_volumes(vmi):
            slim_status["volumeStatus"] = volumes

    # Devices of other VMs count, too, because a device has one user.
    requested = at(vmi, "spec", "domain", "devices")
    devices = _devices(requested) if isinstance(requested, dict) else {}
    domain: Obj = {"devices": devices} if devices else {}
    spec: Obj = {"spec": {"domain": domain}} if domain else {}
    if marks:
        domain["firmware"] = _pick(firmware, ("uuid",))
        spec = {"spec": {"domain": domain, **_pick(vmi.get("spec"), ("evictionStrategy",))}}
    metadata = {**_metadata(vmi, "creationTimestamp"), **marks}
    return {"metadata": metadata, **spec, "status": slim_status}


def _devices(devices: Obj) -> Obj:
    """Return the resource names of an instance's devices, by the lists that name them."""
    return {
        name: [
            _pick(device, ("deviceName",))
            for device in listed[:_MAX_DEVICES]
            if isinstance(device, dict)
        ]
        for name in ("hostDevices", "gpus")
        if isinstance(listed := devices.get(name), list) and listed
    }


def _machine_volumes(vmi: Obj) -> list[Obj]:
    """Return the state of the disks of a machine.

    Volumes that a CSI driver hot-plugs come and go, and their state matters to no machine.
    """
    volumes = []
    listed = at(vmi, "status", "volumeStatus")
    for volume in listed if isinstance(listed, list) else ():
        if not isinstance(volume, dict):
            continue
        info = at(volume, "persistentVolumeClaimInfo")
        claim = _pick(info if isinstance(info, dict) else None, _CLAIM)
        if "capacity" in claim:
            claim["capacity"] = {"storage": at(info, "capacity", "storage")}
        is_machines = not volume.get("hotplugVolume") or is_added_volume(
            vmi["metadata"]["name"], str(volume.get("name"))
        )
        if claim and is_machines:
            state = _pick(volume, ("phase", "message"))
            volumes.append({**state, "persistentVolumeClaimInfo": claim})
    return volumes[:_MAX_VOLUMES]


def _interfaces(interfaces: list[Obj]) -> list[Obj]:
    """Return the first interfaces and addresses, with NICs (which have a name) before others."""
    nics_first = sorted(interfaces, key=lambda interface: not interface.get("name"))
    first = [_pick(interface, _INTERFACE) for interface in nics_first[:_MAX_INTERFACES]]
    remaining = _MAX_ADDRESSES
    for interface in first:
        if addresses := interface.get("ipAddresses"):
            interface["ipAddresses"] = addresses[:remaining]
            remaining -= len(interface["ipAddresses"])
    return first


def claim(claim: Obj) -> Obj:
    """Keep the existence and owner of a claim, and its phase until it is bound.

    Of a claim that is being deleted, keep the finalizers, which a message names.
    """
    finalizers = ("finalizers",) if "deletionTimestamp" in claim["metadata"] else ()
    phase = (claim.get("status") or {}).get("phase", "")
    status = {} if phase == "Bound" else {"status": {"phase": phase}}
    metadata = {**_metadata(claim, *finalizers), **_marks(claim["metadata"])}
    return {"metadata": metadata, **status}


def deployment(deployment: Obj) -> Obj:
    """Keep the conditions and images of a Deployment."""
    containers = list_at(deployment, "spec", "template", "spec", "containers")
    images = [_pick(container, ("image",)) for container in containers]
    return {
        "metadata": _metadata(deployment),
        "spec": {"template": {"spec": {"containers": images}}},
        "status": _pick(deployment.get("status"), ("conditions",)),
    }


def host(node: Obj) -> Obj:
    """Keep the labels of a host, its devices and huge pages, and what keeps new VMs from it.

    A host may be not ready, cordoned, tainted, in Harvester's maintenance mode or being evacuated.
    """
    annotations = {
        name: value
        for name, value in annotations_of(node).items()
        if name.startswith("harvesterhci.io/") or name == names.EVACUATE_ANNOTATION
    }
    spec = node.get("spec") or {}
    scheduling = {"unschedulable": spec.get("unschedulable", False), **_pick(spec, ("taints",))}
    metadata = {**_metadata(node, "labels"), "annotations": annotations}
    allocatable = at(node, "status", "allocatable")
    offered = offered_resources(allocatable) if isinstance(allocatable, dict) else {}
    resources = dict(list(offered.items())[:_MAX_RESOURCES])
    status: Obj = {"allocatable": resources} if resources else {}
    # Without the times, which change with each heartbeat.
    conditions = at(node, "status", "conditions")
    ready = [
        _pick(condition, ("type", "status"))
        for condition in (conditions if isinstance(conditions, list) else ())
        if isinstance(condition, dict) and condition.get("type") == "Ready"
    ]
    if ready:
        status["conditions"] = ready
    return {"metadata": metadata, "spec": scheduling, **({"status": status} if status else {})}


def image(image: Obj) -> Obj:
    """Keep name, source and type of an image, its import, its size, and the class of its copies."""
    conditions = (image.get("status") or {}).get("conditions") or ()
    imported = [
        _pick(c, ("type", "status", "message"))
        for c in conditions
        if c.get("type") in ("Imported", "RetryLimitExceeded")
    ]
    status = _pick(image.get("status"), ("storageClassName", "progress", "virtualSize"))
    kind = labels_of(image).get(names.IMAGE_TYPE_LABEL)
    labels = {"labels": {names.IMAGE_TYPE_LABEL: kind}} if kind else {}
    return {
        "metadata": {**_metadata(image), **labels},
        "spec": _pick(image.get("spec"), ("displayName", "url", "checksum", "backend")),
        "status": {**status, "conditions": imported},
    }


def key_pair(pair: Obj) -> Obj:
    """Keep the public key of a key pair."""
    return {"metadata": _metadata(pair), "spec": _pick(pair.get("spec"), ("publicKey",))}


def _marks(metadata: Obj) -> Obj:
    """Return the labels and annotations that providers set."""
    marks = {}
    for section in ("labels", "annotations"):
        marked = {
            key: value
            for key, value in (metadata.get(section) or {}).items()
            if key.startswith(_MARKS)
        }
        if marked:
            marks[section] = marked
    return marks


def _pick(section: Obj | None, names: tuple[str, ...]) -> Obj:
    """Return some fields of a section, none if it does not exist."""
    return {name: section[name] for name in names if name in section} if section else {}


def _metadata(obj: Obj, *names: str) -> dict[str, Any]:
    """Return the metadata that every cached object has, and further fields by name."""
    identity = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
    return _pick(obj["metadata"], (*identity, *names))
