"""Collects the facts of each cluster from objects of files, of an API server, or of caches.

A cluster with a ClusterClass has a control plane and a HarvesterCluster only after Cluster API's core created them.
Until then, and in files, they are derived from the templates of the class, with the variables `cni` and
`cloudConfigDelivery` of the shipped ClusterClasses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.api.resources import CLUSTER_API_GROUP, FLEET_GROUP
from packager.addons.gather import CAAPF, RANCHER, ClusterFacts, FleetCluster
from packager.addons.merge import at, merged

_TEMPLATE = "Template"

Find = Callable[[str, str, Key], Obj | None]
"""Looks an object up by API group, kind and key; None where there is none."""


def facts_of(objs: Iterable[Obj]) -> list[ClusterFacts]:
    """Return the facts of each Cluster on Harvester that is among the objects, by namespace and name.

    Objects of other kinds are what Clusters refer to. Metadata without a name makes no Cluster.
    """
    known = _Objects(objs)
    imported = fleet_clusters(known.of_kind(FLEET_GROUP, "Cluster"))
    clusters = [
        facts_of_cluster(cluster, known.find, imported.get(_key(cluster), frozenset()))
        for cluster in known.of_kind(CLUSTER_API_GROUP, "Cluster")
        if is_on_harvester(cluster, known.find)
    ]
    return sorted(clusters, key=lambda facts: facts.key)


def facts_of_cluster(cluster: Obj, find: Find, imported: frozenset[FleetCluster] = frozenset()) -> ClusterFacts:
    """Return the facts of one Cluster; what it refers to is looked up, and `imported` are its Fleet Clusters."""
    control_plane = _referenced(cluster, "controlPlaneRef", find)
    harvester_cluster = _referenced(cluster, "infrastructureRef", find)
    if at(cluster, "spec", "topology"):
        control_plane = control_plane or _control_plane_of_class(cluster, find)
        harvester_cluster = harvester_cluster or _harvester_cluster_of_class(cluster, find)
    return ClusterFacts(cluster, harvester_cluster, control_plane, imported)


def is_on_harvester(cluster: Obj, find: Find) -> bool:
    """Whether a Cluster's machines are on Harvester. Where only its ClusterClass could tell and is not there: yes."""
    kind = at(cluster, "spec", "infrastructureRef", "kind")
    if kind is None and at(cluster, "spec", "topology"):
        template = _template_ref(cluster, "infrastructure", find).get("kind")
        return template in (None, "HarvesterClusterTemplate")
    return bool(kind == "HarvesterCluster")


def is_suspended(cluster: Obj) -> bool:
    """Whether annotation `addons.caphv.io/suspend` suspends its bundles."""
    return at(cluster, "metadata", "annotations", names.SUSPEND_ADDONS_ANNOTATION) == "true"


def fleet_clusters(objs: Iterable[Obj]) -> dict[Key, frozenset[FleetCluster]]:
    """Return the Fleet Clusters of each Cluster, and who created them."""
    found: dict[Key, set[FleetCluster]] = defaultdict(set)
    for obj in objs:
        manager = RANCHER if _rancher_owner(obj) else CAAPF
        found[fleet_cluster_owner(obj)].add(FleetCluster(manager, *_key(obj)))
    return {key: frozenset(imported) for key, imported in found.items()}


def fleet_cluster_owner(obj: Obj) -> Key:
    """Return the Cluster of a Fleet Cluster.

    Rancher's carries labels with the owner's name and namespace. CAAPF's is in the namespace of its Cluster and owned
    by it, or has its name where CAAPF sets no owner.
    """
    namespace, name = _key(obj)
    return _rancher_owner(obj) or Key(namespace, _owner(obj) or name)


def _rancher_owner(obj: Obj) -> Key | None:
    labels = at(obj, "metadata", "labels")
    namespace, name = at(labels, names.CAPI_OWNER_NAMESPACE_LABEL), at(labels, names.CAPI_OWNER_LABEL)
    return Key(str(namespace), str(name)) if namespace and name else None


