"""Plan a change of the numbers of machines, with and without a topology."""

from __future__ import annotations

import copy
import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from caphv.api import clusterapi, names
from caphv.api.object import Key, Obj, at, dict_at, key_of, labels_of, list_at
from operations.capacity.preflight import check_controllers, devices_of_machines
from operations.change.changes import Change, ChangeError, Patch, Plan, patch_of
from operations.status.check import Check, Result, ok
from operations.status.model import Cluster, Replicas
from operations.status.parts import Parts, is_of_rancher


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


def plan_scale(parts: Parts, deployments: Iterable[Obj], scale: Scale) -> Plan:
    """Return the necessary patches. Raises `ChangeError` for pools that do not exist."""
    if is_of_rancher(parts):
        problem = (
            f"Rancher provisions cluster {parts.key} and would revert this: change quantity of "
            f"the pool in clusters.provisioning.cattle.io {parts.key.name}"
        )
        raise ChangeError([problem])

    topology = at(parts.cluster, "spec", "topology")
    pools = [*_topology_pools(topology)] if topology else [*map(_deployment, deployments)]
    chosen = _choose_pools(pools, scale.workers, parts)

    if scale.control_plane is not None and not topology and parts.control_plane is None:
        problem = (
            f"cluster {parts.key} has no control plane object: create or delete its Machines "
            "instead"
        )
        raise ChangeError([problem])

    checks = [
        *check_controllers(parts),
        *_control_plane_checks(parts, scale),
        *_pool_checks(parts, chosen),
    ]
    plan_patches = _patch_topology if topology else _patch_objects
    return Plan(parts.key, tuple(plan_patches(parts, scale, chosen)), tuple(checks))


def is_scaled(parts: Parts, deployments: Iterable[Obj], cluster: Cluster, scale: Scale) -> bool:
    """Whether the cluster has these numbers of machines, and all of them work.

    :param parts: the objects of the cluster
    :param deployments: its MachineDeployments
    :param cluster: its model
    :param scale: the numbers
    """
    deployments = list(deployments)
    if plan_scale(parts, deployments, scale).changes:
        return False

    control_plane = None
    pools = {}
    for group in cluster.groups:
        if group.kind == "MachineDeployment":
            pools[group.name] = group.replicas
        else:
            control_plane = group.replicas

    names = {_deployment(obj).name: str(obj["metadata"]["name"]) for obj in deployments}
    existing = list(names.values())
    numbers = {}
    for pool, number in scale.workers.items():
        name = names.get(pool, "")
        if not name and existing:
            # An empty name means the only pool.
            name = existing[0]
        numbers[name] = number

    targets = [(pools.get(name), number) for name, number in numbers.items()]
    if scale.control_plane is not None:
        targets.append((control_plane, scale.control_plane))
    return all(
        replicas and replicas.complete and replicas.desired == number
        for replicas, number in targets
    )


def numbers(cluster: Cluster) -> str:
    """Return the available and desired numbers of control plane and worker machines.

    The numbers of the objects that own machines count, as in `is_scaled`, because the Cluster
    repeats them only later.
    """
    workers = [group.replicas for group in cluster.groups if group.kind == "MachineDeployment"]
    servers = [group.replicas for group in cluster.groups if group.kind != "MachineDeployment"]

    def total(groups: list[Replicas]) -> str:
        available = sum(replicas.available for replicas in groups)
        return f"{available}/{sum(replicas.desired for replicas in groups)}"

    return f"{total(servers)} control plane, {total(workers)} workers"


def growth(plan: Plan) -> int:
    """Return the number of additional machines."""
    return sum(max(0, int(change.after) - int(change.before or 0)) for change in plan.changes)


def growing_devices(
    parts: Parts, deployments: Iterable[Obj], scale: Scale, templates: Mapping[Key, Obj]
) -> list[Counter[str]]:
    """Return the devices of each additional machine, by resource. Raises `ChangeError`.

    :param templates: the HarvesterMachineTemplates of pools without machines, as far as known
    """
    devices = []
    for growth, machines, template in _growing_pools(parts, deployments, scale):
        samples = machines
        if not machines and template is not None and template in templates:
            samples = [templates[template]]
        devices += devices_of_machines(samples, growth)
    return devices


