"""The quota of a target namespace: while it is used up, one machine at a time tries, and all report one message.

Harvester refuses to create a VM over the quota of storage. A VM over the quota of CPU or memory is created; Harvester
sets it to Halted, with an annotation, and never starts it again (harvester: pkg/util/resourcequota/calculator.go, and
`stopVM` in pkg/controller/master/virtualmachine). Its webhook refuses a start while the quota has no room for the VM.
"""

from __future__ import annotations

import re

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
    _record_start(scope, plain(annotations_of(vm)[names.INSUFFICIENT_QUOTA_ANNOTATION], LONGEST_QUOTA))
    scope.event("VMStarted", f"started VirtualMachine {key}, which Harvester had stopped because of a quota")
    return scope.in_progress("the VM is starting", Watched.VM)


def _record_start(scope: MachineScope, reason: str) -> None:
    """Let the next machine try; after a start in vain, later each time.

    Harvester's webhook knows the quotas of Rancher only. It admits each start over another ResourceQuota, which then
    refuses the Pod of the VM.
    """
    scope.memory.quota_starts += 1
    if scope.memory.quota_starts == 1:
        quota_has_room(scope)
    else:
        _used_up(scope, reason, REFUSED * 2 ** min(scope.memory.quota_starts - 2, _MOST_DOUBLINGS))


def _used_up(scope: MachineScope, reason: str, seconds: float) -> str:
    """Record that the quota is used up, and return the message."""
    detail = reason.replace(str(_vm_key(scope)), "the VM").replace(scope.name, "the VM")
    message = (
        f"the quota of namespace {scope.target_namespace} on Harvester is used up: raise it, or delete VMs there; "
        f"Harvester says: {detail}"
    )
    scope.context.memory.quotas.close(_quota_key(scope), message, seconds)
    return message


def _quota_key(scope: MachineScope) -> tuple[str, str]:
    return scope.session().fingerprint, scope.target_namespace


def _vm_key(scope: MachineScope) -> Key:
    return Key(scope.target_namespace, scope.name)
