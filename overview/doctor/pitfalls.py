"""Checks for what goes wrong with a Harvester that works: room, storage, images, clocks, settings.

Each is a known pitfall of Harvester, its cloud provider or Longhorn; `docs/troubleshooting.md` explains them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from caphv.api.object import Obj, key_of
from caphv.runtime.text import TextError, load_json
from overview.doctor.model import Check, Result, ok
from overview.hostcapacity import hosts_of, requested, unplaced
from overview.objects import HarvesterObjects, condition_of, conditions_of

_LONGHORN = "driver.longhorn.io"
# Images of SUSE without the package kernel-default: https://github.com/harvester/harvester/issues/6418
_WITHOUT_MACVLAN = re.compile(r"sle[sd]?[-_ ]?15.{0,200}minimal", re.IGNORECASE)
_CLOCK_TOLERANCE = timedelta(seconds=60)
_MOST = {"memory": 150, "storage": 200}
"""Percent to which Harvester overcommits by default; beyond it hosts and disks fill while VMs run."""
_SHOWN = 5


def checks(
    objects: HarvesterObjects, storage_classes: Iterable[Obj], machines: Iterable[Obj], subject: str, now: datetime
) -> Iterator[Check]:
    """Yield the checks of one Harvester, for the HarvesterMachines on it."""
    machines, storage_classes = list(machines), list(storage_classes)
    yield from _capacity(objects, subject)
    yield from _clocks(objects, subject, now)
    yield from _disk_errors(objects, subject)
    yield from _immovable(objects, subject)
    yield from _shared_volumes(objects, storage_classes, machines, subject)
    yield from _macvlan(objects, machines, subject)
    yield from _external_storage(objects, storage_classes, machines, subject)
    yield from _overcommit(objects, subject)
    yield from _proxy(objects, subject)
    yield from _images(objects, subject)


def _capacity(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """A rollout needs room for one more VM; a lost host, room for all of its VMs on the others."""
    hosts = hosts_of(objects)
    placed = [
        (str((obj.get("status") or {}).get("nodeName") or ""), requested(obj.get("spec") or {}))
        for obj in objects.instances
    ]
    if not hosts or not placed:
        return
    largest = max(size for _, size in placed)
    if unplaced(hosts, [largest]):
        message = f"no host has room for one more VM of {largest}: a rollout cannot begin"
        yield Check("host-capacity", subject, Result.ERROR, message, "Add a host, or stop other VMs")
        return
    fullest = [
        (host.name, left)
        for host in hosts
        if len(hosts) > 1
        and (
            left := unplaced(
                [other for other in hosts if other is not host],
                [size for where, size in placed if where == host.name],
            )
        )
    ]
    if fullest:
        name, left = max(fullest, key=lambda each: each[1])
        message = f"without host {name}, {left} of its VMs would find no other host"
        remedy = "Add a host, or stop other VMs, before a maintenance or a failure"
        yield Check("host-capacity", subject, Result.WARNING, message, remedy)
    else:
        yield ok(
            "host-capacity", subject, f"hosts have room for one more VM of {largest}, and for the VMs of a lost host"
        )


def _clocks(objects: HarvesterObjects, subject: str, now: datetime) -> Iterator[Check]:
    """Tokens and certificates are valid for a time: where clocks differ they are refused."""
    ahead = []
    for host in objects.hosts:
        beat = _time(condition_of(host, "Ready").get("lastHeartbeatTime"))
        if beat and beat - now > _CLOCK_TOLERANCE:
            ahead.append(f"{host['metadata']['name']} by {int((beat - now).total_seconds())} s")
    if ahead:
        message = f"clocks are ahead of this machine's: {', '.join(sorted(ahead)[:_SHOWN])}"
        remedy = "Synchronize the clocks: Harvester setting ntp-servers, and this machine's NTP"
        yield Check("clock", subject, Result.WARNING, message, remedy)


def _disk_errors(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """KubeVirt pauses a VM whose disk reports an I/O error: fstrim while replicas rebuild, or a full disk."""
    paused = sorted(
        str(key_of(obj))
        for obj in objects.instances
        if any(
            each["type"] == "Paused" and each.get("status") == "True" and each.get("reason") == "PausedIOError"
            for each in conditions_of(obj)
        )
    )
    if paused:
        message = f"VMs are paused after an I/O error of their disk: {_some(paused)}"
        remedy = (
            "Check Longhorn for full disks and rebuilding replicas; against errors by fstrim set "
            "guestConfig.disableFstrimTimer, and in running guests: systemctl disable --now fstrim.timer"
        )
        yield Check("fstrim", subject, Result.ERROR, message, remedy)


def _immovable(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """A VM with a disk that only one host may attach cannot be migrated, and stops a host's maintenance."""
    single = sorted(
        str(key_of(claim))
        for claim in objects.claims
        if (modes := (claim.get("spec") or {}).get("accessModes")) and "ReadWriteMany" not in modes
    )
    if single:
        message = f"disks are not ReadWriteMany, so that their VMs cannot be migrated: {_some(single)}"
        remedy = "Use a storage class with ReadWriteMany and Block, or plan a restart of these VMs for maintenance"
        yield Check("rwx", subject, Result.WARNING, message, remedy)


