"""Which VMs can migrate and which block the maintenance of a host. Pure.

Modelled after KubeVirt's `pkg/virt-handler/vm.go` (condition `LiveMigratable`) and
`pod-eviction-admitter.go`, and after Harvester's
`pkg/controller/master/nodedrain/nodedrain_controller.go` (`FindNonMigratableVMS`). Not modelled:
Longhorn replicas, host-model CPUs, and the time that a migration takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from caphv.api.object import Obj, at, dict_at, key_of, labels_of, list_at
from sandbox.harvester import kinds, scheduling

READ_WRITE_MANY = "ReadWriteMany"
MIGRATABLE = "LiveMigratable"


class Eviction(Enum):
    """The result of an eviction of an instance's Pod."""

    MIGRATE = "the instance migrates"
    KILL = "the instance ends, and its VM starts it again elsewhere"
    REFUSE = "the eviction is refused"
    WAIT = "the eviction waits for a controller outside of KubeVirt"


def migratable_condition(vmi: Obj, claims: Iterable[Obj]) -> Obj:
    """Return KubeVirt's condition `LiveMigratable`; `claims` are the instance's disks."""
    # KubeVirt reports only the first obstacle, and checks devices before disks.
    devices = _devices(vmi)
    if devices.get("hostDevices") or devices.get("gpus"):
        return kinds.condition(
            MIGRATABLE, False, "HostDeviceNotLiveMigratable", "VMI uses a PCI host device"
        )

    if any(READ_WRITE_MANY not in (claim["spec"].get("accessModes") or ()) for claim in claims):
        message = (
            "cannot migrate VMI: PVC is not shared, live migration requires ReadWriteMany access "
            "mode"
        )
        return kinds.condition(MIGRATABLE, False, "DisksNotLiveMigratable", message)
    return kinds.condition(MIGRATABLE, True)


def is_migratable(vmi: Obj) -> bool:
    """Return whether KubeVirt says that the instance can migrate."""
    conditions = list_at(vmi, "status", "conditions")
    return any(entry["type"] == MIGRATABLE and entry["status"] == "True" for entry in conditions)


def eviction_of(vmi: Obj) -> Eviction:
    """Return the result of an eviction of an instance's Pod."""
    # KubeVirt also has a strategy for the whole cluster, which Harvester does not set.
    strategy = vmi["spec"].get("evictionStrategy") or "None"
    if strategy == "External":
        return Eviction.WAIT
    if strategy in ("LiveMigrate", "LiveMigrateIfPossible") and is_migratable(vmi):
        return Eviction.MIGRATE
    return Eviction.REFUSE if strategy == "LiveMigrate" else Eviction.KILL


def non_migratable(
    host: str, instances: Iterable[Obj], hosts: Sequence[Obj]
) -> dict[str, list[str]]:
    """Return the names of the instances that cannot leave a host, by reason.

    Harvester lists these instances before maintenance.
    """
    targets = [
        other
        for other in hosts
        if other["metadata"]["name"] != host and scheduling.is_usable(other)
    ]

    names: dict[str, list[str]] = {}
    for vmi in instances:
        if at(vmi, "status", "nodeName") == host:
            for reason in _obstacles(vmi, targets):
                names.setdefault(reason, []).append(str(key_of(vmi)))
    return names


def _obstacles(vmi: Obj, targets: Iterable[Obj]) -> Iterable[str]:
    disks = _devices(vmi).get("disks") or ()
    volumes = vmi["spec"].get("volumes") or ()
    if any("cdrom" in disk for disk in disks) or any("containerDisk" in v for v in volumes):
        yield "CD-ROM or container disk"

    for condition in list_at(vmi, "status", "conditions"):
        if condition["type"] == MIGRATABLE and condition["status"] == "False":
            yield condition.get("reason", "")

    if not any(scheduling.matches_host(vmi["spec"], labels_of(target)) for target in targets):
        yield "node scheduling requirements not met"


def _devices(vmi: Obj) -> Obj:
    return dict_at(vmi, "spec", "domain", "devices")
