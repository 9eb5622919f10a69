"""Check for what may go wrong on a Harvester that works: room, storage, images, clocks.

Each is a known pitfall of Harvester, its cloud provider or Longhorn; `docs/troubleshooting.md`
explains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from caphv.api.counting import name_some
from caphv.api.names import LONGHORN_DRIVER
from caphv.api.object import Obj, at, key_of, list_at, text_at
from caphv.api.virtualmachine import READ_WRITE_MANY
from operations.capacity.hosts import (
    count_homeless,
    hosts_of,
    requests_of,
    running_instances,
)
from operations.doctor import settings
from operations.read.objects import HarvesterObjects, condition_of, conditions_of, time_of
from operations.status.check import Check, Result, ok

# Images of SUSE without the package kernel-default:
# https://github.com/harvester/harvester/issues/6418
_WITHOUT_MACVLAN = re.compile(r"sle[sd]?[-_ ]?15.{0,200}minimal", re.IGNORECASE)
# Messages of failed imports of images.
_UNTRUSTED = re.compile(r"x509|certificate", re.I)
_UNREACHABLE = re.compile(r"proxyconnect|no route to host|i/o timeout|no such host", re.I)
_CLOCK_TOLERANCE = timedelta(seconds=60)


def checks(
    objects: HarvesterObjects,
    storage_classes: list[Obj],
    machines: list[Obj],
    subject: str,
    now: datetime,
) -> Iterator[Check]:
    """Yield the checks of one Harvester.

    :param objects: the objects of the Harvester
    :param storage_classes: its StorageClasses
    :param machines: the HarvesterMachines on it
    :param subject: the Harvester
    :param now: the current time
    """
    yield from _check_capacity(objects, machines, subject)
    yield from _check_clocks(objects, subject, now)
    yield from _check_disk_errors(objects, subject)
    yield from _check_access_modes(objects, subject)
    yield from _check_shared_volumes(objects, storage_classes, machines, subject)
    yield from _check_macvlan(objects, machines, subject)
    yield from _check_external_storage(objects, storage_classes, machines, subject)
    yield from _check_imports(objects, subject)


def instances_of(instances: Iterable[Obj], machines: Iterable[Obj]) -> list[Obj]:
    """Return the instances of machines; a target namespace may have VMs of others, too."""
    # A VM has the name of its HarvesterMachine.
    names = {key_of(machine).name for machine in machines}
    return [instance for instance in instances if key_of(instance).name in names]


def _check_capacity(
    objects: HarvesterObjects, machines: list[Obj], subject: str
) -> Iterator[Check]:
    """Check that there is room for a rollout, and for the VMs of a lost host.

    A rollout needs room for one more VM; the VMs of a lost host need room on the others.
    """
    hosts = hosts_of(objects)
    running = list(running_instances(objects))
    placed = [
        (text_at(obj, "status", "nodeName"), requests_of(obj.get("spec") or {})) for obj in running
    ]
    own = {requests_of(obj.get("spec") or {}) for obj in instances_of(running, machines)}
    if not hosts or not own:
        return

    # Neither of two VMs is the largest if one has more CPUs and the other more memory.
    for size in sorted(own, reverse=True):
        if count_homeless(hosts, [size]):
            message = f"no host has room for one more VM of {size}: a rollout cannot begin"
            remedy = "Add a host, or stop other VMs"
            yield Check("host-capacity", subject, Result.ERROR, message=message, remedy=remedy)
            return

    homeless_by_host = {}
    for host in hosts:
        others = [other for other in hosts if other is not host]
        if not others:
            break  # the VMs of a single host cannot move anyway
        homeless = count_homeless(others, [size for name, size in placed if name == host.name])
        if homeless:
            homeless_by_host[host.name] = homeless

    if homeless_by_host:
        name, homeless = max(homeless_by_host.items(), key=lambda item: item[1])
        message = f"without host {name}, {homeless} of its VMs would find no other host"
        remedy = "Add a host, or stop other VMs, before a maintenance or a failure"
        yield Check("host-capacity", subject, Result.WARNING, message=message, remedy=remedy)
    else:
        message = f"hosts have room for one more VM of {max(own)}, and for the VMs of a lost host"
        yield ok("host-capacity", subject, message)


def _check_clocks(objects: HarvesterObjects, subject: str, now: datetime) -> Iterator[Check]:
    """Compare clocks, because different clocks make servers refuse tokens and certificates."""
    # A clock that is behind cannot be detected, because a heartbeat from the past may just be old.
    ahead = []
    for host in objects.hosts:
        heartbeat = time_of(condition_of(host, "Ready").get("lastHeartbeatTime"))
        if heartbeat and heartbeat - now > _CLOCK_TOLERANCE:
            seconds = int((heartbeat - now).total_seconds())
            ahead.append(f"{host['metadata']['name']} by {seconds} s")

    if ahead:
        message = f"clocks are ahead of this machine's: {name_some(sorted(ahead))}"
        remedy = "Synchronize the clocks: Harvester setting ntp-servers, and this machine's NTP"
        yield Check("clock", subject, Result.WARNING, message=message, remedy=remedy)


def _check_disk_errors(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Find VMs that KubeVirt paused because their disk reports an I/O error.

    Such errors come from fstrim while replicas rebuild, or from a full disk.
    """
    paused = sorted(str(key_of(obj)) for obj in objects.instances if _has_disk_error(obj))
    if paused:
        message = f"VMs are paused after an I/O error of their disk: {name_some(paused)}"
        remedy = (
            "Check Longhorn for full disks and rebuilding replicas; against errors by fstrim set "
            "guestConfig.disableFstrimTimer, and in running guests: systemctl disable --now "
            "fstrim.timer"
        )
        yield Check("fstrim", subject, Result.ERROR, message=message, remedy=remedy)


