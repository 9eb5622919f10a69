"""Derive the pools of equal machines from a cluster's objects. No I/O.

A pool is the control plane, or a MachineDeployment of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
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

    :param replicas: their number; if it is not `fixed`, the number with which the core begins
    :param surge: how many machines a rollout adds for a time
    :param inputs: what decides on the content of a machine. If it changes, machines are replaced.
    :param machine: the spec of their HarvesterMachines
    :param fixed: the number is set; otherwise another component such as the cluster autoscaler
        decides on it
    :param updates_in_place: a rollout lets Cluster API update machines in place without adding one
        first
    :param in_place_policy: annotation `caphv.io/in-place-updates` of the MachineDeployment; empty
        without it
    """

    name: str
    replicas: int
    _: KW_ONLY
    surge: int = 1
    inputs: Mapping[str, Any] = field(default_factory=dict)
    machine: Obj = field(default_factory=dict)
    fixed: bool = True
    updates_in_place: bool = False
    in_place_policy: str = ""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state of a cluster.

    :param pools: its pools by name
    :param infrastructure: the spec of its HarvesterCluster
    :param unknown: why parts of the state are unknown; empty if it is complete
    """

    pools: Mapping[str, Pool] = field(default_factory=dict)
    infrastructure: Obj = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def desired_state(cluster: Key, objects: Objects) -> DesiredState:
    """Return the desired state of a cluster; an empty one if the Cluster does not exist."""
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
    """Return the desired state of a Cluster with a topology.

    Raises `UnsupportedError` for a class that cannot be evaluated here.
    """
    topology = cluster["spec"]["topology"]
    cluster_class = _class(cluster, objects)
    spec = cluster_class.obj.get("spec") or {}
    variables = variables_of(cluster_class.obj, cluster)
    # For the template of the infrastructure, the core sets only the variables of the Cluster.
    variables["builtin"].pop("controlPlane")

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
    topology = cluster["spec"]["topology"]
    spec = cluster_class.obj["spec"]["controlPlane"]
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

    replicas = _replicas(entry)
    return Pool(
        CONTROL_PLANE,
        replicas,
        surge=_surge(template, replicas),
        inputs=inputs,
        machine=machine,
        fixed=_has_replicas(entry),
    )


def _topology_pool(cluster_class: Class, cluster: Obj, entry: Obj) -> Pool:
    """Return the pool of an entry for workers in a topology."""
    name = str(entry.get("class"))
    worker = cluster_class.worker(name)
    # In v1beta1, the templates are one level deeper.
    worker = {**worker, **(worker.get("template") or {})}
    version = cluster["spec"]["topology"].get("version")

    # For templates of workers, the core sets only the built-in variables of their own pool.
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
    replicas = _replicas(entry)
    rollout = entry if entry.get("strategy") or entry.get("rollout") else worker
    annotations = {
        **dict_at(worker, "metadata", "annotations"),
        **dict_at(entry, "metadata", "annotations"),
    }
    return Pool(
        str(entry.get("name")),
        replicas,
        surge=_surge(rollout, replicas),
        inputs=inputs,
        machine=machine,
        fixed=_has_replicas(entry),
        updates_in_place=_updates_in_place(rollout, replicas),
        in_place_policy=str(annotations.get(names.IN_PLACE_ANNOTATION) or ""),
    )


def _has_replicas(entry: Obj) -> bool:
    """Return whether a topology sets the number of machines of a pool."""
    return entry.get("replicas") is not None


def _replicas(entry: Obj) -> int:
    """Return the number of machines with which a pool of a topology begins."""
    if _has_replicas(entry):
        return int(entry["replicas"])

    # Without a number, a new pool begins with the autoscaler's minimum, else with one machine (the
    # core's webhook of MachineDeployments).
    minimum = text_at(entry, "metadata", "annotations", names.AUTOSCALER_MIN_SIZE)
    return int(minimum) if minimum.isdecimal() else 1


def _class(cluster: Obj, objects: Objects) -> Class:
    """Return the ClusterClass of a Cluster with those of its templates that could be read.

    Raises `UnsupportedError` if the ClusterClass could not be read.
    """
    ref = next(ref for ref in references(cluster) if ref.kind == "ClusterClass")
    obj = objects.get(ref)
    if obj is None:
        raise UnsupportedError(f"{ref} does not exist or cannot be read")
    return Class(obj, {ref: objects[ref] for ref in template_refs(obj) if ref in objects})


def _state_from_objects(cluster: Obj, objects: Objects) -> DesiredState:
    """Return the desired state of a Cluster without a topology."""
    key = key_of(cluster)
    spec = cluster.get("spec") or {}
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
    """Return the pool of a control plane object."""
    spec = obj.get("spec") or {}
    # The path of the reference to the machine template depends on the provider and its version.
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
    surge = _surge(spec, replicas)
    return Pool(CONTROL_PLANE, replicas, surge=surge, inputs=inputs, machine=machine)


def _deployment(obj: Obj, objects: Objects) -> Pool:
    """Return the pool of a MachineDeployment."""
    spec = obj.get("spec") or {}
    template = dict_at(spec, "template", "spec")
    bootstrap = template.get("bootstrap") or {}
    ref = template.get("infrastructureRef") or {}

    # Templates are immutable, so another name means another content.
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
        surge=_surge(spec, replicas),
        inputs=inputs,
        machine=machine,
        updates_in_place=_updates_in_place(spec, replicas),
        in_place_policy=annotations_of(obj).get(names.IN_PLACE_ANNOTATION, ""),
    )


def _machine_of(ref: Obj, namespace: str, objects: Objects) -> Obj:
    """Return the spec of the HarvesterMachines of a template; empty if the template is absent."""
    template = _resolve(ref, namespace, objects)
    return dict(dict_at(template, "spec", "template", "spec"))


def _resolve(ref: Any, default_namespace: str, objects: Objects) -> Obj | None:
    """Return the object of a reference; None if it is absent."""
    if not isinstance(ref, dict) or not ref.get("name"):
        return None

    # References have an API group in v1beta2, and a version of the group in v1beta1.
    group = str(ref.get("apiGroup") or group_of(ref.get("apiVersion")))
    namespace = str(ref.get("namespace") or default_namespace)
    return objects.get(ObjectId(group, str(ref.get("kind")), namespace, str(ref["name"])))


def _surge(spec: Obj, replicas: int) -> int:
    """Return the number of machines that a rollout adds for a time."""
    strategy = strategy_of(spec)
    if strategy.get("type") == "OnDelete":
        return 0
    return surge_of(replicas, at(strategy, "rollingUpdate", "maxSurge"))


def _updates_in_place(spec: Obj, replicas: int) -> bool:
    """Return whether a rollout adds no machine first, and does not wait for manual deletions."""
    return strategy_of(spec).get("type") != "OnDelete" and _surge(spec, replicas) == 0


def strategy_of(spec: Obj) -> Obj:
    """Return the rollout strategy of a control plane or MachineDeployment; empty without one."""
    # v1beta2 has `rollout`. In v1beta1, control planes and MachineDeployments have other fields.
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
    """Return whether an object refers to a cluster as its own."""
    if id_of(obj).namespace != key.namespace:
        return False
    owner = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    clusters = (at(obj, "spec", "clusterName"), clusterapi.cluster_name(obj), at(owner, "name"))
    return key.name in clusters
