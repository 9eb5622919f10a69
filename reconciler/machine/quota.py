"""The quota of a target namespace: while it is used up, one machine at a time tries, and all report one message.

Harvester refuses to create a VM over the quota of storage. A VM over the quota of CPU or memory is created; Harvester
sets it to Halted, with an annotation, and never starts it again (harvester: pkg/util/resourcequota/calculator.go, and
`stopVM` in pkg/controller/master/virtualmachine). Its webhook refuses a start while the quota has no room for the VM.
"""

from __future__ import annotations

import re
import time

from caphv.api import names, resources
from caphv.api.object import Key, Obj, annotations_of
from caphv.api.plaintext import plain
from caphv.runtime.errors import ApiError, Forbidden, Invalid
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import RUN_STRATEGY
from reconciler.machine.vmstatus import LONGEST_QUOTA
from reconciler.status import Blocked
from reconciler.triggers import Delay, Watched

REFUSED = 15.0
"""Seconds until a request is retried that Harvester's admission refused."""

_QUOTA = re.compile("quota", re.IGNORECASE)
# The longest wait is REFUSED times two to the power of this.
_MOST_DOUBLINGS = 4


def check_quota(scope: MachineScope) -> None:
    """Raise `Blocked` while the quota of the target namespace is known to be used up, and another machine tries."""
    if waiting := scope.context.memory.quotas.wait(_quota_key(scope), REFUSED):
        message, seconds = waiting
        raise scope.failed(message, Delay(seconds))


def quota_has_room(scope: MachineScope) -> None:
    """Record that Harvester admitted a VM: the machines that wait may try."""
    scope.context.memory.quotas.open(_quota_key(scope))


def refusal(scope: MachineScope, error: ApiError) -> str:
    """Say what Harvester's admission lacks. A quota concerns all machines of the namespace, with one message."""
    if not _QUOTA.search(error.message):
        return f"Harvester refuses VirtualMachine {_vm_key(scope)}: {error.message}"
    return _used_up(scope, error.message, REFUSED)


def halted_by_quota(scope: MachineScope, vm: Obj) -> bool:
    """Whether a quota keeps a new machine from its first start.

    A machine that was provisioned is left alone: who stopped its VM, or left it stopped, had a reason.
    """
    status = scope.draft.fields
    provisioned = status.get("ready") or status.get("initialization") or scope.spec.get("providerID")
    halted = vm["spec"].get("runStrategy") == "Halted" and names.INSUFFICIENT_QUOTA_ANNOTATION in annotations_of(vm)
    return halted and not provisioned


async def start_halted(scope: MachineScope, vm: Obj) -> Blocked:
    """Start the VM that a quota has halted, and return what the machine waits for then.

    Raises `Blocked` while the quota has no room, `ApiError` and `Unreachable` for a retry: `Conflict` if the VM has
    changed, because a user may have stopped it.
    """
    _wait_after_start(scope, plain(annotations_of(vm)[names.INSUFFICIENT_QUOTA_ANNOTATION], LONGEST_QUOTA))
    check_quota(scope)
    # Without the annotation, Harvester turns a start into RerunOnFailure.
    annotations = {names.RUN_STRATEGY_ANNOTATION: RUN_STRATEGY}
    metadata = {"resourceVersion": vm["metadata"]["resourceVersion"], "annotations": annotations}
    patch = {"metadata": metadata, "spec": {"runStrategy": RUN_STRATEGY}}
    namespace, key = scope.namespace(), _vm_key(scope)
    try:
        started = await scope.session().client.patch(resources.VIRTUAL_MACHINES, key.name, key.namespace, patch)
    except (Forbidden, Invalid) as error:
        raise scope.failed(refusal(scope, error), Delay(REFUSED)) from None
    namespace.vms.observe(started)
    if not scope.memory.quota_starts:
        quota_has_room(scope)
        scope.event("VMStarted", f"started VirtualMachine {key}, which Harvester had stopped because of a quota")
    scope.memory.quota_starts += 1
    scope.memory.quota_halted_at = None
    return is_starting(scope)


def started_after_quota(scope: MachineScope, vm: Obj) -> bool:
    """Whether a VM that does not run yet was started here, and Harvester has not halted it again."""
    return bool(scope.memory.quota_starts) and vm["spec"].get("runStrategy") == RUN_STRATEGY


def is_starting(scope: MachineScope) -> Blocked:
    """The VM was started, and does not run yet."""
    return scope.in_progress("the VM is starting", Watched.VM)


def vm_runs(scope: MachineScope) -> None:
    """Let the machines that wait try at once, if a quota had halted the VM that runs now."""
    if scope.memory.quota_starts:
        scope.memory.quota_starts, scope.memory.quota_halted_at = 0, None
        scope.context.memory.quotas.runs(_quota_key(scope))


def _wait_after_start(scope: MachineScope, reason: str) -> None:
    """Raise `Blocked` for a while after a failed start, longer each time, unless another VM begins to run.

    Harvester's webhook knows the quotas of Rancher only. It admits each start over another ResourceQuota, which then
    refuses the Pod of the VM.
    """
    memory, now = scope.memory, time.monotonic()
    if not memory.quota_starts:
        return
    if memory.quota_halted_at is None:
        memory.quota_halted_at = now
        _used_up(scope, reason, REFUSED)
    seconds = REFUSED * 2 ** min(memory.quota_starts - 1, _MOST_DOUBLINGS)
    left = memory.quota_halted_at + seconds - now
    if left <= 0 or scope.context.memory.quotas.ran_since(_quota_key(scope), memory.quota_halted_at):
        return
    # Only a timer lets it notice that another VM runs.
    blocked = scope.failed(_message(scope, reason), Delay(min(left, REFUSED)), Watched.VM)
    # Further failed starts are not reported.
    blocked.warn = memory.quota_starts == 1
    raise blocked


def _used_up(scope: MachineScope, reason: str, seconds: float) -> str:
    """Record that the quota is used up, and return the message."""
    message = _message(scope, reason)
    scope.context.memory.quotas.close(_quota_key(scope), message, seconds)
    return message


def _message(scope: MachineScope, reason: str) -> str:
    detail = reason.replace(str(_vm_key(scope)), "the VM").replace(scope.name, "the VM")
    return (
        f"the quota of namespace {scope.target_namespace} on Harvester is used up: raise it, or delete VMs there; "
        f"Harvester says: {detail}"
    )


def _quota_key(scope: MachineScope) -> tuple[str, str]:
    return scope.session().fingerprint, scope.target_namespace


def _vm_key(scope: MachineScope) -> Key:
    return Key(scope.target_namespace, scope.name)
