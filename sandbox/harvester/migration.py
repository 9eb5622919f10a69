"""Which VMs can migrate and which block the maintenance of a host. Pure.

Modelled after KubeVirt's `pkg/virt-handler/vm.go` (condition `LiveMigratable`) and `pod-eviction-admitter.go`, and
after Harvester's `pkg/controller/master/nodedrain/nodedrain_controller.go` (`FindNonMigratableVMS`). Not modelled:
Longhorn replicas, host-model CPUs, and the time that a migration takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from caphv.api.object import Obj, key_of, labels_of
from sandbox.harvester import kinds, scheduling

READ_WRITE_MANY = "ReadWriteMany"
MIGRATABLE = "LiveMigratable"


class Eviction(Enum):
    """What the eviction of an instance's Pod leads to."""

    MIGRATE = "the instance migrates"
    KILL = "the instance ends, and its VM starts it again elsewhere"
    REFUSE = "the eviction is refused"
    WAIT = "the eviction waits for a controller outside of KubeVirt"


def migratable_condition(vmi: Obj, claims: Iterable[Obj]) -> Obj:
    """KubeVirt's condition `LiveMigratable`; `claims` are the instance's disks."""
    shared = all(READ_WRITE_MANY in (claim["spec"].get("accessModes") or ()) for claim in claims)
    if _devices(vmi).get("hostDevices") or _devices(vmi).get("gpus"):
        return kinds.condition(MIGRATABLE, False, "HostDeviceNotLiveMigratable", "VMI uses a PCI host device")
    if not shared:
        message = "cannot migrate VMI: PVC is not shared, live migration requires ReadWriteMany access mode"
        return kinds.condition(MIGRATABLE, False, "DisksNotLiveMigratable", message)
    return kinds.condition(MIGRATABLE, True)


def is_migratable(vmi: Obj) -> bool:
    """Whether KubeVirt says that the instance can migrate."""
    conditions = vmi.get("status", {}).get("conditions") or ()
    return any(entry["type"] == MIGRATABLE and entry["status"] == "True" for entry in conditions)


def eviction_of(vmi: Obj) -> Eviction:
    """What the eviction of an instance's Pod leads to; like Harvester, without a cluster-wide strategy."""
    strategy = vmi["spec"].get("evictionStrategy") or "None"
    if strategy == "External":
        return Eviction.WAIT
    if strategy in ("LiveMigrate", "LiveMigrateIfPossible") and is_migratable(vmi):
        return Eviction.MIGRATE
    return Eviction.REFUSE if strategy == "LiveMigrate" else Eviction.KILL


def non_migratable(host: str, instances: Iterable[Obj], hosts: Sequence[Obj]) -> dict[str, list[str]]:
    """Names of the instances that cannot leave a host, by reason, as Harvester lists them before maintenance."""
    found: dict[str, list[str]] = {}
    others = [other for other in hosts if other["metadata"]["name"] != host and scheduling.is_usable(other)]
    for vmi in instances:
        if vmi.get("status", {}).get("nodeName") != host:
            continue
        for reason in _reasons(vmi, others):
            found.setdefault(reason, []).append(str(key_of(vmi)))
    return found


def _reasons(vmi: Obj, others: Iterable[Obj]) -> Iterable[str]:
    disks = _devices(vmi).get("disks") or ()
    if any("cdrom" in disk for disk in disks) or any("containerDisk" in v for v in vmi["spec"].get("volumes") or ()):
        yield "CD-ROM or container disk"
    conditions = vmi.get("status", {}).get("conditions") or ()
    yield from (entry.get("reason", "") for entry in conditions if _blocks(entry))
    if not any(scheduling.matches_host(vmi["spec"], labels_of(other)) for other in others):
        yield "node scheduling requirements not met"


def _blocks(condition: Obj) -> bool:
    return bool(condition["type"] == MIGRATABLE and condition["status"] == "False")


def _devices(vmi: Obj) -> Obj:
    return vmi["spec"].get("domain", {}).get("devices") or {}
