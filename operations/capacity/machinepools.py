"""Work out the pools of equal machines that a cluster's objects ask for.

A pool is the control plane, or a MachineDeployment of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caphv.api import clusterapi, names, resources
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    at,
    dict_at,
    key_of,
    labels_of,
    list_at,
    owner_reference,
    text_at,
)
from caphv.api.objectid import ObjectId, group_of, id_of
from caphv.clusterclass.gotemplate import UnsupportedError
from caphv.clusterclass.templates import Class, apply_patches, template_refs, variables_of
from operations.capacity.preflight import surge_of
from operations.read.graph import belongings, references

Objects = Mapping[ObjectId, Obj]
CONTROL_PLANE = "control plane"
# Fields of a control plane that its provider applies without new machines.
_IN_PLACE = frozenset(
    {
        "machineTemplate",
        "manifestsConfigMapReference",
        "registrationAddress",
        "registrationMethod",
        "remediation",
        "remediationStrategy",
        "replicas",
        "rollout",
        "rolloutStrategy",
        "version",
    }
)


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal machines.

    `inputs` decide on the content of a machine. When they change, machines are replaced. `machine`
    is the spec of their HarvesterMachines. Unless `fixed`, another component such as the cluster
    autoscaler decides on their number, and `replicas` is the number with which the core begins.
    """

    name: str
    replicas: int
    surge: int = 1
    inputs: Mapping[str, Any] = field(default_factory=dict)
    machine: Obj = field(default_factory=dict)
    fixed: bool = True
    updates_in_place: bool = False
    """Whether its rollout lets Cluster API update machines in place without a new one first."""
    in_place_policy: str = ""
    """Annotation `caphv.io/in-place-updates` of its MachineDeployment; empty for none."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The state that a cluster's objects ask for: pools, and the spec of the HarvesterCluster."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    infrastructure: Obj = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    """Reasons why parts of the state are not known."""


def desired_state(cluster: Key, objects: Objects) -> DesiredState:
    """Return the state that a cluster's objects ask for; an empty one without a Cluster."""
    obj = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *cluster))
    if obj is None:
        return DesiredState()
    if not at(obj, "spec", "topology"):
        return _state_from_objects(obj, objects)
    try:
        return _state_from_topology(obj, objects)
    except UnsupportedError as error:
        return DesiredState(unknown=(str(error),))


def _state_from_topology(cluster: Obj, objects: Objects) -> DesiredState:
    """Return the state that a Cluster asks for by its topology and ClusterClass.

    Raises `UnsupportedError` for a class that cannot be evaluated here.
    """
    topology = cluster["spec"]["topology"]
    cluster_class = _class(cluster, objects)
    spec = cluster_class.obj.get("spec") or {}
    variables = variables_of(cluster_class.obj, cluster)

    pools = {}
    if spec.get("controlPlane"):
        pools[CONTROL_PLANE] = _topology_control_plane(cluster_class, cluster)
    for entry in list_at(topology, "workers", "machineDeployments"):
        pool = _topology_pool(cluster_class, cluster, entry)
        pools[pool.name] = pool

    part = cluster_class.part("infrastructure", spec.get("infrastructure"))
    return DesiredState(pools, apply_patches(cluster_class.obj, part, variables))


def _topology_control_plane(cluster_class: Class, cluster: Obj) -> Pool:
    """Return the control plane of a topology."""
    topology, spec = cluster["spec"]["topology"], cluster_class.obj["spec"]["controlPlane"]
    entry = topology.get("controlPlane") or {}
    overrides = list_at(entry, "variables", "overrides")
    variables = variables_of(cluster_class.obj, cluster, overrides)

    part = cluster_class.part("controlPlane", spec)
    template = apply_patches(cluster_class.obj, part, variables)
    # A control plane without machines of its own, such as Kamaji's, has no such template.
    part = cluster_class.part("machine", spec.get("machineInfrastructure") or {})
    machine = apply_patches(cluster_class.obj, part, variables)
    inputs = {
        "version": topology.get("version"),
        "machine": machine,
        "control plane": _drop_fields(template, _IN_PLACE),
    }

    replicas, fixed = _replicas(entry)
    surge = _surge(template, replicas)
    return Pool(CONTROL_PLANE, replicas, surge, inputs, machine, fixed)


