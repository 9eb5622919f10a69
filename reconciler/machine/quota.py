"""Wait for the quota of a target namespace.

While it is used up, one machine at a time tries to create its VM, and all report one message.

Harvester refuses to create a VM over the quota of storage. It creates a VM over the quota of CPU or
memory, but sets it to Halted, with an annotation, and never starts it again (harvester:
pkg/util/resourcequota/calculator.go, and `stopVM` in pkg/controller/master/virtualmachine). Its
webhook refuses a start while the quota has no room for the VM.
"""

from __future__ import annotations

import re
import time

from caphv.api import names, resources
from caphv.api.names import Reason
from caphv.api.object import Key, Obj, annotations_of
from caphv.api.plaintext import plain
from caphv.runtime.errors import ApiError, Forbidden, Invalid
from reconciler.blocked import Blocked
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import RUN_STRATEGY
from reconciler.machine.vmstatus import MAX_QUOTA_TEXT
from reconciler.triggers import Delay, Trigger, Watched

REFUSED_SECONDS = 15.0
"""Seconds until a retry after Harvester's admission has refused a request."""

_QUOTA = re.compile("quota", re.IGNORECASE)
# harvester/pcidevices v1.8.1 pkg/webhook/vm_validatation.go
_UNKNOWN_DEVICE = "not found in pcidevice and usbdevice cache"
_DEVICE_ADVICE = (
    "; use status.resourceName of a PCIDevice or USBDevice on Harvester (vGPUs have one since "
    "Harvester 1.8)"
)
# The longest wait is REFUSED_SECONDS times two to the power of this.
_MAX_DOUBLINGS = 4


def check_quota(scope: MachineScope) -> None:
    """Raise `Blocked` while the quota of the namespace is used up and another machine tries."""
    if waiting := scope.context.memory.quotas.wait(_quota_key(scope), REFUSED_SECONDS):
        raise _failure(scope, waiting.message, Delay(waiting.seconds))


def record_free_quota(scope: MachineScope) -> None:
    """Record that Harvester admitted a VM, so that waiting machines may try."""
    scope.context.memory.quotas.open(_quota_key(scope))


def handle_refusal(scope: MachineScope, error: ApiError) -> Blocked:
    """Return the `Blocked` of a machine whose VM Harvester's admission refuses.

    Closes the quota if it is the cause.
    """
    retry = Delay(REFUSED_SECONDS)
    if _QUOTA.search(error.message):
        return _failure(scope, _close_quota(scope, error.message), retry)

    advice = _DEVICE_ADVICE if _UNKNOWN_DEVICE in error.message else ""
    message = f"Harvester refuses VirtualMachine {_vm_key(scope)}: {error.message}{advice}"
    return scope.failure(message, retry)


def halted_by_quota(scope: MachineScope, vm: Obj) -> bool:
    """Return whether a quota keeps a new machine from its first start."""
    # A provisioned machine is not started, because its user may have had a reason to stop the VM.
    status = scope.draft.fields
    if status.get("ready") or status.get("initialization") or scope.spec.get("providerID"):
        return False
    is_halted = vm["spec"].get("runStrategy") == "Halted"
    return is_halted and names.INSUFFICIENT_QUOTA_ANNOTATION in annotations_of(vm)


