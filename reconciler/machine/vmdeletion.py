"""Delete the VM of a machine, and help Harvester if it would keep the VM forever."""

from __future__ import annotations

import time
from http import HTTPStatus

from caphv.api import resources
from caphv.api.guestparts import hotplugged_claims
from caphv.api.object import Obj, being_deleted, text_at
from caphv.api.virtualmachine import claims_of, deletion_list, listed_claims
from caphv.runtime.errors import Conflict, Invalid, NotFound, RequestError
from reconciler import metrics
from reconciler.blocked import Blocked
from reconciler.harvester.views import TargetNamespace
from reconciler.machine.adoption import complete_vm
from reconciler.machine.diskdeletion import claims_of_others, claims_to_delete
from reconciler.machine.scope import MachineScope
from reconciler.machine.vmclaims import without
from reconciler.machine.vmstatus import describe_host, is_host_down
from reconciler.triggers import Delay, Watched

# An instance may take so many seconds to stop. Harvester gives a guest 120 seconds to shut down.
_STOP_SECONDS = 180.0
# KubeVirt gets so many seconds to remove its finalizer from a VM that has stopped.
_KUBEVIRT_SECONDS = 5.0
# The finalizers of a VM are reported so many seconds after it has stopped.
_FINALIZER_SECONDS = 10.0
# Seconds until a retry after Harvester has refused to halt a VM.
_REFUSED_SECONDS = 15.0
# The controller that removes each finalizer, and the Deployment that runs this controller.
_FINALIZERS = {
    "kubevirt.io/virtualMachineControllerFinalize": "KubeVirt: check Deployment virt-controller",
    "wrangler.cattle.io/VMController.CleanupPVCAndSnapshot": (
        "Harvester: check Deployment harvester"
    ),
    "wrangler.cattle.io/harvester-lb-vm-controller": (
        "Harvester's load balancer controller: check Deployment harvester-load-balancer"
    ),
}


