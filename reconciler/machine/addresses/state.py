"""Report in one condition what all sources of a machine's addresses say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.names import ConditionType, Reason
from reconciler import metrics
from reconciler.machine.scope import MachineScope


@dataclass(frozen=True, slots=True)
class AddressState:
    """What one source says about the addresses of a machine with a VM.

    :param failures: why addresses are no longer reserved
    :param is_reserved: whether all addresses are known and reserved. False if one is not known,
        None if the source leaves the decision to others
    :param of_pools: whether the source is IPPools on Harvester
    """

    failures: tuple[str, ...] = ()
    is_reserved: bool | None = None
    of_pools: bool = True


def report_addresses(scope: MachineScope, states: Iterable[AddressState]) -> None:
    """Set the condition of the addresses once, with an Event if its message is new.

    A condition that several sources set in turn would change in every reconcile.
    """
    condition, reason = ConditionType.VM_IP_ALLOCATED, Reason.VM_IP_ALLOCATION_FAILED
    all_states = list(states)
    failures = "; ".join(failure for state in all_states for failure in state.failures)
    if failures:
        if not scope.draft.has_message(condition, failures):
            if any(state.failures and state.of_pools for state in all_states):
                metrics.IPPOOL_ALLOCATION_ERRORS.inc()
            scope.warning_event(reason, failures)
        scope.draft.set_false(condition, reason, failures)
    elif any(state.is_reserved is False for state in all_states):
        scope.draft.drop(condition)
    elif any(state.is_reserved for state in all_states):
        scope.draft.set_true(condition)