async def start_halted_vm(scope: MachineScope, vm: Obj) -> None:
    """Start a VM that a quota has halted.

    Raises `Blocked` while the quota has no room, `ApiError` and `Unreachable` for a retry. Raises
    `Conflict` if the VM has changed, because a user may have stopped it.
    """
    quota_message = annotations_of(vm)[names.INSUFFICIENT_QUOTA_ANNOTATION]
    _wait_after_start(scope, plain(quota_message, MAX_QUOTA_TEXT))
    check_quota(scope)

    # Without the annotation, Harvester turns a start into RerunOnFailure.
    annotations = {names.RUN_STRATEGY_ANNOTATION: RUN_STRATEGY}
    metadata = {"resourceVersion": vm["metadata"]["resourceVersion"], "annotations": annotations}
    patch = {"metadata": metadata, "spec": {"runStrategy": RUN_STRATEGY}}
    namespace = scope.namespace()
    key = _vm_key(scope)
    try:
        started_vm = await scope.session().client.patch(
            resources.VIRTUAL_MACHINES, key.name, key.namespace, patch
        )
    except (Forbidden, Invalid) as error:
        raise handle_refusal(scope, error) from None
    namespace.vms.observe(started_vm)

    if not scope.memory.quota.starts:
        record_free_quota(scope)
        scope.event(
            "VMStarted",
            f"started VirtualMachine {key}, which Harvester had stopped because of a quota",
        )
    scope.memory.quota.starts += 1
    scope.memory.quota.halted_at = None


def started_after_quota(scope: MachineScope, vm: Obj) -> bool:
    """Return whether this process started a VM, and Harvester has not halted it again."""
    return bool(scope.memory.quota.starts) and vm["spec"].get("runStrategy") == RUN_STRATEGY


def vm_starting(scope: MachineScope) -> Blocked:
    """Return the `Blocked` of a machine whose VM was started and does not run yet."""
    return scope.in_progress("the VM is starting", Watched.VM)


def record_running_vm(scope: MachineScope) -> None:
    """Let the waiting machines try at once, if a quota had halted the VM that now runs."""
    if scope.memory.quota.starts:
        scope.memory.quota.starts = 0
        scope.memory.quota.halted_at = None
        scope.context.memory.quotas.record_running_vm(_quota_key(scope))


def _wait_after_start(scope: MachineScope, quota_message: str) -> None:
    """Raise `Blocked` for some time after a failed start, longer each time.

    The wait ends early if another VM begins to run.
    """
    # Harvester's webhook knows the quotas of Rancher only. It admits each start over any other
    # ResourceQuota, which then refuses the Pod of the VM.
    memory = scope.memory
    current_time = time.monotonic()
    if not memory.quota.starts:
        return
    if memory.quota.halted_at is None:
        memory.quota.halted_at = current_time
        _close_quota(scope, quota_message)

    seconds = REFUSED_SECONDS * 2 ** min(memory.quota.starts - 1, _MAX_DOUBLINGS)
    delay = memory.quota.halted_at + seconds - current_time
    quotas = scope.context.memory.quotas
    if delay <= 0 or quotas.ran_since(_quota_key(scope), memory.quota.halted_at):
        return

    # Wake up regularly, because no event reports that another VM runs.
    wake = Delay(min(delay, REFUSED_SECONDS))
    # Further failed starts are not reported.
    is_first = memory.quota.starts == 1
    raise _failure(scope, _message(scope, quota_message), wake, Watched.VM, warn=is_first)


def _failure(scope: MachineScope, message: str, *sources: Trigger, warn: bool = True) -> Blocked:
    """Return the `Blocked` of a machine that waits for the quota."""
    return scope.failure(message, *sources, reason=Reason.QUOTA_EXHAUSTED, warn=warn)


def _close_quota(scope: MachineScope, quota_message: str) -> str:
    """Record that the quota is used up, and return the message for all machines."""
    message = _message(scope, quota_message)
    scope.context.memory.quotas.close(_quota_key(scope), message, REFUSED_SECONDS)
    return message


def _message(scope: MachineScope, quota_message: str) -> str:
    """Return a message for all machines, from Harvester's message about one VM."""
    detail = quota_message.replace(str(_vm_key(scope)), "the VM").replace(scope.name, "the VM")
    return (
        f"the quota of namespace {scope.target_namespace} on Harvester is used up: raise it, or "
        f"delete VMs there; Harvester says: {detail}"
    )


def _quota_key(scope: MachineScope) -> tuple[str, str]:
    return scope.session().fingerprint, scope.target_namespace


def _vm_key(scope: MachineScope) -> Key:
    return Key(scope.target_namespace, scope.name)
