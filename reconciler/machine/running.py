"""The step that waits for a running VM with an address, and keeps a ready machine ready through what is normal."""

from __future__ import annotations

import time
from dataclasses import dataclass

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from reconciler.machine.network import StaticAddress, effective_network
from reconciler.machine.node import is_guest_of
from reconciler.machine.quota import halted_by_quota, is_starting, start_halted, started_after_quota, vm_runs
from reconciler.machine.scope import MachineScope
from reconciler.machine.status import observe
from reconciler.machine.vmpolicy import AGENT_SECONDS, Verdict, decide
from reconciler.machine.vmstatus import VmPhase, VmState, agent_connected, typed_addresses, vm_state
from reconciler.machine.volumes import claims_of
from reconciler.status import Blocked
from reconciler.triggers import Delay, Watched

_BOUND = "Bound"


@dataclass(frozen=True)
class Running:
    """`holds`: the VM does not run, but is expected to soon, and the machine stays ready until then."""

    holds: bool = False


async def require_running(scope: MachineScope, vm: Obj, vmi: Obj | None) -> Running:
    """Update the status from the VM. Raises `Blocked` unless it runs and has an address, or is about to again."""
    state = vm_state(vm, vmi, _claim_phases(scope, vm))
    reported = observe(scope, vm, vmi)

    if state.phase is VmPhase.STOPPED and halted_by_quota(scope, vm):
        raise await start_halted(scope, vm)
    if state.phase is VmPhase.STOPPED and started_after_quota(scope, vm):
        raise is_starting(scope)

    phase = scope.memory.vm_clock.follow(state.phase)
    lasted, down = scope.memory.vm_clock.observe(phase, time.monotonic())
    if phase is VmPhase.RUNNING:
        vm_runs(scope)
        _require_address(scope, vmi or {}, reported=reported)
        return Running()

    if state.phase is VmPhase.MISSING:
        raise scope.failed(state.message, Watched.VM)
    ready = bool(scope.draft.fields.get("ready"))
    provisioned = bool(scope.draft.fields.get("initialization"))
    verdict = decide(phase, provisioned=provisioned, ready=ready, lasted=lasted, down=down)
    if not verdict.holds:
        raise _not_running(scope, state, verdict, ready=ready)
    scope.requeue_in(verdict.review_after)
    return Running(holds=True)


def _claim_phases(scope: MachineScope, vm: Obj) -> dict[str, str]:
    """Return the phases of the VM's existing claims by name; the cache keeps those of claims that are not bound."""
    informer = scope.namespace().claims
    claims = {name: informer.get(scope.target_namespace, name) for name in claims_of(vm)}
    return {
        name: _BOUND if "status" not in claim else claim["status"]["phase"] for name, claim in claims.items() if claim
    }


def _not_running(scope: MachineScope, state: VmState, verdict: Verdict, *, ready: bool) -> Blocked:
    if verdict.failed:
        return scope.failed(state.message, Watched.VM)
    # Normal during creation; for a machine that was ready it deserves an Event.
    blocked = scope.in_progress(state.message, Watched.VM, warn=ready)
    if verdict.review_after is not None:
        blocked.triggers = (*blocked.triggers, Delay(verdict.review_after))
    return blocked


def _require_address(scope: MachineScope, vmi: Obj, *, reported: bool) -> None:
    """Report whether the guest agent answers, and do without it where the address is known.

    The agent of a guest that was rebooted or migrated is silent for a while, and its addresses are then absent from the
    instance. Raises `Blocked` while no address is known.
    """
    answers = agent_connected(vmi) or reported
    silence = scope.memory.vm_clock.silence(time.monotonic(), answers=answers)
    is_silent = silence >= AGENT_SECONDS
    if answers:
        scope.draft.set_true(ConditionType.GUEST_AGENT_CONNECTED)
    elif not is_silent:
        scope.requeue_in(AGENT_SECONDS - silence)

    address = "" if scope.draft.fields.get("addresses") else reserved_address(scope)
    if address and (is_silent or _has_joined(scope, vmi)):
        scope.draft.fields["addresses"] = typed_addresses([address])
    has_address = bool(scope.draft.fields.get("addresses"))

    if is_silent:
        minutes = AGENT_SECONDS / 60
        used = "its known address is used" if has_address else "its address is not known without it"
        message = (
            f"the guest agent has not answered for {minutes:.0f} minutes, and {used}: check that qemu-guest-agent is "
            "installed and runs in the guest"
        )
        if not scope.draft.has_message(ConditionType.GUEST_AGENT_CONNECTED, message):
            scope.warning_event(Reason.GUEST_AGENT_SILENT, message)
        scope.draft.set_false(ConditionType.GUEST_AGENT_CONNECTED, Reason.GUEST_AGENT_SILENT, message)

    if not has_address:
        raise scope.in_progress(
            "VM is running, waiting for its address: the qemu-guest-agent in the guest has not reported one",
            Watched.VM,
        )
    if scope.control_plane and scope.cluster_key:
        scope.context.workloads.hint(scope.cluster_key)


def reserved_address(scope: MachineScope) -> str:
    """Return the address that the guest configures on its first NIC; empty with DHCP."""
    network = effective_network(scope.spec, scope.cluster_spec)
    if isinstance(network, StaticAddress):
        return network.address
    return str(scope.draft.fields.get("allocatedIPAddress") or "")


def _has_joined(scope: MachineScope, vmi: Obj) -> bool:
    """Whether the guest has registered its Node, and is therefore reachable."""
    node = scope.context.workloads.node(scope.cluster_key, scope.name) if scope.cluster_key else None
    return node is not None and is_guest_of(node, vmi) is True
