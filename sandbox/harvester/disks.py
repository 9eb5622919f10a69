"""Harvester and KubeVirt: disks that grow and are added while their VM runs. Pure.

Modelled after `createPVCsFromAnnotation` in harvester's pkg/controller/master/virtualmachine,
`checkPVCStorageRequestChange` in its pkg/webhook/resources/virtualmachine/validator.go, and
`patchHotplugVolumes` in kubevirt's pkg/storage/hotplug. Not modelled: Pods that attach disks, disks
that are removed, and the subresources of KubeVirt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from string import ascii_lowercase

from caphv.api.object import Obj, at, dict_at, list_at, text_at
from sandbox.harvester.informers import claim_templates
from sandbox.harvester.quantities import parse_quantity
from sandbox.harvester.releases import Release

_STORAGE = ("spec", "resources", "requests", "storage")
_LONGHORN = "driver.longhorn.io"
_VM_SPEC = ("spec", "template", "spec")


def denial_reason(
    vm: Obj, old: Obj, storage_class: Callable[[str], Obj | None], release: Release
) -> str:
    """Return the reason for which Harvester denies the sizes of disks; empty if it accepts them.

    :param storage_class: returns the StorageClass of a name, None if there is none
    """
    if not release.checks_larger_disks:
        return ""
    before = {template["metadata"]["name"]: template for template in claim_templates(old)}
    for template in claim_templates(vm):
        name = template["metadata"]["name"]
        size = parse_quantity(at(template, *_STORAGE))
        present = parse_quantity(at(before.get(name) or template, *_STORAGE))
        if size < present:
            return f"{name} PVC requests storage can't be less than previous value"
        disk_class = storage_class(text_at(template, "spec", "storageClassName")) or {}
        runs = at(old, "status", "printableStatus") != "Stopped"
        if size > present and runs and disk_class.get("provisioner") != _LONGHORN:
            return f"PVC expand error: pvc {name} is not online expandable with its provider"
    return ""


def larger_claims(vm: Obj, claims: Iterable[Obj]) -> dict[str, str]:
    """Return the new size of each claim of a VM that is smaller than its template, by name."""
    sizes = {
        template["metadata"]["name"]: str(at(template, *_STORAGE))
        for template in claim_templates(vm)
    }
    return {
        name: sizes[name]
        for claim in claims
        if (name := claim["metadata"]["name"]) in sizes
        and parse_quantity(sizes[name]) > parse_quantity(at(claim, *_STORAGE))
    }


def instance_patch(vm: Obj, vmi: Obj, claims: Mapping[str, Obj], release: Release) -> Obj:
    """Return the patch that brings the disks of a running instance up to date; empty if they are.

    :param claims: the claims of the VM by name
    """
    spec = vmi["spec"]
    volumes = list(spec.get("volumes") or ())
    disks = list(at(spec, "domain", "devices", "disks"))
    present = {volume["name"] for volume in volumes}
    # KubeVirt leaves declared volumes alone while it replaces some by a migration.
    if release.attaches_from_spec and at(vm, "spec", "updateVolumesStrategy") != "Migration":
        added = [
            volume
            for volume in list_at(vm, *_VM_SPEC, "volumes")
            if _is_hotpluggable(volume) and volume["name"] not in present
        ]
        names = {volume["name"] for volume in added}
        volumes += added
        disks += [
            disk
            for disk in list_at(vm, *_VM_SPEC, "domain", "devices", "disks")
            if disk["name"] in names
        ]

    patch: Obj = {}
    if len(volumes) > len(present):
        patch["spec"] = {"volumes": volumes, "domain": {"devices": {"disks": disks}}}
    states = volume_states(volumes, disks, claims)
    if states != at(vmi, "status", "volumeStatus"):
        patch["status"] = {"volumeStatus": states}
    return patch


def volume_states(
    volumes: Iterable[Obj], disks: Iterable[Obj], claims: Mapping[str, Obj]
) -> list[Obj]:
    """Return the state of each disk, in the order in which guests see them."""
    sources = {volume["name"]: volume.get("persistentVolumeClaim") or {} for volume in volumes}
    states = []
    for disk, letter in zip(disks, ascii_lowercase, strict=False):
        source = sources.get(disk["name"]) or {}
        claim = claims.get(source.get("claimName", ""))
        is_bound = at(claim, "status", "phase") == "Bound"
        state: Obj = {"name": disk["name"], "target": f"vd{letter}"}
        if claim:
            state["persistentVolumeClaimInfo"] = {
                "claimName": claim["metadata"]["name"],
                "capacity": dict_at(claim, "status", "capacity"),
                "requests": dict_at(claim, "spec", "resources", "requests"),
            }
        if source.get("hotpluggable"):
            state |= {"phase": "Ready" if is_bound else "Pending", "hotplugVolume": {}}
            if not is_bound:
                state |= {"target": "", "message": f"PVC {source['claimName']} is not bound"}
        states.append(state)
    return states


def _is_hotpluggable(volume: Obj) -> bool:
    return bool(at(volume, "persistentVolumeClaim", "hotpluggable"))