async def delete_vm(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> None:
    """Delete the VM, and return once it is deleted.

    Raises `Blocked` while it exists, `ApiError` and `Unreachable` for a retry.
    """
    refusal = ""
    try:
        vm = await complete_vm(scope, vm)
        if being_deleted(vm):
            await _release_volumes(scope, namespace, vm)
            refusal = await _halt_stopped_vm(scope, namespace, vm)
        elif await _request_deletion(scope, namespace, vm):
            return
    except NotFound:
        namespace.vms.forget(scope.target_namespace, scope.name)
        return
    except RequestError as error:
        metrics.MACHINE_DELETE_ERRORS.inc()
        # A conflict only means that the cache lags behind. The retry has the newer version.
        if not isinstance(error, Conflict):
            message = f"cannot delete VirtualMachine {scope.name}: {error}"
            scope.warning_event("VMDeletionFailed", message)
        raise

    raise _vm_remains(scope, namespace, vm, refusal)


async def _request_deletion(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> bool:
    """Have Harvester delete the VM with its disks, and return whether it is deleted at once."""
    # Write the list first, because Harvester reads it when the VM is deleted.
    claims = claims_to_delete(scope, namespace, vm)
    metrics.MACHINE_DELETE.inc()
    await _list_for_deletion(scope, vm, claims)
    answer = await scope.session().client.delete(
        resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, uid=vm["metadata"]["uid"]
    )
    scope.memory.deletion.vm_deletion_requested = True
    if namespace.vms.observe_deletion(scope.target_namespace, scope.name, answer):
        return True

    kept = ", ".join(sorted(claims_of(vm).difference(claims)))
    keeps = f"; kept, because not the machine's or in use elsewhere: {kept}" if kept else ""
    scope.event(
        "VMDeletionStarted",
        f"deleting VirtualMachine {scope.target_namespace}/{scope.name}{keeps}",
    )
    return False


async def _list_for_deletion(scope: MachineScope, vm: Obj, claims: list[str]) -> None:
    """Have Harvester delete these claims with the VM.

    Raises `Conflict` if the VM has changed or another one has its name now, and `Invalid` if
    Harvester refuses the list and would delete other volumes with the VM.
    """
    listed = listed_claims(vm)
    if listed == set(claims):
        return
    # The name alone would give the list to a VM that replaced this one. A patch with another uid is
    # refused as invalid, one with another version as a conflict.
    metadata = deletion_list(claims)
    metadata["resourceVersion"] = vm["metadata"]["resourceVersion"]
    try:
        await scope.session().client.patch(
            resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, {"metadata": metadata}
        )
    except Invalid:
        # Harvester refuses any update of a VM that shares a volume with another VM, or whose
        # network no longer exists. Such a VM is deleted without its disks, which follow later.
        if not listed <= set(claims):
            raise


async def _release_volumes(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> None:
    """Remove shared volumes from a stopped VM that is being deleted.

    Harvester refuses every update of a VM that shares volumes with another VM. It even refuses to
    remove the finalizers, so the VM would stay forever (harvester#5515).
    """
    if namespace.instances.get(scope.target_namespace, scope.name):
        return  # the guest writes to the volumes until it has stopped
    shared = claims_of_others(scope, namespace) & (claims_of(vm) | listed_claims(vm))
    if not shared:
        return

    metadata = deletion_list(claims_to_delete(scope, namespace, vm))
    # The patch replaces whole lists, so it requires the version from which they were computed.
    metadata["resourceVersion"] = vm["metadata"]["resourceVersion"]
    await _patch_vm(scope, namespace, {"metadata": metadata, "spec": without(vm, shared)})


async def _halt_stopped_vm(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> str:
    """Halt a VM that is being deleted but stays although its instance has stopped.

    Detaches volumes that were hot-plugged to it: no other VM could have them. Returns why Harvester
    refuses that because of a backup, else an empty text. Raises `Blocked` while KubeVirt may still
    remove its own finalizer.
    """
    # Harvester checks the quota of the namespace at each update of a VM without a Pod, unless the
    # VM is Halted. While the quota is full, it refuses the update with which KubeVirt removes its
    # finalizer, and the VM would stay.
    spec = vm["spec"]
    hotplugged = hotplugged_claims(vm)
    is_halted = spec.get("runStrategy") == "Halted" or spec.get("running") is False
    if (is_halted and not hotplugged) or namespace.instances.get(
        scope.target_namespace, scope.name
    ):
        return ""

    patience = _KUBEVIRT_SECONDS - _seconds_since_stop(scope)
    if patience > 0:
        raise scope.in_progress(_waiting_for_vm(scope), Delay(patience))

    changes: Obj = without(vm, hotplugged) if hotplugged else {}
    if not is_halted:
        # A VM has only one of the two fields.
        changes |= {"running": False} if "running" in spec else {"runStrategy": "Halted"}
    metadata = {"resourceVersion": vm["metadata"]["resourceVersion"]}
    try:
        await _patch_vm(scope, namespace, {"metadata": metadata, "spec": changes})
    except Invalid as error:
        # Harvester halts no VM of which a backup is not ready or has failed, even if it has stopped
        # (harvester: `checkVMBackup` in pkg/webhook/resources/virtualmachine/validator.go). Another
        # controller may be why the VM stays, and must be reported as well.
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
        return f"; Harvester does not halt the VM: {error.message}"
    return ""


async def _patch_vm(scope: MachineScope, namespace: TargetNamespace, patch: Obj) -> None:
    """Patch the VM, and put the response into the cache."""
    patched = await scope.session().client.patch(
        resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch
    )
    namespace.vms.observe(patched)


def _seconds_since_stop(scope: MachineScope) -> float:
    """Return for how many seconds a VM that is being deleted has had no instance."""
    current_time = time.monotonic()
    scope.memory.deletion.vm_stopped_at = scope.memory.deletion.vm_stopped_at or current_time
    return current_time - scope.memory.deletion.vm_stopped_at


def _vm_remains(scope: MachineScope, namespace: TargetNamespace, vm: Obj, refusal: str) -> Blocked:
    """Return the `Blocked` of a deletion that waits for the instance or finalizers of the VM.

    :param refusal: why Harvester does not halt the VM, to be appended; empty if it does
    """
    instance = namespace.instances.get(scope.target_namespace, scope.name)
    if instance:
        return instance_remains(scope, instance, _waiting_for_vm(scope))
    if not being_deleted(vm):
        return scope.in_progress(_waiting_for_vm(scope), Watched.VM)

    patience = _FINALIZER_SECONDS - _seconds_since_stop(scope)
    if patience > 0:
        return scope.in_progress(_waiting_for_vm(scope), Delay(patience))

    # Since Harvester 1.8 every VM has a finalizer of the load balancer controller, and stays while
    # that controller does not run.
    finalizers = vm["metadata"].get("finalizers") or ()
    responsible = "; ".join(
        f"finalizer {name} is removed by {_FINALIZERS.get(name, 'another controller')}"
        for name in finalizers
    )
    message = f"{_waiting_for_vm(scope)}: {responsible}{refusal}"
    # No event reports the end of a backup.
    retry = [Delay(_REFUSED_SECONDS)] if refusal else []
    return scope.in_progress(message, Watched.VM, *retry, warn=True)


def instance_remains(scope: MachineScope, instance: Obj, message: str) -> Blocked:
    """Return the `Blocked` of a deletion that waits for an instance to stop.

    The instances of a host that is down do not stop. After `_STOP_SECONDS`, the message names the
    host and what ends the wait.

    :param message: what the deletion waits for
    """
    current_time = time.monotonic()
    if scope.memory.deletion.vm_stopping_since is None:
        scope.memory.deletion.vm_stopping_since = current_time
    patience = _STOP_SECONDS - (current_time - scope.memory.deletion.vm_stopping_since)
    if patience > 0:
        return scope.in_progress(message, Watched.VM, Delay(patience))
    return scope.in_progress(f"{message}: {_why_running(scope, instance)}", Watched.VM, warn=True)


def _why_running(scope: MachineScope, instance: Obj) -> str:
    """Return on which host an instance does not stop, and how it can be ended there."""
    host = text_at(instance, "status", "nodeName")
    if not host:
        return "the instance has not stopped: check its virt-launcher Pod on Harvester"
    hosts = scope.session().hosts.store
    problem = f"the guest has not stopped on host {describe_host(host, hosts)}"
    if not is_host_down(host, hosts):
        return f"{problem}: check its virt-launcher Pod and virt-handler of {host} on Harvester"

    # KubeVirt gives an instance up once its Pod no longer exists. With the setting, Harvester
    # deletes the Pods of such a host by force, since 1.7 by a taint (harvester: `OnNodeChanged` in
    # pkg/controller/master/node/node_down_controller.go).
    return (
        f"{problem}: start {host}, or enable Harvester's setting vm-force-reset-policy, which ends "
        f"the guests of such hosts after its period; once {host} is off, you can also force-delete "
        "the VM's virt-launcher Pod on Harvester"
    )


def _waiting_for_vm(scope: MachineScope) -> str:
    return f"waiting for VirtualMachine {scope.name} on Harvester to be deleted"
