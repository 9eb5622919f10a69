"""Park or resume a cluster step by step, and report the progress in condition `Parked`."""

from __future__ import annotations

import time

from caphv.api import parking, remedies
from caphv.api.conditions import get_condition
from caphv.api.counting import counted
from caphv.api.names import (
    PARK_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    ConditionType,
    Reason,
)
from caphv.api.object import annotations_of
from caphv.runtime.errors import (
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    RequestError,
    Unauthorized,
)
from reconciler.blocked import Blocked
from reconciler.cluster.parking.drain import evict
from reconciler.cluster.parking.plan import Action, Step, next_step, record_step
from reconciler.cluster.parking.reading import Observation, observe, read_record
from reconciler.cluster.parking.writing import perform
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import Delay

# Nothing watches Pods, the state of Nodes and volumes, so a step in progress is polled.
_POLL_SECONDS = 2.0
# Volumes are listed with all attachments of Harvester, which costs more.
_VOLUMES_SECONDS = 10.0
_BLOCKED_SECONDS = 10.0
_REFUSED_SECONDS = 60.0
# Between the return of the last Node and the end of the pause. The core's cache of Nodes may retry
# only after this time if the workload API did not answer: 30 s, with a jitter of up to as much
# (client-go v0.36.1, `tools/cache/reflector.go`).
_SETTLE_SECONDS = 65.0
# A resume that waits for longer than this probably needs a user, so its message gives advice.
_LATE_SECONDS = 600.0
# Introduces, in the message of a parked cluster, why its schedule does not resume it.
_UNRESUMED = "; its schedule does not resume it: "
# Steps in one reconcile. The next reconcile follows at once, after those of other clusters.
_MAX_STEPS = 20


async def keep_record(scope: ClusterScope) -> bool:
    """Take the steps that change only the Cluster, and return whether others follow.

    They do not need Harvester, which may be shut down when a parked cluster is deleted. Raises
    `ApiError`, `Unreachable`.
    """
    observed = read_record(scope)
    step = record_step(observed.state)
    if step is None or step.action is Action.BEGIN:
        return True  # parking begins only after the check that all VMs can be stopped
    if step.action is Action.NOTHING:
        scope.draft.drop(ConditionType.PARKED)
        return False
    return await _take(scope, observed, step)


async def begin_without_harvester(scope: ClusterScope) -> None:
    """Pause a cluster that is to be parked although Harvester is unreachable.

    The pause keeps its machines from being replaced. Raises `ApiError`, `Unreachable`.
    """
    observed = read_record(scope)
    step = record_step(observed.state)
    if step is not None and step.action is Action.BEGIN:
        await _take(scope, observed, step)


async def advance(scope: ClusterScope) -> None:
    """Take the steps that can be taken now, and requeue the cluster for those that have to wait.

    Needs a session to Harvester in the scope. Raises `Blocked`, `ApiError`, `Unreachable`.
    """
    for _ in range(_MAX_STEPS):
        observed = await observe(scope)
        step = next_step(observed.state)
        if step.action is Action.NOTHING:
            scope.draft.drop(ConditionType.PARKED)
            return
        if step.action is Action.STAY:
            _report_parked(scope, observed, step)
            return
        if step.action in (Action.WAIT, Action.EVICT):
            scope.memory.parking.returned_since = None
            await _wait(scope, observed, step)
            return
        if step.action is Action.FINISH and _let_nodes_settle(scope, observed):
            return

        if not await _take(scope, observed, step):
            return
    scope.requeue_within(0.01)


async def finish_resume(scope: ClusterScope) -> None:
    """Continue to resume a cluster whose pause a user has ended. No other phase waits for it.

    A request that fails is reported, and repeated. Raises `Conflict`, `Unauthorized`, `Fenced`.
    """
    if not parking.has_begun(scope.cluster):
        return
    try:
        await advance(scope)
    except Blocked as blocked:
        scope.requeue_within(blocked.requeue_after)
        report_blocked(scope, blocked)
    except (Conflict, Unauthorized, Fenced):
        raise  # the whole reconcile needs new objects or new credentials
    except RequestError as error:
        report_progress(scope, f"a request failed, which is repeated: {error}")
        scope.requeue_within(_BLOCKED_SECONDS)


