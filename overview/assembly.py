"""Puts the objects of clusters together: pure, from plain objects to the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from caphv.api import clusterapi, names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, being_deleted, key_of, labels_of
from overview.causes import with_causes, with_consequences
from overview.diagnosis import Parts, paused, problems_of
from overview.model import Cluster, Condition, Group, Machine, Node, Overview, Problem, Replicas, Severity, State
from overview.objects import ManagementObjects, by_cluster, by_key, condition_of, conditions_of

_DEPLOYMENT_LABEL = "cluster.x-k8s.io/deployment-name"
_CONTROL_PLANE_NAME_LABEL = "cluster.x-k8s.io/control-plane-name"


def overview_of(found: ManagementObjects, now: datetime) -> Overview:
    """Return all clusters on Harvester, by namespace and name."""
    deployments = by_cluster(found.machine_deployments)
    clusters = tuple(
        cluster_of(parts, sorted(deployments.get(parts.key, ()), key=key_of), now) for parts in parts_of(found)
    )
    return with_causes(Overview(found.server, clusters, unseen=tuple(map(str, found.unseen))))


def parts_of(found: ManagementObjects) -> Iterator[Parts]:
    """Yield the objects of each cluster on Harvester, by namespace and name."""
    harvester_clusters, machines = by_key(found.harvester_clusters), by_cluster(found.machines)
    harvester_machines = by_cluster(found.harvester_machines)
    control_planes = {(str(obj["kind"]), *key_of(obj)): obj for obj in found.control_planes}
    seen = all(map(found.sees, map(str, (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES))))
    for cluster in sorted(found.clusters, key=key_of):
        if not _on_harvester(cluster):
            continue
        key = key_of(cluster)
        _, infrastructure = clusterapi.infrastructure_ref(cluster)
        reference = (cluster.get("spec") or {}).get("controlPlaneRef") or {}
        yield Parts(
            cluster,
            harvester_clusters.get(Key(key.namespace, infrastructure)),
            control_planes.get((str(reference.get("kind")), key.namespace, str(reference.get("name")))),
            sorted(machines.get(key, ()), key=_machine_order),
            by_key(harvester_machines.get(key, ())),
            seen,
        )


def cluster_of(parts: Parts, deployments: list[Obj], now: datetime) -> Cluster:
    """Return the model of one cluster."""
    cluster, own = parts.cluster, parts.harvester_cluster or {}
    spec, metadata = cluster.get("spec") or {}, cluster["metadata"]
    own_spec, topology = own.get("spec") or {}, spec.get("topology") or {}
    groups = _groups(parts, deployments)
    control_plane = _replicas(cluster, "controlPlane", _sum(g for g in groups if g.kind != "MachineDeployment"))
    workers = _replicas(cluster, "workers", _sum(g for g in groups if g.kind == "MachineDeployment"))
    problems = with_consequences(problems_of(parts, now), _conditions_by_object(parts, groups))
    machine_versions = {machine.version for group in groups for machine in group.machines if machine.version}
    secret = own_spec.get("identitySecret") or {}
    bundles = condition_of(own, ConditionType.ADDON_BUNDLES_READY)
    wanted = topology.get("version") or ((parts.control_plane or {}).get("spec") or {}).get("version") or ""
    rolling_out = _is_rolling_out(parts, groups, str(wanted))
    return Cluster(
        *parts.key,
        state=_state(parts, problems, (control_plane, workers), rolling_out=rolling_out),
        created=str(metadata.get("creationTimestamp") or ""),
        phase=str((cluster.get("status") or {}).get("phase") or ""),
        class_name=str((topology.get("classRef") or {}).get("name") or topology.get("class") or ""),
        version=str(wanted),
        versions=tuple(sorted(machine_versions, key=_version_order)),
        endpoint=_endpoint(spec.get("controlPlaneEndpoint") or own_spec.get("controlPlaneEndpoint") or {}),
        harvester=str(own_spec.get("server") or ""),
        target_namespace=str(own_spec.get("targetNamespace") or ""),
        identity=f"{secret.get('namespace')}/{secret.get('name')}" if secret else "",
        infrastructure=str((own.get("metadata") or {}).get("name") or ""),
        control_plane=control_plane,
        workers=workers,
        groups=groups,
        bundles=_condition(bundles) if bundles else None,
        problems=problems,
        conditions=_conditions(cluster),
        infrastructure_conditions=_conditions(own),
    )


def _conditions_by_object(
    parts: Parts, groups: tuple[Group, ...]
) -> list[tuple[tuple[str, ...], tuple[Condition, ...]]]:
    """Names of objects as problems have them, with their conditions; those of a HarvesterMachine are its Machine's."""
    found: list[tuple[tuple[str, ...], tuple[Condition, ...]]] = []
    found.append(((f"Cluster/{parts.key.name}",), _conditions(parts.cluster)))
    own = parts.harvester_cluster
    if own:
        found.append(((f"HarvesterCluster/{key_of(own).name}",), _conditions(own)))
    for group in groups:
        found += [(machine.owners, machine.conditions) for machine in group.machines]
    return found


