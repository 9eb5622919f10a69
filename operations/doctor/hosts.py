"""Check the hosts of a Harvester: whether they run VMs, their zones, and their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from caphv.api import names, remedies
from caphv.api.counting import counted
from caphv.api.hosts import is_ready, is_witness
from caphv.api.object import Obj, at, labels_of
from operations.doctor.forms import number_of
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result, ok


def checks(
    objects: HarvesterObjects, storage_classes: Iterable[Obj], subject: str
) -> Iterator[Check]:
    """Yield the checks of the hosts, and of the StorageClasses that need more of them.

    :param objects: the objects of the Harvester
    :param storage_classes: its StorageClasses that clusters use
    :param subject: the Harvester
    """
    yield from _check_hosts(objects, subject)
    yield from _check_volume_replicas(objects, storage_classes, subject)


def _check_hosts(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Check that hosts are ready and take VMs, and that all or none of them have a zone."""
    hosts = [host for host in objects.hosts if not is_witness(host)]
    if not hosts:
        return

    not_ready = sorted(host["metadata"]["name"] for host in hosts if not is_ready(host))
    closed = sorted(host["metadata"]["name"] for host in hosts if at(host, "spec", "unschedulable"))
    if not_ready:
        message = f"not ready: {', '.join(not_ready)}"
        remedy = "Check these hosts on Harvester; VMs on them do not run or cannot be moved"
        yield Check("hosts", subject, Result.ERROR, message=message, remedy=remedy)

    if closed:
        message = f"take no VMs: {', '.join(closed)}"
        command = remedies.UNCORDON_HOST(host=closed[0])
        remedy = f"End the maintenance in Harvester's UI, or for one of them: {command}"
        yield Check("hosts", subject, Result.WARNING, message=message, remedy=remedy)

    if not not_ready and not closed:
        number = counted(len(hosts), "host is ready and takes", "hosts are ready and take")
        yield ok("hosts", subject, f"{number} VMs")
    yield from _check_zones(hosts, subject)


def _check_zones(hosts: list[Obj], subject: str) -> Iterator[Check]:
    """Check that all hosts have a zone, or none, because zones are no failure domains otherwise."""
    zones = [labels_of(host).get(names.ZONE_LABEL, "") for host in hosts]
    if not any(zones):
        return
    if all(zones):
        sizes = ", ".join(f"{zone} ({count})" for zone, count in sorted(Counter(zones).items()))
        yield ok("zones", subject, f"failure domains are {sizes}")
        return

    without = sorted(
        host["metadata"]["name"] for host in hosts if not labels_of(host).get(names.ZONE_LABEL)
    )
    message = (
        f"no zone label on {', '.join(without)}, so that hosts instead of zones are failure domains"
    )
    remedy = remedies.LABEL_ZONE(host=without[0], label=names.ZONE_LABEL)
    yield Check("zones", subject, Result.WARNING, message=message, remedy=remedy)


def _check_volume_replicas(
    objects: HarvesterObjects, storage_classes: Iterable[Obj], subject: str
) -> Iterator[Check]:
    """Warn of StorageClasses that want more replicas than there are hosts.

    Longhorn keeps one replica of a volume on a host, so that such volumes stay degraded.
    """
    # Longhorn does not run on a witness (Harvester's docs, "Witness Node").
    ready = sum(is_ready(host) for host in objects.hosts if not is_witness(host))
    for storage_class in storage_classes:
        replicas = number_of(at(storage_class, "parameters", "numberOfReplicas"))
        if replicas is None or not ready or replicas <= ready:
            continue

        name = storage_class["metadata"]["name"]
        number = counted(ready, "host is", "hosts are")
        message = (
            f"StorageClass {name} wants {replicas} replicas of each volume, and {number} ready"
        )
        remedy = "Add hosts, or use a StorageClass with fewer replicas"
        yield Check("longhorn-replicas", subject, Result.WARNING, message=message, remedy=remedy)
