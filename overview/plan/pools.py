"""Groups of equal machines of a cluster, as its objects want them: the control plane and each pool of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caphv.api import clusterapi, names, resources
from caphv.api.object import Key, Obj, key_of, labels_of, owner_reference
from caphv.api.objectid import ObjectId, group_of, id_of
from caphv.clusterclass.gotemplate import UnsupportedError
from caphv.clusterclass.templates import Class, patched, template_refs, variables_of
from overview.backup.graph import belongings, references
from overview.preflight import surge_of

Objects = Mapping[ObjectId, Obj]
CONTROL_PLANE = "control plane"
TOPOLOGY_NAME = "topology.cluster.x-k8s.io/deployment-name"
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
    """Machines of one kind. `wanted` is all that a machine is made of: when it changes, machines are replaced.

    `machine` is the spec of their HarvesterMachines. Unless `fixed`, another component such as the cluster autoscaler
    decides how many there are, and `replicas` is the number with which the core begins.
    """

    name: str
    replicas: int
    surge: int = 1
    wanted: Mapping[str, Any] = field(default_factory=dict)
    machine: Obj = field(default_factory=dict)
    fixed: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the objects of a cluster want: its pools, and the spec of its HarvesterCluster."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    infrastructure: Obj = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    """Why parts of it are not known."""


def wanted_of(cluster: Key, objects: Objects) -> Wanted:
    """Return what a cluster's objects want; nothing where there is no Cluster."""
    obj = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *cluster))
    if obj is None:
        return Wanted()
    if (obj.get("spec") or {}).get("topology"):
        try:
            return _of_topology(obj, objects)
        except UnsupportedError as error:
            return Wanted(unknown=(str(error),))
    return _of_objects(obj, objects)


def _of_topology(cluster: Obj, objects: Objects) -> Wanted:
    topology = cluster["spec"]["topology"]
    found = _class(cluster, objects)
    version, spec = topology.get("version"), found.obj.get("spec") or {}
    variables = variables_of(found.obj, cluster)
    pools = {}
    place = topology.get("controlPlane") or {}
    if spec.get("controlPlane"):
        own = variables_of(found.obj, cluster, (place.get("variables") or {}).get("overrides") or ())
        template = patched(found.obj, found.part("controlPlane", spec["controlPlane"]), own)
        machine = patched(
            found.obj, found.part("machine", (spec["controlPlane"].get("machineInfrastructure") or {})), own
        )
        wanted = {"version": version, "machine": machine, "control plane": _without(template, _IN_PLACE)}
        replicas, fixed = _numbered(place)
        surge = _surge(template, replicas)
        pools[CONTROL_PLANE] = Pool(CONTROL_PLANE, replicas, surge, wanted, machine, fixed)
    for entry in (topology.get("workers") or {}).get("machineDeployments") or ():
        pool = _topology_pool(found, cluster, entry)
        pools[pool.name] = pool
    part = found.part("infrastructure", spec.get("infrastructure"))
    return Wanted(pools, patched(found.obj, part, variables))


def _topology_pool(found: Class, cluster: Obj, entry: Obj) -> Pool:
    name = str(entry.get("class"))
    worker = found.worker(name)
    worker = {**worker, **(worker.get("template") or {})}  # v1beta1 has the templates one level deeper
    own = variables_of(found.obj, cluster, (entry.get("variables") or {}).get("overrides") or ())
    version = cluster["spec"]["topology"].get("version")
    own["builtin"].pop("controlPlane")
    own["builtin"]["machineDeployment"] = {
        "class": name,
        "topologyName": entry.get("name"),
        "version": version,
        "replicas": entry.get("replicas"),
    }
    machine = patched(found.obj, found.part("machine", worker.get("infrastructure"), name), own)
    bootstrap = patched(found.obj, found.part("bootstrap", worker.get("bootstrap"), name), own)
    wanted = {
        "version": version,
        "machine": machine,
        "bootstrap": bootstrap,
        "failureDomain": entry.get("failureDomain") or worker.get("failureDomain"),
    }
    replicas, fixed = _numbered(entry)
    rollout = entry if entry.get("strategy") or entry.get("rollout") else worker
    return Pool(str(entry.get("name")), replicas, _surge(rollout, replicas), wanted, machine, fixed)


def _numbered(entry: Obj) -> tuple[int, bool]:
    """Number of machines in a topology's pool, and whether it is fixed: the core leaves an omitted number alone.

    A new pool begins with the autoscaler's minimum, else with one machine (the core's webhook of MachineDeployments).
    """
    if entry.get("replicas") is not None:
        return int(entry["replicas"]), True
    least = str(((entry.get("metadata") or {}).get("annotations") or {}).get(names.AUTOSCALER_MIN_SIZE, ""))
    return int(least) if least.isdecimal() else 1, False


