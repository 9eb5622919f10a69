"""Diagnose a cluster from its objects, causes before consequences.

Conditions repeat each other: a missing Secret shows in the HarvesterCluster, the Cluster, and each
machine. An operator can act on the first cause along the way from Harvester to the Node. So the
consequences of this cause are left out, and a cause that many machines share is one problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from caphv.api import clusterapi, remedies
from caphv.api.counting import counted
from caphv.api.names import ETCD_RESTORE_ANNOTATION, ConditionType, Reason
from caphv.api.object import annotations_of, being_deleted
from operations.read.objects import condition_of, time_of
from operations.status.conditionproblems import (
    PATIENCE,
    ROLLOUT,
    age_of,
    condition_problem,
    flatten,
    names_finalizer,
    object_name,
)
from operations.status.machineproblems import EXPLAINING, machine_problems
from operations.status.model import Problem, Severity
from operations.status.parkingproblems import parking_problem, schedule_note
from operations.status.parts import Parts, remedy_subject, resume_commands
from operations.status.remedies import next_step, resume_command

# Conditions of a HarvesterCluster, in the order in which the provider passes them. While one of
# them is not true, the following ones have no meaning.
GATES = (
    ConditionType.HARVESTER_CONNECTION_READY,
    ConditionType.TARGET_NAMESPACE_READY,
    ConditionType.VM_IP_POOL_READY,
    ConditionType.CUSTOM_IP_POOL_CREATED,
    ConditionType.LOAD_BALANCER_READY,
    ConditionType.INFRASTRUCTURE_READY,
)
# Conditions that are reported independently of the gates.
_INDEPENDENT = (
    ConditionType.REFERENCES_ALLOWED,
    ConditionType.WITHIN_LIMITS,
    ConditionType.FAILURE_DOMAINS_AVAILABLE,
    ConditionType.CLOUD_PROVIDER_CONFIG_READY,
    ConditionType.FLEET_INTEGRATION_READY,
    ConditionType.ADDON_BUNDLES_READY,
    ConditionType.IMAGES_READY,
    ConditionType.CONTROL_PLANE_BACKUPS_READY,
    ConditionType.HOSTS_EVACUATED,
)
# An identity that expires explains a refused connection, so it comes before the gates.
ORDER = (ConditionType.IDENTITY_UP_TO_DATE, *GATES, *_INDEPENDENT)
# What a cluster waits for while it comes up. Its deletion does not wait for these.
_CREATION = frozenset(
    {
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS,
        Reason.FLEET_INTEGRATION_IN_PROGRESS,
        Reason.ADDON_BUNDLES_IN_PROGRESS,
        Reason.VM_PROVISIONING_IN_PROGRESS,
    }
)
# Reasons that follow from a decision of the user.
CHOSEN = frozenset({Reason.ADDON_BUNDLES_SUSPENDED, Reason.FLEET_INTEGRATION_NOT_APPLICABLE})


def problems_of(parts: Parts, now: datetime) -> tuple[Problem, ...]:
    """Return the problems of a cluster, the root cause first."""
    # Many states that are problems otherwise are part of a deletion.
    if being_deleted(parts.cluster):
        return tuple(_deletion_problems(parts, now))

    parking = parking_problem(parts, now)
    schedule = schedule_note(parts, now)
    if parking and parking.severity is not Severity.WARNING:
        return (parking,)

    # While a cluster is paused, nothing progresses, and nothing is late. So ages count until the
    # begin of the pause.
    paused_since = _paused_since(parts)
    until = min(now, paused_since) if paused_since else now

    problems = [*_infrastructure_problems(parts, until)]
    if parking:
        problems.append(parking)
    if not any(problem.severity is Severity.ERROR for problem in problems):
        problems += _topology_problems(parts, until)

    # Problems of machines follow from a problem of the infrastructure.
    explained = any(problem.severity is not Severity.NOTE for problem in problems)
    of_machines = [*machine_problems(parts, until, explained)]
    if _explain_silence(parts, of_machines):
        problems = [
            problem for problem in problems if problem.reason != Reason.CONTROL_PLANE_UNREACHABLE
        ]
    problems += _merge(of_machines)
    # An upgrade explains no silence of the control plane.
    if not any(
        problem.severity in EXPLAINING and not problem.reason.endswith(ROLLOUT)
        for problem in problems
    ):
        problems += _cluster_problems(parts, until)

    problems += _pause_problems(parts)
    problems += _restore_problems(parts)
    if schedule:
        problems.append(schedule)
    return tuple(sorted(problems, key=lambda problem: problem.severity.rank))


def _deletion_problems(parts: Parts, now: datetime) -> Iterator[Problem]:
    """Yield what the deletion waits for: machines first, then the infrastructure."""
    since = str(parts.cluster["metadata"]["deletionTimestamp"])
    severity = Severity.ERROR if age_of(since, now) > PATIENCE else Severity.WAITING
    name = object_name(parts.cluster, "Cluster")

    # A pause stops a deletion like any other change, but no condition says so.
    if command := resume_command(parts.cluster):
        cause = "being deleted, and paused: no controller acts"
        yield Problem(
            severity, (name,), "Paused", cause=cause, next_step=f"Resume it: {command}", since=since
        )
        return

    problems = [*_infrastructure_problems(parts, now), *_merge(machine_problems(parts, now, True))]
    # A deletion waits for no object that does not exist any more.
    errors = [
        problem
        for problem in problems
        if problem.severity is Severity.ERROR
        and problem.reason != "NotFound"
        and (problem.reason not in _CREATION or names_finalizer(problem.cause))
    ]
    if errors:
        yield from errors
        return

    # Cores before v1beta2 have no condition Deleting.
    message = str(condition_of(parts.cluster, "Deleting").get("message") or "")
    if not message and parts.machines:
        message = (
            f"waiting for {counted(len(parts.machines), 'machine')}, first "
            f"{parts.machines[0]['metadata']['name']}"
        )
    cause = f"being deleted: {flatten(message) or 'waiting for its infrastructure'}"
    step = next_step("Deleting", remedy_subject(parts, parts.cluster, "Cluster"))
    yield Problem(severity, (name,), "Deleting", cause=cause, next_step=step, since=since)


def _infrastructure_problems(parts: Parts, now: datetime) -> Iterator[Problem]:
    """Yield the problems that the HarvesterCluster reports, or that it does not exist."""
    obj = parts.harvester_cluster
    if obj is None:
        _, name = clusterapi.infrastructure_ref(parts.cluster)
        # An object that may not be read may exist.
        if name and parts.complete:
            cause = f"HarvesterCluster {name}, which the Cluster refers to, does not exist"
            command = remedies.GET_HARVESTER_CLUSTERS(namespace=parts.key.namespace)
            step = f"Create it, or correct spec.infrastructureRef: {command}"
            yield Problem(
                Severity.ERROR,
                (f"HarvesterCluster/{name}",),
                "NotFound",
                cause=cause,
                next_step=step,
            )
        return

    # While Harvester does not answer, an earlier refusal says nothing about the identity now.
    connection = condition_of(obj, ConditionType.HARVESTER_CONNECTION_READY)
    unreachable = connection.get("reason") == Reason.HARVESTER_UNREACHABLE

    # If several conditions repeat one message, it is reported only once.
    reported: set[str] = set()
    is_blocked = False
    for kind in ORDER:
        condition = condition_of(obj, kind)
        reason = condition.get("reason")
        message = str(condition.get("message") or "")
        if condition.get("status", "True") == "True" or reason in CHOSEN or message in reported:
            continue
        is_outdated = unreachable and reason == Reason.HARVESTER_AUTHENTICATION_FAILED
        if is_outdated or (is_blocked and kind in GATES):
            continue

        problem = condition_problem(parts, obj, "HarvesterCluster", condition, now)
        reported.add(message)
        # A warning does not keep the provider from the gates behind it.
        is_blocked = is_blocked or problem.severity is not Severity.WARNING
        yield problem


def _explain_silence(parts: Parts, problems: Iterable[Problem]) -> bool:
    """Return whether VMs that do not run explain that no control plane machine answers."""
    explained = {
        name
        for problem in problems
        if problem.severity is Severity.ERROR
        for name in problem.objects
    }
    servers = [
        parts.harvester_machine_of(machine)
        for machine in parts.machines
        if clusterapi.is_control_plane(machine, parts.cluster)
    ]
    names = {object_name(server, "HarvesterMachine") for server in servers if server}
    return bool(names) and len(names) == len(servers) and names <= explained


def _topology_problems(parts: Parts, now: datetime) -> Iterator[Problem]:
    """Yield the reason why the core cannot apply the topology of a cluster."""
    condition = condition_of(parts.cluster, "TopologyReconciled")
    # A pause is a note of its own, and explains no problem.
    if condition.get("status") == "False" and condition.get("reason") != "Paused":
        yield condition_problem(parts, parts.cluster, "Cluster", condition, now)


def _cluster_problems(parts: Parts, now: datetime) -> Iterator[Problem]:
    """Yield the problem that the Cluster or its control plane reports."""
    probe = condition_of(parts.cluster, "RemoteConnectionProbe")
    initialized = condition_of(parts.cluster, "ControlPlaneInitialized")
    if probe.get("status") == "False" and initialized.get("status") == "True":
        yield condition_problem(parts, parts.cluster, "Cluster", probe, now)
        return

    for obj in (parts.control_plane, parts.cluster):
        condition = condition_of(obj, "Available")
        if obj is not None and condition.get("status") == "False":
            yield condition_problem(parts, obj, str(obj.get("kind") or "Cluster"), condition, now)
            return


def _pause_problems(parts: Parts) -> Iterator[Problem]:
    """Yield a note on a paused cluster, because an interrupted command may have left the pause."""
    objects = [(parts.cluster, "Cluster"), (parts.harvester_cluster, "HarvesterCluster")]
    marked = [(obj, kind) for obj, kind in objects if obj and resume_command(obj)]
    if not marked:
        return

    first, _ = marked[0]
    yield Problem(
        Severity.NOTE,
        tuple(object_name(obj, kind) for obj, kind in marked),
        "Paused",
        cause="paused: nothing is reconciled",
        next_step=f"Resume it: {resume_commands(parts)}",
        since=str(condition_of(first, "Paused").get("lastTransitionTime") or ""),
    )


def _restore_problems(parts: Parts) -> Iterator[Problem]:
    """Yield an error for a restore of etcd whose pause has ended: servers may be stopped."""
    cluster = parts.cluster
    if ETCD_RESTORE_ANNOTATION not in annotations_of(cluster) or resume_command(cluster):
        return
    yield Problem(
        Severity.ERROR,
        (object_name(cluster, "Cluster"),),
        "RestoreNotPaused",
        "etcd is being restored without a pause: machines may be replaced meanwhile",
        f"Pause it again: {remedies.CONTINUE_RESTORE(ref=parts.key)}",
    )


def _paused_since(parts: Parts) -> datetime | None:
    """Return when the Cluster was paused; None for one that is not, or does not say since when."""
    if not resume_command(parts.cluster):
        return None
    condition = condition_of(parts.cluster, "Paused")
    if condition.get("status") != "True":
        return None
    return time_of(str(condition.get("lastTransitionTime") or ""))


def _merge(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Merge problems that differ only in the name of the object."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        name = problem.objects[0].partition("/")[2]
        cause = problem.cause.replace(name, "…")
        groups.setdefault((problem.reason, cause), []).append(problem)

    for group in groups.values():
        # The texts of one problem stand for all: those of an error before those of a wait, those of
        # an earlier problem before those of a later one.
        worst = min(
            group, key=lambda problem: (problem.severity is Severity.WAITING, problem.since)
        )
        yield replace(worst, objects=tuple(problem.objects[0] for problem in group))
