"""Resources of its host that a VM has for itself: devices, pinned CPUs and huge pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.hostresources import requested_devices
from caphv.api.object import Obj, at, dict_at, text_at
from caphv.api.virtualmachine import devices_of
from caphv.api.vmdifferences import Difference


def has_host_resources(spec: Obj) -> bool:
    """Return whether the VM of a HarvesterMachine has devices or CPUs of its host for itself.

    Such a VM cannot grow, and only some hosts can run it. Huge pages need pinned CPUs.
    """
    return bool(spec.get("devices") or spec.get("cpuPinning"))


def add_host_resources(domain: Obj, spec: Obj) -> None:
    """Add devices, pinned CPUs and huge pages to the domain of a VM.

    :param domain: the domain, with its CPUs, memory and devices
    :param spec: the spec of the HarvesterMachine
    """
    # Harvester takes the name of a PCIDevice for that very device, and gives the VM all others of
    # its IOMMU group, too. These names are none (harvester/pcidevices v1.8.1 pkg/webhook/vm.go).
    names = [name for name, count in requested_devices(spec).items() for _ in range(count)]
    if names:
        domain["devices"]["hostDevices"] = [
            {"name": f"device-{number}", "deviceName": name} for number, name in enumerate(names)
        ]

    if not spec.get("cpuPinning"):
        return
    domain["cpu"]["dedicatedCpuPlacement"] = True
    if spec.get("isolateEmulatorThread"):
        domain["cpu"]["isolateEmulatorThread"] = True
    if page_size := spec.get("hugepages"):
        domain["memory"]["hugepages"] = {"pageSize": str(page_size)}
        if spec.get("numaPassthrough"):
            domain["cpu"]["numa"] = {"guestMappingPassthrough": {}}


def differences(expected: Obj, actual: Obj) -> Iterator[str]:
    """Name the resources of its host that a VM lacks.

    Devices and settings of the VM for which its machine does not ask are no difference: users add
    them on Harvester, which itself adds devices of the same IOMMU group.

    :param expected: the spec of the expected VM's instance
    :param actual: that of the VM on Harvester
    """
    # When a VM stops, Harvester gives its devices the names of those that it had, and it moves
    # `gpus` to `hostDevices`. So only their number counts.
    missing = devices_of(expected) - devices_of(actual)
    if missing:
        names = ", ".join(f"{count} {name}" for name, count in sorted(missing.items()))
        yield f"{Difference.DEVICES} {names}"

    settings = _settings(actual)
    for setting, wanted in _settings(expected).items():
        if wanted and settings[setting] != wanted:
            yield f"{setting} {settings[setting] or 'off'}, not {wanted}"


def _settings(spec: Obj) -> dict[Difference, str]:
    """Return the settings of CPU and memory by difference, empty for those that are off."""
    cpu = dict_at(spec, "domain", "cpu")
    has_numa = at(cpu, "numa", "guestMappingPassthrough") is not None
    return {
        Difference.CPU_PINNING: "on" if cpu.get("dedicatedCpuPlacement") else "",
        Difference.EMULATOR_THREAD: "on" if cpu.get("isolateEmulatorThread") else "",
        Difference.NUMA: "on" if has_numa else "",
        Difference.HUGE_PAGES: text_at(spec, "domain", "memory", "hugepages", "pageSize"),
    }
