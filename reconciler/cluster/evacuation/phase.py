"""Move guests off hosts that are evacuated, and report it in condition `HostsEvacuated`."""

from __future__ import annotations

from collections.abc import Iterator

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
from reconciler.cluster.evacuation.plan import Action, Step, next_step
from reconciler.cluster.evacuation.reading import (
    Surroundings,
    can_migrate,
    concerns,
    forget_drains,
    read_surroundings,
)
from reconciler.cluster.evacuation.writing import perform
from reconciler.cluster.parking.drain import evict
from reconciler.cluster.scope import ClusterScope
from reconciler.status import Blocked

# Until what is under way is read again: nothing watches Pods and the state of Nodes.
_POLL_SECONDS = 2.0
_BLOCKED_SECONDS = 10.0
_REFUSED_SECONDS = 60.0
# A machine on a host that is evacuated may turn out to be one that cannot migrate. One that comes
# there requeues its cluster.
_REVIEW_SECONDS = 30.0
# A migration requeues its cluster. The end of an instance, or of the time for a hold, does not.
_HELD_SECONDS = 60.0
# Of one reconcile. What is left continues at once, after others had their turn.
_MOST_STEPS = 20
_LONGEST_VALUE = 64
_ON_NODES = (Action.CORDON, Action.UNCORDON)
_MAY_NOT_HOLD = "the provider may not keep a Machine from remediation"
_GRANT = "grant its ServiceAccount patch on machines.cluster.x-k8s.io"
_NAMED = 3


async def evacuate_hosts(scope: ClusterScope) -> None:
    """Take the steps that can be taken now. Nothing else of the cluster waits for the others.

    Sends no request while no host is evacuated. A request that fails is reported, and the phases
    after this one run. Raises `Conflict`, `Unauthorized`, `Fenced`.
    """
    try:
        _require_hosts(scope)
        forget_drains(scope)
        if concerns(scope):
            await _advance(scope)
        else:
            _report_invalid(scope)

    except Blocked as blocked:
        # Harvester is not followed now, which other conditions report. Its caches requeue it.
        if scope.draft.is_true(ConditionType.HOSTS_EVACUATED):
            message = f"whether hosts are still evacuated is not known: {blocked.message}"
            scope.draft.set_unknown(ConditionType.HOSTS_EVACUATED, blocked.reason, message)
        scope.requeue_within(blocked.requeue_after)
    except (Conflict, Unauthorized, Fenced):
        raise  # of the whole reconcile: a new read, or new credentials
    except (Forbidden, Invalid) as error:
        _report_refusal(scope, error)
    except RequestError as error:
        _report_progress(scope, f"a request failed, which is repeated: {error}")
        scope.requeue_within(_BLOCKED_SECONDS)


def _require_hosts(scope: ClusterScope) -> None:
    """Raise `Blocked` while the cache of hosts does not follow Harvester.

    Nothing may be stopped for a host whose evacuation has ended, or started for a former drain.
    """
    session = scope.require_session()
    with scope.subscribe(triggers.caches(session.fingerprint)) as caches:
        if not session.hosts.current:
            raise Blocked(
                ConditionType.HARVESTER_CONNECTION_READY,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                "reading the hosts of Harvester",
                caches,
                unknown=True,
            )


async def _advance(scope: ClusterScope) -> None:
    """Take steps until one has to wait. Raises `Blocked`, `ApiError`, `Unreachable`."""
    refusal: Forbidden | None = None
    for _ in range(_MOST_STEPS):
        around = await read_surroundings(scope, unheld=refusal is not None)
        step = next_step(around.seen)
        note = _describe_refusal(around, refusal) if refusal else ""

        match step.action:
            case Action.NOTHING:
                _report_done(scope, around, note)
                return
            case Action.WAIT | Action.EVICT:
                await _wait(scope, around, step, note)
                return

        try:
            if not await _take(scope, around, step):
                return
        except Forbidden as error:
            # Only a machine that the provider itself stops has to wait for this right.
            if refusal or step.action not in (Action.HOLD, Action.RELEASE):
                raise
            refusal = error

    scope.requeue_within(0.01)


