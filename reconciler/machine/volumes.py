"""Decides which volumes of a VM are deleted with it.

A VM also has volumes that are not the machine's: the CSI driver of the workload cluster hot-plugs them, and users
attach them. Annotation `harvesterhci.io/volumeClaimTemplates` lists both kinds: "Add Volume" in Harvester's UI appends
to it (harvester: `addVolume` in pkg/api/vm/handler.go), and the UI writes it again from all disks when a VM is saved
(harvester-ui-extension: `parseDiskRows` in pkg/harvester/mixins/harvester-vm/index.js).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, annotations_of
from caphv.runtime.text import load_json
from reconciler.harvester.ownership import Owner, record
from reconciler.machine.disks import is_machine_pvc


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A claim in the VM's annotation. Users write the annotation, too: only its name is certain to be a text."""

    name: str
    size: object
    storage_class: object
    image: object
    access_modes: tuple[object, ...] = ()


def claim_templates(vm: Obj) -> list[ClaimTemplate]:
    """The claims in the VM's annotation, in its order; empty if the annotation is invalid."""
    try:
        found = load_json(annotations_of(vm).get(names.VOLUME_CLAIM_TEMPLATES_ANNOTATION) or "[]")
    except ValueError:
        return []
    templates = [_claim_template(each) for each in found] if isinstance(found, list) else []
    return templates if all(each.name for each in templates) else []


def _claim_template(template: object) -> ClaimTemplate:
    name = _at(template, "metadata", "name")
    return ClaimTemplate(
        name if isinstance(name, str) else "",
        _at(template, "spec", "resources", "requests", "storage"),
        _at(template, "spec", "storageClassName"),
        _at(template, "metadata", "annotations", names.IMAGE_ID_ANNOTATION),
        tuple(modes) if isinstance(modes := _at(template, "spec", "accessModes"), list) else (),
    )


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def own_claims(vm: Obj, claims: Mapping[str, Obj], owner: Owner, disks: int) -> list[str]:
    """Names of the claims in the VM's annotation that are the machine's own; empty if the annotation is invalid.

    The VM is the machine's. `claims` has the PersistentVolumeClaims of its namespace by name, and `disks` is the number
    of disks in the machine's spec. Proof is the record of the machine, or of its VM, which also the disks of a restored
    backup have. A claim without a record was created by the Go provider, or by CDI from an image: there the name of one
    of the machine's disks decides. Hot-plugged volumes are never the machine's.

    The place of a disk in the VM proves nothing: the UI gives the name of a removed `disk-1` to the next volume that a
    user attaches. So a disk that a user migrated to another claim is kept.
    """
    expected = record(owner)
    of_vm = _recorded(vm, expected)

    def own(name: str) -> bool:
        recorded = _recorded(claims.get(name) or {}, expected)
        by_name = is_machine_pvc(vm["metadata"]["name"], name, disks)
        return recorded in (expected, of_vm) if recorded else by_name

    return [name for name in boot_claims(vm) if own(name)]


def boot_claims(vm: Obj) -> list[str]:
    """Names of the claims in the VM's annotation that are not hot-plugged; empty if the annotation is invalid."""
    hotplugged = {source["claimName"] for source in _sources(vm) if source.get("hotpluggable")}
    return [template.name for template in claim_templates(vm) if template.name not in hotplugged]


def claims_of(*vms: Obj) -> set[str]:
    """Names of the claims that VMs use as volumes."""
    return {source["claimName"] for vm in vms for source in _sources(vm)}


def listed_claims(vm: Obj) -> set[str]:
    """Names of the claims that Harvester deletes with the VM."""
    listed = annotations_of(vm).get(names.REMOVED_VOLUMES_ANNOTATION, "").split(",")
    return {name.strip() for name in listed} - {""}


def deletion_list(own: Iterable[str]) -> Obj:
    """Metadata with the annotation by which Harvester deletes claims with a VM; it keeps all others."""
    return {"annotations": {names.REMOVED_VOLUMES_ANNOTATION: ",".join(own)}}


def without(vm: Obj, claims: Collection[str]) -> Obj:
    """Merge patch of the spec of a VM that removes the volumes of these claims with their disks."""
    volumes = _volumes(vm)
    disks = _spec(vm)["domain"]["devices"].get("disks") or ()
    gone = {each["name"] for each in volumes if _source(each).get("claimName") in claims}
    left = {"devices": {"disks": [each for each in disks if each["name"] not in gone]}}
    return {"template": {"spec": {"volumes": [each for each in volumes if each["name"] not in gone], "domain": left}}}


def _recorded(obj: Obj, expected: Mapping[str, str]) -> dict[str, str]:
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    return {name: annotations[name] for name in expected if name in annotations}


def _sources(vm: Obj) -> Iterator[Obj]:
    return (_source(each) for each in _volumes(vm) if _source(each).get("claimName"))


def _source(volume: Obj) -> Obj:
    return volume.get("persistentVolumeClaim") or {}


def _volumes(vm: Obj) -> list[Obj]:
    return _spec(vm).get("volumes") or []


def _spec(vm: Obj) -> Obj:
    template = (vm.get("spec") or {}).get("template") or {}
    return template.get("spec") or {}
