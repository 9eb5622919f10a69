"""What is wrong with a cluster, causes before consequences: pure decisions over its objects.

Conditions repeat each other: a Secret that is missing shows in the HarvesterCluster, the Cluster, and each machine. The
first cause along the way from Harvester to the Node is the one that an operator can act on, so what follows from it is
left out, and what many machines have in common is one problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from caphv.api import clusterapi, remedies
from caphv.api.counting import counted
from caphv.api.names import RKE2_HOOK, ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of
from overview.causes import OUTAGES
from overview.model import Problem, Severity
from overview.objects import condition_of, conditions_of
from overview.remedies import Subject, next_step, resume_command

# What is still in progress after this time counts as a problem.
PATIENCE = timedelta(minutes=15)
# A hook that is still there after this time is not removed any more.
HOOK_PATIENCE = timedelta(minutes=2)
# In this order each gates the next.
_GATES = (
    ConditionType.HARVESTER_CONNECTION_READY,
    ConditionType.TARGET_NAMESPACE_READY,
    ConditionType.VM_IP_POOL_READY,
    ConditionType.CUSTOM_IP_POOL_CREATED,
    ConditionType.LOAD_BALANCER_READY,
    ConditionType.INFRASTRUCTURE_READY,
)
_ADDITIONAL = (
    ConditionType.IDENTITY_UP_TO_DATE,
    ConditionType.REFERENCES_ALLOWED,
    ConditionType.WITHIN_LIMITS,
    ConditionType.FAILURE_DOMAINS_AVAILABLE,
    ConditionType.CLOUD_PROVIDER_CONFIG_READY,
    ConditionType.FLEET_INTEGRATION_READY,
    ConditionType.ADDON_BUNDLES_READY,
)
_PASSING = frozenset(
    {
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        Reason.HARVESTER_CONNECTION_IN_PROGRESS,
        Reason.TARGET_NAMESPACE_CHECKING,
        Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS,
        Reason.FLEET_INTEGRATION_IN_PROGRESS,
        Reason.ADDON_BUNDLES_IN_PROGRESS,
        Reason.VM_PROVISIONING_IN_PROGRESS,
    }
)
_CHOSEN = frozenset({Reason.ADDON_BUNDLES_SUSPENDED, Reason.FLEET_INTEGRATION_NOT_APPLICABLE})
_WARNINGS = frozenset(
    {
        Reason.IDENTITY_EXPIRING,
        Reason.VM_DIFFERS,
        Reason.ADDON_BUNDLES_NOT_APPLIED,
        Reason.CROSS_NAMESPACE_REFERENCE,
        Reason.FAILURE_DOMAIN_UNAVAILABLE,
        Reason.LIMIT_REACHED,
    }
)
# A cluster works without add-ons, and some are meant to have none.
_NOTES = frozenset({Reason.ADDON_BUNDLES_MISSING})
# What also explains that an object further up is not ready.
_EXPLAINING = (Severity.ERROR, Severity.WAITING)
# Messages of the core that say nothing of their own.
_CONSEQUENCES = ("Waiting for Cluster control plane to be initialized", "Waiting for Cluster infrastructure")


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects of one cluster; `complete` says that an absent object does not exist."""

    cluster: Obj
    harvester_cluster: Obj | None = None
    control_plane: Obj | None = None
    machines: list[Obj] = field(default_factory=list)
    harvester_machines: dict[Key, Obj] = field(default_factory=dict)
    complete: bool = True

    @property
    def key(self) -> Key:
        """Namespace and name of the Cluster."""
        return key_of(self.cluster)

    def machine_of(self, harvester_machine: Obj) -> Obj | None:
        """The Machine of a HarvesterMachine, whose name may differ."""
        key = key_of(harvester_machine)
        return next(
            (
                machine
                for machine in self.machines
                if Key(key_of(machine).namespace, clusterapi.infrastructure_ref(machine)[1]) == key
            ),
            None,
        )

    def harvester_machine_of(self, machine: Obj) -> Obj | None:
        """The HarvesterMachine of a Machine."""
        _, name = clusterapi.infrastructure_ref(machine)
        return self.harvester_machines.get(Key(key_of(machine).namespace, name))