async def _take(scope: ClusterScope, around: Surroundings, step: Step) -> bool:
    """Write a step, and return whether others are to follow. Raises `ApiError`, `Unreachable`."""
    try:
        await perform(scope, around, step)
    except Conflict:
        raise
    except RequestError as error:
        if step.action not in _ON_NODES:
            raise
        verb = "cordoned" if step.action is Action.CORDON else "uncordoned"
        _report_blocked(scope, f"Node {step.name} cannot be {verb}: {error}")
        scope.requeue_within(_BLOCKED_SECONDS)
        return False

    vm = next(vm for vm in around.seen.vms if vm.name == step.name)
    if step.action is Action.ADOPT:
        message = f"Harvester has stopped machine {vm.name} to drain host {vm.source}: starting it"
        scope.event("StoppedByHarvester", message)
    if step.action is Action.BEGIN and not vm.lost:
        note = ""
        if uncounted := scope.memory.evacuation_uncounted:
            note = f"; devices in other namespaces were not counted: {uncounted}"
        scope.event("EvacuationStarted", f"machine {vm.name} leaves host {vm.host}{note}")
    if step.action is Action.FINISH and vm.host not in ("", vm.source):
        scope.event("Evacuated", f"machine {vm.name} has moved from host {vm.source} to {vm.host}")
    return True


async def _wait(scope: ClusterScope, around: Surroundings, step: Step, note: str) -> None:
    """Report what a step waits for; for the drain, evict Pods.

    :param note: which right is missing meanwhile; empty if none is
    """
    message = step.message
    if step.action is Action.EVICT:
        assert around.client is not None  # noqa: S101 - the Pods were read with it
        try:
            if kept := await evict(around.client, around.pods):
                message = f"{message}, {kept} of them kept by PodDisruptionBudgets"
        except Unreachable as error:
            message = f"{message}; {error}"

    # What follows in the message of one machine changes while the user is asked already: which Pods
    # are left, or how the API fails.
    topic = message.partition(",")[0] if step.name else ""
    message = "; ".join(filter(None, (message, _describe_uncounted(scope), note)))
    if step.blocked:
        _report_blocked(scope, message, topic=topic)
        scope.requeue_within(_BLOCKED_SECONDS)
        return

    _warn_of_refusal(scope, note)
    _report_progress(scope, message)
    scope.requeue_within(_POLL_SECONDS)


def _report_done(scope: ClusterScope, around: Surroundings, note: str) -> None:
    """Say that Harvester can maintain the hosts, and what it will do with the other machines.

    :param note: which right is missing while Harvester drains hosts; empty if none is
    """
    if note:
        scope.requeue_within(_REFUSED_SECONDS)
    if any(vm.held_by_us for vm in around.seen.vms):
        scope.requeue_within(_HELD_SECONDS)
    if not around.evacuated:
        _report_undrained(scope, note)
        return

    _warn_of_refusal(scope, note)
    if ending := _ending(scope, around):
        message = f"waiting for the deletion of {', '.join(ending)}"
        _report_progress(scope, "; ".join(filter(None, (message, note))))
        scope.requeue_within(_BLOCKED_SECONDS)
        return

    invalid, left = _describe_invalid(scope), evacuation.describe_left(around.evacuated)
    parts = (left, note, *_describe_others(around), invalid)
    message = plain("; ".join(filter(None, parts)), MAX_MESSAGE)
    if invalid and not scope.draft.has_message(ConditionType.HOSTS_EVACUATED, message):
        scope.warning_event(Reason.EVACUATION_BLOCKED, invalid)
    scope.draft.set_true(ConditionType.HOSTS_EVACUATED, message)
    if around.migrating or around.restarts:
        scope.requeue_within(_REVIEW_SECONDS)


def _describe_others(around: Surroundings) -> Iterator[str]:
    """Say what a drain by Harvester does with the machines that it moves itself."""
    stopping = {
        name
        for name in (*around.migrating, *around.restarts)
        if is_shut_down_for_maintenance(around.vms[name])
    }
    if migrating := sorted(set(around.migrating) - stopping):
        yield f"Harvester migrates {', '.join(migrating)}"

    if stopping:
        names, label = ", ".join(sorted(stopping)), MAINTENANCE_STRATEGY_LABEL
        yield f"Harvester shuts down {names}, as label {label} of their VMs asks"

    if restarts := sorted(set(around.restarts) - stopping):
        yield (
            f"Harvester restarts {', '.join(restarts)}, whose VMs have no eviction strategy before "
            "their next restart"
        )


def _ending(scope: ClusterScope, around: Surroundings) -> list[str]:
    """Return machines in deletion whose instances cannot migrate from hosts that are evacuated."""
    namespace, names = scope.namespace(), []
    for machine in scope.context.caches.machines_of(scope.cluster):
        name = key_of(machine).name
        instance = namespace.instances.get(scope.target_namespace, name)
        if name in around.vms or at(instance, "status", "nodeName") not in around.evacuated:
            continue
        vm = namespace.vms.get(scope.target_namespace, name)
        if not can_migrate(vm or {}, instance or {}):
            names.append(name)
    return sorted(names)