def _owner(obj: Obj) -> str:
    """Return the name of the Cluster that owns an object, empty for none."""
    owners = at(obj, "metadata", "ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if at(owner, "kind") == "Cluster" and _group(at(owner, "apiVersion")) == CLUSTER_API_GROUP:
            return str(at(owner, "name") or "")
    return ""


class _Objects:
    """Objects to look up. An object in a file without a namespace is found from every namespace."""

    def __init__(self, objs: Iterable[Obj]) -> None:
        self._kinds: dict[tuple[str, str], dict[Key, Obj]] = defaultdict(dict)
        self._all: dict[tuple[str, str], list[Obj]] = defaultdict(list)
        for obj in objs:
            kind = (_group(obj.get("apiVersion")), str(obj.get("kind")))
            if at(obj, "metadata", "name"):
                self._all[kind].append(obj)
                self._kinds[kind].setdefault(Key(_text(obj, "namespace"), _text(obj, "name")), obj)

    def of_kind(self, group: str, kind: str) -> Iterator[Obj]:
        # Both of two objects with one name are returned: the caller reports the duplicate.
        return iter(self._all.get((group, kind), ()))

    def find(self, group: str, kind: str, key: Key) -> Obj | None:
        named = self._kinds.get((group, kind), {})
        return named.get(key) or named.get(Key("", key.name))


def _key(obj: Obj) -> Key:
    return ClusterFacts(obj).key


def _text(obj: Obj, field: str) -> str:
    return str(at(obj, "metadata", field) or "")


def _group(api_version: Any) -> str:
    return str(api_version or "").rpartition("/")[0]


def _referenced(cluster: Obj, field: str, find: Find) -> Obj | None:
    ref = at(cluster, "spec", field)
    return _find(ref, _key(cluster).namespace, find) if isinstance(ref, dict) else None


def _find(ref: Obj, namespace: str, find: Find) -> Obj | None:
    """Return what a reference names: by group in `v1beta2`, by version and namespace in `v1beta1`."""
    group = str(ref.get("apiGroup") or _group(ref.get("apiVersion")))
    return find(group, str(ref.get("kind")), Key(str(ref.get("namespace") or namespace), str(ref.get("name"))))


def _class(cluster: Obj, find: Find) -> Obj:
    topology = at(cluster, "spec", "topology")
    name = at(topology, "classRef", "name") or at(topology, "class")
    namespace = at(topology, "classRef", "namespace") or at(topology, "classNamespace") or _key(cluster).namespace
    return find(CLUSTER_API_GROUP, "ClusterClass", Key(str(namespace), str(name))) or {}


def _template_ref(cluster: Obj, part: str, find: Find) -> Obj:
    found = at(_class(cluster, find), "spec", part)
    ref = at(found, "templateRef") or at(found, "ref")
    return ref if isinstance(ref, dict) else {}


def _of_class(cluster: Obj, part: str, find: Find) -> Obj:
    """Return what the class makes of a part, without its patches."""
    ref = _template_ref(cluster, part, find)
    namespace = str(at(_class(cluster, find), "metadata", "namespace") or _key(cluster).namespace)
    template = _find(ref, namespace, find) if ref else None
    kind = str(ref.get("kind") or "").removesuffix(_TEMPLATE)
    return {**({"kind": kind} if kind else {}), "spec": at(template, "spec", "template", "spec") or {}}


def _control_plane_of_class(cluster: Obj, find: Find) -> Obj:
    cni = _variable(cluster, names.CNI_VARIABLE, find)
    patch = {"spec": {"serverConfig": {"cni": cni}}} if cni else {}
    return merged(_of_class(cluster, "controlPlane", find), patch)


def _harvester_cluster_of_class(cluster: Obj, find: Find) -> Obj:
    delivery = _variable(cluster, names.CLOUD_CONFIG_VARIABLE, find)
    patch = {"spec": {"cloudConfig": {"delivery": delivery}}} if delivery else {}
    return merged(_of_class(cluster, "infrastructure", find), patch)


def _variable(cluster: Obj, name: str, find: Find) -> Any:
    """Return the value of a variable: the Cluster's, else the default of the class."""
    given, declared = at(cluster, "spec", "topology", "variables"), at(_class(cluster, find), "spec", "variables")
    for rows, path in ((given, ("value",)), (declared, ("schema", "openAPIV3Schema", "default"))):
        for row in rows if isinstance(rows, list) else ():
            if at(row, "name") == name and (value := at(row, *path)) is not None:
                return value
    return None