def problems_of(parts: Parts, now: datetime) -> tuple[Problem, ...]:
    """Return what is wrong with a cluster, the root cause first."""
    if being_deleted(parts.cluster):
        return tuple(_deletion(parts, now))
    found = [*_infrastructure(parts, now)]
    if not any(problem.severity is Severity.ERROR for problem in found):
        found += _topology(parts, now)
    found += _merged(_machines(parts, now, any(problem.severity is not Severity.NOTE for problem in found)))
    if not any(problem.severity in _EXPLAINING for problem in found):
        found += _cluster_itself(parts, now)
    return tuple(sorted(found, key=lambda problem: problem.severity.rank))


def paused(parts: Parts) -> bool:
    """Whether reconciliation of the cluster is suspended."""
    return bool(resume_commands(parts))


def resume_commands(parts: Parts) -> str:
    """Return the commands that resume a paused cluster, for a shell; empty if it is not paused."""
    own = [parts.harvester_cluster] if parts.harvester_cluster else []
    return " && ".join(filter(None, map(resume_command, [parts.cluster, *own])))


def _deletion(parts: Parts, now: datetime) -> Iterator[Problem]:
    """What the deletion waits for: machines first, then the infrastructure."""
    since = str(parts.cluster["metadata"]["deletionTimestamp"])
    waiting = Severity.ERROR if _age(since, now) > PATIENCE else Severity.WAITING
    if command := resume_command(parts.cluster):
        cause = "being deleted, and paused: no controller acts"
        name = _name(parts.cluster, "Cluster")
        yield Problem(waiting, (name,), "Paused", cause, f"Resume it: {command}", since)
        return
    stuck = [*_infrastructure(parts, now), *_merged(_machines(parts, now, True))]
    causes = [problem for problem in stuck if problem.severity is Severity.ERROR]
    if causes:
        yield from causes
        return
    message = str(condition_of(parts.cluster, "Deleting").get("message") or "")
    if not message and parts.machines:
        message = (
            f"waiting for {counted(len(parts.machines), 'machine')}, first {parts.machines[0]['metadata']['name']}"
        )
    subject = subject_of(parts, parts.cluster, "Cluster")
    text = f"being deleted: {_flat(message) or 'waiting for its infrastructure'}"
    yield Problem(waiting, (_name(parts.cluster, "Cluster"),), "Deleting", text, next_step("Deleting", subject), since)


def _infrastructure(parts: Parts, now: datetime) -> Iterator[Problem]:
    obj = parts.harvester_cluster
    if obj is None:
        _, name = clusterapi.infrastructure_ref(parts.cluster)
        if name and parts.complete:
            cause = f"HarvesterCluster {name}, which the Cluster refers to, does not exist"
            command = remedies.GET_HARVESTER_CLUSTERS(namespace=parts.key.namespace)
            step = f"Create it, or correct spec.infrastructureRef: {command}"
            yield Problem(Severity.ERROR, (f"HarvesterCluster/{name}",), "NotFound", cause, step)
        return
    # While Harvester does not answer, a refusal from before is no news about the identity.
    unreachable = (
        condition_of(obj, ConditionType.HARVESTER_CONNECTION_READY).get("reason") == Reason.HARVESTER_UNREACHABLE
    )
    reported: set[str] = set()
    gated = False
    for kind in (*_ADDITIONAL[:1], *_GATES, *_ADDITIONAL[1:]):
        condition = condition_of(obj, kind)
        reason, message = condition.get("reason"), str(condition.get("message") or "")
        if condition.get("status", "True") == "True" or reason in _CHOSEN or message in reported:
            continue
        outdated = unreachable and reason == Reason.HARVESTER_AUTHENTICATION_FAILED
        if outdated or (gated and kind in _GATES):
            continue

        problem = _problem(parts, obj, "HarvesterCluster", condition, now)
        reported.add(message)
        gated = gated or problem.severity is not Severity.WARNING
        yield problem


def _topology(parts: Parts, now: datetime) -> Iterator[Problem]:
    condition = condition_of(parts.cluster, "TopologyReconciled")
    if condition.get("status") == "False":
        yield _problem(parts, parts.cluster, "Cluster", condition, now)


def _machines(parts: Parts, now: datetime, infrastructure: bool) -> Iterator[Problem]:
    owned = set()
    for machine in parts.machines:
        own = parts.harvester_machine_of(machine)
        if own is not None:
            owned.add(key_of(own))
        waiting = _bootstrap(parts, machine, now) or _etcd(parts, machine, now)
        if waiting is not None:
            yield waiting
            continue
        found = list(_of_infrastructure(parts, own, now, infrastructure)) if own else []
        yield from found
        if not any(problem.severity in _EXPLAINING for problem in found):
            yield from _of_machine(parts, machine, own, now)
    for key, own in parts.harvester_machines.items():
        if key not in owned:
            yield from _of_infrastructure(parts, own, now, infrastructure)


