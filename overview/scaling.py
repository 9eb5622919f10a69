"""How to give a cluster other numbers of machines, with and without a topology: pure."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from caphv.api import clusterapi, names
from caphv.api.object import Obj, labels_of
from overview.changes import Change, ChangeError, Patch, Plan, patch_of
from overview.diagnosis import Parts
from overview.doctor.model import Check, Result, ok
from overview.model import Cluster
from overview.preflight import general

POOL_LABEL = "topology.cluster.x-k8s.io/deployment-name"


@dataclass(frozen=True, slots=True)
class Scale:
    """Wanted numbers of machines; `workers` by name of the pool, where `""` is the only pool."""

    control_plane: int | None = None
    workers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Pool:
    name: str
    obj: Obj
    replicas: int | None
    index: int = -1
    """Position in the topology; -1 for a MachineDeployment without one."""


def plan_scale(parts: Parts, deployments: Iterable[Obj], wanted: Scale) -> Plan:
    """Return what has to change. Raises `ChangeError` for pools that do not exist."""
    topology = (parts.cluster.get("spec") or {}).get("topology")
    pools = list(_topology_pools(topology)) if topology else [_deployment(obj) for obj in deployments]
    chosen = _chosen(pools, wanted.workers, parts)
    if wanted.control_plane is not None and not topology and parts.control_plane is None:
        raise ChangeError([f"cluster {parts.key} has no control plane object: create or delete its Machines instead"])
    checks = [*general(parts), *_control_plane_checks(parts, wanted), *_pool_checks(parts, chosen)]
    patches = _in_topology(parts, wanted, chosen) if topology else _of_objects(parts, wanted, chosen)
    return Plan(parts.key, tuple(patches), tuple(checks))


def scaled(parts: Parts, deployments: Iterable[Obj], cluster: Cluster, wanted: Scale) -> bool:
    """Whether the cluster has these numbers of machines, and all of them work."""
    deployments = list(deployments)
    if plan_scale(parts, deployments, wanted).changes:
        return False
    names = {_deployment(obj).name: str(obj["metadata"]["name"]) for obj in deployments}
    groups = {group.name if group.kind == "MachineDeployment" else None: group.replicas for group in cluster.groups}
    numbers = {names.get(name) or next(iter(names.values()), ""): number for name, number in wanted.workers.items()}
    found = [(groups.get(name), number) for name, number in numbers.items()]
    if wanted.control_plane is not None:
        found.append((groups.get(None), wanted.control_plane))
    return all(replicas and replicas.complete and replicas.desired == number for replicas, number in found)


def numbers(cluster: Cluster) -> str:
    """Return how many machines of the control plane and of workers work, of those that are wanted.

    By the objects that own them, as `scaled` counts: the Cluster repeats their numbers later.
    """
    workers = [group.replicas for group in cluster.groups if group.kind == "MachineDeployment"]
    servers = [group.replicas for group in cluster.groups if group.kind != "MachineDeployment"]
    texts = [
        f"{sum(each.available for each in replicas)}/{sum(each.desired for each in replicas)}"
        for replicas in (servers, workers)
    ]
    return f"{texts[0]} control plane, {texts[1]} workers"


def growth(plan: Plan) -> int:
    """Return how many machines more there will be."""
    return sum(max(0, int(change.after) - int(change.before or 0)) for change in plan.changes)


def _topology_pools(topology: Obj) -> Iterator[_Pool]:
    for index, entry in enumerate((topology.get("workers") or {}).get("machineDeployments") or ()):
        yield _Pool(str(entry["name"]), entry, entry.get("replicas"), index)


def _deployment(obj: Obj) -> _Pool:
    name = labels_of(obj).get(POOL_LABEL) or str(obj["metadata"]["name"])
    return _Pool(name, obj, (obj.get("spec") or {}).get("replicas"))


def _chosen(pools: list[_Pool], wanted: Mapping[str, int], parts: Parts) -> list[tuple[_Pool, int]]:
    names = [pool.name for pool in pools]
    problems, chosen = [], []
    for name, number in wanted.items():
        found = [pool for pool in pools if name in ("", pool.name)]
        if len(found) == 1:
            chosen.append((found[0], number))
        elif not pools:
            problems.append(f"cluster {parts.key} has no worker pool: add one to its topology or definition")
        elif not name:
            problems.append(
                f"cluster {parts.key} has {len(pools)} worker pools: name one, --workers {names[0]}={number}"
            )
        else:
            similar = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(names)}"
            problems.append(f"--workers {name}={number}: cluster {parts.key} has no worker pool {name}; {hint}")
    if problems:
        raise ChangeError(problems)
    return chosen


def _control_plane_checks(parts: Parts, wanted: Scale) -> Iterator[Check]:
    if wanted.control_plane is None:
        return
    subject, number = f"Cluster {parts.key}", wanted.control_plane
    if number < 1:
        remedy = "Keep at least one, or delete the cluster"
        yield Check("quorum", subject, Result.ERROR, "a cluster without a control plane machine loses its etcd", remedy)
    elif number % 2 == 0:
        message = f"{number} control plane machines survive no more failures than {number - 1}, and need more members"
        remedy = f"Use {number - 1} or {number + 1}, or add --force"
        yield Check("quorum", subject, Result.ERROR, f"{message} for a quorum", remedy)
    elif number == 1 and sum(map(clusterapi.is_control_plane, parts.machines)) > 1:
        message = "one control plane machine survives no failure"
        yield Check("quorum", subject, Result.WARNING, message, "Keep three")
    else:
        failures = (number - 1) // 2
        yield ok("quorum", subject, f"etcd survives the loss of {failures} of {number} control plane machines")


def _pool_checks(parts: Parts, chosen: Iterable[tuple[_Pool, int]]) -> Iterator[Check]:
    for pool, number in chosen:
        notes = (pool.obj.get("metadata") or {}).get("annotations") or {}
        least, most = notes.get(names.AUTOSCALER_MIN_SIZE), notes.get(names.AUTOSCALER_MAX_SIZE)
        if least is not None or most is not None:
            message = f"the cluster autoscaler scales pool {pool.name} between {least} and {most}, and may undo this"
            remedy = f"Change its bounds instead: annotations {names.AUTOSCALER_MIN_SIZE} and -max-size"
            yield Check("autoscaler", f"Cluster {parts.key}", Result.WARNING, message, remedy)
        if not number:
            message = f"pool {pool.name} will have no machine"
            yield Check("workers", f"Cluster {parts.key}", Result.WARNING, message, "Its Pods need another pool")


def _in_topology(parts: Parts, wanted: Scale, chosen: list[tuple[_Pool, int]]) -> Iterator[Patch]:
    """One patch of the Cluster: whatever a topology created, Cluster API would revert."""
    topology = parts.cluster["spec"]["topology"]
    name, body, changes = f"Cluster {parts.key}", {}, []
    before = (topology.get("controlPlane") or {}).get("replicas")
    if wanted.control_plane is not None and wanted.control_plane != before:
        body["controlPlane"] = {"replicas": wanted.control_plane}
        changes.append(_change(name, "spec.topology.controlPlane.replicas", before, wanted.control_plane))
    different = [(pool, number) for pool, number in chosen if pool.replicas != number]
    if different:
        # A merge patch replaces lists as a whole; the resourceVersion guards the rest of it.
        pools = copy.deepcopy(topology["workers"]["machineDeployments"])
        for pool, number in different:
            pools[pool.index]["replicas"] = number
            path = f"spec.topology.workers.machineDeployments[{pool.name}].replicas"
            changes.append(_change(name, path, pool.replicas, number))
        body["workers"] = {"machineDeployments": pools}
    if changes:
        yield patch_of(parts.cluster, {"spec": {"topology": body}}, changes)


def _of_objects(parts: Parts, wanted: Scale, chosen: list[tuple[_Pool, int]]) -> Iterator[Patch]:
    objs = [(pool.obj, pool.replicas, number) for pool, number in chosen]
    if wanted.control_plane is not None and parts.control_plane is not None:
        replicas = (parts.control_plane.get("spec") or {}).get("replicas")
        objs.insert(0, (parts.control_plane, replicas, wanted.control_plane))
    for obj, before, number in objs:
        if before != number:
            name = f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
            yield patch_of(obj, {"spec": {"replicas": number}}, [_change(name, "spec.replicas", before, number)])


def _change(name: str, path: str, before: int | None, after: int) -> Change:
    return Change(name, path, "" if before is None else str(before), str(after))
