"""Report what a deletion waits for, and what stays on Harvester when it is forced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from caphv.api import remedies, resources
from caphv.api.ippool import referenced_pools
from caphv.api.names import FORCE_DELETE_ANNOTATION, ConditionType, generated_names
from caphv.api.object import Key, Obj, annotations_of, at, being_deleted, key_of, list_at, text_at
from caphv.api.virtualmachine import cloud_init_secret_name
from operations.read.objects import ManagementObjects, by_cluster, by_key, condition_of
from operations.status.conditionproblems import PATIENCE
from operations.status.machineproblems import release_step
from operations.status.parts import Parts, remedy_subject
from operations.status.remedies import next_step, resume_command

# CAPK3s sets the first one without a name behind it.
_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io"
_DRAIN_HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io"
_PAUSED = "the end of its pause: no controller acts until then"
_SILENT = "the provider: it has not reported yet"


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """An object whose deletion is under way: since when, what it waits for, and what helps."""

    object: str
    since: str
    reason: str
    next_step: str = ""
    stuck: bool = False
    paused: bool = False
    """Whether it waits for the end of its own pause, as a forced deletion does as well."""

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return self.stuck


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object on Harvester that a forced deletion may leave behind."""

    kind: str
    name: str
    namespace: str = ""
    pool: str = ""


def pending_deletions(parts: Parts, now: datetime) -> tuple[PendingDeletion, ...]:
    """Return the objects that a deletion waits for, in the order of deletion: the cluster last.

    First of all, that the Cluster is paused: then no controller proceeds.
    """
    pending = [*_machines(parts, now)]
    harvester_cluster = parts.harvester_cluster
    if harvester_cluster is not None and being_deleted(harvester_cluster):
        pending.append(_infrastructure(parts, harvester_cluster, "HarvesterCluster", now))

    cluster = parts.cluster
    if being_deleted(cluster) and resume_command(cluster):
        pending.insert(0, _wait(cluster, "Cluster", "", "", now))
    elif being_deleted(cluster) and not pending:
        message = str(condition_of(cluster, "Deleting").get("message") or "its finalizers")
        pending.append(_wait(cluster, "Cluster", " ".join(message.split()), "", now))
    return tuple(pending)


def remains_of(objects: ManagementObjects, key: Key) -> Parts | None:
    """Return the objects of a cluster whose Cluster no longer exists; None if there are none.

    A Cluster that lost its finalizers leaves its infrastructure behind, and no owner deletes it.
    """
    machines = by_cluster(objects.machines).get(key, [])
    harvester_clusters = [
        *by_cluster(objects.harvester_clusters).get(key, []),
        *(obj for obj in objects.harvester_clusters if key_of(obj) == key),
    ]
    harvester_machines = by_key(by_cluster(objects.harvester_machines).get(key, ()))
    if not (machines or harvester_clusters or harvester_machines):
        return None

    cluster = {
        "kind": "Cluster",
        "metadata": {"namespace": key.namespace, "name": key.name},
        "spec": {},
    }
    harvester_cluster = harvester_clusters[0] if harvester_clusters else None
    return Parts(
        cluster=cluster,
        harvester_cluster=harvester_cluster,
        control_plane=None,
        machines=machines,
        harvester_machines=harvester_machines,
    )


def pending_remains(parts: Parts, now: datetime) -> tuple[PendingDeletion, ...]:
    """Return what blocks the remains of a cluster, or that their deletion is not requested."""
    pending = list(pending_deletions(parts, now))
    reported = {deletion.object for deletion in pending}

    objects = [("Machine", obj) for obj in parts.machines]
    objects += [("HarvesterMachine", obj) for obj in parts.harvester_machines.values()]
    if parts.harvester_cluster:
        objects.append(("HarvesterCluster", parts.harvester_cluster))

    for kind, obj in objects:
        name = f"{kind}/{obj['metadata']['name']}"
        if name in reported:
            continue
        if being_deleted(obj):
            if kind != "Machine":  # it waits for its HarvesterMachine
                pending.append(_infrastructure(parts, obj, kind, now))
            continue
        step = remedies.DELETE_OBJECT(
            kind=kind.lower(), name=obj["metadata"]["name"], namespace=parts.key.namespace
        )
        reason = "a deletion: its Cluster no longer exists, and nothing else requests it"
        pending.append(PendingDeletion(name, "", reason, step, stuck=True))
    return tuple(pending)


def leftovers_of(parts: Parts) -> tuple[Leftover, ...]:
    """Return the objects that a cluster has on its Harvester according to its own objects."""
    target = text_at(parts.harvester_cluster, "spec", "targetNamespace")
    leftovers: list[Leftover] = []
    for machine in parts.harvester_machines.values():
        leftovers += _of_machine(machine, target)
    if parts.harvester_cluster is not None:
        leftovers += _of_cluster(parts.harvester_cluster, target)
    return tuple(leftovers)


def forcible(parts: Parts) -> tuple[tuple[str, Obj], ...]:
    """Return the objects, with their kind, that do not have the force-delete annotation yet."""
    objects = [("HarvesterMachine", obj) for obj in parts.harvester_machines.values()]
    if parts.harvester_cluster:
        objects.append(("HarvesterCluster", parts.harvester_cluster))
    return tuple(
        (kind, obj)
        for kind, obj in objects
        if annotations_of(obj).get(FORCE_DELETE_ANNOTATION) != "true"
    )


