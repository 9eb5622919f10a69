"""What a VM on Harvester uses: its PersistentVolumeClaims and its Secrets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from caphv.api import names
from caphv.api.object import Obj, annotations_of, at, dict_at, labels_of, list_at, text_at
from caphv.api.quantity import quantity

# The path of a VM's volumes.
VOLUMES = ("spec", "template", "spec", "volumes")
_CLOUD_INIT = ("cloudInitNoCloud", "cloudInitConfigDrive")
_SECRET_REFERENCES = ("secretRef", "networkDataSecretRef")

# Number and random end of the name of a disk.
_DISK = re.compile(r"(0|[1-9][0-9]{0,8})-[a-z0-9]{5}")


ENDED_PHASES = ("Succeeded", "Failed")
"""Phases of an instance whose Pod has ended, so that it uses nothing of its host."""

READ_WRITE_MANY = "ReadWriteMany"
"""The access mode without which a disk keeps its VM from each migration."""

_DEVICES = ("hostDevices", "gpus")
_MIGRATING = ("LiveMigrate", "LiveMigrateIfPossible")


def devices_of(spec: Obj) -> Counter[str]:
    """Return how many host devices of each kind the spec of an instance asks for."""
    devices = dict_at(spec, "domain", "devices")
    requests = (device for kind in _DEVICES for device in list_at(devices, kind))
    return Counter(text_at(device, "deviceName") for device in requests)


def devices_in_use(instances: Iterable[Obj]) -> dict[str, Counter[str]]:
    """Return the devices that instances use, by host; empty for those that have no host yet."""
    in_use: dict[str, Counter[str]] = {}
    for instance in instances:
        # An instance that has ended keeps its host until it is deleted, but no device.
        if at(instance, "status", "phase") not in ENDED_PHASES:
            host = text_at(instance, "status", "nodeName")
            in_use.setdefault(host, Counter()).update(devices_of(instance.get("spec") or {}))
    return in_use


def free_devices(host: Obj, in_use: Counter[str]) -> Counter[str]:
    """Return the devices of a host that no instance uses."""
    allocatable = dict_at(host, "status", "allocatable")
    total = Counter({name: int(quantity(amount) or 0) for name, amount in allocatable.items()})
    return total - in_use


def has_pinned_cpus(spec: Obj) -> bool:
    """Return whether the spec of an instance asks for CPUs that no other VM uses."""
    return bool(at(spec, "domain", "cpu", "dedicatedCpuPlacement"))


def is_bound_to_host(instance: Obj) -> bool:
    """Return whether KubeVirt says that it cannot migrate an instance."""
    return any(
        (condition.get("type"), condition.get("status")) == ("LiveMigratable", "False")
        for condition in list_at(instance, "status", "conditions")
    )


def migrates_when_evicted(instance: Obj) -> bool:
    """Return whether a drain of its host migrates an instance that can; it stops any other one."""
    return at(instance, "spec", "evictionStrategy") in _MIGRATING


def is_shut_down_for_maintenance(obj: Obj) -> bool:
    """Return whether Harvester shuts a VM or instance down to drain its host, as its label asks."""
    return labels_of(obj).get(names.MAINTENANCE_STRATEGY_LABEL, "").startswith("Shutdown")


def claims_of(*vms: Obj) -> set[str]:
    """Return the names of the claims that VMs use as volumes."""
    return {source["claimName"] for vm in vms for source in claim_sources(vm)}


def claim_sources(vm: Obj) -> Iterator[Obj]:
    """Yield the claim sources of a VM's volumes."""
    for volume in list_at(vm, *VOLUMES):
        source = claim_source(volume)
        name = source.get("claimName")
        # Tenants' servers may answer anything.
        if name and isinstance(name, str):
            yield source


def claim_source(volume: Obj) -> Obj:
    """Return the claim source of a volume, empty for a volume of another type.

    The claim of a DataVolume has the name of the DataVolume.
    """
    data_volume = dict_at(volume, "dataVolume")
    if data_volume.get("name"):
        return {**data_volume, "claimName": data_volume["name"]}
    return dict_at(volume, "persistentVolumeClaim")


def is_machine_pvc(vm_name: str, claim_name: str, disks: int | None = None) -> bool:
    """Return whether a claim has the name of a disk of this VM.

    `a-disk-x-disk-0-abcde` is a disk of `a-disk-x`, not of `a`.

    :param disks: number of disks that count; None for all
    """
    # Disks that users add in Harvester's UI have higher numbers than the disks of the spec.
    index = disk_index(vm_name, claim_name)
    return index is not None and (disks is None or index < disks)


def is_added_volume(vm_name: str, volume: str) -> bool:
    """Return whether a hot-plugged volume has the name that an update in place gives.

    Harvester gives the volume another claim when its storage is migrated or a backup restored. No
    UI and no CSI driver gives such names.
    """
    return is_machine_pvc(vm_name, f"{vm_name}-{volume}")


def disk_index(vm_name: str, claim_name: str) -> int | None:
    """Return the number in the name of a disk of this VM; None for other claims.

    This provider, the Go provider and Harvester's UI name disks like this.
    """
    prefix = f"{vm_name}-disk-"
    if not claim_name.startswith(prefix):
        return None
    match = _DISK.fullmatch(claim_name.removeprefix(prefix))
    return int(match[1]) if match else None


def secrets_of(*vms: Obj) -> set[str]:
    """Return the names of the Secrets from which VMs take their cloud-init data."""
    return {
        str(at(volume, source, reference, "name"))
        for vm in vms
        for volume in list_at(vm, *VOLUMES)
        for source in _CLOUD_INIT
        for reference in _SECRET_REFERENCES
        if at(volume, source, reference, "name")
    }


def cloud_init_secret_name(vm_name: str) -> str:
    """Return the name of the Secret with the cloud-init data of a VM of ours."""
    return f"{vm_name}-cloud-init"


def listed_claims(vm: Obj) -> set[str]:
    """Return the names of the claims that Harvester deletes with the VM."""
    listed = annotations_of(vm).get(names.REMOVED_VOLUMES_ANNOTATION, "").split(",")
    return {name.strip() for name in listed} - {""}


def deletion_list(claims: Iterable[str]) -> Obj:
    """Return metadata that has Harvester delete these claims with a VM, and keep all others."""
    return {"annotations": {names.REMOVED_VOLUMES_ANNOTATION: ",".join(claims)}}
