"""Whether disks of a running VM can grow and be added, and what its disks lack: pure.

Harvester enlarges a claim whose template in the VM's annotation is enlarged, and KubeVirt tells the
guest (harvester: `createPVCsFromAnnotation` in pkg/controller/master/virtualmachine and
`CheckExpand` in pkg/webhook/util/volume.go, since v1.7.0; KubeVirt: gate ExpandDisks). It creates
the claim of an additional template, and KubeVirt attaches a volume of the template that is
hot-pluggable (kubevirt v1.7.0: pkg/storage/hotplug/hotplug.go, gate DeclarativeHotplugVolumes,
which the chart of Harvester enables since v1.8.0).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from caphv.api import names
from caphv.api.object import Obj, at, list_at
from caphv.api.ownership import Owner, Ownership, ownership_of
from caphv.api.plaintext import plain
from caphv.api.quantity import quantity
from caphv.api.virtualmachine import READ_WRITE_MANY, VOLUMES, claims_of, is_machine_pvc
from reconciler.machine.disks import pvc_name
from reconciler.machine.growth import restart_obstacle
from reconciler.machine.vmclaims import Disk, claim_templates, machine_disks, template_objects

_DISKS = ("spec", "template", "spec", "domain", "devices", "disks")
_REQUEST = ("spec", "resources", "requests", "storage")
_READY = "Ready"
_MIGRATION = "Migration"
_MAX_DETAIL = 256


def classes_of(vm: Obj) -> list[str]:
    """Return the StorageClasses of a machine's disks, each once; empty names for unknown ones."""
    templates = {template.name: template for template in claim_templates(vm)}
    classes: dict[str, None] = {}
    for disk in machine_disks(vm):
        template = templates.get(disk.claim)
        name = template.storage_class if template else None
        classes[name if isinstance(name, str) else ""] = None
    return list(classes)


def identity_obstacle(vm: Obj, claims: Mapping[str, Obj], owner: Owner, number: int) -> str:
    """Return why it is not certain which disk of a VM is which of its machine; empty if it is.

    A claim that has grown cannot shrink, so disks of others and disks that users exchanged must not
    be taken for those of the machine.

    :param claims: the claims of the VM by name, as far as they are known
    :param number: number of disks in the machine's spec
    """
    disks = machine_disks(vm)
    unnamed = [disk.claim for disk in disks if disk.index is None]
    if unnamed:
        return f"{', '.join(unnamed)} does not have the name of a disk of the machine"

    numbers = sorted(disk.index for disk in disks if disk.index is not None)
    if not numbers or numbers != list(range(len(numbers))) or len(numbers) > number:
        return (
            f"the VM has disks {', '.join(map(str, numbers))}, and its machine disks 0 to "
            f"{number - 1}: correct the VM on Harvester"
        )

    strangers = [disk.claim for disk in disks if not _is_machines(disk, vm, claims, owner)]
    if strangers:
        return f"{', '.join(strangers)} may not be a disk of the machine"

    name = vm["metadata"]["name"]
    listed = [template.name for template in claim_templates(vm)]
    unused = set(listed) - claims_of(vm)
    detached = [claim for claim in unused if is_machine_pvc(name, claim)]
    if detached or len(set(listed)) < len(listed):
        return (
            f"annotation {names.VOLUME_CLAIM_TEMPLATES_ANNOTATION} of the VM lists disks that it "
            "does not have, or a disk twice: correct the VM on Harvester"
        )
    return ""


def _is_machines(disk: Disk, vm: Obj, claims: Mapping[str, Obj], owner: Owner) -> bool:
    """Return whether a disk that has the name of the machine's disk is the machine's."""
    ownership = ownership_of(claims.get(disk.claim) or {}, owner)
    if ownership is not Ownership.UNRECORDED:
        return ownership is Ownership.OURS
    # The Go provider, or CDI from an image, has created the claim, or it is not known yet. In
    # Harvester's UI, disks that users add have numbers, too, but not that of the first disk.
    index = disk.index or 0
    return index == 0 or disk.claim == pvc_name(vm["metadata"]["name"], owner.uid, index)


def disk_growth_obstacle(vm: Obj, vmi: Obj | None, classes: Mapping[str, str]) -> str:
    """Return why the disks of a VM cannot grow; empty if all can.

    :param vmi: the instance of the VM, None if it does not run
    :param classes: what `class_obstacle` says about each StorageClass
    """
    if vmi is None:
        return "the VM does not run: start it on Harvester"
    if "" in classes:
        return (
            f"annotation {names.VOLUME_CLAIM_TEMPLATES_ANNOTATION} of the VM does not name the "
            "StorageClass of each disk"
        )
    # Harvester refuses larger hot-plugged file systems.
    modes = {at(template, "metadata", "name"): _mode(template) for template in template_objects(vm)}
    fixed = [
        disk.claim
        for disk in machine_disks(vm)
        if disk.hotplugged and modes.get(disk.claim) != "Block"
    ]
    added = [f"{claim} was added and has volumeMode Filesystem" for claim in fixed]
    return "; ".join(filter(None, [*classes.values(), *added]))


