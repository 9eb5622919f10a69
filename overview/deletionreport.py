"""What deleting a cluster removes, what a deletion waits for, and what stays behind when it is forced: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from caphv.api import remedies, resources
from caphv.api.ippool import referenced_pools
from caphv.api.names import FORCE_DELETE_ANNOTATION, ConditionType, generated_names
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of
from overview.diagnosis import PATIENCE, Parts, release_step, subject_of
from overview.objects import ManagementObjects, by_cluster, by_key, condition_of
from overview.remedies import next_step, resume_command

# CAPK3s sets the first one without a name behind it.
_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io"
_DRAIN_HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io"
_PAUSED = "the end of its pause, until which no controller acts"


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """An object whose deletion is under way: since when, what it waits for, and what helps."""

    object: str
    since: str
    reason: str
    next_step: str = ""
    stuck: bool = False
    paused: bool = False
    """Whether it waits for the end of its own pause: a forced deletion waits for that, too."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object on Harvester that a forced deletion may leave behind."""

    kind: str
    name: str
    namespace: str = ""
    pool: str = ""


def pending_deletions(parts: Parts, now: datetime) -> tuple[PendingDeletion, ...]:
    """Return what a deletion waits for, in the order in which it proceeds: machines before their cluster.

    First of all, that the Cluster is paused: then no controller proceeds.
    """
    found = [*_machines(parts, now)]
    own = parts.harvester_cluster
    if own is not None and being_deleted(own):
        found.append(_infrastructure(parts, own, "HarvesterCluster", now))
    if being_deleted(parts.cluster) and resume_command(parts.cluster):
        found.insert(0, _wait(parts.cluster, "Cluster", "", "", now))
    elif being_deleted(parts.cluster) and not found:
        message = str(condition_of(parts.cluster, "Deleting").get("message") or "its finalizers")
        found.append(_wait(parts.cluster, "Cluster", " ".join(message.split()), "", now))
    return tuple(found)


def remains_of(found: ManagementObjects, key: Key) -> Parts | None:
    """Return what is left of a cluster whose Cluster object no longer exists; None when nothing is.

    A Cluster that lost its finalizers leaves its infrastructure behind, with no owner that would delete it.
    """
    machines = [obj for obj in by_cluster(found.machines).get(key, ()) if key_of(obj).namespace == key.namespace]
    own = by_cluster(found.harvester_clusters).get(key, [])
    named = [obj for obj in found.harvester_clusters if key_of(obj) == key]
    harvester_machines = by_key(by_cluster(found.harvester_machines).get(key, ()))
    if not (machines or own or named or harvester_machines):
        return None
    gone = {"kind": "Cluster", "metadata": {"namespace": key.namespace, "name": key.name}, "spec": {}}
    return Parts(gone, next(iter([*own, *named]), None), None, machines, harvester_machines)


def pending_remains(parts: Parts, now: datetime) -> tuple[PendingDeletion, ...]:
    """Return what is left without a Cluster: what it waits for, or that nothing asks for its deletion."""
    found = list(pending_deletions(parts, now))
    reported = {each.object for each in found}
    own = [("HarvesterCluster", parts.harvester_cluster)] if parts.harvester_cluster else []
    machines = [("Machine", obj) for obj in parts.machines]
    for kind, obj in (*machines, *(("HarvesterMachine", obj) for obj in parts.harvester_machines.values()), *own):
        name = f"{kind}/{obj['metadata']['name']}"
        if name in reported:
            continue
        if being_deleted(obj):
            if kind != "Machine":  # it waits for its HarvesterMachine
                found.append(_infrastructure(parts, obj, kind, now))
        else:
            place = {"kind": kind.lower(), "name": obj["metadata"]["name"], "namespace": parts.key.namespace}
            step = remedies.DELETE_OBJECT(**place)
            reason = "a deletion: its Cluster no longer exists, and nothing else asks for it"
            found.append(PendingDeletion(name, "", reason, step, stuck=True))
    return tuple(found)


def leftovers_of(parts: Parts) -> tuple[Leftover, ...]:
    """Return what a cluster has on its Harvester, as far as its objects say."""
    spec = (parts.harvester_cluster or {}).get("spec") or {}
    target = str(spec.get("targetNamespace") or "")
    found = [left for machine in parts.harvester_machines.values() for left in _of_machine(machine, target)]
    if parts.harvester_cluster is not None:
        found += _of_cluster(parts.harvester_cluster, target)
    return tuple(found)


def forcible(parts: Parts) -> tuple[tuple[str, Obj], ...]:
    """Return the objects that take the force-delete annotation: those being deleted that do not have it, with kind."""
    own = [parts.harvester_cluster] if parts.harvester_cluster else []
    candidates = [("HarvesterMachine", obj) for obj in parts.harvester_machines.values()]
    candidates += [("HarvesterCluster", obj) for obj in own]
    return tuple((kind, obj) for kind, obj in candidates if annotations_of(obj).get(FORCE_DELETE_ANNOTATION) != "true")


