"""The status of VMs, as KubeVirt writes it."""

from __future__ import annotations

import contextlib
from typing import Any

from caphv.api.object import Obj, at, key_of, list_at
from caphv.runtime.errors import NotFound
from sandbox.harvester import instances, kinds
from sandbox.harvester.informers import Informers

# Values of `printableStatus` in the VM's status.
STARTING = "Starting"
RUNNING = "Running"
MIGRATING = "Migrating"
STOPPING = "Stopping"
STOPPED = "Stopped"
UNSCHEDULABLE = "ErrorUnschedulable"
NO_CLAIM = "ErrorPvcNotFound"

# A shorter start or migration is not worth a status write.
UNREPORTED_SECONDS = 1.0


async def report(informers: Informers, vm: Obj, printable: str, message: str = "") -> None:
    """Write the status of a VM, unless it is up to date."""
    runs = printable in (RUNNING, MIGRATING)
    status: dict[str, Any] = {
        "printableStatus": printable,
        "created": printable != STOPPED,
        "ready": runs,
    }
    if all(at(vm, "status", name) == value for name, value in status.items()):
        return

    if runs:
        reason = ""
    elif printable == UNSCHEDULABLE:
        reason = "Unschedulable"
    else:
        reason = "GuestNotRunning"
    status["conditions"] = [kinds.condition("Ready", runs, reason, message)]
    with contextlib.suppress(NotFound):
        await informers.patch(informers.vms, key_of(vm), {"status": status}, subresource="status")


async def report_waiting(
    informers: Informers, vm: Obj, vmi: Obj, printable: str, message: str
) -> None:
    """Report why the Pod of an instance waits, in the instance and in the VM."""
    if not _has_message(vmi, message):
        patch = instances.waiting_patch(vmi, message, exists=printable != NO_CLAIM)
        await informers.patch(informers.vmis, key_of(vmi), patch)
    await report(informers, vm, printable, message)


async def report_refused(informers: Informers, vm: Obj, vmi: Obj, message: str) -> None:
    """Report in the instance why KubeVirt creates no Pod for it; the VM just keeps starting."""
    if not _has_message(vmi, message):
        patch = instances.refused_patch(vmi, message)
        await informers.patch(informers.vmis, key_of(vmi), patch)
    await report(informers, vm, STARTING)


def _has_message(vmi: Obj, message: str) -> bool:
    conditions = list_at(vmi, "status", "conditions")
    return message in [entry.get("message") for entry in conditions]