def templates_of_empty_pools(parts: Parts, deployments: Iterable[Obj], scale: Scale) -> list[Key]:
    """Return the HarvesterMachineTemplates of pools that grow and have no machine yet.

    Raises `ChangeError`.
    """
    growing = _growing_pools(parts, deployments, scale)
    return [template for _, machines, template in growing if template and not machines]


def _growing_pools(
    parts: Parts, deployments: Iterable[Obj], scale: Scale
) -> Iterator[tuple[int, list[Obj], Key | None]]:
    """Yield for each pool that grows the number, its HarvesterMachines, and their template."""
    deployments = list(deployments)
    topology = at(parts.cluster, "spec", "topology")
    before = at(topology, "controlPlane", "replicas")
    if not topology:
        before = at(parts.control_plane, "spec", "replicas")
    growth = (scale.control_plane or 0) - int(before or 0)
    if growth > 0:
        yield growth, servers_of(parts), None

    pools = [*_topology_pools(topology)] if topology else [*map(_deployment, deployments)]
    objects = {_deployment(obj).name: obj for obj in deployments}
    for pool, number in _choose_pools(pools, scale.workers, parts):
        growth = number - int(pool.replicas or 0)
        obj = objects.get(pool.name)
        if growth > 0 and obj is not None:
            _, name = clusterapi.infrastructure_ref(dict_at(obj, "spec", "template"))
            template = Key(key_of(obj).namespace, name) if name else None
            yield growth, workers_of(parts, obj), template


def servers_of(parts: Parts) -> list[Obj]:
    """Return the HarvesterMachines of the control plane."""
    return _infrastructure(parts, _servers(parts))


def _servers(parts: Parts) -> list[Obj]:
    """Return the Machines of the control plane."""
    return [
        machine for machine in parts.machines if clusterapi.is_control_plane(machine, parts.cluster)
    ]


def workers_of(parts: Parts, deployment: Obj) -> list[Obj]:
    """Return the HarvesterMachines of a MachineDeployment."""
    name = key_of(deployment).name
    machines = (obj for obj in parts.machines if labels_of(obj).get(names.DEPLOYMENT_LABEL) == name)
    return _infrastructure(parts, machines)


def _infrastructure(parts: Parts, machines: Iterable[Obj]) -> list[Obj]:
    return [obj for machine in machines if (obj := parts.harvester_machine_of(machine))]


def _topology_pools(topology: Obj) -> Iterator[_Pool]:
    for index, entry in enumerate(list_at(topology, "workers", "machineDeployments")):
        yield _Pool(str(entry["name"]), entry, entry.get("replicas"), index)


def _deployment(obj: Obj) -> _Pool:
    name = labels_of(obj).get(names.POOL_LABEL) or str(obj["metadata"]["name"])
    return _Pool(name, obj, at(obj, "spec", "replicas"))


def _choose_pools(
    pools: list[_Pool], numbers: Mapping[str, int], parts: Parts
) -> list[tuple[_Pool, int]]:
    """Return the pools with their new numbers. Raises `ChangeError` for unknown pools."""
    problems = []
    chosen = []
    for name, number in numbers.items():
        matching = [pool for pool in pools if name in ("", pool.name)]
        if len(matching) == 1:
            chosen.append((matching[0], number))
        else:
            problems.append(_unknown_pool(pools, name, number, parts))

    if problems:
        raise ChangeError(problems)
    return chosen


def _unknown_pool(pools: list[_Pool], name: str, number: int, parts: Parts) -> str:
    """Say why a name does not match one pool, and what to do instead."""
    subject = f"cluster {parts.key}"
    names = [pool.name for pool in pools]
    if not pools:
        return f"{subject} has no worker pool: add one to its topology or definition"
    if not name:
        example = f"--workers {names[0]}={number}"
        return f"{subject} has {len(pools)} worker pools: name one, {example}"
    similar = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(names)}"
    return f"--workers {name}={number}: {subject} has no worker pool {name}; {hint}"