def _bootstrap(parts: Parts, machine: Obj, now: datetime) -> Problem | None:
    """Say that a machine waits for bootstrap data, of whom and since when: the provider's conditions may say nothing.

    CAPRKE2 reports values that it cannot use in its log only.
    """
    spec = machine.get("spec") or {}
    ref = (spec.get("bootstrap") or {}).get("configRef") or {}
    if not ref or clusterapi.bootstrap_secret_name(machine) or being_deleted(machine):
        return None
    if not clusterapi.infrastructure_provisioned(parts.cluster) and parts.harvester_cluster is not None:
        return None

    condition = condition_of(machine, "BootstrapConfigReady")
    message = _flat(str(condition.get("message") or ""))
    if message.startswith(_CONSEQUENCES):
        return None
    since = str(condition.get("lastTransitionTime") or machine["metadata"].get("creationTimestamp") or "")
    severity = Severity.WAITING if _age(since, now) <= PATIENCE else Severity.ERROR
    kind, name = str(ref.get("kind") or ""), str(ref.get("name") or "")
    detail = f" ({message})" if message else ""
    cause = f"waiting since {since} for the bootstrap provider to create the data of {kind} {name}{detail}"
    step = next_step("WaitingForBootstrapData", subject_of(parts, machine, "Machine"), kind)
    return Problem(severity, (_name(machine, "Machine"),), "WaitingForBootstrapData", cause, step, since)


def _etcd(parts: Parts, machine: Obj, now: datetime) -> Problem | None:
    """Say that the deletion of a machine hangs: CAPRKE2 waits for an annotation of its Node, which was deleted."""
    deleting, node = condition_of(machine, "Deleting"), condition_of(machine, "NodeHealthy")
    if (
        RKE2_HOOK not in annotations_of(machine)
        or deleting.get("reason") != "WaitingForPreTerminateHook"
        or node.get("reason") != "NodeDeleted"
    ):
        return None
    since = str(deleting.get("lastTransitionTime") or "")
    name = ((machine.get("status") or {}).get("nodeRef") or {}).get("name") or ""
    severity = Severity.ERROR if _age(since, now) > HOOK_PATIENCE else Severity.WAITING
    cause = (
        f"its deletion waits for hook {RKE2_HOOK.rpartition('/')[2]}: the RKE2 provider reads from Node {name} that "
        "the etcd member was removed, and the Node was deleted"
    )
    step = next_step("EtcdMemberNotReleased", subject_of(parts, machine, "Machine"))
    return Problem(severity, (_name(machine, "Machine"),), "EtcdMemberNotReleased", cause, step, since)


def release_step(parts: Parts, machine: Obj, now: datetime) -> str:
    """Return the command that ends the wait of a deletion for an etcd member; empty if it waits for something else."""
    problem = _etcd(parts, machine, now)
    return problem.next_step if problem else ""


def _of_infrastructure(parts: Parts, own: Obj, now: datetime, infrastructure: bool) -> Iterator[Problem]:
    ready = condition_of(own, ConditionType.READY)
    if ready.get("status", "True") != "True":
        consequence = ready.get("reason") in OUTAGES and not being_deleted(own)
        if not (infrastructure and consequence):
            yield _problem(parts, own, "HarvesterMachine", ready, now)
    drifted = condition_of(own, ConditionType.VM_UP_TO_DATE)
    if drifted.get("status") == "False":
        yield _problem(parts, own, "HarvesterMachine", drifted, now)


def _of_machine(parts: Parts, machine: Obj, own: Obj | None, now: datetime) -> Iterator[Problem]:
    _, name = clusterapi.infrastructure_ref(machine)
    if own is None and name and parts.complete and not being_deleted(machine):
        cause = f"HarvesterMachine {name}, which the Machine refers to, does not exist"
        step = next_step("NodeDeleted", subject_of(parts, machine, "Machine"))
        yield Problem(Severity.ERROR, (_name(machine, "Machine"),), "NotFound", cause, step)
        return
    for kind in ("Deleting", "BootstrapConfigReady", "NodeHealthy"):
        condition = condition_of(machine, kind)
        bad = "True" if kind == "Deleting" else "False"
        unknown = kind == "NodeHealthy" and condition.get("status") == "Unknown"
        message = str(condition.get("message") or "")
        if (condition.get("status") == bad or unknown) and message and not message.startswith(_CONSEQUENCES):
            yield _problem(parts, machine, "Machine", condition, now)
            return


