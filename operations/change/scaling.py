"""Plan a change of the numbers of machines, with and without a topology."""

from __future__ import annotations

import copy
import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """A pool of workers: its entry in the topology, or its MachineDeployment without one."""

    name: str
    obj: Obj
    replicas: int | None
    index: int = -1
    """Position in the topology; -1 for a MachineDeployment without one."""


class _PoolChange(NamedTuple):
    """A pool, and its new number of machines."""

    pool: _Pool
    number: int


class _Growth(NamedTuple):
    """The additional machines of a control plane or pool, and what describes such a machine.

    `machines` are its HarvesterMachines, `template` is the key of the HarvesterMachineTemplate of a
    pool.
    """

    number: int
    machines: list[Obj]
    template: Key | None = None


def plan_scale(parts: Parts, deployments: Sequence[Obj], scale: Scale) -> Plan:
    """Return the necessary patches. Raises `ChangeError` for pools that do not exist."""
    if is_of_rancher(parts):
        problem = (
            f"Rancher provisions cluster {parts.key} and would revert this: change quantity of "
            f"the pool in clusters.provisioning.cattle.io {parts.key.name}"
        )
        raise ChangeError([problem])

    topology = at(parts.cluster, "spec", "topology")
    pool_changes = _pool_changes(parts, deployments, scale)
    if scale.control_plane is not None and not topology and parts.control_plane is None:
        problem = (
            f"cluster {parts.key} has no control plane object: create or delete its Machines "
            "instead"
        )
        raise ChangeError([problem])

    checks = [
        *check_controllers(parts),
        *_control_plane_checks(parts, scale),
        *_pool_checks(parts, pool_changes),
    ]
    plan_patches = _patch_topology if topology else _patch_objects
    return Plan(parts.key, tuple(plan_patches(parts, scale, pool_changes)), tuple(checks))


def is_scaled(parts: Parts, deployments: Sequence[Obj], cluster: Cluster, scale: Scale) -> bool:
    """Whether the cluster has these numbers of machines, and all of them work.

    :param parts: the objects of the cluster
    :param deployments: its MachineDeployments
    :param cluster: its model
    :param scale: the numbers
    """
    if plan_scale(parts, deployments, scale).changes:
        return False

    control_plane = None
    replicas_by_deployment = {}
    for group in cluster.groups:
        if group.kind == "MachineDeployment":
            replicas_by_deployment[group.name] = group.replicas
        else:
            control_plane = group.replicas

    def has_number(replicas: Replicas | None, number: int) -> bool:
        return replicas is not None and replicas.complete and replicas.desired == number

    if scale.control_plane is not None and not has_number(control_plane, scale.control_plane):
        return False
    deployment_by_pool = {_deployment(obj).name: key_of(obj).name for obj in deployments}
    for pool, number in scale.workers.items():
        name = deployment_by_pool.get(pool, "")
        # An empty name means the only pool.
        if not pool and deployments:
            name = key_of(deployments[0]).name
        if not has_number(replicas_by_deployment.get(name), number):
            return False
    return True


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
    parts: Parts, deployments: Sequence[Obj], scale: Scale, templates: Mapping[Key, Obj]
) -> list[Counter[str]]:
    """Return the devices of each additional machine, by resource. Raises `ChangeError`.

    :param templates: the HarvesterMachineTemplates of pools without machines, as far as known
    """
    devices = []
    for growth in _growths(parts, deployments, scale):
        samples = growth.machines
        if not samples and growth.template and growth.template in templates:
            samples = [templates[growth.template]]
        devices += devices_of_machines(samples, growth.number)
    return devices


def templates_of_empty_pools(parts: Parts, deployments: Sequence[Obj], scale: Scale) -> list[Key]:
    """Return the HarvesterMachineTemplates of pools that grow and have no machine yet.

    Raises `ChangeError`.
    """
    growths = _growths(parts, deployments, scale)
    return [growth.template for growth in growths if growth.template and not growth.machines]


def _growths(parts: Parts, deployments: Sequence[Obj], scale: Scale) -> Iterator[_Growth]:
    """Yield the growth of the control plane, and of each pool. Raises `ChangeError`."""
    topology = at(parts.cluster, "spec", "topology")
    before = at(topology, "controlPlane", "replicas")
    if not topology:
        before = at(parts.control_plane, "spec", "replicas")
    additional = (scale.control_plane or 0) - int(before or 0)
    if additional > 0:
        yield _Growth(additional, servers_of(parts))

    objects = {_deployment(obj).name: obj for obj in deployments}
    for pool, number in _pool_changes(parts, deployments, scale):
        additional = number - int(pool.replicas or 0)
        obj = objects.get(pool.name)
        # A pool of a new topology may have no MachineDeployment yet.
        if additional > 0 and obj is not None:
            _, name = clusterapi.infrastructure_ref(dict_at(obj, "spec", "template"))
            template = Key(key_of(obj).namespace, name) if name else None
            yield _Growth(additional, workers_of(parts, obj), template)


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
    """Return the HarvesterMachines of Machines, as far as they exist."""
    return [obj for machine in machines if (obj := parts.harvester_machine_of(machine))]


def _topology_pools(topology: Obj) -> Iterator[_Pool]:
    for index, entry in enumerate(list_at(topology, "workers", "machineDeployments")):
        yield _Pool(str(entry["name"]), entry, entry.get("replicas"), index)


def _deployment(obj: Obj) -> _Pool:
    name = labels_of(obj).get(names.POOL_LABEL) or str(obj["metadata"]["name"])
    return _Pool(name, obj, at(obj, "spec", "replicas"))


def _pool_changes(parts: Parts, deployments: Sequence[Obj], scale: Scale) -> list[_PoolChange]:
    """Return the pools with their new numbers. Raises `ChangeError` for unknown pools."""
    topology = at(parts.cluster, "spec", "topology")
    pools = [*_topology_pools(topology)] if topology else [*map(_deployment, deployments)]
    problems = []
    changes = []
    for name, number in scale.workers.items():
        # An empty name means the only pool, and is ambiguous if there are several.
        matching = [pool for pool in pools if name in ("", pool.name)]
        if len(matching) == 1:
            changes.append(_PoolChange(matching[0], number))
        else:
            problems.append(_unknown_pool(pools, name, number, parts))

    if problems:
        raise ChangeError(problems)
    return changes


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


def _pool_checks(parts: Parts, pool_changes: Iterable[_PoolChange]) -> Iterator[Check]:
    """Warn of pools that the autoscaler scales, and of pools that will be empty."""
    subject = f"Cluster {parts.key}"
    for pool, number in pool_changes:
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


def _patch_topology(
    parts: Parts, scale: Scale, pool_changes: Iterable[_PoolChange]
) -> Iterator[Patch]:
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

    different = [change for change in pool_changes if change.pool.replicas != change.number]
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


def _patch_objects(
    parts: Parts, scale: Scale, pool_changes: Iterable[_PoolChange]
) -> Iterator[Patch]:
    """Yield the patches of the control plane and of MachineDeployments."""
    targets = [(pool.obj, number) for pool, number in pool_changes]
    if scale.control_plane is not None and parts.control_plane is not None:
        targets.insert(0, (parts.control_plane, scale.control_plane))

    for obj, after in targets:
        before = at(obj, "spec", "replicas")
        if before != after:
            change = _change(f"{obj['kind']} {key_of(obj)}", "spec.replicas", before, after)
            yield patch_of(obj, {"spec": {"replicas": after}}, [change])


def _change(name: str, path: str, before: int | None, after: int) -> Change:
    return Change(name, path, "" if before is None else str(before), str(after))