def _on_harvester(cluster: Obj) -> bool:
    kind, _ = clusterapi.infrastructure_ref(cluster)
    # A topology that was not reconciled yet has no reference: better one cluster too many than a fault unseen.
    return kind in ("", resources.HARVESTER_CLUSTERS.kind)


def _is_rolling_out(parts: Parts, groups: tuple[Group, ...], wanted: str) -> bool:
    """Whether machines are being replaced, also between two of them, when all that exist are up to date.

    Without a topology, each group has a version of its own, which may stay another one than the cluster's.
    """
    topology = bool((parts.cluster.get("spec") or {}).get("topology"))
    for group in groups:
        version = wanted if topology else group.version
        if version and any(machine.version not in ("", version) for machine in group.machines):
            return True
    return condition_of(parts.cluster, "RollingOut").get("status") == "True"


def _state(
    parts: Parts, problems: tuple[Problem, ...], replicas: tuple[Replicas, Replicas], *, rolling_out: bool
) -> State:
    if being_deleted(parts.cluster):
        return State.DELETING
    if paused(parts):
        return State.PAUSED
    status = (parts.harvester_cluster or {}).get("status") or {}
    provisioned = status.get("ready") or (status.get("initialization") or {}).get("provisioned")
    if provisioned and any(problem.reason == Reason.HARVESTER_UNREACHABLE for problem in problems):
        return State.UNREACHABLE
    control_plane, _ = replicas
    available = condition_of(parts.cluster, "Available").get("status") == "True"
    # The core calls a cluster unavailable for one worker less; a control plane with a majority serves its users.
    works = available or 2 * control_plane.available > control_plane.desired
    if any(problem.severity.wrong for problem in problems):
        errors = any(problem.severity is Severity.ERROR for problem in problems)
        return State.FAILED if errors and not works else State.DEGRADED
    complete = works and not rolling_out and all(part.complete for part in replicas)
    return State.AVAILABLE if complete else State.PROGRESSING


def _groups(parts: Parts, deployments: list[Obj]) -> tuple[Group, ...]:
    models = [(obj, _machine(obj, parts.harvester_machine_of(obj))) for obj in parts.machines]
    control_plane = parts.control_plane
    groups = []
    own = tuple(machine for _, machine in models if machine.control_plane)
    if control_plane or own:
        kind = str((control_plane or {}).get("kind") or "ControlPlane")
        name = str(((control_plane or {}).get("metadata") or {}).get("name") or parts.key.name)
        groups.append(_group(kind, name, control_plane, own))
    rest = [machine for _, machine in models if not machine.control_plane]
    for deployment in deployments:
        name = deployment["metadata"]["name"]
        groups.append(_group("MachineDeployment", name, deployment, tuple(m for m in rest if m.group == name)))
    known = {group.name for group in groups if group.kind == "MachineDeployment"}
    single = tuple(machine for machine in rest if machine.group not in known)
    if single:
        groups.append(_group("MachineDeployment" if not deployments else "Machines", "", None, single))
    return tuple(groups)


def _group(kind: str, name: str, obj: Obj | None, machines: tuple[Machine, ...]) -> Group:
    spec, status = (obj or {}).get("spec") or {}, (obj or {}).get("status") or {}
    available = sum(map(_available, machines))
    replicas = Replicas(
        desired=int(spec.get("replicas", len(machines)) or 0),
        current=len(machines),
        # CAPK3s omits `unavailableReplicas` at 0, from which the core would know what is available.
        available=available
        if machines or not obj
        else int(status.get("availableReplicas") or status.get("readyReplicas") or 0),
        up_to_date=int(_first(status, "upToDateReplicas", "updatedReplicas") or 0) if obj else len(machines),
    )
    template = (spec.get("template") or {}).get("spec") or {}
    version = str(spec.get("version") or template.get("version") or "")
    return Group(kind, name, replicas, version, machines, _conditions(obj))