def _has_disk_error(instance: Obj) -> bool:
    return any(
        condition["type"] == "Paused"
        and condition.get("status") == "True"
        and condition.get("reason") == "PausedIOError"
        for condition in conditions_of(instance)
    )


def _check_access_modes(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Find disks that only one host may attach.

    Their VMs cannot be migrated, and stop a host's maintenance.
    """
    single = []
    for claim in objects.claims:
        modes = at(claim, "spec", "accessModes")
        if modes and READ_WRITE_MANY not in modes:
            single.append(str(key_of(claim)))

    if single:
        message = (
            "disks are not ReadWriteMany, so that their VMs cannot be migrated: "
            f"{name_some(sorted(single))}"
        )
        remedy = (
            "Use a storage class with ReadWriteMany and Block, or plan a restart of these VMs for "
            "maintenance"
        )
        yield Check("rwx", subject, Result.WARNING, message=message, remedy=remedy)


def _check_shared_volumes(
    objects: HarvesterObjects, storage_classes: list[Obj], machines: list[Obj], subject: str
) -> Iterator[Check]:
    """Check that guests reach the network of volumes that several of them share by NFS.

    :param objects: what the Harvester holds
    :param storage_classes: its StorageClasses
    :param machines: the HarvesterMachines on it
    :param subject: the Harvester
    """
    shared = sorted(
        str(obj["metadata"]["name"])
        for obj in storage_classes
        if at(obj, "parameters", "nfsOptions")
    )
    if not shared or not objects.settings:
        return

    # Without such a network, Longhorn serves shared volumes in the network of Pods, which no guest
    # reaches.
    names = (settings.STORAGE_NETWORK, settings.RWX_NETWORK)
    networks = [settings.value_of(objects, name) for name in names]
    if not any(isinstance(network, dict) and network for network in networks):
        message = (
            f"volumes of StorageClass {name_some(shared)} cannot be mounted: no network is "
            "set for shared volumes"
        )
        remedy = (
            "Set storage-network or rwx-network on Harvester, and add a VM network to machines "
            "that reaches it"
        )
        yield Check("rwx-network", subject, Result.WARNING, message=message, remedy=remedy)
        return

    single = sorted(
        str(key_of(machine))
        for machine in machines
        if len(list_at(machine, "spec", "networks")) == 1
    )
    if single:
        message = (
            f"machines have one VM network, and may not reach shared volumes: {name_some(single)}"
        )
        remedy = (
            "Add a VM network in the network of shared volumes, or use no StorageClass "
            f"{name_some(shared)} in guests"
        )
        yield Check("rwx-network", subject, Result.WARNING, message=message, remedy=remedy)


def _check_macvlan(objects: HarvesterObjects, machines: list[Obj], subject: str) -> Iterator[Check]:
    """Find images without kernel module macvlan.

    The cloud provider's load balancers with DHCP need it in every guest.
    """
    # A machine names an image by the name of its object, with or without namespace, or by its
    # display name.
    names = {str(key_of(image)): _display_name(image) for image in objects.images}
    names |= {key_of(image).name: _display_name(image) for image in objects.images}
    used = _volume_fields(machines, "imageName")

    lacking = sorted(name for name in used if _WITHOUT_MACVLAN.search(names.get(name, name)))
    if lacking:
        message = (
            f"image {name_some(lacking)} has no kernel module macvlan: Services with DHCP "
            "addresses stay pending"
        )
        remedy = (
            "Build the image with kernel-default instead of kernel-default-base, or use IPPools "
            "for Services"
        )
        yield Check("macvlan", subject, Result.WARNING, message=message, remedy=remedy)


def _volume_fields(machines: Iterable[Obj], field: str) -> set[str]:
    """Return the values of a field in all volumes of HarvesterMachines."""
    values = set()
    for machine in machines:
        for volume in list_at(machine, "spec", "volumes"):
            if volume.get(field):
                values.add(str(volume[field]))
    return values


def _check_external_storage(
    objects: HarvesterObjects, storage_classes: list[Obj], machines: list[Obj], subject: str
) -> Iterator[Check]:
    """Check that Harvester's setting names the drivers of other storage.

    Only then can Harvester snapshot and back up their volumes.

    :param objects: what the Harvester holds
    :param storage_classes: its StorageClasses
    :param machines: the HarvesterMachines on it
    :param subject: the Harvester
    """
    provisioners = {
        str(obj["metadata"]["name"]): text_at(obj, "provisioner") for obj in storage_classes
    }
    used = {provisioners.get(name, "") for name in _volume_fields(machines, "storageClass")}
    configured = settings.value_of(objects, settings.CSI_DRIVERS)
    if not isinstance(configured, dict):
        return

    unset = sorted(used - {"", LONGHORN_DRIVER} - configured.keys())
    if unset:
        message = (
            f"volumes of {name_some(unset)} cannot be backed up: setting csi-driver-config "
            "does not name the driver"
        )
        remedy = "Add provisioner and VolumeSnapshotClass to Harvester's setting csi-driver-config"
        yield Check("external-csi", subject, Result.WARNING, message=message, remedy=remedy)


def _check_imports(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Find imports of images that fail for a reason that a setting of Harvester removes."""
    for image in objects.images:
        imported = condition_of(image, "Imported")
        if imported.get("status") != "False":
            continue

        # The condition has no reason for these cases, so that only its text distinguishes them.
        text = text_at(imported, "message")
        message = f"VM image {key_of(image)} cannot be downloaded: {text}"
        if _UNTRUSTED.search(text):
            remedy = "Add the server's CA to setting additional-ca"
            yield Check("host-ca", subject, Result.ERROR, message=message, remedy=remedy)
        elif _UNREACHABLE.search(text):
            remedy = "Check that hosts reach the server; a proxy is set by setting http-proxy"
            yield Check("proxy", subject, Result.ERROR, message=message, remedy=remedy)


def _display_name(image: Obj) -> str:
    """Return the name that Harvester shows for an image."""
    return str(at(image, "spec", "displayName") or key_of(image).name)