def _topology_pool(cluster_class: Class, cluster: Obj, entry: Obj) -> Pool:
    """Return the pool of workers of an entry in a topology."""
    name = str(entry.get("class"))
    worker = cluster_class.worker(name)
    # v1beta1 has the templates one level deeper.
    worker = {**worker, **(worker.get("template") or {})}
    version = cluster["spec"]["topology"].get("version")

    # For templates of workers, the core sets only the built-in variables of their pool.
    overrides = list_at(entry, "variables", "overrides")
    variables = variables_of(cluster_class.obj, cluster, overrides)
    variables["builtin"].pop("controlPlane")
    variables["builtin"]["machineDeployment"] = {
        "class": name,
        "topologyName": entry.get("name"),
        "version": version,
        "replicas": entry.get("replicas"),
    }

    part = cluster_class.part("machine", worker.get("infrastructure"), name)
    machine = apply_patches(cluster_class.obj, part, variables)
    part = cluster_class.part("bootstrap", worker.get("bootstrap"), name)
    bootstrap = apply_patches(cluster_class.obj, part, variables)
    inputs = {
        "version": version,
        "machine": machine,
        "bootstrap": bootstrap,
        "failureDomain": entry.get("failureDomain") or worker.get("failureDomain"),
    }

    # A strategy in the topology replaces the strategy of the class.
    replicas, fixed = _replicas(entry)
    rollout = entry if entry.get("strategy") or entry.get("rollout") else worker
    annotations = {
        **dict_at(worker, "metadata", "annotations"),
        **dict_at(entry, "metadata", "annotations"),
    }
    return Pool(
        str(entry.get("name")),
        replicas,
        _surge(rollout, replicas),
        inputs,
        machine,
        fixed,
        _updates_in_place(rollout, replicas),
        str(annotations.get(names.IN_PLACE_ANNOTATION) or ""),
    )


def _replicas(entry: Obj) -> tuple[int, bool]:
    """Return the number of machines in a topology's pool, and whether the number is fixed."""
    if entry.get("replicas") is not None:
        return int(entry["replicas"]), True

    # The core does not change an omitted number. A new pool begins with the autoscaler's minimum,
    # else with one machine (the core's webhook of MachineDeployments).
    minimum = text_at(entry, "metadata", "annotations", names.AUTOSCALER_MIN_SIZE)
    replicas = int(minimum) if minimum.isdecimal() else 1
    return replicas, False


def _class(cluster: Obj, objects: Objects) -> Class:
    """Return the ClusterClass of a Cluster with its templates, as far as they could be read.

    Raises `UnsupportedError` without a ClusterClass.
    """
    ref = next(ref for ref in references(cluster) if ref.kind == "ClusterClass")
    obj = objects.get(ref)
    if obj is None:
        raise UnsupportedError(f"{ref} does not exist or cannot be read")
    return Class(obj, {ref: objects[ref] for ref in template_refs(obj) if ref in objects})


def _state_from_objects(cluster: Obj, objects: Objects) -> DesiredState:
    """Return the state that the objects of a Cluster without a topology ask for."""
    key, spec = key_of(cluster), cluster.get("spec") or {}
    pools = {}
    control_plane = _resolve(spec.get("controlPlaneRef"), key.namespace, objects)
    # Rancher's control planes have no machines of their own: they are MachineDeployments.
    if control_plane and not clusterapi.is_of_rancher(cluster):
        pools[CONTROL_PLANE] = _control_plane(control_plane, objects)

    for identity, obj in objects.items():
        if identity[:2] != (resources.CLUSTER_API_GROUP, "MachineDeployment"):
            continue

        # The core labels a MachineDeployment only when it first reconciles it.
        clusters = (at(obj, "spec", "clusterName"), clusterapi.cluster_name(obj))
        if identity.namespace == key.namespace and key.name in clusters:
            pool = _deployment(obj, objects)
            pools[pool.name] = pool

    infrastructure = _resolve(spec.get("infrastructureRef"), key.namespace, objects)
    return DesiredState(pools, dict(dict_at(infrastructure, "spec")))


def _control_plane(obj: Obj, objects: Objects) -> Pool:
    """Return the machines of a control plane object."""
    spec = obj.get("spec") or {}
    # The place of the reference to the machine template depends on the provider and its version.
    ref = (
        at(spec, "machineTemplate", "spec", "infrastructureRef")
        or at(spec, "machineTemplate", "infrastructureRef")
        or spec.get("infrastructureRef")
        or spec.get("infrastructureTemplate")
        or {}
    )

    in_place = _IN_PLACE | {"infrastructureRef", "infrastructureTemplate"}
    inputs = {
        "version": spec.get("version"),
        "machine template": ref.get("name"),
        "control plane": _drop_fields(spec, in_place),
    }

    replicas = int(spec.get("replicas", 1) or 0)
    machine = _machine_of(ref, key_of(obj).namespace, objects)
    return Pool(CONTROL_PLANE, replicas, _surge(spec, replicas), inputs, machine)


