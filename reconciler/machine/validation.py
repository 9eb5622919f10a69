"""Validate a HarvesterMachine's spec, and report all errors at once.

Objects reach the controller unchecked if they were stored before the admission checks existed, or
while these were switched off. A missing size must end in a condition that names it, not in a crash.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from caphv.api import interfaces
from caphv.api.object import Obj
from caphv.api.quantity import LARGEST, quantity

_HOST_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class SpecError:
    """A field that cannot be used, its value, and the remedy."""

    field: str
    value: Any
    remedy: str

    def __str__(self) -> str:
        shown = "is not set" if self.value is None or self.value == "" else f"is {self.value!r}"
        return f"{self.field} {shown}: {self.remedy}"


class InvalidSpecError(ValueError):
    """The spec allows no VM; `errors` has every reason."""

    def __init__(self, errors: tuple[SpecError, ...]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


def spec_errors(machine: Obj, images: Collection[str]) -> tuple[SpecError, ...]:
    """Check a HarvesterMachine, and return every error.

    :param images: those `imageName`s of the machine's volumes that Harvester has
    """
    return tuple(_errors(machine, images))


def _errors(machine: Obj, images: Collection[str]) -> Iterator[SpecError]:
    name = machine["metadata"]["name"]
    spec = machine.get("spec") or {}
    if not _HOST_NAME.fullmatch(name):
        remedy = "it is the VM's host name, so use at most 63 lower-case letters, digits and '-'"
        yield SpecError("metadata.name", name, remedy)

    cpu, memory = spec.get("cpu"), spec.get("memory")
    if not isinstance(cpu, int) or cpu < 1:
        yield SpecError("spec.cpu", cpu, "give a number of cores above 0")
    if not is_size(memory):
        yield SpecError("spec.memory", memory, "give a quantity above 0, for example 4Gi")
    if not spec.get("networks"):
        remedy = "name at least one network, for example default/production"
        yield SpecError("spec.networks", None, remedy)

    for conflict in interfaces.conflicts(spec):
        if _prevents_vm(conflict, spec):
            path = "".join(
                f"[{part}]" if isinstance(part, int) else f".{part}" for part in conflict.path
            )
            field = f"spec.{interfaces.FIELD}{path}"
            yield SpecError(field, conflict.value or "present", conflict.detail)

    volumes = spec.get("volumes") or []
    if not volumes:
        yield SpecError("spec.volumes", None, "give at least one volume")
    for index, volume in enumerate(volumes):
        yield from _volume_errors(f"spec.volumes[{index}]", volume, images)

    orders = [volume["bootOrder"] for volume in volumes if volume.get("bootOrder")]
    for order in sorted({order for order in orders if orders.count(order) > 1}):
        remedy = "give each boot order to one volume only"
        yield SpecError("spec.volumes[].bootOrder", order, remedy)


def _prevents_vm(conflict: interfaces.Conflict, spec: Obj) -> bool:
    """Return whether a conflict prevents the VM; the others change nothing that the guest gets."""
    if conflict.kind != interfaces.UNIQUE:
        return conflict.kind in (interfaces.ADDRESS, interfaces.ROUTE)
    # Two entries for one IPPool would share an id, or have one address in the status. A machine
    # with older fields only may have two entries for a network, of which the last one counts.
    return bool(interfaces.harvester_pools(spec)) or conflict.path[1] in ("addresses", "routes")


def _volume_errors(field: str, volume: Obj, images: Collection[str]) -> Iterator[SpecError]:
    kind = volume.get("volumeType")
    image = volume.get("imageName")
    size = volume.get("volumeSize")
    if kind not in ("image", "storageClass"):
        yield SpecError(f"{field}.volumeType", kind, "use image or storageClass")

    if kind == "image" and not image:
        remedy = "name a VirtualMachineImage, for example default/my-image"
        yield SpecError(f"{field}.imageName", image, remedy)
    elif kind == "image" and image not in images and volume.get("imageLookup"):
        remedy = (
            "Harvester has no such image; have it imported by spec.images of the HarvesterCluster, "
            "upload it, or correct format or baseOS"
        )
        yield SpecError(f"{field}.imageLookup", image, remedy)
    elif kind == "image" and image not in images:
        remedy = "Harvester has no such image; upload it or correct the name"
        yield SpecError(f"{field}.imageName", image, remedy)
    if kind == "storageClass" and not volume.get("storageClass"):
        yield SpecError(f"{field}.storageClass", None, "name a StorageClass of Harvester")

    if not is_size(size):
        remedy = "give a quantity above 0, for example 40Gi"
        yield SpecError(f"{field}.volumeSize", size, remedy)


def is_size(value: object) -> bool:
    """Return whether a value is a Kubernetes quantity above 0 that an int64 can hold."""
    size = quantity(value)
    return size is not None and 0 < size < LARGEST