def disk_addition_obstacle(vm: Obj, vmi: Obj | None) -> str:
    """Return why a VM cannot get disks; empty if it can.

    :param vmi: the instance of the VM, None if it does not run
    """
    if vmi is None:
        return "the VM does not run: start it on Harvester"
    if restart := restart_obstacle(vm):
        return restart
    # KubeVirt attaches no disk of the spec then (HandleDeclarativeVolumes in its
    # pkg/storage/hotplug/hotplug.go, v1.7.0), and Harvester leaves the strategy as it is.
    if at(vm, "spec", "updateVolumesStrategy") == _MIGRATION:
        return (
            f"its volumes were migrated (updateVolumesStrategy {_MIGRATION}): remove that field on "
            "Harvester"
        )
    if not claim_templates(vm):
        return f"annotation {names.VOLUME_CLAIM_TEMPLATES_ANNOTATION} of the VM is not valid"
    return ""


def larger_disks(vm: Obj, expected: Obj) -> Obj:
    """Return the merge patch that enlarges the disks of a VM; empty if they are large enough.

    Never makes a disk smaller.

    :param expected: the VM of the machine's spec
    """
    sizes = [_size(template) for template in template_objects(expected)]
    wanted = {
        disk.claim: sizes[disk.index]
        for disk in machine_disks(vm)
        if disk.index is not None and disk.index < len(sizes)
    }
    templates = template_objects(vm)
    is_changed = False
    for index, template in enumerate(templates):
        size = wanted.get(at(template, "metadata", "name"))
        present = _bytes(_size(template))
        # Users write the annotation, too.
        if present and _bytes(size) > present:
            templates[index] = _with_size(template, size)
            is_changed = True
    return _annotation(templates) if is_changed else {}


def added_disks(vm: Obj, expected: Obj) -> Obj:
    """Return the merge patch that gives a VM the disks that it lacks; empty if it has all.

    :param vm: the VM, or the VM with a patch of `larger_disks`
    :param expected: the VM of the machine's spec
    """
    templates = missing_templates(vm, expected)
    if not templates or not claim_templates(vm):
        return {}

    name = vm["metadata"]["name"]
    claims = [str(at(template, "metadata", "name")) for template in templates]
    # A name that no user gives, by which `machine_disks` recognizes the volume.
    volumes = {claim.removeprefix(f"{name}-"): claim for claim in claims}
    spec: Obj = {
        "volumes": [
            *list_at(vm, *VOLUMES),
            *(
                {"name": volume, "persistentVolumeClaim": _hotplugged(claim)}
                for volume, claim in volumes.items()
            ),
        ],
        # Harvester hot-plugs disks by this bus only.
        "domain": {
            "devices": {
                "disks": [
                    *list_at(vm, *_DISKS),
                    *({"name": volume, "disk": {"bus": "scsi"}} for volume in volumes),
                ]
            }
        },
    }
    return {
        **_annotation([*template_objects(vm), *templates]),
        "spec": {"template": {"spec": spec}},
    }


def missing_templates(vm: Obj, expected: Obj) -> list[Obj]:
    """Return the claims of the machine's disks that a VM lacks."""
    disks = machine_disks(vm)
    templates = template_objects(expected)
    present = {disk.index for disk in disks}
    if None in present:
        # Harvester gives the disks of a restored VM other names.
        return templates[len(disks) :]
    return [template for index, template in enumerate(templates) if index not in present]


def is_shared(template: Obj) -> bool:
    """Return whether a VM with this claim can still migrate."""
    return READ_WRITE_MANY in list_at(template, "spec", "accessModes")


def pending_disks(vm: Obj, vmi: Obj | None, volumes: Sequence[Obj]) -> Iterator[str]:
    """Yield what disks of an instance lack, because Harvester has not completed a change yet.

    :param volumes: the volumes in the spec of the machine
    """
    states = {
        at(status, "persistentVolumeClaimInfo", "claimName"): status
        for status in list_at(vmi, "status", "volumeStatus")
    }
    for position, disk in enumerate(machine_disks(vm)):
        index = position if disk.index is None else disk.index
        if index >= len(volumes):
            continue
        volume = volumes[index]
        state = states.get(disk.claim)
        if disk.hotplugged and at(state, "phase") != _READY:
            detail = str(at(state, "message") or at(state, "phase") or "not seen yet")
            yield f"volumes[{index}] is being attached ({plain(detail, _MAX_DETAIL)})"
            continue

        capacity = at(state, "persistentVolumeClaimInfo", "capacity", "storage")
        if capacity and _bytes(capacity) < _bytes(volume.get("volumeSize")):
            yield f"volumes[{index}] grows from {capacity} to {volume.get('volumeSize')}"


def disk_states(obj: Obj) -> object:
    """Return the field of the status of an instance on which `pending_disks` depends."""
    return at(obj, "status", "volumeStatus")


def _annotation(templates: Sequence[Obj]) -> Obj:
    text = json.dumps(templates, separators=(",", ":"))
    return {"metadata": {"annotations": {names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: text}}}


def _hotplugged(claim: str) -> Obj:
    return {"claimName": claim, "hotpluggable": True}


def _size(template: Obj) -> object:
    return at(template, *_REQUEST)


def _mode(template: Obj) -> object:
    return at(template, "spec", "volumeMode")


def _with_size(template: Obj, size: object) -> Obj:
    spec = template["spec"]
    requests = {**spec["resources"]["requests"], "storage": size}
    return {**template, "spec": {**spec, "resources": {**spec["resources"], "requests": requests}}}


def _bytes(size: object) -> float:
    return float(quantity(size) or 0)
