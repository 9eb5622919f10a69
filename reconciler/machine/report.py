"""Report the status of a machine with a VM: addresses, failure domain, instance, host and drift.

The status keeps the last observed instance, so that the provider notices restarts and live
migrations even if they happened while no provider was running.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, at, text_at, uid_of
from caphv.api.vmdifferences import INVALID_SPEC
from reconciler import triggers
from reconciler.harvester.topology import domain_of_host
from reconciler.machine.diskgrowth import pending_disks
from reconciler.machine.drift import drift
from reconciler.machine.growth import describe_size, is_growing, updated_message
from reconciler.machine.images import ResolvedImage
from reconciler.machine.inplace import is_update_in_progress
from reconciler.machine.placement import domain_requirement
from reconciler.machine.scope import MachineScope, ProvisioningScope
from reconciler.machine.validation import InvalidSpecError
from reconciler.machine.vm import can_grow, virtual_machine
from reconciler.machine.vminputs import disk_images, inputs_of
from reconciler.machine.vmstatus import addresses
from reconciler.memory.machine import Comparison, Placement

log = logging.getLogger(__name__)


def report_vm(scope: MachineScope, vm: Obj, vmi: Obj | None) -> bool:
    """Put addresses, instance, host and failure domain into the status.

    Returns whether the instance has an address. Without one, the status keeps its addresses.
    """
    fields = scope.draft.fields
    endpoint = text_at(scope.cluster_spec, "controlPlaneEndpoint", "host")
    reported = addresses(vmi, endpoint) if vmi else []
    if reported:
        if not fields.get("addresses"):
            _log_once(scope, f"VM has address {reported[0]['address']}")
        fields["addresses"] = reported

    recorded: Obj = fields.get("virtualMachine") or {}
    fields["virtualMachine"] = {**recorded, "uid": uid_of(vm)}
    host = at(vmi, "status", "nodeName")
    if vmi and host:
        _report_host(scope, recorded, vmi, host)
    return bool(reported)


def _report_host(scope: MachineScope, recorded: Obj, vmi: Obj, host: str) -> None:
    """Put instance, host and failure domain into the status, and report a restart or a migration.

    :param recorded: `status.virtualMachine` of the last reconcile
    :param host: name of the host on which the instance runs
    """
    instance = uid_of(vmi)
    scope.draft.fields["virtualMachine"] |= {"instanceUID": instance, "host": host}
    host_object = scope.host_of(vmi)
    domain = domain_of_host(scope.failure_domains, host_object) if host_object else ""
    if domain:
        scope.draft.fields["failureDomain"] = domain

    old_instance = recorded.get("instanceUID")
    old_host = recorded.get("host")
    if old_instance and scope.memory.placed:
        # Memory is newer than the status, because a status with a transient state is written later.
        # An adopted VM has no earlier instance.
        old_instance, old_host = scope.memory.placed
    scope.memory.placed = Placement(instance, host)

    if old_instance not in (None, instance):
        origin = f", previously on {old_host}" if old_host not in (None, host) else ""
        # A ready machine stays ready through a restart that a user requests, so no warning is due.
        report = scope.event if scope.draft.fields.get("ready") else scope.warning_event
        report("VMRestarted", f"VM restarted on host {host}{origin}")
    elif old_host is None:
        _log_once(scope, f"VM is on host {host}")
    elif old_host != host:
        scope.event("VMMigrated", f"VM migrated from host {old_host} to {host}")


def _log_once(scope: MachineScope, text: str) -> None:
    """Log a text once for each machine."""
    # Memory decides instead of the status, which is seldom written during transient states.
    if text not in scope.memory.logged:
        scope.memory.logged.add(text)
        log.info("%s", text)


def report_drift(scope: ProvisioningScope, vm: Obj, vmi: Obj | None, refusal: str = "") -> None:
    """Set condition `VMUpToDate`, with an Event for a new difference.

    Requeues a machine whose VM differs when an image of Harvester changes.

    :param vmi: the instance of the VM, None if there is none
    :param refusal: why the VM cannot follow an update in place yet, empty if it can
    """
    if refusal:
        # The VM differs from the spec until it can follow, and no user could correct it.
        scope.draft.set_false(ConditionType.VM_UP_TO_DATE, Reason.VM_UPDATING, refusal)
        return

    # Subscribe before the images are read, so that no change is missed.
    changed_image = scope.subscribe(triggers.images(scope.session().fingerprint))
    images = disk_images(scope, vm)
    # The comparison is costly, so it is repeated only after one of its inputs has changed.
    version = _compared_version(scope, vm, images)
    if scope.memory.drift is None or scope.memory.drift.version != version:
        scope.memory.drift = Comparison(version, _differences(scope, vm))

    message = scope.memory.drift.difference
    if not message:
        changed_image.cancel()
        _report_equal_vm(scope, vm, vmi)
        return
    if not scope.draft.has_message(ConditionType.VM_UP_TO_DATE, message):
        scope.warning_event("VMDrifted", message)
    scope.draft.set_false(ConditionType.VM_UP_TO_DATE, Reason.VM_DIFFERS, message)


def _report_equal_vm(scope: MachineScope, vm: Obj, vmi: Obj | None) -> None:
    """Report whether the instance of a VM that matches the spec has its size, too."""
    condition = ConditionType.VM_UP_TO_DATE
    if not is_update_in_progress(scope.obj):
        scope.draft.set_true(condition)
    elif can_grow(vm) and is_growing(vm, vmi):
        message = (
            f"the VM migrates in order to get {describe_size(scope.spec)}; if this stays, another "
            "host needs room for it"
        )
        scope.draft.set_false(condition, Reason.VM_UPDATING, message)
    elif pending := list(pending_disks(vm, vmi, scope.spec.get("volumes") or ())):
        message = f"Harvester changes disks of the VM: {'; '.join(pending)}"
        scope.draft.set_false(condition, Reason.VM_UPDATING, message)
    else:
        scope.draft.set_true(condition, updated_message(scope.spec))


def _compared_version(
    scope: MachineScope, vm: Obj, images: Mapping[str, ResolvedImage]
) -> Hashable:
    """Return everything that a comparison depends on and that may change."""
    annotations = annotations_of(vm)
    requirement = domain_requirement(scope.failure_domain, scope.failure_domains) or {}
    return (
        uid_of(vm),
        vm["metadata"].get("generation"),
        annotations.get(names.VOLUME_CLAIM_TEMPLATES_ANNOTATION),
        annotations.get(names.HOTPLUG_ANNOTATION),
        scope.obj["metadata"].get("generation"),
        scope.control_plane,
        scope.failure_domain,
        requirement.get("key"),
        frozenset(images.items()),
    )


def _differences(scope: ProvisioningScope, vm: Obj) -> str:
    """Describe how the VM differs from the machine's spec; empty if it does not."""
    try:
        inputs = inputs_of(scope, vm)
        differences = drift(virtual_machine(inputs), vm, inputs.requirement)
    except InvalidSpecError as error:
        return f"{INVALID_SPEC} for a VM: {error}"
    if not differences:
        return ""
    return f"{'; '.join(differences)}: correct the VM on Harvester, or replace the machine"