def _shared_volumes(
    objects: HarvesterObjects, storage_classes: list[Obj], machines: list[Obj], subject: str
) -> Iterator[Check]:
    """Guests mount volumes that several of them share by NFS, over a network that VMs have to be connected to."""
    shared = sorted(
        str(each["metadata"]["name"]) for each in storage_classes if (each.get("parameters") or {}).get("nfsOptions")
    )
    if not shared or not objects.settings:
        return
    networks = [_setting(objects, name) for name in ("storage-network", "rwx-network")]
    if not any(isinstance(each, dict) and each for each in networks):
        message = f"volumes of StorageClass {_some(shared)} cannot be mounted: no network is set for shared volumes"
        remedy = "Set storage-network or rwx-network on Harvester, and add a VM network to machines that reaches it"
        yield Check("rwx-network", subject, Result.WARNING, message, remedy)
        return
    single = sorted(str(key_of(each)) for each in machines if len((each.get("spec") or {}).get("networks") or ()) == 1)
    if single:
        message = f"machines have one VM network, and may not reach shared volumes: {_some(single)}"
        remedy = f"Add a VM network in the network of shared volumes, or use no StorageClass {_some(shared)} in guests"
        yield Check("rwx-network", subject, Result.WARNING, message, remedy)


def _macvlan(objects: HarvesterObjects, machines: list[Obj], subject: str) -> Iterator[Check]:
    """The cloud provider's load balancers with DHCP need kernel module macvlan in every guest."""
    names = {str(key_of(image)): _display_name(image) for image in objects.images}
    names |= {key_of(image).name: _display_name(image) for image in objects.images}
    used = {
        str(volume["imageName"])
        for machine in machines
        for volume in (machine.get("spec") or {}).get("volumes") or ()
        if volume.get("imageName")
    }
    lacking = sorted(name for name in used if _WITHOUT_MACVLAN.search(names.get(name, name)))
    if lacking:
        message = f"image {_some(lacking)} has no kernel module macvlan: Services with DHCP addresses stay pending"
        remedy = "Build the image with kernel-default instead of kernel-default-base, or use IPPools for Services"
        yield Check("macvlan", subject, Result.WARNING, message, remedy)


def _external_storage(
    objects: HarvesterObjects, storage_classes: list[Obj], machines: list[Obj], subject: str
) -> Iterator[Check]:
    """Harvester can snapshot and back up volumes of other drivers only if its setting names them."""
    used = {
        str(volume["storageClass"])
        for machine in machines
        for volume in (machine.get("spec") or {}).get("volumes") or ()
        if volume.get("storageClass")
    }
    known = {str(each["metadata"]["name"]): str(each.get("provisioner") or "") for each in storage_classes}
    configured = _setting(objects, "csi-driver-config")
    others = {known[name] for name in used if known.get(name) not in (None, "", _LONGHORN)}
    if isinstance(configured, dict) and (unset := sorted(others - configured.keys())):
        message = f"volumes of {_some(unset)} cannot be backed up: setting csi-driver-config does not name the driver"
        remedy = "Add provisioner and VolumeSnapshotClass to Harvester's setting csi-driver-config"
        yield Check("external-csi", subject, Result.WARNING, message, remedy)


def _overcommit(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    configured = _setting(objects, "overcommit-config")
    for what, most in _MOST.items():
        percent = configured.get(what) if isinstance(configured, dict) else None
        if isinstance(percent, int) and percent > most:
            message = f"setting overcommit-config allows {percent} % of the existing {what}"
            remedy = f"Reduce {what} to {most}, the default, or watch what is really used"
            yield Check("over-provisioning", subject, Result.WARNING, message, remedy)


def _proxy(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    configured = _setting(objects, "http-proxy")
    if not isinstance(configured, dict):
        return
    if (configured.get("httpProxy") or configured.get("httpsProxy")) and not configured.get("noProxy"):
        message = "setting http-proxy has no exceptions: images and backups at internal addresses go through the proxy"
        remedy = "Add the internal networks and domains to noProxy of Harvester's setting http-proxy"
        yield Check("proxy", subject, Result.WARNING, message, remedy)


def _images(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Imports that fail for a reason that a setting of Harvester removes."""
    causes: tuple[tuple[re.Pattern[str], str, Callable[[], str]], ...] = (
        (re.compile(r"x509|certificate", re.I), "host-ca", lambda: "Add the server's CA to setting additional-ca"),
        (
            re.compile(r"proxyconnect|no route to host|i/o timeout|no such host", re.I),
            "proxy",
            lambda: "Check that hosts reach the server; a proxy is set by setting http-proxy",
        ),
    )
    for image in objects.images:
        failed = next((c for c in conditions_of(image) if c["type"] == "Imported" and c.get("status") == "False"), {})
        text = str(failed.get("message") or "")
        for pattern, check, remedy in causes:
            if pattern.search(text):
                message = f"VM image {key_of(image)} cannot be downloaded: {text}"
                yield Check(check, subject, Result.ERROR, message, remedy())
                break


def _display_name(image: Obj) -> str:
    return str((image.get("spec") or {}).get("displayName") or key_of(image).name)


def _setting(objects: HarvesterObjects, name: str) -> Any:
    """The value of a setting of Harvester, parsed; None where it is absent or cannot be read."""
    for setting in objects.settings:
        if setting["metadata"]["name"] == name:
            try:
                return load_json(str(setting.get("value") or setting.get("default") or "null"))
            except TextError:
                return None
    return None


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _some(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{more}"