def _machines(parts: Parts, now: datetime) -> Iterator[PendingDeletion]:
    for machine in parts.machines:
        if not being_deleted(machine):
            if being_deleted(parts.cluster):
                yield _not_requested(parts, machine, now)
            continue
        own = parts.harvester_machine_of(machine)
        if own is not None and being_deleted(own):
            yield _infrastructure(parts, own, "HarvesterMachine", now)
            continue
        condition = condition_of(machine, "Deleting")
        hooks = [each for each in annotations_of(machine) if each.startswith((_HOOK, _DRAIN_HOOK))]
        reason = " ".join(str(condition.get("message") or "").split()) or str(condition.get("reason") or "")
        if hooks and not reason:
            reason = f"the hook {hooks[0].rpartition('/')[2]} of its control plane provider"
        step = release_step(parts, machine, now)
        place = {"machine": machine["metadata"]["name"], "namespace": parts.key.namespace}
        step = step or f"See {remedies.DESCRIBE_MACHINE(**place)}"
        yield _wait(machine, "Machine", reason or "Cluster API's core", step, now)


def _not_requested(parts: Parts, machine: Obj, now: datetime) -> PendingDeletion:
    """A Machine whose owner has not asked for its deletion: stuck if nothing that comes before it explains that."""
    owners = machine["metadata"].get("ownerReferences") or ()
    owner = next((f"{each['kind']}/{each['name']}" for each in owners if each.get("controller")), "its owner")
    since = str(parts.cluster["metadata"]["deletionTimestamp"])
    first = bool(resume_command(parts.cluster)) or any(map(being_deleted, parts.machines))
    stuck = not first and _late(since, now)
    step = f"Check that the controller of its owner runs: {remedies.GET_PROVIDERS}"
    reason = f"its turn: {owner} has not asked for its deletion yet"
    return PendingDeletion(f"Machine/{machine['metadata']['name']}", since, reason, step if stuck else "", stuck)


def _infrastructure(parts: Parts, obj: Obj, kind: str, now: datetime) -> PendingDeletion:
    order = (ConditionType.HARVESTER_CONNECTION_READY, ConditionType.VM_PROVISIONING_READY, ConditionType.READY)
    conditions = [condition for each in order if (condition := condition_of(obj, each)).get("status", "True") != "True"]
    condition = conditions[0] if conditions else {}
    message = str(condition.get("message") or "the provider: it has not reported yet")
    step = next_step(str(condition.get("reason") or ""), subject_of(parts, obj, kind)) if condition else ""
    return _wait(obj, kind, message, step, now)


def _wait(obj: Obj, kind: str, reason: str, step: str, now: datetime) -> PendingDeletion:
    """Return what an object waits for; whatever else it says, one that is paused waits for the end of that."""
    name, since = f"{kind}/{obj['metadata']['name']}", str(obj["metadata"].get("deletionTimestamp") or "")
    if command := resume_command(obj):
        return PendingDeletion(name, since, _PAUSED, f"Resume it: {command}", stuck=True, paused=True)
    return PendingDeletion(name, since, reason, step, bool(since) and _late(since, now))


def _late(since: str, now: datetime) -> bool:
    return now - datetime.fromisoformat(since) > PATIENCE


def _of_machine(machine: Obj, target: str) -> Iterator[Leftover]:
    name, status = str(machine["metadata"]["name"]), machine.get("status") or {}
    if not ((machine.get("spec") or {}).get("providerID") or status.get("virtualMachine")):
        return
    yield Leftover(resources.VIRTUAL_MACHINES.kind, name, target)
    for number, _ in enumerate((machine.get("spec") or {}).get("volumes") or ()):
        yield Leftover("PersistentVolumeClaim", f"{name}-disk-{number}-*", target)
    yield Leftover("Secret", f"{name}-cloud-init", target)
    if address := status.get("allocatedIPAddress"):
        yield Leftover("address", str(address), pool=str(status.get("allocatedPoolRef") or ""))


def _of_cluster(obj: Obj, target: str) -> Iterator[Leftover]:
    spec = obj.get("spec") or {}
    if not spec.get("server"):
        return  # it never reached Harvester
    name = generated_names(obj, "lb")[0]
    yield Leftover(resources.LOAD_BALANCERS.kind, name, target)
    yield Leftover("Service", name, target)
    balancer = spec.get("loadBalancerConfig") or {}
    host = (spec.get("controlPlaneEndpoint") or {}).get("host")
    if host and balancer.get("ipamType") == "pool":
        pool = next(iter(referenced_pools(balancer)), generated_names(obj, "ippool")[0])
        yield Leftover("address", str(host), pool=pool)
    if balancer.get("ipPool"):
        yield Leftover("IPPool", generated_names(obj, "ippool")[0])
    if (spec.get("vmNetworkConfig") or {}).get("ipPool"):
        yield Leftover("IPPool", generated_names(obj, "vm-ippool")[0])
