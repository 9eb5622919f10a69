"""Read the claims of a VM: which it uses, which are the machine's, and which are deleted with it.

A VM also has volumes that do not belong to the machine, because the CSI driver of the workload
cluster hot-plugs them or users attach them. Annotation `harvesterhci.io/volumeClaimTemplates` lists
all of them: "Add Volume" in Harvester's UI appends to it (harvester: `addVolume` in
pkg/api/vm/handler.go), and the UI rewrites it from all disks when a user saves a VM
(harvester-ui-extension: `parseDiskRows` in pkg/harvester/mixins/harvester-vm/index.js).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from caphv.api import names
from caphv.api.object import Obj, annotations_of, at, dict_at, list_at
from caphv.api.ownership import Owner, record
from caphv.api.virtualmachine import (
    VOLUMES,
    claim_source,
    claim_sources,
    disk_index,
    is_added_volume,
    is_machine_pvc,
)
from caphv.runtime.text import load_json


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A claim in the VM's annotation.

    Users write the annotation, too, so only the name is certain to be a text.
    """

    name: str
    size: object
    storage_class: object
    image: object
    access_modes: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of the machine: its volume in the VM, and its claim.

    :param index: its number in the machine's spec by the name of its claim, None if that has none
    """

    volume: str
    claim: str
    hotplugged: bool
    index: int | None


def machine_disks(vm: Obj) -> list[Disk]:
    """Return the disks of a VM that its machine may have, in the order of the machine's volumes.

    Of hot-plugged volumes, which others add, only those that an update in place has added.
    """
    vm_name = vm["metadata"]["name"]
    disks = []
    for volume in list_at(vm, *VOLUMES):
        source = claim_source(volume)
        if source.get("claimName"):
            name, claim = str(volume.get("name")), str(source["claimName"])
            index = disk_index(vm_name, claim)
            disks.append(Disk(name, claim, bool(source.get("hotpluggable")), index))

    boot = [disk for disk in disks if not disk.hotplugged]
    added = [disk for disk in disks if disk.hotplugged and is_added_volume(vm_name, disk.volume)]
    return [*boot, *added]


def claim_templates(vm: Obj) -> list[ClaimTemplate]:
    """Return the claims in the VM's annotation in order, none if the annotation is invalid."""
    return list(map(_claim_template, template_objects(vm)))


def template_objects(vm: Obj) -> list[Obj]:
    """Return the same claims with all their fields, of which only the name has a certain type."""
    try:
        entries = load_json(annotations_of(vm).get(names.VOLUME_CLAIM_TEMPLATES_ANNOTATION) or "[]")
    except ValueError:
        return []
    if not isinstance(entries, list):
        return []
    claim_names = [at(entry, "metadata", "name") for entry in entries]
    return entries if all(isinstance(name, str) and name for name in claim_names) else []


def _claim_template(entry: Obj) -> ClaimTemplate:
    modes = at(entry, "spec", "accessModes")
    return ClaimTemplate(
        name=entry["metadata"]["name"],
        size=at(entry, "spec", "resources", "requests", "storage"),
        storage_class=at(entry, "spec", "storageClassName"),
        image=at(entry, "metadata", "annotations", names.IMAGE_ID_ANNOTATION),
        access_modes=tuple(modes) if isinstance(modes, list) else (),
    )


def own_claims(vm: Obj, claims: Mapping[str, Obj], owner: Owner, disks: int) -> list[str]:
    """Return the names of the machine's own claims in the annotation of its VM.

    Of hot-plugged volumes, only those that an update in place has added belong to the machine. The
    result is empty if the annotation is invalid.

    :param vm: the VM of the machine
    :param claims: the PersistentVolumeClaims of the namespace by name
    :param owner: owner record of the machine
    :param disks: number of disks in the machine's spec
    """
    # The name of a disk in the VM proves nothing, because the UI gives the name of a removed
    # `disk-1` to the next volume that a user attaches. So a disk that a user migrated to another
    # claim is kept.
    machine_record = record(owner)
    vm_record = _present_record(vm, machine_record)
    result = []
    for name in boot_claims(vm):
        claim_record = _present_record(claims.get(name) or {}, machine_record)
        if claim_record:
            # Disks of a restored backup have the same record as the VM.
            is_own = claim_record in (machine_record, vm_record)
        else:
            # The Go provider, or CDI from an image, has created the claim. Only its name shows to
            # which VM it belongs.
            is_own = is_machine_pvc(vm["metadata"]["name"], name, disks)
        if is_own:
            result.append(name)
    return result


def boot_claims(vm: Obj) -> list[str]:
    """Return the names of the claims in the VM's annotation that others have not hot-plugged.

    Empty if the annotation is invalid.
    """
    hotplugged = {source["claimName"] for source in claim_sources(vm) if source.get("hotpluggable")}
    hotplugged -= {disk.claim for disk in machine_disks(vm)}
    return [template.name for template in claim_templates(vm) if template.name not in hotplugged]


def without(vm: Obj, claims: Collection[str]) -> Obj:
    """Return the merge patch of a VM's spec that removes these claims' volumes and disks."""
    volumes = list_at(vm, *VOLUMES)
    disks = vm["spec"]["template"]["spec"]["domain"]["devices"].get("disks") or ()
    removed = {
        volume["name"] for volume in volumes if claim_source(volume).get("claimName") in claims
    }

    kept_volumes = [volume for volume in volumes if volume["name"] not in removed]
    kept_disks = [disk for disk in disks if disk["name"] not in removed]
    domain = {"devices": {"disks": kept_disks}}
    return {"template": {"spec": {"volumes": kept_volumes, "domain": domain}}}


def _present_record(obj: Obj, expected: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of an object that belong to an owner record."""
    annotations = dict_at(obj, "metadata", "annotations")
    return {name: annotations[name] for name in expected if name in annotations}