async def _take(scope: ClusterScope, observed: Observation, step: Step) -> bool:
    """Write a step, and return whether to continue. Raises `ApiError`, `Unreachable`."""
    ends_pause = parking.owns_pause(scope.cluster)
    try:
        await perform(scope, observed, step)
    except (Forbidden, Invalid) as error:
        report_refusal(scope, error)
        return False

    if step.action in (Action.MARK, Action.RELEASE):
        return not _report_refused_nodes(scope, observed, step)
    if step.action is Action.BEGIN:
        scope.event("ParkingStarted", "parking: the Cluster is paused, its VMs will be stopped")
    if step.action is not Action.FINISH:
        return True

    scope.memory.parking.resume_since = None
    scope.memory.parking.returned_since = None
    scope.memory.parking.started_at.clear()
    scope.memory.parking.refused_starts.clear()
    scope.memory.parking.refused_nodes.clear()
    scope.draft.drop(ConditionType.PARKED)
    if not observed.state.is_deleted:
        pause = "the pause has ended" if ends_pause else "the previous pause stays"
        scope.event("Resumed", f"resumed: all VMs were started, and {pause}")
    return False


async def _wait(scope: ClusterScope, observed: Observation, step: Step) -> None:
    """Report what a step waits for, and evict Pods if it is the drain. Raises `Blocked`."""
    message = step.message
    if step.blocked:
        delay = Delay(_BLOCKED_SECONDS)
        raise Blocked(ConditionType.PARKED, Reason.PARK_BLOCKED, message, delay, warn=True)
    if step.action is Action.EVICT and observed.client is not None:
        protected = await evict(observed.client, observed.pods)
        if protected:
            number = counted(protected, "one", "of them")
            message = f"{message}, {number} kept by PodDisruptionBudgets"
    # If a VM does not run, that also explains why the workload API does not answer.
    if step.cause:
        message = f"{message}; {step.cause}"
    elif observed.workload_error and observed.state.nodes is None:
        message = f"{message}: {observed.workload_error}"
    report_progress(scope, message + _advice(scope, observed))
    scope.requeue_within(_VOLUMES_SECONDS if observed.state.attached_volumes else _POLL_SECONDS)


def _let_nodes_settle(scope: ClusterScope, observed: Observation) -> bool:
    """Return whether Nodes have just returned; then report it, and keep the pause for a minute.

    The core's cache may report a Node as unreachable for longer than health checks wait. If the
    pause ended before, they would replace its machine.
    """
    ends_pause = observed.state.is_paused and parking.owns_pause(scope.cluster)
    if not (ends_pause and observed.state.nodes):
        return False
    current_time = time.monotonic()
    if scope.memory.parking.returned_since is None:
        scope.memory.parking.returned_since = current_time
    remaining = scope.memory.parking.returned_since + _SETTLE_SECONDS - current_time
    if remaining <= 0:
        return False
    report_progress(scope, "all Nodes are ready: waiting a minute for Cluster API to see them")
    scope.requeue_within(remaining)
    return True


def _advice(scope: ClusterScope, observed: Observation) -> str:
    """Return advice for a resume that has waited for long, to be appended; empty otherwise."""
    if observed.state.is_wanted or not observed.state.is_paused:
        scope.memory.parking.resume_since = None
        return ""
    current_time = time.monotonic()
    if scope.memory.parking.resume_since is None:
        scope.memory.parking.resume_since = current_time
    if current_time - scope.memory.parking.resume_since < _LATE_SECONDS:
        return ""
    key = scope.cluster_key
    command = remedies.RESUME_CLUSTER(kind="cluster", name=key.name, namespace=key.namespace)
    return f"; to have machines replaced that do not return, end the pause: {command}"


def _report_refused_nodes(scope: ClusterScope, observed: Observation, step: Step) -> bool:
    """Report a Node that could not be changed, and return whether to wait for it.

    Parking waits until the time for the drain is over, resuming for as long as it takes.
    """
    refused = [name for name in step.names if name in scope.memory.parking.refused_nodes]
    if not refused or (observed.state.is_wanted and observed.state.is_drain_over):
        return False
    verb = "cordoned" if step.action is Action.MARK else "uncordoned"
    why = scope.memory.parking.refused_nodes[refused[0]]
    message = f"Node {refused[0]} cannot be {verb}: {why}"
    report_progress(scope, message + _advice(scope, observed))
    scope.requeue_within(_POLL_SECONDS)
    return True


