"""Turn plain objects into the model of clusters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from caphv.api import clusterapi, names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, at, being_deleted, dict_at, key_of, labels_of, text_at
from operations.read.objects import (
    ManagementObjects,
    by_cluster,
    by_key,
    condition_of,
    conditions_of,
)
from operations.status.causes import ObjectConditions, with_causes, with_consequences
from operations.status.diagnosis import problems_of
from operations.status.model import (
    Cluster,
    Condition,
    Group,
    Machine,
    Node,
    Overview,
    Problem,
    Replicas,
    Severity,
    State,
)
from operations.status.parkingproblems import explains_all, is_parked
from operations.status.parts import Parts, identity_text, is_paused

# Control planes whose status never counts the machines that have their spec. Others, such as
# CAPK3s's, omit the number only at 0.
_KINDS_WITHOUT_COUNT = frozenset({"TalosControlPlane"})


def overview_of(objects: ManagementObjects, now: datetime) -> Overview:
    """Return all clusters on Harvester, by namespace and name."""
    deployments = by_cluster(objects.machine_deployments)
    clusters = tuple(
        cluster_of(parts, sorted(deployments.get(parts.key, ()), key=key_of), now)
        for parts in parts_of(objects)
    )
    return with_causes(Overview(objects.server, clusters, unseen=tuple(map(str, objects.unseen))))


def parts_of(objects: ManagementObjects) -> Iterator[Parts]:
    """Yield the objects of each cluster on Harvester, by namespace and name."""
    machines = by_cluster(objects.machines)
    harvester_clusters = by_key(objects.harvester_clusters)
    harvester_machines = by_cluster(objects.harvester_machines)
    control_planes = {(str(obj["kind"]), *key_of(obj)): obj for obj in objects.control_planes}

    # An object counts as absent only if its whole collection could be read.
    complete = all(
        objects.sees(str(kind))
        for kind in (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES)
    )

    for cluster in sorted(objects.clusters, key=key_of):
        kind, infrastructure = clusterapi.infrastructure_ref(cluster)
        # A topology that was not reconciled yet has no reference. Such a cluster is shown, because
        # its problems must not be hidden.
        if kind not in ("", resources.HARVESTER_CLUSTERS.kind):
            continue

        key = key_of(cluster)
        reference = dict_at(cluster, "spec", "controlPlaneRef")
        control_plane_key = (
            str(reference.get("kind")),
            key.namespace,
            str(reference.get("name")),
        )
        yield Parts(
            cluster=cluster,
            harvester_cluster=harvester_clusters.get(Key(key.namespace, infrastructure)),
            control_plane=control_planes.get(control_plane_key),
            machines=sorted(
                machines.get(key, ()), key=lambda machine: _machine_order(machine, cluster)
            ),
            harvester_machines=by_key(harvester_machines.get(key, ())),
            complete=complete,
            sees_machines=objects.sees(f"machines.{resources.CLUSTER_API_GROUP}"),
        )


def cluster_of(parts: Parts, deployments: list[Obj], now: datetime) -> Cluster:
    """Return the model of one cluster."""
    cluster = parts.cluster
    harvester_cluster = parts.harvester_cluster or {}
    spec = cluster.get("spec") or {}
    harvester_spec = harvester_cluster.get("spec") or {}
    topology = spec.get("topology") or {}
    bundles = condition_of(harvester_cluster, ConditionType.ADDON_BUNDLES_READY)

    groups = _groups(parts, deployments)
    control_plane, workers = _counts(parts, deployments, groups)
    machine_versions = {
        machine.version for group in groups for machine in group.machines if machine.version
    }
    version = _desired_version(parts)
    rolling_out = _is_rolling_out(parts, groups, version)
    problems = with_consequences(problems_of(parts, now), _conditions_by_object(parts, groups))

    return Cluster(
        *parts.key,
        state=_state(parts, problems, (control_plane, workers), rolling_out=rolling_out),
        created=str(cluster["metadata"].get("creationTimestamp") or ""),
        phase=text_at(cluster, "status", "phase"),
        class_name=str(at(topology, "classRef", "name") or topology.get("class") or ""),
        version=version,
        versions=tuple(sorted(machine_versions, key=_version_order)),
        endpoint=_endpoint(
            spec.get("controlPlaneEndpoint") or harvester_spec.get("controlPlaneEndpoint") or {}
        ),
        harvester=str(harvester_spec.get("server") or ""),
        target_namespace=str(harvester_spec.get("targetNamespace") or ""),
        identity=identity_text(harvester_cluster),
        infrastructure=text_at(harvester_cluster, "metadata", "name"),
        control_plane=control_plane,
        workers=workers,
        groups=groups,
        bundles=_condition(bundles) if bundles else None,
        problems=problems,
        conditions=_conditions(cluster),
        infrastructure_conditions=_conditions(harvester_cluster),
    )


class _Counts(NamedTuple):
    """The numbers of machines of a cluster."""

    control_plane: Replicas
    workers: Replicas


def _counts(parts: Parts, deployments: list[Obj], groups: tuple[Group, ...]) -> _Counts:
    """Return the machines of control plane and workers, as the Cluster itself counts them.

    The groups provide the numbers that an older core omits.
    """
    pools = _server_pools(parts, deployments)
    control_plane = _sum(g for g in groups if g.kind != "MachineDeployment" or g.name in pools)
    workers = _sum(g for g in groups if g.kind == "MachineDeployment" and g.name not in pools)
    if pools:
        # The Cluster counts all MachineDeployments as workers.
        return _Counts(control_plane, workers)
    return _Counts(
        _replicas(parts.cluster, "controlPlane", control_plane),
        _replicas(parts.cluster, "workers", workers),
    )


def _desired_version(parts: Parts) -> str:
    """Return the Kubernetes version that a cluster is to have; empty if it is not known."""
    control_plane = dict_at(parts.control_plane, "spec")
    return str(
        at(parts.cluster, "spec", "topology", "version")
        or control_plane.get("version")
        or control_plane.get("kubernetesVersion")  # of an RKEControlPlane
        or ""
    )


def _conditions_by_object(parts: Parts, groups: tuple[Group, ...]) -> list[ObjectConditions]:
    """Return the conditions of each object of a cluster.

    The conditions of a Machine include the conditions of its HarvesterMachine.
    """
    name = f"Cluster/{parts.key.name}"
    conditions = [ObjectConditions((name,), _conditions(parts.cluster))]

    harvester_cluster = parts.harvester_cluster
    if harvester_cluster:
        name = f"HarvesterCluster/{key_of(harvester_cluster).name}"
        conditions.append(ObjectConditions((name,), _conditions(harvester_cluster)))

    for group in groups:
        conditions += [ObjectConditions(item.owners, item.conditions) for item in group.machines]
    return conditions


def _is_rolling_out(parts: Parts, groups: tuple[Group, ...], version: str) -> bool:
    """Whether machines are being replaced.

    Between two replacements every machine may be up to date. Then only the core's condition says
    so.
    """
    # Without a topology, each group has its own version, which may differ from the cluster's.
    has_topology = bool(at(parts.cluster, "spec", "topology"))
    for group in groups:
        expected = version if has_topology else group.version
        if expected and any(machine.version not in ("", expected) for machine in group.machines):
            return True
    return condition_of(parts.cluster, "RollingOut").get("status") == "True"


def _state(
    parts: Parts,
    problems: tuple[Problem, ...],
    replicas: tuple[Replicas, Replicas],
    *,
    rolling_out: bool,
) -> State:
    """Return the state of a cluster.

    :param parts: the objects of the cluster
    :param problems: the problems of the cluster
    :param replicas: the numbers of the control plane, and of the workers
    :param rolling_out: whether machines are being replaced
    """
    if being_deleted(parts.cluster):
        return State.DELETING
    if explains_all(problems):
        return State.PARKED if is_parked(parts) else State.PROGRESSING
    if is_paused(parts):
        return State.PAUSED

    # A cluster that was never provisioned cannot be unreachable.
    status = dict_at(parts.harvester_cluster, "status")
    provisioned = status.get("ready") or at(status, "initialization", "provisioned")
    if provisioned and any(problem.reason == Reason.HARVESTER_UNREACHABLE for problem in problems):
        return State.UNREACHABLE

    # The core calls a cluster unavailable if one worker is missing. For users it works as long as
    # the control plane has a majority.
    control_plane, _ = replicas
    is_available = condition_of(parts.cluster, "Available").get("status") == "True"
    has_majority = 2 * control_plane.available > control_plane.desired
    works = is_available or has_majority

    if any(problem.severity.wrong for problem in problems):
        has_errors = any(problem.severity is Severity.ERROR for problem in problems)
        return State.FAILED if has_errors and not works else State.DEGRADED
    is_complete = works and not rolling_out and all(part.complete for part in replicas)
    return State.AVAILABLE if is_complete else State.PROGRESSING


def _groups(parts: Parts, deployments: list[Obj]) -> tuple[Group, ...]:
    """Return the control plane, each MachineDeployment, and Machines that belong to neither."""
    machines = [_machine(parts, obj) for obj in parts.machines]
    groups = []

    control_plane = parts.control_plane
    pools = _server_pools(parts, deployments)
    control_plane_machines = tuple(
        machine for machine in machines if machine.control_plane and machine.group not in pools
    )
    if (control_plane and not pools) or control_plane_machines:
        kind = str(at(control_plane, "kind") or "ControlPlane")
        name = str(at(control_plane, "metadata", "name") or parts.key.name)
        groups.append(_group(kind, name, control_plane, control_plane_machines))

    apart = {machine.name for machine in control_plane_machines}
    workers = [machine for machine in machines if machine.name not in apart]
    for deployment in deployments:
        name = deployment["metadata"]["name"]
        members = tuple(machine for machine in workers if machine.group == name)
        groups.append(_group("MachineDeployment", name, deployment, members))

    # Other Machines were created by hand, or their MachineDeployment may not be read.
    deployed = {group.name for group in groups if group.kind == "MachineDeployment"}
    others = tuple(machine for machine in workers if machine.group not in deployed)
    if others:
        kind = "Machines" if deployments else "MachineDeployment"
        groups.append(_group(kind, "", None, others))
    return tuple(groups)


def _server_pools(parts: Parts, deployments: Iterable[Obj]) -> set[str]:
    """Return the MachineDeployments whose machines are of the control plane, or have its etcd."""
    pools = set()
    for deployment in deployments:
        template = {"metadata": dict_at(deployment, "spec", "template", "metadata")}
        if clusterapi.is_server(template, parts.cluster):
            pools.add(str(deployment["metadata"]["name"]))
    return pools


def _group(kind: str, name: str, obj: Obj | None, machines: tuple[Machine, ...]) -> Group:
    """Return a group of machines.

    :param kind: the kind of the object that owns the machines
    :param name: the name of this object
    :param obj: the object; None if it does not exist or was not read
    :param machines: the machines of the group
    """
    spec = dict_at(obj, "spec")
    status = dict_at(obj, "status")

    version = str(spec.get("version") or at(spec, "template", "spec", "version") or "")

    # The core counts available machines by `unavailableReplicas`, which CAPK3s omits at 0.
    current = len(machines)
    available = sum(map(_is_available, machines))
    if obj and not machines:
        # The Machines may not be readable.
        current = int(status.get("replicas") or 0)
        available = int(status.get("availableReplicas") or status.get("readyReplicas") or 0)

    up_to_date = current
    if kind in _KINDS_WITHOUT_COUNT and machines:
        up_to_date = _count_up_to_date(obj, machines, version)
    elif obj:
        # Cluster API v1beta1 calls the same number `updatedReplicas`.
        reported = status.get("upToDateReplicas", status.get("updatedReplicas"))
        up_to_date = int(reported or 0)

    replicas = Replicas(
        desired=int(spec.get("replicas", len(machines)) or 0),
        current=current,
        available=available,
        up_to_date=up_to_date,
    )
    return Group(
        kind=kind,
        name=name,
        replicas=replicas,
        version=version,
        machines=machines,
        conditions=_conditions(obj),
    )


def _count_up_to_date(obj: Obj | None, machines: tuple[Machine, ...], version: str) -> int:
    """Return how many machines have the spec of a control plane that does not count them itself."""
    # During a rollout of another change than the version, no field tells which machines are new.
    if condition_of(obj, "MachinesSpecUpToDate").get("status") == "False":
        return 0
    return sum(machine.version == version and not machine.deleting for machine in machines)


def _machine(parts: Parts, obj: Obj) -> Machine:
    """Return the model of a Machine and its HarvesterMachine."""
    harvester_machine = parts.harvester_machine_of(obj)
    spec = obj.get("spec") or {}
    status = obj.get("status") or {}
    harvester_spec = dict_at(harvester_machine, "spec")
    harvester_status = dict_at(harvester_machine, "status")

    control_plane = clusterapi.is_control_plane(obj, parts.cluster)
    labels = labels_of(obj)
    # Rancher uses MachineDeployments also for the control plane.
    group = labels.get(names.DEPLOYMENT_LABEL)
    if not group and control_plane:
        group = labels.get(names.CONTROL_PLANE_NAME_LABEL)
    # The provider's condition counts if the core reports none.
    ready = condition_of(obj, "Ready") or condition_of(harvester_machine, ConditionType.READY)
    # The core copies the addresses of the HarvesterMachine, which are newer.
    addresses = [
        str(entry["address"])
        for entry in harvester_status.get("addresses") or status.get("addresses") or ()
        if entry.get("address")
    ]

    return Machine(
        name=obj["metadata"]["name"],
        control_plane=control_plane,
        group=str(group or ""),
        phase=str(status.get("phase") or ""),
        ready=bool(ready.get("status") == "True"),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        version=str(spec.get("version") or ""),
        infrastructure=text_at(harvester_machine, "metadata", "name"),
        host=text_at(harvester_status, "virtualMachine", "host"),
        zone=str(harvester_status.get("failureDomain") or spec.get("failureDomain") or ""),
        addresses=tuple(dict.fromkeys(addresses)),
        pool=str(harvester_status.get("allocatedPoolRef") or ""),
        allocated=str(harvester_status.get("allocatedIPAddress") or ""),
        cpu=int(harvester_spec.get("cpu") or 0),
        memory=str(harvester_spec.get("memory") or ""),
        node=_node(obj),
        deleting=being_deleted(obj),
        conditions=(
            *_conditions(obj),
            *_conditions(harvester_machine, prefix="HarvesterMachine:"),
        ),
        etcd=clusterapi.has_etcd(obj, parts.cluster),
    )


def _is_available(machine: Machine) -> bool:
    """Whether a machine reports that it is available, or without such a condition, ready."""
    for condition in machine.conditions:
        if condition.type == "Available":
            return condition.status == "True"
    return machine.ready


def _node(machine: Obj) -> Node | None:
    """Return the Node of a Machine, as far as the Machine reports it."""
    name = at(machine, "status", "nodeRef", "name")
    if not name:
        return None
    # Cores before v1beta2 report only the second condition.
    ready = condition_of(machine, "NodeReady") or condition_of(machine, "NodeHealthy")
    return Node(
        str(name),
        str(ready.get("status") or ""),
        text_at(machine, "status", "nodeInfo", "kubeletVersion"),
        provider_id=text_at(machine, "spec", "providerID"),
    )


def _replicas(cluster: Obj, part: str, of_groups: Replicas) -> Replicas:
    """Return the numbers that a Cluster reports of its control plane or its workers.

    A Cluster of v1beta1 has the numbers of v1beta2 one level deeper. The groups provide missing
    numbers.
    """
    status = cluster.get("status") or {}
    counts = status.get(part) or at(status, "v1beta2", part)
    if not isinstance(counts, Mapping) or "desiredReplicas" not in counts:
        return of_groups

    # The core derives the number of available machines from a field of the control plane. If the
    # provider omits the field, the core keeps an old number.
    current = int(counts.get("replicas", of_groups.current) or 0)
    available = of_groups.available
    if of_groups.current != current:
        available = int(counts.get("availableReplicas") or 0)

    return Replicas(
        desired=int(counts["desiredReplicas"] or 0),
        current=current,
        available=available,
        up_to_date=int(counts.get("upToDateReplicas", of_groups.up_to_date) or 0),
    )


def _sum(groups: Iterable[Group]) -> Replicas:
    """Add up the numbers of machines of groups."""
    counts = [group.replicas for group in groups]
    return Replicas(
        desired=sum(count.desired for count in counts),
        current=sum(count.current for count in counts),
        available=sum(count.available for count in counts),
        up_to_date=sum(count.up_to_date for count in counts),
    )


def _conditions(obj: Obj | None, prefix: str = "") -> tuple[Condition, ...]:
    return tuple(_condition(condition, prefix) for condition in conditions_of(obj))


def _condition(condition: Obj, prefix: str = "") -> Condition:
    texts = (
        str(condition.get(name) or "")
        for name in ("status", "reason", "message", "lastTransitionTime")
    )
    return Condition(f"{prefix}{condition['type']}", *texts)


def _endpoint(endpoint: Obj) -> str:
    """Return host and port of an API server; empty while the host is unknown."""
    host = str(endpoint.get("host") or "")
    port = endpoint.get("port") or 6443
    if host in ("", "0.0.0.0"):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _machine_order(machine: Obj, cluster: Obj) -> tuple[bool, str, str]:
    """Return a key that sorts the control plane before workers, each from old to new."""
    created = str(machine["metadata"].get("creationTimestamp") or "")
    return (
        not clusterapi.is_control_plane(machine, cluster),
        created,
        machine["metadata"]["name"],
    )


def _version_order(version: str) -> tuple[list[int], str]:
    """Return a key that sorts v1.9 before v1.10."""
    return [int(number) for number in re.findall(r"[0-9]+", version)], version
