"""Check the StorageClasses that clusters use on Harvester: locality, tags, snapshots, trimming.

The rules are Longhorn's: longhorn-manager v1.11.3, `types/types.go`, `csi/util.go` and
`scheduler/replica_scheduler.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from caphv.api.counting import counted, name_some
from caphv.api.names import LONGHORN_DRIVER
from caphv.api.object import Obj, at, key_of, text_at
from caphv.runtime.text import TextError, load_json
from operations.doctor.forms import mappings_of, number_of, texts_of
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result

_STRICT = "strict-local"
# Volumes without a job of their own run the jobs of this group.
_DEFAULT_GROUP = "default"
_SNAPSHOTTING = {"snapshot", "snapshot-force-create"}
_BACKING_UP = {"backup", "backup-force-create"}
# The snapshots of the last backup and of the one that runs: longhorn-manager v1.4.0,
# `app/recurring_job.go`, listSnapshotNamesForCleanup.
_SNAPSHOTS_OF_BACKUPS = 2
_MAX_SNAPSHOTS = 250
# Trimming causes I/O errors in these: https://harvesterhci.io/kb/the_potential_risk_with_filesystem_trim
_FAULTY_TRIM = {"1.2.0", "1.2.1", "1.3.0"}
_RELEASE = re.compile(r"/harvester:v(\d{1,3}\.\d{1,3}\.\d{1,3})(?!\d)")


@dataclass(slots=True)
class Storage:
    """What a Harvester says about its storage; None for what may not be read or was not needed."""

    classes: list[Obj] = field(default_factory=list)
    """StorageClasses."""
    nodes: list[Obj] | None = None
    """Nodes of Longhorn, with their disks and tags."""
    jobs: list[Obj] | None = None
    """RecurringJobs of Longhorn."""


def checks(
    storage: Storage,
    objects: HarvesterObjects,
    machines: Sequence[Obj],
    deployment: Obj | None,
    subject: str,
) -> Iterator[Check]:
    """Yield the checks of the storage of one Harvester.

    :param storage: its StorageClasses, and Longhorn's nodes and jobs
    :param objects: the objects of the Harvester
    :param machines: the HarvesterMachines on it
    :param deployment: Deployment `harvester-system/harvester`
    :param subject: the Harvester
    """
    for storage_class in used_classes(storage.classes, objects.claims, machines):
        yield from _check_locality(storage_class, subject)
        yield from _check_tags(storage_class, storage.nodes, subject)
        yield from _check_snapshots(storage_class, storage.jobs, subject)
    yield from _check_trim(machines, deployment, subject)


def used_classes(
    classes: Iterable[Obj], claims: Iterable[Obj], machines: Iterable[Obj]
) -> list[Obj]:
    """Return Longhorn's StorageClasses that disks of VMs or volumes of guests use, by name.

    :param classes: all StorageClasses
    :param claims: PersistentVolumeClaims of the target namespaces
    :param machines: HarvesterMachines
    """
    used = {text_at(claim, "spec", "storageClassName") for claim in claims}
    for machine in machines:
        for volume in mappings_of(at(machine, "spec", "volumes")):
            used.add(text_at(volume, "storageClass"))
    of_longhorn = [
        obj
        for obj in classes
        if obj.get("provisioner") == LONGHORN_DRIVER and obj["metadata"]["name"] in used
    ]
    return sorted(of_longhorn, key=lambda obj: str(obj["metadata"]["name"]))


class Selectors(NamedTuple):
    """The tags of nodes and of disks that replicas of a StorageClass need."""

    nodes: set[str]
    disks: set[str]


def selectors_of(storage_class: Obj) -> Selectors:
    """Return the tags that a StorageClass selects."""

    def tags(parameter: str) -> set[str]:
        texts = _parameter(storage_class, parameter).split(",")
        return {text.strip() for text in texts if text.strip()}

    return Selectors(tags("nodeSelector"), tags("diskSelector"))


def _check_locality(storage_class: Obj, subject: str) -> Iterator[Check]:
    """Find volumes that Longhorn does not create, or that tie their VM to one host."""
    if _parameter(storage_class, "dataLocality") != _STRICT:
        return

    name = storage_class["metadata"]["name"]
    replicas = number_of(_parameter(storage_class, "numberOfReplicas"))
    if replicas is not None and replicas != 1:
        message = (
            f"StorageClass {name} has dataLocality {_STRICT} and {replicas} replicas: Longhorn "
            "creates no volume of it"
        )
        remedy = (
            "Use a class with one replica for applications that replicate their data themselves, "
            "else one with dataLocality best-effort"
        )
        yield Check("storage-locality", subject, Result.ERROR, message=message, remedy=remedy)
    else:
        message = (
            f"StorageClass {name} has dataLocality {_STRICT}: VMs with its volumes cannot be "
            "migrated, and a lost host takes their data along"
        )
        remedy = (
            "Use a class with dataLocality best-effort for VMs; Harvester refuses new classes with "
            f"{_STRICT}"
        )
        yield Check("storage-locality", subject, Result.WARNING, message=message, remedy=remedy)


def _check_tags(storage_class: Obj, nodes: list[Obj] | None, subject: str) -> Iterator[Check]:
    """Check that enough hosts have the tags which replicas of a StorageClass need.

    Too few hosts for the replicas are another check.

    :param storage_class: the StorageClass
    :param nodes: the nodes of Longhorn; None if they are unknown
    :param subject: the Harvester
    """
    node_tags, disk_tags = selectors_of(storage_class)
    if nodes is None or not (node_tags or disk_tags):
        return

    disks = [
        disk
        for node in nodes
        if node_tags <= set(texts_of(at(node, "spec", "tags")))
        for disk in _tagged_disks(node, disk_tags)
    ]
    tagged = len({disk.node for disk in disks})
    scheduled = len({disk.node for disk in disks if disk.is_scheduled})
    replicas = number_of(_parameter(storage_class, "numberOfReplicas"))
    needed = min(1 if replicas is None else replicas, len(nodes))
    if scheduled >= needed:
        return

    tags = []
    if node_tags:
        tags.append(f"nodes {_join(node_tags)}")
    if disk_tags:
        tags.append(f"disks {_join(disk_tags)}")
    number = counted(tagged, "host has", "hosts have")
    message = (
        f"StorageClass {storage_class['metadata']['name']} needs "
        f"{counted(needed, 'host')} with tagged {' and '.join(tags)}, and {number} them"
    )
    if tagged >= needed:
        message += f"; {scheduled} of these {'takes' if scheduled == 1 else 'take'} new replicas"
        remedy = "End the maintenance of the others, or allow scheduling on their disks"
        yield Check("storage-tags", subject, Result.WARNING, message=message, remedy=remedy)
        return
    result = Result.WARNING if tagged else Result.ERROR
    remedy = "Tag more disks on Harvester's page of the host, or use a class with other tags"
    yield Check("storage-tags", subject, result, message=message, remedy=remedy)


def _check_snapshots(storage_class: Obj, jobs: list[Obj] | None, subject: str) -> Iterator[Check]:
    """Check that recurring jobs exist, and leave a volume no more snapshots than it can have.

    :param storage_class: the StorageClass
    :param jobs: the RecurringJobs of Longhorn; None if they are unknown
    :param subject: the Harvester
    """
    if jobs is None:
        return

    name = storage_class["metadata"]["name"]
    running, missing = _jobs_of(storage_class, jobs)
    if missing:
        message = (
            f"StorageClass {name} names recurring jobs that do not exist: {name_some(missing)}"
        )
        remedy = (
            "Create these RecurringJobs in namespace longhorn-system: volumes of the class get no "
            "snapshots and no backups by them"
        )
        yield Check("recurring-snapshots", subject, Result.WARNING, message=message, remedy=remedy)

    retained = sum(map(_kept_snapshots, running))
    if retained > _MAX_SNAPSHOTS:
        message = (
            f"recurring jobs keep {retained} snapshots of each volume of StorageClass {name}, and "
            f"Longhorn allows {_MAX_SNAPSHOTS}"
        )
        remedy = "Reduce retain of the RecurringJobs of task snapshot"
        yield Check("recurring-snapshots", subject, Result.WARNING, message=message, remedy=remedy)


def _check_trim(machines: Sequence[Obj], deployment: Obj | None, subject: str) -> Iterator[Check]:
    """Warn of guests that trim their disks on a Harvester whose Longhorn fails then.

    :param machines: the HarvesterMachines
    :param deployment: Deployment `harvester-system/harvester`
    :param subject: the Harvester
    """
    release = _release_of(deployment)
    trimming = sorted(
        str(key_of(machine))
        for machine in machines
        if not at(machine, "spec", "guestConfig", "disableFstrimTimer")
    )
    if release in _FAULTY_TRIM and trimming:
        message = (
            f"Harvester {release} pauses VMs that trim a disk while its replicas rebuild, and "
            f"fstrim.timer may run in {name_some(trimming)}"
        )
        remedy = (
            "Upgrade Harvester to 1.3.1 or later. Until then, in running guests: systemctl disable "
            "--now fstrim.timer, and no option discard in /etc/fstab (mount -o remount,nodiscard "
            "/); for new machines guestConfig.disableFstrimTimer"
        )
        yield Check("fstrim", subject, Result.WARNING, message=message, remedy=remedy)


class _Jobs(NamedTuple):
    """The jobs that volumes of a StorageClass run, and selected names that do not exist."""

    running: list[Obj]
    missing: list[str]


def _jobs_of(storage_class: Obj, jobs: list[Obj]) -> _Jobs:
    """Return the jobs that a StorageClass selects; without a selector, those of Longhorn's default.

    Longhorn adds a volume that selects nothing to the default group.
    """
    by_name = {str(job["metadata"]["name"]): job for job in jobs}
    selected: dict[str, Obj] = {}
    missing = []
    for entry in _job_selector(storage_class):
        name = str(entry.get("name"))
        if entry.get("isGroup"):
            in_group = {key: job for key, job in by_name.items() if name in _groups_of(job)}
            selected |= in_group
            if not in_group:
                missing.append(f"group {name}")
        elif name in by_name:
            selected[name] = by_name[name]
        else:
            missing.append(name)

    if not selected and not missing:
        selected = {key: job for key, job in by_name.items() if _DEFAULT_GROUP in _groups_of(job)}
    return _Jobs(list(selected.values()), sorted(missing))


def _job_selector(storage_class: Obj) -> list[dict[str, Any]]:
    """Return the entries of a class's `recurringJobSelector`, none if it cannot be parsed."""
    try:
        value = load_json(_parameter(storage_class, "recurringJobSelector"))
    except TextError:
        return []
    entries = value if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("name")]