def _cluster_itself(parts: Parts, now: datetime) -> Iterator[Problem]:
    """What no object further down explains."""
    probe = condition_of(parts.cluster, "RemoteConnectionProbe")
    if (
        probe.get("status") == "False"
        and condition_of(parts.cluster, "ControlPlaneInitialized").get("status") == "True"
    ):
        yield _problem(parts, parts.cluster, "Cluster", probe, now)
        return
    for obj, kind in ((parts.control_plane, "Available"), (parts.cluster, "Available")):
        condition = condition_of(obj, kind)
        if obj is not None and condition.get("status") == "False":
            yield _problem(parts, obj, str(obj.get("kind") or "Cluster"), condition, now)
            return


def _problem(parts: Parts, obj: Obj, kind: str, condition: Obj, now: datetime) -> Problem:
    reason, since = str(condition.get("reason") or ""), str(condition.get("lastTransitionTime") or "")
    message = _flat(str(condition.get("message") or "")) or f"{condition['type']} is {condition['status']}"
    severity = _severity(obj, kind, condition, _age(since, now))
    subject = subject_of(parts, obj, kind)
    return Problem(severity, (_name(obj, kind),), reason, message, next_step(reason, subject), since)


def _severity(obj: Obj, kind: str, condition: Obj, age: timedelta) -> Severity:
    reason = condition.get("reason")
    if reason in _WARNINGS:
        return Severity.WARNING
    if reason in _NOTES:
        return Severity.NOTE
    # The core and control plane providers do not distinguish a failure from a slow operation.
    passing = reason in _PASSING or (kind != "HarvesterCluster" and kind != "HarvesterMachine")
    if condition.get("type") in ("TopologyReconciled",) and "Failed" in str(reason):
        passing = False
    if passing or being_deleted(obj):
        return Severity.WAITING if age <= PATIENCE else Severity.ERROR
    return Severity.ERROR


def _merged(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Make one problem of those that differ only in the machine's name."""
    found: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        name = problem.objects[0].partition("/")[2]
        found.setdefault((problem.reason, problem.cause.replace(name, "…")), []).append(problem)
    for group in found.values():
        objects = tuple(problem.objects[0] for problem in group)
        worst = min(group, key=lambda problem: (problem.severity is Severity.WAITING, problem.since))
        yield Problem(worst.severity, objects, worst.reason, worst.cause, worst.next_step, worst.since)


def subject_of(parts: Parts, obj: Obj, kind: str) -> Subject:
    """Return what a remedy may name for an object of a cluster."""
    machine = obj if kind == "Machine" else parts.machine_of(obj) if kind == "HarvesterMachine" else None
    spec = (parts.harvester_cluster or {}).get("spec") or {}
    secret = spec.get("identitySecret") or {}
    identity = f"{secret.get('namespace')}/{secret.get('name')}" if secret else ""
    return Subject(
        *parts.key,
        kind,
        obj["metadata"]["name"],
        identity,
        str(spec.get("targetNamespace") or ""),
        machine=key_of(machine).name if machine else "",
        deleting=machine is not None and being_deleted(machine),
        topology=bool((parts.cluster.get("spec") or {}).get("topology")),
    )


def _name(obj: Obj, kind: str) -> str:
    return f"{kind}/{obj['metadata']['name']}"


def _flat(message: str) -> str:
    """A message of the core without the bullets and lines by which it aggregates others."""
    lines = (line.strip().removeprefix("* ") for line in message.splitlines())
    return "; ".join(line.rstrip(":") if line.endswith(":") else line for line in lines if line)


def _age(since: str, now: datetime) -> timedelta:
    try:
        return now - datetime.fromisoformat(since)
    except ValueError:
        return timedelta(0)


def oldest_condition(obj: Obj | None) -> str:
    """Time of the earliest change that the conditions of an object remember."""
    return min((str(each.get("lastTransitionTime") or "") for each in conditions_of(obj)), default="")
