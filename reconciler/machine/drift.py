"""Drift: fields in which a VM differs from its machine's spec, because one of them was edited.

Only fields that the spec determines are compared. Ignored are changes by Harvester's admission (guest memory, requests,
MACs, grace period, more affinity and less, bindings of overlay networks, the strategy after a restart), KubeVirt's
defaults, volumes that a CSI driver hot-plugs, and what the Go provider did differently (names of disks, anti-affinity).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, annotations_of
from caphv.api.quantity import quantity
from reconciler.machine.images import qualified
from reconciler.machine.placement import as_harvester_keeps, without_requirement
from reconciler.machine.volumes import ClaimTemplate, claim_templates

_STARTED = ("Always", "RerunOnFailure")
# Since 1.8, Harvester's admission replaces the bridge of an interface in an overlay network with DHCP by this binding.
_MANAGED_TAP = "managedtap"


def drift(wanted: Obj, actual: Obj, domain: Obj | None = None) -> tuple[str, ...]:
    """Name each field in which VM `actual` differs from `wanted` (of `virtual_machine`), with both values.

    `domain` is the requirement of the failure domain, which a VM may have as requirement or as preference.
    """
    return tuple(_differences(wanted, actual, domain))


def _differences(wanted: Obj, actual: Obj, domain: Obj | None) -> Iterator[str]:
    before, now = _view(wanted), _view(actual)
    for disk, other in zip(before["disks"], now["disks"], strict=False):
        if "storageClass" not in disk:
            # The class of an image is known only to Harvester, which may have lost it since.
            other.pop("storageClass", None)
    for field, value in before.items():
        if now[field] != value:
            yield f"{field} is {_shown(now[field])}, not {_shown(value)}"
    before, now = (dict(vm["spec"]["template"]["spec"].get("affinity") or {}) for vm in (wanted, actual))
    # Rules that Harvester drops can be neither restored nor followed; webhooks refuse them in new machines.
    before["nodeAffinity"] = as_harvester_keeps(before.get("nodeAffinity") or {})
    if domain:
        before["nodeAffinity"], _ = without_requirement(before.get("nodeAffinity") or {}, domain)
        now["nodeAffinity"], present = without_requirement(now.get("nodeAffinity") or {}, domain)
        if not present:
            yield "nodeAffinity lacks the failure domain of the machine"
    for field in ("nodeAffinity", "podAffinity"):
        if not _covers(now.get(field) or {}, before.get(field) or {}):
            yield f"{field} lacks rules of the machine"


def _view(vm: Obj) -> Obj:
    """What is compared, by a readable name of the field, normalised so that equivalent values are equal.

    Rule `machine-immutable` finds these names in the message of the condition.
    """
    template = vm["spec"]["template"]
    spec = template.get("spec") or {}
    domain = spec.get("domain") or {}
    cpu, limits = domain.get("cpu") or {}, (domain.get("resources") or {}).get("limits") or {}
    devices = domain.get("devices") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    return {
        "runStrategy": _run_strategy(vm),
        "hostname": spec.get("hostname"),
        "cores": (cpu.get("cores") or 1) * (cpu.get("sockets") or 1) * (cpu.get("threads") or 1),
        "CPU limit": quantity(limits.get("cpu")),
        "memory limit": quantity(limits.get("memory")),
        "networks": [_network(vm, entry) for entry in spec.get("networks") or ()],
        "interfaces": [_interface(entry) for entry in devices.get("interfaces") or ()],
        "disks": _disks(vm, spec, devices),
        "firmware": _firmware(domain),
        "TPM": _tpm(devices),
        f"label {names.MACHINE_TYPE_LABEL}": labels.get(names.MACHINE_TYPE_LABEL),
    }


def _run_strategy(vm: Obj) -> str:
    strategy = vm["spec"].get("runStrategy") or ("Always" if vm["spec"].get("running") else "Halted")
    # After a stop, Harvester starts a VM with the strategy that the annotation remembers, else with RerunOnFailure.
    started = (*_STARTED, annotations_of(vm).get(names.RUN_STRATEGY_ANNOTATION))
    return "Always" if strategy in started and strategy != "Halted" else strategy


def _network(vm: Obj, entry: Obj) -> str | None:
    """Qualified: VMs made by 0.11 or the Go provider have bare names, which KubeVirt takes for their own namespace."""
    name = (entry.get("multus") or {}).get("networkName")
    return "/".join(qualified(name, vm["metadata"]["namespace"])) if name else None


def _interface(entry: Obj) -> tuple[str, str]:
    binding = next((kind for kind in ("bridge", "masquerade", "sriov", "binding") if kind in entry), "")
    if (entry.get("binding") or {}).get("name") == _MANAGED_TAP:
        binding = "bridge"
    return str(entry.get("model") or "virtio"), binding


def _disks(vm: Obj, spec: Obj, devices: Obj) -> list[dict[str, Any]]:
    claims = {claim.name: claim for claim in claim_templates(vm)}
    disks = {disk["name"]: disk for disk in devices.get("disks") or ()}
    return [
        _disk(disks.get(volume["name"]) or {}, claims.get(_claim_of(volume).get("claimName", "")))
        for volume in spec.get("volumes") or ()
        if not _claim_of(volume).get("hotpluggable")
    ]


def _claim_of(volume: Obj) -> Obj:
    return volume.get("persistentVolumeClaim") or volume.get("dataVolume") or {}


def _disk(disk: Obj, claim: ClaimTemplate | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bus": next((disk[kind].get("bus") for kind in ("disk", "cdrom", "lun") if kind in disk), None),
        "bootOrder": disk.get("bootOrder"),
    }
    if claim:
        found |= {"size": quantity(claim.size), "storageClass": claim.storage_class, "image": claim.image}
    return {name: value for name, value in found.items() if value is not None}


def _firmware(domain: Obj) -> str:
    efi = ((domain.get("firmware") or {}).get("bootloader") or {}).get("efi")
    if efi is None:
        return "BIOS"
    # KubeVirt takes an absent secureBoot for true.
    return "EFI with secure boot" if efi.get("secureBoot", True) else "EFI"


def _tpm(devices: Obj) -> str:
    tpm = devices.get("tpm")
    if tpm is None:
        return "off"
    return "persistent" if tpm.get("persistent") else "on"


def _covers(have: Any, want: Any) -> bool:
    """Whether `have` is `want` with at most additions."""
    if isinstance(want, dict):
        return isinstance(have, dict) and all(name in have and _covers(have[name], want[name]) for name in want)
    if isinstance(want, list):
        return isinstance(have, list) and all(any(_covers(there, item) for there in have) for item in want)
    return bool(have == want)


def _shown(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value / 1024**3:g}Gi" if value >= 1024**3 else f"{value.normalize():f}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_shown(item)}' for name, item in value.items())}}}"
    if isinstance(value, tuple):
        return " ".join(filter(None, map(str, value)))
    return "unset" if value is None else str(value)
