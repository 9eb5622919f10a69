"""Diagnose the machines of a cluster: find the first cause on the way from the VM to the Node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from caphv.api import clusterapi
from caphv.api.names import RANCHER_HOOK, RKE2_HOOK, ConditionType, Reason
from caphv.api.object import Obj, annotations_of, at, being_deleted, dict_at, key_of, text_at
from operations.read.objects import condition_of
from operations.status.causes import OUTAGES
from operations.status.conditionproblems import (
    PATIENCE,
    age_of,
    condition_problem,
    flatten,
    object_name,
)
from operations.status.model import Problem, Severity
from operations.status.parts import Parts, remedy_subject
from operations.status.remedies import next_step

# A hook that still exists after this time will not be removed.
HOOK_PATIENCE = timedelta(minutes=2)
# A VM gets a new size by a live migration, which rarely takes longer.
UPDATE_PATIENCE = timedelta(minutes=10)
# Problems of these severities also explain that an object further up is not ready.
EXPLAINING = (Severity.ERROR, Severity.WAITING)
# Messages of the core that only repeat a problem of the cluster.
_CONSEQUENCES = (
    "Waiting for Cluster control plane to be initialized",
    "Waiting for Cluster infrastructure",
)


def machine_problems(parts: Parts, now: datetime, explained: bool) -> Iterator[Problem]:
    """Yield the problems of each machine, and of HarvesterMachines that no Machine refers to.

    :param parts: the objects of the cluster
    :param now: the current time
    :param explained: whether the cluster has a problem that machines only repeat
    """
    owned = set()
    for machine in parts.machines:
        harvester_machine = parts.harvester_machine_of(machine)
        if harvester_machine is not None:
            owned.add(key_of(harvester_machine))

        # Each of these problems explains everything else that the machine reports.
        waiting = (
            _bootstrap_problem(parts, machine, now)
            or _etcd_problem(parts, machine, now)
            or _rancher_problem(parts, machine, now)
        )
        if waiting is not None:
            yield waiting
            continue

        problems: list[Problem] = []
        if harvester_machine:
            problems += _infrastructure_problems(parts, harvester_machine, now, explained)
        yield from problems
        if not any(problem.severity in EXPLAINING for problem in problems):
            yield from _own_problems(parts, machine, harvester_machine, now)

    # The Machine of the others may be unreadable, or was removed without its finalizer.
    for key, harvester_machine in parts.harvester_machines.items():
        if key not in owned:
            yield from _infrastructure_problems(parts, harvester_machine, now, explained)


def release_step(parts: Parts, machine: Obj, now: datetime) -> str:
    """Return the command that ends a deletion's wait for an etcd member.

    The answer is empty if the deletion waits for something else.
    """
    problem = _etcd_problem(parts, machine, now)
    return problem.next_step if problem else ""


def _bootstrap_problem(parts: Parts, machine: Obj, now: datetime) -> Problem | None:
    """Return the problem of a machine that waits for its bootstrap data, None if it does not.

    The provider's conditions may not report it. CAPRKE2, for example, reports unusable values only
    in its log.
    """
    ref = dict_at(machine, "spec", "bootstrap", "configRef")
    if not ref or clusterapi.bootstrap_secret_name(machine) or being_deleted(machine):
        return None

    # Bootstrap providers start once the infrastructure is provisioned.
    provisioned = clusterapi.infrastructure_provisioned(parts.cluster)
    if not provisioned and parts.harvester_cluster is not None:
        return None

    # Further machines wait for the control plane, and the Cluster reports this wait.
    condition = condition_of(machine, "BootstrapConfigReady")
    message = flatten(str(condition.get("message") or ""))
    if message.startswith(_CONSEQUENCES):
        return None

    created = machine["metadata"].get("creationTimestamp")
    since = str(condition.get("lastTransitionTime") or created or "")
    severity = Severity.WAITING if age_of(since, now) <= PATIENCE else Severity.ERROR
    kind = str(ref.get("kind") or "")
    name = str(ref.get("name") or "")
    # A name that only repeats the name of the machine is left out, because one problem may stand
    # for several machines.
    config = f"its {kind}" if name == key_of(machine).name else f"{kind} {name}"
    detail = f" ({message})" if message else ""
    cause = (
        f"waiting since {since} for the bootstrap provider to create the data of {config}{detail}"
    )
    step = next_step("WaitingForBootstrapData", remedy_subject(parts, machine, "Machine"), kind)
    return Problem(
        severity,
        (object_name(machine, "Machine"),),
        "WaitingForBootstrapData",
        cause=cause,
        next_step=step,
        since=since,
    )


def _etcd_problem(parts: Parts, machine: Obj, now: datetime) -> Problem | None:
    """Return the problem of a deletion in which CAPRKE2 waits for an annotation of a deleted Node.

    None if the machine does not wait for that.
    """
    deleting = condition_of(machine, "Deleting")
    node = condition_of(machine, "NodeHealthy")
    if (
        RKE2_HOOK not in annotations_of(machine)
        or deleting.get("reason") != "WaitingForPreTerminateHook"
        or node.get("reason") != "NodeDeleted"
    ):
        return None

    since = str(deleting.get("lastTransitionTime") or "")
    name = at(machine, "status", "nodeRef", "name") or ""
    severity = Severity.ERROR if age_of(since, now) > HOOK_PATIENCE else Severity.WAITING
    cause = (
        f"its deletion waits for hook {RKE2_HOOK.rpartition('/')[2]}: the RKE2 provider reads from "
        f"Node {name} that the etcd member was removed, and the Node was deleted"
    )
    step = next_step("EtcdMemberNotReleased", remedy_subject(parts, machine, "Machine"))
    return Problem(
        severity,
        (object_name(machine, "Machine"),),
        "EtcdMemberNotReleased",
        cause=cause,
        next_step=step,
        since=since,
    )


def _rancher_problem(parts: Parts, machine: Obj, now: datetime) -> Problem | None:
    """Return the problem of a deletion that waits until Rancher has removed the etcd member.

    None if the machine does not wait for that.
    """
    deleting = condition_of(machine, "Deleting")
    is_awaited = deleting.get("reason") == "WaitingForPreTerminateHook"
    if RANCHER_HOOK not in annotations_of(machine) or not is_awaited:
        return None

    since = text_at(deleting, "lastTransitionTime")
    name = text_at(machine, "status", "nodeRef", "name")
    severity = Severity.ERROR if age_of(since, now) > HOOK_PATIENCE else Severity.WAITING
    cause = (
        f"its deletion waits for hook {RANCHER_HOOK.rpartition('/')[2]}: Rancher removes it once "
        f"RKE2 has removed the etcd member of Node {name}"
    )
    step = next_step("HeldByRancher", remedy_subject(parts, machine, "Machine"))
    return Problem(
        severity,
        (object_name(machine, "Machine"),),
        "HeldByRancher",
        cause=cause,
        next_step=step,
        since=since,
    )


def _infrastructure_problems(
    parts: Parts, harvester_machine: Obj, now: datetime, explained: bool
) -> Iterator[Problem]:
    """Yield the problems that a HarvesterMachine reports.

    :param parts: the objects of the cluster
    :param harvester_machine: the object to diagnose
    :param now: the current time
    :param explained: whether the cluster has a problem that machines only repeat
    """
    ready = condition_of(harvester_machine, ConditionType.READY)
    if ready.get("status", "True") != "True":
        # A machine that is being deleted always reports why its deletion takes long.
        is_outage = ready.get("reason") in OUTAGES and not being_deleted(harvester_machine)
        if not (explained and is_outage):
            yield condition_problem(parts, harvester_machine, "HarvesterMachine", ready, now)

    up_to_date = condition_of(harvester_machine, ConditionType.VM_UP_TO_DATE)
    age = age_of(str(up_to_date.get("lastTransitionTime") or ""), now)
    is_updated = up_to_date.get("reason") == Reason.VM_UPDATING and age <= UPDATE_PATIENCE
    if up_to_date.get("status") == "False" and not is_updated:
        yield condition_problem(parts, harvester_machine, "HarvesterMachine", up_to_date, now)


def _own_problems(
    parts: Parts, machine: Obj, harvester_machine: Obj | None, now: datetime
) -> Iterator[Problem]:
    """Yield the first problem that a Machine reports, or that its HarvesterMachine does not exist.

    :param parts: the objects of the cluster
    :param machine: the object to diagnose
    :param harvester_machine: the object that it refers to
    :param now: the current time
    """
    _, name = clusterapi.infrastructure_ref(machine)
    if harvester_machine is None and name and parts.complete and not being_deleted(machine):
        cause = f"HarvesterMachine {name}, which the Machine refers to, does not exist"
        step = next_step("NodeDeleted", remedy_subject(parts, machine, "Machine"))
        yield Problem(
            Severity.ERROR,
            (object_name(machine, "Machine"),),
            "NotFound",
            cause=cause,
            next_step=step,
        )
        return

    # Causes come first. For example, a Node is not healthy because its machine is being deleted.
    bad_statuses = {
        "Deleting": ("True",),
        "BootstrapConfigReady": ("False",),
        "NodeHealthy": ("False", "Unknown"),
    }
    for kind, bad in bad_statuses.items():
        condition = condition_of(machine, kind)
        message = str(condition.get("message") or "")
        if condition.get("status") not in bad or not message:
            continue
        if message.startswith(_CONSEQUENCES):
            continue

        problem = condition_problem(parts, machine, "Machine", condition, now)
        if kind == "NodeHealthy" and not at(machine, "status", "nodeRef"):
            step = next_step("NodeNotJoined", remedy_subject(parts, machine, "Machine"))
            problem = replace(problem, next_step=step)
        yield problem
        return
