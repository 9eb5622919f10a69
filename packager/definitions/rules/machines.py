"""Rules about images, firmware and hardening of machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caphv.api import bootimage
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

RULES = Rules()


@RULES.rule(
    "definition-image",
    KINDS,
    "Machines must have either `image` or `imageLookup`, the latter with `baseOS` if its format "
    "contains `{{.BaseOS}}`. Images must have different names and be no ISOs, and their URLs must "
    "not lead to loopback or link-local addresses.",
)
def _check_images(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    machines = spec["machines"]
    path = ("spec", "machines")
    lookup = machines.get("imageLookup")
    if lookup is None and "image" not in machines:
        detail = "name a VirtualMachineImage on Harvester, or set imageLookup"
        yield Finding((*path, "image"), Fault.REQUIRED, detail)
    if lookup is not None:
        if "image" in machines:
            detail = "image names the image already: remove one of them"
            yield Finding((*path, "imageLookup"), Fault.FORBIDDEN, detail)
        if bootimage.needs_base_os(lookup["format"]) and "baseOS" not in lookup:
            detail = "format contains {{.BaseOS}}: name the operating system"
            yield Finding((*path, "imageLookup", "baseOS"), Fault.REQUIRED, detail)

    yield from _check_imports(spec)


def _check_imports(spec: dict[str, Any]) -> Iterator[Finding]:
    """Yield images that cannot be imported, or that have the name of an earlier image."""
    target = spec.get("targetNamespace", "default")
    names: set[str] = set()
    for index, image in enumerate(spec.get("images", ())):
        path: FieldPath = ("spec", "images", index)
        # Findings leave out the URL, because its query may grant a download.
        if bootimage.is_iso(image["url"]):
            yield Finding((*path, "url"), Fault.INVALID, bootimage.ISO_REFUSED)
        if bootimage.leads_inside(image["url"]):
            yield Finding((*path, "url"), Fault.INVALID, bootimage.INSIDE_REFUSED)
        name = bootimage.qualified(image["name"], target)
        if name in names:
            detail = "another image has this name: remove one of them"
            yield Finding((*path, "name"), Fault.DUPLICATE, detail, value=image["name"])
        names.add(name)


@RULES.rule("definition-firmware", KINDS, "UEFI must be enabled for Secure Boot.")
def _check_firmware(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    firmware = spec["machines"].get("firmware", {})
    if firmware.get("secureBoot") and not firmware.get("efi"):
        path: FieldPath = ("spec", "machines", "firmware", "efi")
        yield Finding(path, Fault.REQUIRED, "must be true for secureBoot")


@RULES.rule(
    "definition-hardening",
    KINDS,
    "CIS profile and STIG must be set for RKE2 only, and a STIG must come with a CIS profile, "
    "Secure Boot and a TPM.",
)
def _check_hardening(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    hardening = spec.get("hardening", {})
    distribution = spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "hardening")

    for name in ("cisProfile", "stig"):
        if hardening.get(name) and distribution != "rke2":
            detail = f"is for RKE2 only, and not for {distribution}: remove it"
            yield Finding((*path, name), Fault.FORBIDDEN, detail, value=hardening[name])
    if not hardening.get("stig") or distribution != "rke2":
        return

    if not hardening.get("cisProfile"):
        yield Finding((*path, "cisProfile"), Fault.REQUIRED, "must be set with stig: use cis")
    machines = spec["machines"]
    if not machines.get("firmware", {}).get("secureBoot"):
        path = ("spec", "machines", "firmware", "secureBoot")
        detail = "must be true with stig: use an image with a signed boot loader"
        yield Finding(path, Fault.REQUIRED, detail)
    if not machines.get("tpm", {}).get("enabled"):
        path = ("spec", "machines", "tpm", "enabled")
        yield Finding(path, Fault.REQUIRED, "must be true with stig")