def _report_progress(scope: ClusterScope, message: str) -> None:
    scope.draft.set_false(ConditionType.HOSTS_EVACUATED, Reason.EVACUATING, message)


def _report_blocked(scope: ClusterScope, message: str, topic: str = "") -> None:
    """Say what a user has to do, with an Event when that is new.

    :param topic: how the message begins as long as it is not new; by default, all of it counts
    """
    message = plain(message, MAX_MESSAGE)  # as the condition keeps it
    conditions = scope.draft.fields.get("conditions") or []
    reported = get_condition(conditions, ConditionType.HOSTS_EVACUATED) or {}
    is_known = reported.get("reason") == Reason.EVACUATION_BLOCKED and (
        reported["message"].startswith(topic) if topic else reported["message"] == message
    )
    if not is_known:
        scope.warning_event(Reason.EVACUATION_BLOCKED, message)
    scope.draft.set_false(ConditionType.HOSTS_EVACUATED, Reason.EVACUATION_BLOCKED, message)


def _report_refusal(scope: ClusterScope, error: ApiError) -> None:
    """Say which request a server refused, and which right is missing on the management cluster."""
    message = f"a request was refused: {error}"
    if isinstance(error, Forbidden) and "machines.cluster.x-k8s.io" in str(error):
        message = f"{_MAY_NOT_HOLD}: {_GRANT}; {error}"
    _report_blocked(scope, message)
    scope.requeue_within(_REFUSED_SECONDS)


def _describe_refusal(around: Surroundings, error: Forbidden) -> str:
    """Say which Machines a missing right exposes, or leaves, to remediation, and what to grant."""
    vms = around.seen.vms
    exposed = [vm.name for vm in vms if not vm.held and (vm.drained or vm.begun)]
    kept = [vm.name for vm in vms if vm.held_by_us and not (vm.drained or vm.begun)]
    effects = []
    if exposed:
        effects.append(
            f"{name_some(sorted(exposed), _NAMED)} may be replaced while its host is emptied"
        )
    if kept:
        effects.append(f"{name_some(sorted(kept), _NAMED)} stays without it")
    note = f" ({', '.join(effects)})" if effects else ""
    return f"{_MAY_NOT_HOLD}{note}: {_GRANT}; {error}"


def _describe_uncounted(scope: ClusterScope) -> str:
    """Say which right is missing to count all devices that are in use; empty if none is."""
    if not (error := scope.memory.evacuation_uncounted):
        return ""
    return (
        "devices that VMs of other namespaces use were not counted: grant the account of the "
        f"identity list on virtualmachineinstances.kubevirt.io in all namespaces; {error}"
    )


def _warn_of_refusal(scope: ClusterScope, note: str) -> None:
    """Send an Event about a missing right, unless the condition reports it already."""
    conditions = scope.draft.fields.get("conditions") or []
    reported = get_condition(conditions, ConditionType.HOSTS_EVACUATED) or {}
    if note and _MAY_NOT_HOLD not in str(reported.get("message")):
        scope.warning_event(Reason.EVACUATION_BLOCKED, note)


def _report_undrained(scope: ClusterScope, note: str) -> None:
    """Report what is wrong although no host is evacuated, or nothing about hosts.

    :param note: which right is missing while Harvester drains hosts; empty if none is
    """
    if note:
        message = "; ".join(filter(None, (note, _describe_invalid(scope))))
        _report_blocked(scope, message, topic=_MAY_NOT_HOLD)
    else:
        _report_invalid(scope)


def _report_invalid(scope: ClusterScope) -> None:
    """Say that the annotation of a host has a value without a meaning, or nothing about hosts."""
    if message := _describe_invalid(scope):
        _report_blocked(scope, message)
    else:
        scope.draft.drop(ConditionType.HOSTS_EVACUATED)


def _describe_invalid(scope: ClusterScope) -> str:
    """Return which host has an annotation without a meaning; empty if there is none."""
    hosts = scope.require_session().hosts.store
    invalid = {
        key_of(host).name: plain(evacuation.invalid_value(host), _LONGEST_VALUE) for host in hosts
    }
    name = min(filter(invalid.get, invalid), default="")
    if not name:
        return ""
    return (
        f"annotation {EVACUATE_ANNOTATION} of host {name} is {invalid[name]}: write true to "
        "evacuate it, force to do so although Nodes cannot be drained, false to keep it"
    )
