"""Find drift: fields in which a VM differs from its machine's spec, because a user edited either.

Only fields that the spec determines are compared. These differences are no drift: changes by
Harvester's admission (guest memory, requests, MACs, grace period, more or less affinity, bindings
of overlay networks, the strategy after a restart, the move of `gpus` to `hostDevices`), KubeVirt's
defaults, volumes that a CSI driver hot-plugs, and fields that the Go provider set in another way
(names of disks, anti-affinity).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, annotations_of, at, dict_at
from caphv.api.quantity import quantity
from caphv.api.vmdifferences import Difference
from reconciler.machine import hostresources
from reconciler.machine.images import split_reference
from reconciler.machine.placement import as_harvester_keeps, without_requirement
from reconciler.machine.vm import can_grow
from reconciler.machine.vmclaims import ClaimTemplate, claim_templates, machine_disks

_STARTED = ("Always", "RerunOnFailure")
# If an overlay network has DHCP, Harvester's admission has replaced the bridge of an interface by
# this binding since 1.8.
_MANAGED_TAP = "managedtap"


def drift(expected: Obj, actual: Obj, requirement: Obj | None = None) -> tuple[str, ...]:
    """Name each field in which a VM differs from the expected one, with both values.

    :param expected: the VM of `virtual_machine`
    :param actual: the VM on Harvester
    :param requirement: that of the failure domain, which a VM may have as a requirement or as a
        preference
    """
    return (
        *_field_differences(expected, actual).values(),
        *hostresources.differences(_instance_spec(expected), _instance_spec(actual)),
        *_affinity_differences(expected, actual, requirement),
    )


def disk_drift(expected: Obj, actual: Obj) -> str:
    """Return how the disks of a VM differ from the expected ones; empty if they do not."""
    return _field_differences(expected, actual).get(Difference.DISKS, "")


def _field_differences(expected: Obj, actual: Obj) -> dict[str, str]:
    """Return the differing fields of `_view`, each with a text that has both values."""
    expected_fields, actual_fields = _view(expected), _view(actual)
    if not (can_grow(expected) and can_grow(actual)):
        # Harvester may reduce the memory of a guest that the provider does not let grow.
        del expected_fields[Difference.GUEST_MEMORY]

    disks = zip(expected_fields[Difference.DISKS], actual_fields[Difference.DISKS], strict=False)
    for expected_disk, disk in disks:
        if disk.pop("hotplugged", False):
            expected_disk.pop("bus")
        if "storageClass" not in expected_disk:
            # Only Harvester knows the class of an image, and the image may have been deleted.
            disk.pop("storageClass", None)

    return {
        difference: f"{difference} {_format(actual_fields[difference])}, not {_format(value)}"
        for difference, value in expected_fields.items()
        if actual_fields[difference] != value
    }


def _instance_spec(vm: Obj) -> Obj:
    return dict_at(vm, "spec", "template", "spec")


def _affinity_differences(expected: Obj, actual: Obj, requirement: Obj | None) -> Iterator[str]:
    """Name the affinities that lack rules. Additional rules of the VM are no difference."""
    path = ("spec", "template", "spec", "affinity")
    expected_rules = dict_at(expected, *path)
    rules = dict_at(actual, *path)
    # Harvester drops some rules, so that users can neither restore nor follow them. Our webhooks
    # refuse such rules or warn about them.
    expected_node_rules = as_harvester_keeps(expected_rules.get("nodeAffinity") or {})
    node_rules = rules.get("nodeAffinity") or {}

    if requirement:
        expected_node_rules, _ = without_requirement(expected_node_rules, requirement)
        node_rules, has_domain = without_requirement(node_rules, requirement)
        if not has_domain:
            yield f"{Difference.FAILURE_DOMAIN} of the machine"
    if not _covers(node_rules, expected_node_rules):
        yield f"{Difference.NODE_AFFINITY} of the machine"
    if not _covers(rules.get("podAffinity") or {}, expected_rules.get("podAffinity") or {}):
        yield f"{Difference.POD_AFFINITY} of the machine"


def _view(vm: Obj) -> Obj:
    """Return the fields to compare, by the text with which a difference begins.

    Values are normalised so that equivalent values are equal.
    """
    template = vm["spec"]["template"]
    spec = template.get("spec") or {}
    domain = spec.get("domain") or {}
    cpu = domain.get("cpu") or {}
    limits = at(domain, "resources", "limits")
    devices = domain.get("devices") or {}

    return {
        Difference.RUN_STRATEGY: _run_strategy(vm),
        Difference.HOSTNAME: spec.get("hostname"),
        Difference.CORES: (cpu.get("cores") or 1)
        * (cpu.get("sockets") or 1)
        * (cpu.get("threads") or 1),
        Difference.CPU_LIMIT: quantity(at(limits, "cpu")),
        Difference.MEMORY_LIMIT: quantity(at(limits, "memory")),
        Difference.GUEST_MEMORY: quantity(at(domain, "memory", "guest")),
        Difference.NETWORKS: [_network(vm, entry) for entry in spec.get("networks") or ()],
        Difference.INTERFACES: [_interface(entry) for entry in devices.get("interfaces") or ()],
        Difference.DISKS: _disks(vm, spec, devices),
        Difference.FIRMWARE: _firmware(domain),
        Difference.TPM: _tpm(devices),
        f"label {names.MACHINE_TYPE_LABEL} is": at(
            template, "metadata", "labels", names.MACHINE_TYPE_LABEL
        ),
    }


def _run_strategy(vm: Obj) -> str:
    """Return the strategy of a VM, with `Always` for all that keep a started VM running."""
    strategy = str(vm["spec"].get("runStrategy") or "")
    if not strategy:
        strategy = "Always" if vm["spec"].get("running") else "Halted"
    if strategy == "Halted":
        # One that is being evacuated gets its own strategy back.
        strategy = annotations_of(vm).get(names.EVACUATED_STRATEGY_ANNOTATION, strategy)
    # After a stop, Harvester starts a VM with the strategy that it had, or with RerunOnFailure.
    return "Always" if strategy in _STARTED else strategy


def _network(vm: Obj, entry: Obj) -> str | None:
    """Return the qualified name of a network.

    VMs of the Go provider have bare names, which KubeVirt looks up in the namespace of the VM.
    """
    name = at(entry, "multus", "networkName")
    return "/".join(split_reference(name, vm["metadata"]["namespace"])) if name else None


def _interface(entry: Obj) -> tuple[str, str]:
    """Return model and binding of an interface."""
    model = str(entry.get("model") or "virtio")
    if at(entry, "binding", "name") == _MANAGED_TAP:
        return model, "bridge"
    for binding in ("bridge", "masquerade", "sriov", "binding"):
        if binding in entry:
            return model, binding
    return model, ""


def _disks(vm: Obj, spec: Obj, devices: Obj) -> list[dict[str, Any]]:
    """Return the disks of a VM in the order of its volumes, without those that others hot-plugged.

    Hot-plugged disks of the machine follow its other ones, and have a bus of their own.
    """
    templates = {template.name: template for template in claim_templates(vm)}
    disks = {disk["name"]: disk for disk in devices.get("disks") or ()}
    hotplugged = [disk for disk in machine_disks(vm) if disk.hotplugged]
    result: list[dict[str, Any]] = []
    claims = 0
    for volume in spec.get("volumes") or ():
        source = volume.get("persistentVolumeClaim") or volume.get("dataVolume") or {}
        if source.get("hotpluggable"):
            continue
        template = templates.get(source.get("claimName", ""))
        result.append(_comparable_disk(disks.get(volume["name"]) or {}, template))
        claims = len(result) if source else claims

    result[claims:claims] = [
        {**_comparable_disk({}, templates.get(disk.claim)), "hotplugged": True}
        for disk in hotplugged
    ]
    return result


def _comparable_disk(disk: Obj, template: ClaimTemplate | None) -> dict[str, Any]:
    """Return the comparable fields of a disk and its claim template, omitting unset ones."""
    device: Obj = next((disk[kind] for kind in ("disk", "cdrom", "lun") if kind in disk), {})
    fields: dict[str, Any] = {"bus": device.get("bus"), "bootOrder": disk.get("bootOrder")}
    if template:
        fields |= {
            "size": quantity(template.size),
            "storageClass": template.storage_class,
            "image": template.image,
        }
    return {name: value for name, value in fields.items() if value is not None}


def _firmware(domain: Obj) -> str:
    """Return the firmware of a VM in words."""
    efi = at(domain, "firmware", "bootloader", "efi")
    if efi is None:
        return "BIOS"
    # KubeVirt's default for secureBoot is true.
    return "EFI with secure boot" if efi.get("secureBoot", True) else "EFI"


def _tpm(devices: Obj) -> str:
    """Return the TPM of a VM in words."""
    tpm = devices.get("tpm")
    if tpm is None:
        return "off"
    return "persistent" if tpm.get("persistent") else "on"


def _covers(actual: Any, expected: Any) -> bool:
    """Return whether a value contains everything that is expected; it may contain more."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and _covers(actual[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(actual, list) and all(
            any(_covers(candidate, item) for candidate in actual) for item in expected
        )
    return bool(actual == expected)


def _format(value: Any) -> str:
    """Format a value for a message. Large numbers are sizes, shown in Gi."""
    if value is None:
        return "unset"
    if isinstance(value, Decimal):
        return f"{value / 1024**3:g}Gi" if value >= 1024**3 else f"{value.normalize():f}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_format(item)}' for name, item in value.items())}}}"
    if isinstance(value, tuple):
        return " ".join(filter(None, map(str, value)))
    return str(value)