def _machine(obj: Obj, own: Obj | None) -> Machine:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    own_spec, own_status = (own or {}).get("spec") or {}, (own or {}).get("status") or {}
    vm = own_status.get("virtualMachine") or {}
    control_plane = clusterapi.is_control_plane(obj)
    labels = labels_of(obj)
    addresses = own_status.get("addresses") or status.get("addresses") or ()
    return Machine(
        name=obj["metadata"]["name"],
        control_plane=control_plane,
        group=str(labels.get(_CONTROL_PLANE_NAME_LABEL if control_plane else _DEPLOYMENT_LABEL) or ""),
        phase=str(status.get("phase") or ""),
        ready=_machine_ready(obj, own),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        version=str(spec.get("version") or ""),
        infrastructure=str(((own or {}).get("metadata") or {}).get("name") or ""),
        host=str(vm.get("host") or ""),
        zone=str(own_status.get("failureDomain") or spec.get("failureDomain") or ""),
        addresses=tuple(dict.fromkeys(str(each["address"]) for each in addresses if each.get("address"))),
        pool=str(own_status.get("allocatedPoolRef") or ""),
        allocated=str(own_status.get("allocatedIPAddress") or ""),
        cpu=int(own_spec.get("cpu") or 0),
        memory=str(own_spec.get("memory") or ""),
        node=_node(obj),
        deleting=being_deleted(obj),
        conditions=(*_conditions(obj), *(_conditions(own, prefix="HarvesterMachine:"))),
    )


def _available(machine: Machine) -> bool:
    return next((each.status == "True" for each in machine.conditions if each.type == "Available"), machine.ready)


def _machine_ready(obj: Obj, own: Obj | None) -> bool:
    ready = condition_of(obj, "Ready") or condition_of(own, ConditionType.READY)
    return bool(ready.get("status") == "True")


def _node(machine: Obj) -> Node | None:
    status = machine.get("status") or {}
    name = (status.get("nodeRef") or {}).get("name")
    if not name:
        return None
    healthy = condition_of(machine, "NodeReady") or condition_of(machine, "NodeHealthy")
    version = (status.get("nodeInfo") or {}).get("kubeletVersion")
    provider_id = (machine.get("spec") or {}).get("providerID")
    return Node(str(name), str(healthy.get("status") or ""), str(version or ""), provider_id=str(provider_id or ""))


def _replicas(cluster: Obj, part: str, of_groups: Replicas) -> Replicas:
    """Counts of Cluster API v1beta2, which the core's v1beta1 keeps one level deeper; what it lacks, of the groups."""
    status = cluster.get("status") or {}
    counts = status.get(part) or (status.get("v1beta2") or {}).get(part)
    if not isinstance(counts, Mapping) or "desiredReplicas" not in counts:
        return of_groups
    current = int(counts.get("replicas", of_groups.current) or 0)
    return Replicas(
        desired=int(counts["desiredReplicas"] or 0),
        current=current,
        # The core keeps an old number where a control plane provider omits what it derives it from.
        available=of_groups.available if of_groups.current == current else int(counts.get("availableReplicas") or 0),
        up_to_date=int(counts.get("upToDateReplicas", of_groups.up_to_date) or 0),
    )


def _sum(groups: Iterable[Group]) -> Replicas:
    found = [group.replicas for group in groups]
    return Replicas(
        desired=sum(each.desired for each in found),
        current=sum(each.current for each in found),
        available=sum(each.available for each in found),
        up_to_date=sum(each.up_to_date for each in found),
    )


def _conditions(obj: Obj | None, prefix: str = "") -> tuple[Condition, ...]:
    return tuple(_condition(condition, prefix) for condition in conditions_of(obj))


def _condition(condition: Obj, prefix: str = "") -> Condition:
    texts = (str(condition.get(name) or "") for name in ("status", "reason", "message", "lastTransitionTime"))
    return Condition(f"{prefix}{condition['type']}", *texts)


def _endpoint(endpoint: Obj) -> str:
    host, port = str(endpoint.get("host") or ""), endpoint.get("port") or 6443
    if host in ("", "0.0.0.0"):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _machine_order(machine: Obj) -> tuple[bool, str, str]:
    created = str(machine["metadata"].get("creationTimestamp") or "")
    return names.CONTROL_PLANE_LABEL not in labels_of(machine), created, machine["metadata"]["name"]


def _version_order(version: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"[0-9]+", version)], version


def _first(status: Obj, *fields: str) -> Any:
    return next((status[name] for name in fields if name in status), 0)