def report_progress(scope: ClusterScope, message: str) -> None:
    """Report in the condition what the cluster waits for. A parked cluster stays `Parked`."""
    is_wanted = parking.is_wanted(scope.cluster)
    if is_wanted and scope.draft.is_true(ConditionType.PARKED):
        return
    reason = Reason.PARKING if is_wanted else Reason.RESUMING
    scope.draft.set_false(ConditionType.PARKED, reason, message)


def report_blocked(scope: ClusterScope, blocked: Blocked) -> None:
    """Report why parking or resuming waits for Harvester or for a user.

    A Harvester that is shut down is progress, not a problem: clusters are parked for that.
    """
    if blocked.is_unknown and not blocked.warn and scope.draft.has(ConditionType.PARKED):
        return  # the provider has just started and knows less than the condition says
    if blocked.reason != Reason.PARK_BLOCKED:
        report_progress(scope, blocked.message)
        return
    if not scope.draft.has_message(ConditionType.PARKED, blocked.message):
        scope.warning_event(blocked.reason, blocked.message)
    scope.draft.set_false(ConditionType.PARKED, blocked.reason, blocked.message)


def report_refusal(scope: ClusterScope, error: RequestError) -> None:
    """Report a refused request, and the right that is missing on the management cluster."""
    message = f"a request was refused: {error}"
    if isinstance(error, Forbidden) and "clusters.cluster.x-k8s.io" in str(error):
        message = (
            f"the provider may not pause the Cluster: grant its ServiceAccount patch on "
            f"clusters.cluster.x-k8s.io; {error}"
        )
    if not scope.draft.has_message(ConditionType.PARKED, message):
        scope.warning_event(Reason.PARK_BLOCKED, message)
    scope.draft.set_false(ConditionType.PARKED, Reason.PARK_BLOCKED, message)
    scope.requeue_within(_REFUSED_SECONDS)


def report_schedule(scope: ClusterScope) -> None:
    """Update the part of the condition that says why a schedule does not resume the cluster."""
    if not scope.draft.is_true(ConditionType.PARKED):
        return
    condition = get_condition(scope.draft.fields["conditions"], ConditionType.PARKED) or {}
    message = str(condition.get("message") or "").partition(_UNRESUMED)[0]
    if problem := scope.memory.parking.schedule_problem:
        message += _UNRESUMED + problem
    scope.draft.set_true(ConditionType.PARKED, message)


def report_held(scope: ClusterScope) -> None:
    """Report what keeps a cluster from being parked or resumed. A move needs no report."""
    if parking.awaits_confirmation(scope.cluster):
        message = (
            "restored while it was parked: when the old management cluster is stopped, repeat the "
            "restore with --old-management-cluster-stopped; machines adopt their VMs then"
        )
        scope.draft.set_false(ConditionType.PARKED, Reason.PARK_BLOCKED, message)
    elif parking.is_restoring_etcd(scope.cluster):
        finish = remedies.FINISH_RESTORE(ref=scope.cluster_key)
        message = f"VMs stay as they are until the restore of etcd is finished: {finish}"
        scope.draft.set_false(ConditionType.PARKED, Reason.PARK_BLOCKED, message)


def report_invalid(scope: ClusterScope) -> None:
    """Report an annotation with an invalid value, else drop the condition."""
    if value := parking.invalid_value(scope.cluster):
        message = (
            f"annotation {PARK_ANNOTATION} of the Cluster is {value}: write true to park it, false "
            "to resume it"
        )
        if not scope.draft.has_message(ConditionType.PARKED, message):
            scope.warning_event(Reason.PARK_BLOCKED, message)
        scope.draft.set_false(ConditionType.PARKED, Reason.PARK_BLOCKED, message)
    elif problem := scope.memory.parking.schedule_problem:
        scope.draft.set_false(ConditionType.PARKED, Reason.PARK_BLOCKED, problem)
    else:
        scope.draft.drop(ConditionType.PARKED)


def _report_parked(scope: ClusterScope, observed: Observation, step: Step) -> None:
    """Report that all VMs are stopped, once, and close the connection to the workload API."""
    # The workload API does not answer until the cluster is resumed.
    scope.context.workloads.forget(scope.cluster_key)
    scope.memory.parking.drain_since = None
    if scope.draft.is_true(ConditionType.PARKED):
        return

    since = annotations_of(scope.cluster)[PARKED_SINCE_ANNOTATION]
    checked = observed.volumes_error or "their volumes are detached"
    message = f"parked since {since}: {step.message}, {checked}"
    scope.event("Parked", message)
    scope.draft.set_true(ConditionType.PARKED, message)
