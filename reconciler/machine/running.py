"""Decide by VM and instance whether a machine is ready: its VM runs and has an address.

A ready machine stays ready through normal events, for example a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import Enum

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from caphv.api.virtualmachine import claims_of
from reconciler.blocked import Blocked
from reconciler.machine.addresses.interfaces import known_pool_addresses
from reconciler.machine.addresses.ipamclaims import known_addresses
from reconciler.machine.guestinterfaces import static_addresses
from reconciler.machine.hostresources import has_host_resources
from reconciler.machine.network import StaticAddress, effective_network
from reconciler.machine.node import is_guest_of
from reconciler.machine.quota import (
    halted_by_quota,
    record_running_vm,
    start_halted_vm,
    started_after_quota,
    vm_starting,
)
from reconciler.machine.report import report_vm
from reconciler.machine.scope import MachineScope
from reconciler.machine.shortage import Shortage, find_refusal, find_shortage
from reconciler.machine.vmpolicy import AGENT_SECONDS, SHORTAGE_SECONDS, Verdict, decide
from reconciler.machine.vmstatus import (
    VmPhase,
    VmState,
    is_agent_connected,
    typed_addresses,
    vm_state,
)
from reconciler.triggers import Delay, Watched

_BOUND = "Bound"
_REFRESH_SECONDS = 30.0


class VmAvailability(Enum):
    """What a VM that does not block its machine does."""

    RUNNING = "The VM runs and has an address."
    SHORTLY_DOWN = "The VM does not run, but soon will. The machine stays ready, as it is reported."


async def ensure_running_vm(scope: MachineScope, vm: Obj, vmi: Obj | None) -> VmAvailability:
    """Update the status from VM and instance, and start a new VM that a quota has halted.

    Does not wait. Raises `Blocked` if the VM does not run, or has no address yet, unless a ready
    machine stays ready meanwhile (`SHORTLY_DOWN`).

    :param vmi: the instance of the VM, None if there is none
    """
    state = vm_state(vm, vmi, _claim_phases(scope, vm), _hosts(scope))
    has_reported = report_vm(scope, vm, vmi)

    # No user stopped such a VM, so no user has to start it.
    if state.phase is VmPhase.STOPPED and halted_by_quota(scope, vm):
        await start_halted_vm(scope, vm)
        raise vm_starting(scope)
    if state.phase is VmPhase.STOPPED and started_after_quota(scope, vm):
        raise vm_starting(scope)

    # Measure a running VM, too, so that the clock begins again at the next stop.
    phase = scope.memory.vm_clock.follow(state.phase)
    lasted, down = scope.memory.vm_clock.measure(phase, time.monotonic())
    if phase is VmPhase.RUNNING:
        record_running_vm(scope)
        _require_address(scope, vmi or {}, has_reported=has_reported)
        return VmAvailability.RUNNING

    is_ready = bool(scope.draft.fields.get("ready"))
    provisioned = bool(scope.draft.fields.get("initialization"))
    verdict = decide(phase, provisioned=provisioned, ready=is_ready, lasted=lasted, down=down)
    if not verdict.holds:
        raise _not_running(scope, state, verdict, lasted, is_ready=is_ready)
    scope.requeue_in(verdict.review_after)
    return VmAvailability.SHORTLY_DOWN


def _claim_phases(scope: MachineScope, vm: Obj) -> dict[str, str]:
    """Return the phases of the VM's existing claims by name.

    The cache keeps the status of a claim only while it is not bound.
    """
    informer = scope.namespace().claims
    claims = {name: informer.get(scope.target_namespace, name) for name in claims_of(vm)}
    return {
        name: claim["status"]["phase"] if "status" in claim else _BOUND
        for name, claim in claims.items()
        if claim
    }


def _hosts(scope: MachineScope) -> Iterator[Obj]:
    """Yield the hosts of Harvester. A VM that runs needs none, so they are read only on use."""
    yield from scope.session().hosts.store


def _not_running(
    scope: MachineScope, state: VmState, verdict: Verdict, lasted: float, *, is_ready: bool
) -> Blocked:
    """Return the `Blocked` of a machine whose VM does not run.

    :param lasted: seconds since the VM entered this phase
    """
    delays = []
    if verdict.review_after is not None:
        delays.append(Delay(verdict.review_after))

    message = state.message
    condition, reason = ConditionType.VM_PROVISIONING_READY, Reason.DEVICES_EXHAUSTED
    # A restart of the provider resets the clock, but not what was reported.
    is_reported = scope.draft.has_reason(condition, reason)
    is_over = lasted >= SHORTAGE_SECONDS or is_reported
    shortage = _find_shortage(scope, state)
    if shortage:
        message = f"{shortage.message} ({state.message})"
    if shortage or _may_lack_resources(scope, state):
        # The scheduler takes a free device at once, and then the VM changes. Until then only the
        # message follows what other VMs and hosts do.
        delays.append(Delay(_REFRESH_SECONDS if is_over else SHORTAGE_SECONDS - lasted))
    if shortage and shortage.devices and (is_over or verdict.failed):
        # How many are free changes with the VMs of others, which is no news.
        return Blocked(condition, reason, message, Watched.VM, *delays, warn=not is_reported)
    if verdict.failed:
        cause = Reason.QUOTA_EXHAUSTED if state.over_quota else Reason.VM_PROVISIONING_FAILED
        return scope.failure(message, Watched.VM, *delays, reason=cause)

    # This is normal during creation, but deserves an Event if the machine was ready.
    return scope.in_progress(message, Watched.VM, *delays, warn=is_ready)


def _may_lack_resources(scope: MachineScope, state: VmState) -> bool:
    """Return whether a VM may have no host because of devices, pinned CPUs or huge pages."""
    return state.phase is VmPhase.UNSCHEDULABLE and has_host_resources(scope.spec)


def _find_shortage(scope: MachineScope, state: VmState) -> Shortage | None:
    """Return which resources no host has free for a VM without a host; None for other causes."""
    # A VM is starting for as long as KubeVirt refuses to create its Pod.
    if state.phase is VmPhase.STARTING:
        return find_refusal(scope.spec, state.detail)
    if not _may_lack_resources(scope, state):
        return None
    session = scope.session()
    instances = (
        instance
        for namespace in session.namespaces.values()
        for instance in namespace.instances.store
    )
    return find_shortage(scope.spec, session.hosts.store, instances, state.detail)


def _require_address(scope: MachineScope, vmi: Obj, *, has_reported: bool) -> None:
    """Report whether the guest agent answers. Raises `Blocked` while no address is known.

    After a reboot or migration, the agent is silent for a while, and the instance has no addresses
    then.

    :param has_reported: whether the instance has addresses
    """
    answers = is_agent_connected(vmi) or has_reported
    silence = scope.memory.vm_clock.silence(time.monotonic(), answers=answers)
    is_silent = silence >= AGENT_SECONDS
    if answers:
        scope.draft.set_true(ConditionType.GUEST_AGENT_CONNECTED)
    elif not is_silent:
        scope.requeue_in(AGENT_SECONDS - silence)

    # A Node that has joined proves that the guest configured the address.
    addresses = [] if scope.draft.fields.get("addresses") else reserved_addresses(scope)
    if addresses and (is_silent or _has_joined(scope, vmi)):
        scope.draft.fields["addresses"] = typed_addresses(addresses)
    has_address = bool(scope.draft.fields.get("addresses"))
    if is_silent:
        _report_silence(scope, has_address=has_address)

    if not has_address:
        raise scope.in_progress(
            "VM is running, waiting for its address: the qemu-guest-agent in the guest has not "
            "reported one",
            Watched.VM,
        )
    # This guest may be the first that serves the workload API.
    if scope.control_plane and scope.cluster_key:
        scope.context.workloads.hint(scope.cluster_key)


def _report_silence(scope: MachineScope, *, has_address: bool) -> None:
    """Set the condition of a guest agent that does not answer, with an Event if that is new."""
    minutes = AGENT_SECONDS / 60
    effect = "its known address is used" if has_address else "its address is not known without it"
    message = (
        f"the guest agent has not answered for {minutes:.0f} minutes, and {effect}: check that "
        "qemu-guest-agent is installed and runs in the guest"
    )
    condition = ConditionType.GUEST_AGENT_CONNECTED
    reason = Reason.GUEST_AGENT_SILENT
    if not scope.draft.has_message(condition, message):
        scope.warning_event(reason, message)
    scope.draft.set_false(condition, reason, message)


def reserved_addresses(scope: MachineScope) -> list[str]:
    """Return the addresses that the guest configures by itself; none with DHCP."""
    network = effective_network(scope.spec, scope.cluster_spec)
    address = str(scope.draft.fields.get("allocatedIPAddress") or "")
    if isinstance(network, StaticAddress):
        address = network.address
    static = [static.address for _, static in static_addresses(scope.spec)]
    return [
        *([address] if address else ()),
        *static,
        *known_pool_addresses(scope),
        *known_addresses(scope),
    ]


def _has_joined(scope: MachineScope, vmi: Obj) -> bool:
    """Return whether the guest has registered its Node, and is therefore reachable."""
    if not scope.cluster_key:
        return False
    node = scope.context.workloads.node(scope.cluster_key, scope.name)
    return node is not None and is_guest_of(node, vmi) is True