def _class(cluster: Obj, objects: Objects) -> Class:
    ref = next(each for each in references(cluster) if each.kind == "ClusterClass")
    obj = objects.get(ref)
    if obj is None:
        raise UnsupportedError(f"{ref} does not exist or cannot be read")
    return Class(obj, {each: objects[each] for each in template_refs(obj) if each in objects})


def _of_objects(cluster: Obj, objects: Objects) -> Wanted:
    key, spec = key_of(cluster), cluster.get("spec") or {}
    pools = {}
    control_plane = _referenced(spec.get("controlPlaneRef"), key.namespace, objects)
    if control_plane:
        pools[CONTROL_PLANE] = _control_plane(control_plane, objects)
    for identity, obj in objects.items():
        own = obj.get("spec") or {}
        of_cluster = identity.namespace == key.namespace and key.name in (
            own.get("clusterName"),
            clusterapi.cluster_name(obj),
        )
        if of_cluster and identity[:2] == (resources.CLUSTER_API_GROUP, "MachineDeployment"):
            pool = _deployment(obj, objects)
            pools[pool.name] = pool
    infrastructure = _referenced(spec.get("infrastructureRef"), key.namespace, objects)
    return Wanted(pools, dict((infrastructure or {}).get("spec") or {}))


def _control_plane(obj: Obj, objects: Objects) -> Pool:
    spec = obj.get("spec") or {}
    machines = spec.get("machineTemplate") or {}
    ref = (machines.get("spec") or {}).get("infrastructureRef") or machines.get("infrastructureRef")
    ref = ref or spec.get("infrastructureRef") or spec.get("infrastructureTemplate") or {}
    wanted = {
        "version": spec.get("version"),
        "machine template": ref.get("name"),
        "control plane": _without(spec, _IN_PLACE | {"infrastructureRef", "infrastructureTemplate"}),
    }
    replicas = int(spec.get("replicas", 1) or 0)
    machine = _machine_of(ref, key_of(obj).namespace, objects)
    return Pool(CONTROL_PLANE, replicas, _surge(spec, replicas), wanted, machine)


def _deployment(obj: Obj, objects: Objects) -> Pool:
    spec = obj.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    bootstrap, ref = template.get("bootstrap") or {}, template.get("infrastructureRef") or {}
    wanted = {
        "version": template.get("version"),
        "machine template": ref.get("name"),
        "bootstrap": (bootstrap.get("configRef") or {}).get("name") or bootstrap.get("dataSecretName"),
        "failureDomain": template.get("failureDomain"),
    }
    replicas = int(spec.get("replicas", 1) or 0)
    name = labels_of(obj).get(TOPOLOGY_NAME) or key_of(obj).name
    return Pool(name, replicas, _surge(spec, replicas), wanted, _machine_of(ref, key_of(obj).namespace, objects))


def _machine_of(ref: Obj, namespace: str, objects: Objects) -> Obj:
    template = _referenced(ref, namespace, objects) or {}
    return dict(((template.get("spec") or {}).get("template") or {}).get("spec") or {})


def _referenced(ref: Any, namespace: str, objects: Objects) -> Obj | None:
    if not isinstance(ref, dict) or not ref.get("name"):
        return None
    group = str(ref.get("apiGroup") or group_of(ref.get("apiVersion")))
    return objects.get(ObjectId(group, str(ref.get("kind")), str(ref.get("namespace") or namespace), str(ref["name"])))


def _surge(spec: Obj, replicas: int) -> int:
    """Machines that a rollout adds for a time, by the strategy of v1beta2 (`rollout.strategy`) or of v1beta1."""
    strategy = (spec.get("rollout") or {}).get("strategy") or spec.get("rolloutStrategy") or spec.get("strategy") or {}
    if strategy.get("type") == "OnDelete":
        return 0
    return surge_of(replicas, (strategy.get("rollingUpdate") or {}).get("maxSurge"))


def _without(spec: Obj, names: frozenset[str]) -> Obj:
    return {name: value for name, value in spec.items() if name not in names}


def clusters_of(changed: Mapping[ObjectId, Obj], objects: Objects) -> Iterator[Key]:
    """Yield the clusters whose machines a change of these objects may concern, by namespace and name."""
    clusters = [obj for identity, obj in objects.items() if identity[:2] == (resources.CLUSTER_API_GROUP, "Cluster")]
    for cluster in sorted(clusters, key=key_of):
        key = key_of(cluster)
        if belongings([key], objects.values()).objects.keys() & changed.keys() or any(
            _names(obj, key) for obj in changed.values()
        ):
            yield key


def _names(obj: Obj, key: Key) -> bool:
    """Whether an object names a cluster as its own."""
    owner = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    known = ((obj.get("spec") or {}).get("clusterName"), clusterapi.cluster_name(obj), (owner or {}).get("name"))
    return id_of(obj).namespace == key.namespace and key.name in known