def _deployment(obj: Obj, objects: Objects) -> Pool:
    """Return the machines of a MachineDeployment."""
    spec = obj.get("spec") or {}
    template = dict_at(spec, "template", "spec")
    bootstrap, ref = template.get("bootstrap") or {}, template.get("infrastructureRef") or {}

    # Templates are immutable, so that another name means another content.
    inputs = {
        "version": template.get("version"),
        "machine template": ref.get("name"),
        "bootstrap": at(bootstrap, "configRef", "name") or bootstrap.get("dataSecretName"),
        "failureDomain": template.get("failureDomain"),
    }

    replicas = int(spec.get("replicas", 1) or 0)
    name = labels_of(obj).get(names.POOL_LABEL) or key_of(obj).name
    machine = _machine_of(ref, key_of(obj).namespace, objects)
    return Pool(
        name,
        replicas,
        _surge(spec, replicas),
        inputs,
        machine,
        updates_in_place=_updates_in_place(spec, replicas),
        in_place_policy=annotations_of(obj).get(names.IN_PLACE_ANNOTATION, ""),
    )


def _machine_of(ref: Obj, namespace: str, objects: Objects) -> Obj:
    """Return the spec of the HarvesterMachines of a template; empty if the template is absent."""
    template = _resolve(ref, namespace, objects)
    return dict(dict_at(template, "spec", "template", "spec"))


def _resolve(ref: Any, namespace: str, objects: Objects) -> Obj | None:
    """Return the object that a reference names, None if it is absent."""
    if not isinstance(ref, dict) or not ref.get("name"):
        return None

    # v1beta2 refers to an API group, v1beta1 to a version of it.
    group = str(ref.get("apiGroup") or group_of(ref.get("apiVersion")))
    namespace = str(ref.get("namespace") or namespace)
    return objects.get(ObjectId(group, str(ref.get("kind")), namespace, str(ref["name"])))


def _surge(spec: Obj, replicas: int) -> int:
    """Return the number of machines that a rollout adds for a time."""
    strategy = strategy_of(spec)
    if strategy.get("type") == "OnDelete":
        return 0
    return surge_of(replicas, at(strategy, "rollingUpdate", "maxSurge"))


def _updates_in_place(spec: Obj, replicas: int) -> bool:
    """Return whether a rollout adds no machine, and replaces machines without their deletion."""
    return strategy_of(spec).get("type") != "OnDelete" and _surge(spec, replicas) == 0


def strategy_of(spec: Obj) -> Obj:
    """Return the strategy of rollouts of a control plane or MachineDeployment; empty for none."""
    # v1beta2 has `rollout`; in v1beta1, control planes and MachineDeployments differ.
    strategy = at(spec, "rollout", "strategy") or spec.get("rolloutStrategy")
    return dict(strategy or spec.get("strategy") or {})


def _drop_fields(spec: Obj, names: frozenset[str]) -> Obj:
    return {name: value for name, value in spec.items() if name not in names}


def clusters_of(changed: Mapping[ObjectId, Obj], objects: Objects) -> Iterator[Key]:
    """Yield the keys of clusters whose machines may depend on changed objects.

    :param changed: objects that change
    :param objects: all objects, changed and unchanged
    """
    clusters = [
        obj
        for identity, obj in objects.items()
        if identity[:2] == (resources.CLUSTER_API_GROUP, "Cluster")
    ]
    for cluster in sorted(clusters, key=key_of):
        key = key_of(cluster)
        members = belongings([key], objects.values()).objects
        is_named = any(_names_cluster(obj, key) for obj in changed.values())
        if is_named or members.keys() & changed.keys():
            yield key


def _names_cluster(obj: Obj, key: Key) -> bool:
    """Whether an object names a cluster as its own."""
    if id_of(obj).namespace != key.namespace:
        return False
    owner = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    clusters = (at(obj, "spec", "clusterName"), clusterapi.cluster_name(obj), at(owner, "name"))
    return key.name in clusters