def _machines(parts: Parts, now: datetime) -> Iterator[PendingDeletion]:
    """Yield the wait of each machine."""
    for machine in parts.machines:
        if not being_deleted(machine):
            if being_deleted(parts.cluster):
                yield _unrequested_deletion(parts, machine, now)
            continue

        harvester_machine = parts.harvester_machine_of(machine)
        if harvester_machine is not None and being_deleted(harvester_machine):
            yield _infrastructure(parts, harvester_machine, "HarvesterMachine", now)
            continue

        step = release_step(parts, machine, now)
        if not step:
            place = {"machine": machine["metadata"]["name"], "namespace": parts.key.namespace}
            step = f"See {remedies.DESCRIBE_MACHINE(**place)}"
        yield _wait(machine, "Machine", _reason(machine), step, now)


def _reason(machine: Obj) -> str:
    """Return the wait of the core before it deletes the HarvesterMachine of a Machine."""
    condition = condition_of(machine, "Deleting")
    message = " ".join(text_at(condition, "message").split())
    if reason := message or text_at(condition, "reason"):
        return reason
    for annotation in annotations_of(machine):
        if annotation.startswith((_HOOK, _DRAIN_HOOK)):
            return f"the hook {annotation.rpartition('/')[2]} of its control plane provider"
    return "Cluster API's core"


def _unrequested_deletion(parts: Parts, machine: Obj, now: datetime) -> PendingDeletion:
    """Return the wait of a Machine whose owner has not requested its deletion.

    It is stuck if nothing that comes before it explains that.
    """
    references = machine["metadata"].get("ownerReferences") or ()
    controllers = (f"{ref['kind']}/{ref['name']}" for ref in references if ref.get("controller"))
    owner = next(controllers, "its owner")

    since = str(parts.cluster["metadata"]["deletionTimestamp"])
    waits = bool(resume_command(parts.cluster)) or any(map(being_deleted, parts.machines))
    stuck = not waits and _is_late(since, now)
    step = f"Check that the controller of its owner runs: {remedies.GET_PROVIDERS}"
    reason = f"its turn: {owner} has not asked for its deletion yet"
    name = f"Machine/{machine['metadata']['name']}"
    return PendingDeletion(
        object=name, since=since, reason=reason, next_step=step if stuck else "", stuck=stuck
    )


def _infrastructure(parts: Parts, obj: Obj, kind: str, now: datetime) -> PendingDeletion:
    """Return the wait of the provider, from the first condition that is not true.

    :param parts: the objects of the cluster
    :param obj: a HarvesterCluster or HarvesterMachine that is being deleted
    :param kind: its kind
    :param now: the current time
    """
    condition_types = (
        ConditionType.HARVESTER_CONNECTION_READY,
        ConditionType.VM_PROVISIONING_READY,
        ConditionType.READY,
    )
    for condition_type in condition_types:
        condition = condition_of(obj, condition_type)
        if condition.get("status", "True") == "True":
            continue
        message = str(condition.get("message") or _SILENT)
        step = next_step(text_at(condition, "reason"), remedy_subject(parts, obj, kind))
        return _wait(obj, kind, message, step, now)
    return _wait(obj, kind, _SILENT, "", now)


def _wait(obj: Obj, kind: str, reason: str, step: str, now: datetime) -> PendingDeletion:
    """Return the wait of an object. If it is paused, it waits for the end of its pause.

    :param obj: an object that is being deleted
    :param kind: its kind
    :param reason: what it waits for unless it is paused
    :param step: what helps
    :param now: the current time
    """
    name = f"{kind}/{obj['metadata']['name']}"
    since = str(obj["metadata"]["deletionTimestamp"])
    if command := resume_command(obj):
        resume = f"Resume it: {command}"
        return PendingDeletion(name, since, _PAUSED, resume, stuck=True, paused=True)
    return PendingDeletion(
        object=name, since=since, reason=reason, next_step=step, stuck=_is_late(since, now)
    )


def _is_late(since: str, now: datetime) -> bool:
    return now - datetime.fromisoformat(since) > PATIENCE


def _of_machine(machine: Obj, target: str) -> Iterator[Leftover]:
    """Yield what a HarvesterMachine has on Harvester: nothing before its VM was created."""
    name = str(machine["metadata"]["name"])
    status = machine.get("status") or {}
    if not (at(machine, "spec", "providerID") or status.get("virtualMachine")):
        return

    yield Leftover(resources.VIRTUAL_MACHINES.kind, name, target)
    for number, _ in enumerate(list_at(machine, "spec", "volumes")):
        yield Leftover("PersistentVolumeClaim", f"{name}-disk-{number}-*", target)
    yield Leftover("Secret", cloud_init_secret_name(name), target)
    if address := status.get("allocatedIPAddress"):
        yield Leftover("address", str(address), pool=text_at(status, "allocatedPoolRef"))
    for entry in status.get("interfaceAddresses") or ():
        yield Leftover("address", str(entry["address"]), pool=str(entry["pool"]))


def _of_cluster(obj: Obj, target: str) -> Iterator[Leftover]:
    """Yield what a HarvesterCluster has on Harvester."""
    spec = obj.get("spec") or {}
    if not spec.get("server"):
        return  # it never reached Harvester

    balancer = spec.get("loadBalancerConfig") or {}
    if balancer.get("ipamType") != "none":
        name = generated_names(obj, "lb")[0]
        yield Leftover(resources.LOAD_BALANCERS.kind, name, target)
        yield Leftover("Service", name, target)

    host = at(spec, "controlPlaneEndpoint", "host")
    if host and balancer.get("ipamType") == "pool":
        pools = list(referenced_pools(balancer))
        pool = pools[0] if pools else generated_names(obj, "ippool")[0]
        yield Leftover("address", str(host), pool=pool)
    if balancer.get("ipPool"):
        yield Leftover("IPPool", generated_names(obj, "ippool")[0])
    if at(spec, "vmNetworkConfig", "ipPool"):
        yield Leftover("IPPool", generated_names(obj, "vm-ippool")[0])
