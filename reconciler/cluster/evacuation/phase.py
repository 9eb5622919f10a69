"""Move guests off evacuated hosts, and report the progress in condition `HostsEvacuated`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from caphv.api import evacuation
from caphv.api.conditions import MAX_MESSAGE, get_condition
from caphv.api.counting import name_some
from caphv.api.names import (
    EVACUATE_ANNOTATION,
    MAINTENANCE_STRATEGY_LABEL,
    ConditionType,
    Reason,
)
from caphv.api.object import at, key_of
from caphv.api.plaintext import plain
from caphv.api.virtualmachine import is_shut_down_for_maintenance
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    RequestError,
    Unauthorized,
    Unreachable,
)
from reconciler import triggers
from reconciler.blocked import Blocked, Cause
from reconciler.cluster.evacuation.plan import Action, Step, next_step
from reconciler.cluster.evacuation.reading import (
    REFUSED_SECONDS,
    Observation,
    can_migrate,
    forget_ended_drains,
    has_work,
    is_refused,
    observe,
)
from reconciler.cluster.evacuation.writing import perform
from reconciler.cluster.parking.drain import evict
from reconciler.cluster.scope import ClusterScope
from reconciler.memory.cluster import RefusedStep

# Nothing watches Pods and the state of Nodes, so a step in progress is polled.
_POLL_SECONDS = 2.0
_BLOCKED_SECONDS = 10.0
# No event reports that a machine on an evacuated host can no longer migrate. A machine that arrives
# there requeues its cluster.
_REVIEW_SECONDS = 30.0
# A migration requeues its cluster. The end of an instance, or of `HOLD_SECONDS`, does not.
_HELD_SECONDS = 60.0
# Steps in one reconcile. The next reconcile follows at once, after those of other clusters.
_MAX_STEPS = 20
_MAX_VALUE = 64
_NODE_ACTIONS = (Action.CORDON, Action.UNCORDON)
_VM_ACTIONS = (Action.ADOPT, Action.STOP, Action.START, Action.SETTLE, Action.YIELD)
_HOLD_ACTIONS = (Action.HOLD, Action.RELEASE)
_MAY_NOT_HOLD = "the provider may not keep a Machine from remediation"
_GRANT = "grant its ServiceAccount patch on machines.cluster.x-k8s.io"
_MAX_LISTED = 3


async def evacuate_hosts(scope: ClusterScope) -> None:
    """Take the steps that can be taken now. No other phase of the cluster waits for the rest.

    Sends no request while no host is evacuated. A request that fails is reported, and the phases
    after this one run. Raises `Conflict`, `Unauthorized`, `Fenced`.
    """
    try:
        _require_hosts(scope)
        forget_ended_drains(scope)
        if has_work(scope):
            await _advance(scope)
        else:
            _report_invalid(scope)

    except Blocked as blocked:
        # Other conditions report that Harvester cannot be read. Its caches requeue the cluster.
        if scope.draft.is_true(ConditionType.HOSTS_EVACUATED):
            message = f"whether hosts are still evacuated is not known: {blocked.message}"
            scope.draft.set_unknown(ConditionType.HOSTS_EVACUATED, blocked.reason, message)
    except (Conflict, Unauthorized, Fenced):
        raise  # the whole reconcile needs new objects or new credentials
    except (Forbidden, Invalid) as error:
        _report_refusal(scope, error)
    except RequestError as error:
        _report_progress(scope, f"a request failed, which is repeated: {error}")
        scope.requeue_within(_BLOCKED_SECONDS)


def _require_hosts(scope: ClusterScope) -> None:
    """Raise `Blocked` unless the cache of hosts is current.

    An old cache could stop VMs for an evacuation that has ended, or start them for an old drain.
    """
    session = scope.require_session()
    with scope.subscribe(triggers.caches(session.fingerprint)) as caches:
        if not session.hosts.current:
            raise Blocked(
                ConditionType.HARVESTER_CONNECTION_READY,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                "reading the hosts of Harvester",
                caches,
                cause=Cause.UNKNOWN,
            )


async def _advance(scope: ClusterScope) -> None:
    """Take steps until one has to wait. Raises `Blocked`, `ApiError`, `Unreachable`."""
    refusal: Forbidden | None = None
    refused: set[str] = set()
    for _ in range(_MAX_STEPS):
        observed = await observe(scope, may_not_hold=refusal is not None)
        step = next_step(observed.state)
        note = _describe_refusal(observed, refusal) if refusal else ""

        match step.action:
            case Action.NOTHING:
                _report_done(scope, observed, note)
                return
            case Action.WAIT | Action.EVICT:
                await _wait(scope, observed, step, note)
                return

        if step.name in refused and step.action in _VM_ACTIONS:
            _report_refused_steps(scope)
            return
        try:
            if not await _take(scope, observed, step):
                return
        except (Forbidden, Invalid) as error:
            if step.action in _VM_ACTIONS:
                # Others continue, such as those that Harvester has halted, too.
                refused.add(step.name)
                message = f"a request was refused: {error}"
                scope.memory.evacuation.refusals[step.name] = RefusedStep(time.monotonic(), message)
            # Only a VM that the provider itself would stop has to wait for this right.
            elif isinstance(error, Forbidden) and step.action in _HOLD_ACTIONS and not refusal:
                refusal = error
            else:
                raise
        else:
            scope.memory.evacuation.refusals.pop(step.name, None)

    scope.requeue_within(0.01)


async def _take(scope: ClusterScope, observed: Observation, step: Step) -> bool:
    """Write a step, and return whether to continue. Raises `ApiError`, `Unreachable`."""
    try:
        await perform(scope, observed, step)
    except Conflict:
        raise
    except RequestError as error:
        if step.action not in _NODE_ACTIONS:
            raise
        verb = "cordoned" if step.action is Action.CORDON else "uncordoned"
        _report_blocked(scope, f"Node {step.name} cannot be {verb}: {error}")
        scope.requeue_within(_BLOCKED_SECONDS)
        return False

    vm = next(vm for vm in observed.state.vms if vm.name == step.name)
    if step.action is Action.ADOPT:
        message = f"Harvester has stopped machine {vm.name} to drain host {vm.source}: starting it"
        scope.event("StoppedByHarvester", message)
    if step.action is Action.BEGIN and not vm.was_halted_by_harvester:
        note = ""
        if uncounted := scope.memory.evacuation.uncounted:
            note = f"; devices in other namespaces were not counted: {uncounted}"
        scope.event("EvacuationStarted", f"machine {vm.name} leaves host {vm.host}{note}")
    if step.action is Action.FINISH and vm.host not in ("", vm.source):
        scope.event("Evacuated", f"machine {vm.name} has moved from host {vm.source} to {vm.host}")
    return True


async def _wait(scope: ClusterScope, observed: Observation, step: Step, note: str) -> None:
    """Report what a step waits for, and evict Pods if it is the drain.

    :param note: which right is missing; empty if none is
    """
    message = step.message
    if step.action is Action.EVICT and observed.workload.client is not None:
        try:
            if protected := await evict(observed.workload.client, observed.workload.pods):
                message = f"{message}, {protected} of them kept by PodDisruptionBudgets"
        except Unreachable as error:
            message = f"{message}; {error}"

    # After the comma, the message of one machine lists the Pods that are left or the error of the
    # API. Changes of these must not repeat the Event.
    topic = message.partition(",")[0] if step.name else ""
    message = "; ".join(filter(None, (message, _describe_uncounted(scope), note)))
    if refused := _describe_refused_steps(scope):
        _report_blocked(scope, f"{refused}; {message}", topic=refused)
        scope.requeue_within(_POLL_SECONDS)
        return
    if step.blocked:
        _report_blocked(scope, message, topic=topic)
        scope.requeue_within(_BLOCKED_SECONDS)
        return

    _warn_of_refusal(scope, note)
    _report_progress(scope, message)
    scope.requeue_within(_POLL_SECONDS)


def _report_done(scope: ClusterScope, observed: Observation, note: str) -> None:
    """Report that the provider has moved all its machines, and what Harvester does with others.

    :param note: which right is missing; empty if none is
    """
    if note:
        scope.requeue_within(REFUSED_SECONDS)
    if any(vm.is_held_by_us for vm in observed.state.vms):
        scope.requeue_within(_HELD_SECONDS)
    if not observed.evacuated_hosts:
        _report_not_evacuated(scope, note)
        return

    _warn_of_refusal(scope, note)
    if deleting := _deleting_machines(scope, observed):
        message = f"waiting for the deletion of {', '.join(deleting)}"
        _report_progress(scope, "; ".join(filter(None, (message, note))))
        scope.requeue_within(_BLOCKED_SECONDS)
        return

    invalid = _describe_invalid(scope)
    parts = (
        evacuation.describe_left(observed.evacuated_hosts),
        note,
        *_describe_harvester_moves(observed),
        invalid,
    )
    message = plain("; ".join(filter(None, parts)), MAX_MESSAGE)
    if invalid and not scope.draft.has_message(ConditionType.HOSTS_EVACUATED, message):
        scope.warning_event(Reason.EVACUATION_BLOCKED, invalid)
    scope.draft.set_true(ConditionType.HOSTS_EVACUATED, message)
    if observed.migrated_by_harvester or observed.restarted_by_harvester:
        scope.requeue_within(_REVIEW_SECONDS)


def _describe_harvester_moves(observed: Observation) -> Iterator[str]:
    """Yield a sentence for each way in which Harvester itself takes VMs off evacuated hosts."""
    migrated = set(observed.migrated_by_harvester)
    restarted = set(observed.restarted_by_harvester)
    shut_down = {
        name for name in migrated | restarted if is_shut_down_for_maintenance(observed.vms[name])
    }
    if migrated - shut_down:
        yield f"Harvester migrates {_all(migrated - shut_down)}"

    if shut_down:
        yield (
            f"Harvester shuts down {_all(shut_down)}, as label {MAINTENANCE_STRATEGY_LABEL} of "
            "their VMs asks"
        )

    if restarted - shut_down:
        yield (
            f"Harvester restarts {_all(restarted - shut_down)}, whose VMs have no eviction "
            "strategy before their next restart"
        )


def _all(names: Iterable[str]) -> str:
    """Return all names, sorted."""
    return ", ".join(sorted(names))


def _deleting_machines(scope: ClusterScope, observed: Observation) -> list[str]:
    """Return machines in deletion whose instances cannot migrate off evacuated hosts."""
    namespace = scope.namespace()
    names = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        name = key_of(machine).name
        instance = namespace.instances.get(scope.target_namespace, name)
        host = at(instance, "status", "nodeName")
        if name in observed.vms or host not in observed.evacuated_hosts:
            continue
        vm = namespace.vms.get(scope.target_namespace, name)
        if not can_migrate(vm or {}, instance or {}):
            names.append(name)
    return sorted(names)


def _report_progress(scope: ClusterScope, message: str) -> None:
    """Report what the evacuation waits for; it needs no user."""
    scope.draft.set_false(ConditionType.HOSTS_EVACUATED, Reason.EVACUATING, message)


def _report_blocked(scope: ClusterScope, message: str, topic: str = "") -> None:
    """Report what a user has to do, with an Event if it is new.

    :param topic: a reported message with this beginning is the same; by default, all of it must
        be equal
    """
    text = plain(message, MAX_MESSAGE)  # as the condition has it
    conditions = scope.draft.fields.get("conditions") or []
    reported = get_condition(conditions, ConditionType.HOSTS_EVACUATED) or {}
    is_new = True
    if reported.get("reason") == Reason.EVACUATION_BLOCKED:
        is_same = reported["message"].startswith(topic) if topic else reported["message"] == text
        is_new = not is_same
    if is_new:
        scope.warning_event(Reason.EVACUATION_BLOCKED, text)
    scope.draft.set_false(ConditionType.HOSTS_EVACUATED, Reason.EVACUATION_BLOCKED, text)


def _report_refusal(scope: ClusterScope, error: ApiError) -> None:
    """Report a refused request, and the right that is missing on the management cluster."""
    message = f"a request was refused: {error}"
    if isinstance(error, Forbidden) and "machines.cluster.x-k8s.io" in str(error):
        message = f"{_MAY_NOT_HOLD}: {_GRANT}; {error}"
    _report_blocked(scope, message)
    scope.requeue_within(REFUSED_SECONDS)


def _describe_refused_steps(scope: ClusterScope) -> str:
    """Return which change of a VM Harvester has just refused; empty if it has refused none."""
    refusals = scope.memory.evacuation.refusals
    names = [name for name in refusals if is_refused(scope, name)]
    return refusals[min(names)].message if names else ""


def _report_refused_steps(scope: ClusterScope) -> None:
    """Report that Harvester refuses to change the VMs of all machines that move."""
    _report_blocked(scope, _describe_refused_steps(scope))
    scope.requeue_within(REFUSED_SECONDS)


def _describe_refusal(observed: Observation, error: Forbidden) -> str:
    """Return which Machines are not held, or not released, for lack of a right, and the remedy."""
    unheld = []
    unreleased = []
    for vm in observed.state.vms:
        must_be_held = vm.needs_hold or vm.has_begun
        if must_be_held and not vm.is_held:
            unheld.append(vm.name)
        if vm.is_held_by_us and not must_be_held:
            unreleased.append(vm.name)

    effects = []
    if unheld:
        names = name_some(sorted(unheld), _MAX_LISTED)
        effects.append(f"{names} may be replaced while its host is emptied")
    if unreleased:
        effects.append(f"{name_some(sorted(unreleased), _MAX_LISTED)} stays without it")
    note = f" ({', '.join(effects)})" if effects else ""
    return f"{_MAY_NOT_HOLD}{note}: {_GRANT}; {error}"


def _describe_uncounted(scope: ClusterScope) -> str:
    """Return which right is missing to count all devices in use; empty if none is."""
    if not (error := scope.memory.evacuation.uncounted):
        return ""
    return (
        "devices that VMs of other namespaces use were not counted: grant the account of the "
        f"identity list on virtualmachineinstances.kubevirt.io in all namespaces; {error}"
    )


def _warn_of_refusal(scope: ClusterScope, note: str) -> None:
    """Emit an Event about a missing right, unless the condition reports it already."""
    conditions = scope.draft.fields.get("conditions") or []
    reported = get_condition(conditions, ConditionType.HOSTS_EVACUATED) or {}
    if note and _MAY_NOT_HOLD not in str(reported.get("message")):
        scope.warning_event(Reason.EVACUATION_BLOCKED, note)


def _report_not_evacuated(scope: ClusterScope, note: str) -> None:
    """Report a problem while the evacuation of no host is requested, else drop the condition.

    :param note: which right is missing while Harvester drains hosts; empty if none is
    """
    if note:
        message = "; ".join(filter(None, (note, _describe_invalid(scope))))
        _report_blocked(scope, message, topic=_MAY_NOT_HOLD)
    else:
        _report_invalid(scope)


def _report_invalid(scope: ClusterScope) -> None:
    """Report that the annotation of a host has an invalid value, else drop the condition."""
    if message := _describe_invalid(scope):
        _report_blocked(scope, message)
    else:
        scope.draft.drop(ConditionType.HOSTS_EVACUATED)


def _describe_invalid(scope: ClusterScope) -> str:
    """Return which host has an annotation with an invalid value; empty if none has."""
    for host in sorted(scope.require_session().hosts.store, key=key_of):
        if value := plain(evacuation.invalid_value(host), _MAX_VALUE):
            return (
                f"annotation {EVACUATE_ANNOTATION} of host {key_of(host).name} is {value}: write "
                "true to evacuate it, force to do so although Nodes cannot be drained, false to "
                "keep it"
            )
    return ""