def _groups_of(job: Obj) -> list[str]:
    return texts_of(at(job, "spec", "groups"))


def _kept_snapshots(job: Obj) -> int:
    """Return the number of snapshots per volume that a recurring job keeps.

    `retain` has no meaning for a job with the policy age, which keeps the snapshots of a period.
    """
    task = str(at(job, "spec", "task"))
    if task in _BACKING_UP:
        return _SNAPSHOTS_OF_BACKUPS
    is_counted = at(job, "spec", "retentionPolicy") in (None, "", "count-based")
    return (
        (number_of(at(job, "spec", "retain")) or 0) if task in _SNAPSHOTTING and is_counted else 0
    )


@dataclass(frozen=True, slots=True)
class _Disk:
    """A disk of a node of Longhorn; `is_scheduled` says whether it takes new replicas."""

    node: str
    is_scheduled: bool


def _tagged_disks(node: Obj, tags: set[str]) -> Iterator[_Disk]:
    """Yield the disks of a node that have all tags."""
    disks = at(node, "spec", "disks")
    for disk in mappings_of(list(disks.values()) if isinstance(disks, dict) else []):
        if tags <= set(texts_of(disk.get("tags"))):
            refuses = False in (at(node, "spec", "allowScheduling"), disk.get("allowScheduling"))
            yield _Disk(str(node["metadata"]["name"]), not refuses)


def _parameter(storage_class: Obj, name: str) -> str:
    return text_at(storage_class, "parameters", name)


def _join(tags: set[str]) -> str:
    return ", ".join(sorted(tags))


def _release_of(deployment: Obj | None) -> str:
    """Return the release of Harvester with its patch, such as `1.3.0`; empty if it is unknown."""
    for container in mappings_of(at(deployment, "spec", "template", "spec", "containers")):
        if match := _RELEASE.search(text_at(container, "image")):
            return match[1]
    return ""