def _control_plane_checks(parts: Parts, scale: Scale) -> Iterator[Check]:
    """Check that etcd keeps its quorum, and survives as many failures as its members allow."""
    if scale.control_plane is None:
        return

    # etcd needs more than half of its members. An even number adds a member that may fail, but does
    # not allow for one more failure.
    subject = f"Cluster {parts.key}"
    number = scale.control_plane
    if number < 1:
        message = "a cluster without a control plane machine loses its etcd"
        remedy = "Keep at least one, or delete the cluster"
        yield Check("quorum", subject, Result.ERROR, message=message, remedy=remedy)
    elif number % 2 == 0:
        message = (
            f"{number} control plane machines survive no more failures than {number - 1}, and need "
            "more members for a quorum"
        )
        remedy = f"Use {number - 1} or {number + 1}, or add --force"
        yield Check("quorum", subject, Result.ERROR, message=message, remedy=remedy)
    elif number == 1 and len(_servers(parts)) > 1:
        message = "one control plane machine survives no failure"
        yield Check("quorum", subject, Result.WARNING, message=message, remedy="Keep three")
    else:
        failures = (number - 1) // 2
        message = f"etcd survives the loss of {failures} of {number} control plane machines"
        yield ok("quorum", subject, message)


def _pool_checks(parts: Parts, chosen: Iterable[tuple[_Pool, int]]) -> Iterator[Check]:
    """Warn of pools that the autoscaler scales, and of pools that will be empty."""
    subject = f"Cluster {parts.key}"
    for pool, number in chosen:
        annotations = dict_at(pool.obj, "metadata", "annotations")
        minimum = annotations.get(names.AUTOSCALER_MIN_SIZE)
        maximum = annotations.get(names.AUTOSCALER_MAX_SIZE)
        if minimum is not None or maximum is not None:
            message = (
                f"the cluster autoscaler scales pool {pool.name} between {minimum} and {maximum}, "
                "and may undo this"
            )
            remedy = (
                f"Change its bounds instead: annotations {names.AUTOSCALER_MIN_SIZE} and -max-size"
            )
            yield Check("autoscaler", subject, Result.WARNING, message=message, remedy=remedy)

        if not number:
            message = f"pool {pool.name} will have no machine"
            yield Check(
                "workers",
                subject,
                Result.WARNING,
                message=message,
                remedy="Its Pods need another pool",
            )


def _patch_topology(parts: Parts, scale: Scale, chosen: list[tuple[_Pool, int]]) -> Iterator[Patch]:
    """Yield one patch of the Cluster.

    Cluster API would revert changes of the objects that it created from the topology.
    """
    topology = parts.cluster["spec"]["topology"]
    name = f"Cluster {parts.key}"
    body: Obj = {}
    changes = []

    before = at(topology, "controlPlane", "replicas")
    after = scale.control_plane
    if after is not None and after != before:
        body["controlPlane"] = {"replicas": after}
        changes.append(_change(name, "spec.topology.controlPlane.replicas", before, after))

    different = [(pool, number) for pool, number in chosen if pool.replicas != number]
    if different:
        # A merge patch replaces a whole list. The resourceVersion protects its other entries.
        pools = copy.deepcopy(topology["workers"]["machineDeployments"])
        for pool, number in different:
            pools[pool.index]["replicas"] = number
            path = f"spec.topology.workers.machineDeployments[{pool.name}].replicas"
            changes.append(_change(name, path, pool.replicas, number))
        body["workers"] = {"machineDeployments": pools}

    if changes:
        yield patch_of(parts.cluster, {"spec": {"topology": body}}, changes)


def _patch_objects(parts: Parts, scale: Scale, chosen: list[tuple[_Pool, int]]) -> Iterator[Patch]:
    """Yield the patches of the control plane and of MachineDeployments."""
    targets = [(pool.obj, pool.replicas, number) for pool, number in chosen]
    if scale.control_plane is not None and parts.control_plane is not None:
        replicas = at(parts.control_plane, "spec", "replicas")
        targets.insert(0, (parts.control_plane, replicas, scale.control_plane))

    for obj, before, after in targets:
        if before != after:
            name = f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
            change = _change(name, "spec.replicas", before, after)
            yield patch_of(obj, {"spec": {"replicas": after}}, [change])


def _change(name: str, path: str, before: int | None, after: int) -> Change:
    return Change(name, path, "" if before is None else str(before), str(after))
