"""The status of a machine with a VM: addresses, failure domain, instance and host, drift.

The last observed instance is kept in the status, so that restarts and live migrations are noticed even if they happened
while no provider was running.
"""

from __future__ import annotations

import logging
from typing import Any

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, uid_of
from reconciler.harvester.topology import domain_of_host
from reconciler.machine.create import inputs_of
from reconciler.machine.drift import drift
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import InvalidSpecError, virtual_machine
from reconciler.machine.vmstatus import addresses

log = logging.getLogger(__name__)


def observe(scope: MachineScope, vm: Obj, vmi: Obj | None) -> bool:
    """Update the status from VM and instance; return whether the VM has an address."""
    found = addresses(vmi) if vmi else []
    if found:
        if not scope.draft.fields.get("addresses"):
            _log_once(scope, f"VM has address {found[0]['address']}")
        scope.draft.fields["addresses"] = found
    before: dict[str, Any] = scope.draft.fields.get("virtualMachine") or {}
    scope.draft.fields["virtualMachine"] = {**before, "uid": uid_of(vm)}
    host = (vmi or {}).get("status", {}).get("nodeName")
    if vmi and host:
        _placed(scope, before, vmi, host)
    return bool(found)


def _placed(scope: MachineScope, before: dict[str, Any], vmi: Obj, host: str) -> None:
    instance = uid_of(vmi)
    scope.draft.fields["virtualMachine"] |= {"instanceUID": instance, "host": host}
    if domain := _failure_domain(scope, vmi):
        scope.draft.fields["failureDomain"] = domain
    earlier_instance, earlier = before.get("instanceUID"), before.get("host")
    if earlier_instance and scope.memory.placed:
        # The status is written later, while the VM's state is transient. An adopted VM has no earlier instance.
        earlier_instance, earlier = scope.memory.placed
    scope.memory.placed = (instance, host)
    if earlier_instance not in (None, instance):
        moved = f", previously on {earlier}" if earlier not in (None, host) else ""
        # The machine stays ready through a restart that a user requests.
        report = scope.event if scope.draft.fields.get("ready") else scope.warning_event
        report("VMRestarted", f"VM restarted on host {host}{moved}")
    elif earlier is None:
        _log_once(scope, f"VM is on host {host}")
    elif earlier != host:
        scope.event("VMMigrated", f"VM migrated from host {earlier} to {host}")


def _log_once(scope: MachineScope, text: str) -> None:
    # Transient states are reconciled often, and written seldom.
    if text not in scope.memory.logged:
        scope.memory.logged.add(text)
        log.info("%s", text)


def _failure_domain(scope: MachineScope, vmi: Obj) -> str:
    host = scope.host_of(vmi)
    return domain_of_host(scope.failure_domains, host) if host else ""


def report_drift(scope: MachineScope, vm: Obj) -> None:
    """Set condition `VMUpToDate`, with an Event for news; VM and machine are compared only when one has changed."""
    version = (
        uid_of(vm),
        vm["metadata"].get("generation"),
        annotations_of(vm).get(names.VOLUME_CLAIM_TEMPLATES_ANNOTATION),
        scope.obj["metadata"].get("generation"),
        scope.failure_domain,
    )
    known, message = scope.memory.drift or (None, "")
    if known != version:
        message = _differences(scope, vm)
        scope.memory.drift = (version, message)
    if not message:
        scope.draft.set_true(ConditionType.VM_UP_TO_DATE)
        return
    if not scope.draft.has_message(ConditionType.VM_UP_TO_DATE, message):
        scope.warning_event("VMDrifted", message)
    scope.draft.set_false(ConditionType.VM_UP_TO_DATE, Reason.VM_DIFFERS, message)


def _differences(scope: MachineScope, vm: Obj) -> str:
    try:
        inputs = inputs_of(scope)
        found = drift(virtual_machine(inputs), vm, inputs.requirement)
    except InvalidSpecError as error:
        return f"the machine's spec is not valid for a VM: {error}"
    return f"{'; '.join(found)}: correct the VM on Harvester, or replace the machine" if found else ""
