"""Collects the facts of each cluster from objects in files, in an API server, or in caches.

A cluster with a ClusterClass has a control plane and a HarvesterCluster only after Cluster API's
core created them. Until then, and in files, they are derived from the templates of the class, with
the variables `cni` and `cloudConfigDelivery` of the shipped ClusterClasses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from caphv.api import clusterapi, names
from caphv.api.object import Key, Obj, at, dict_at, text_at
from caphv.api.resources import CLUSTER_API_GROUP, FLEET_GROUP
from packager.addons.facts import CAAPF, RANCHER, ClusterFacts, FleetCluster
from packager.addons.merge import merge

_TEMPLATE = "Template"
# Where the manifests of the Go provider's class, and of ours, have the kubeconfig.
_MANIFEST_SECRET = {
    "cloudConfigCredentialsSecretName": "cloud-config",
    "cloudConfigCredentialsSecretKey": "cloud-config",
}

Find = Callable[[str, str, Key], Obj | None]
"""Looks up an object by API group, kind and key; returns None if it does not exist."""


def facts_of(objs: Iterable[Obj]) -> list[ClusterFacts]:
    """Return the facts of each Cluster on Harvester among the objects, by namespace and name.

    Clusters refer to the objects of other kinds. A Cluster without a name is ignored.
    """
    objects = _Objects(objs)
    imported = fleet_clusters(objects.of_kind(FLEET_GROUP, "Cluster"))
    clusters = [
        facts_of_cluster(cluster, objects.find, imported.get(_key(cluster), frozenset()))
        for cluster in objects.of_kind(CLUSTER_API_GROUP, "Cluster")
        if is_on_harvester(cluster, objects.find)
    ]
    return sorted(clusters, key=lambda facts: facts.key)


def facts_of_cluster(cluster: Obj, find: Find, imported: frozenset[FleetCluster]) -> ClusterFacts:
    """Return one Cluster with the objects it references; `imported` are its Fleet Clusters."""
    control_plane = _follow_ref(cluster, "controlPlaneRef", find)
    harvester_cluster = _follow_ref(cluster, "infrastructureRef", find)
    if at(cluster, "spec", "topology"):
        control_plane = control_plane or _control_plane_of_class(cluster, find)
        harvester_cluster = harvester_cluster or _harvester_cluster_of_class(cluster, find)
    return ClusterFacts(
        cluster=cluster,
        harvester_cluster=harvester_cluster,
        control_plane=control_plane,
        fleet_clusters=imported,
    )


def is_on_harvester(cluster: Obj, find: Find) -> bool:
    """Return whether a Cluster is on Harvester, or may be, because its ClusterClass is missing.

    A Cluster that Rancher provisions does not count, because Rancher installs its add-ons.
    """
    if clusterapi.is_of_rancher(cluster):
        return False
    kind = at(cluster, "spec", "infrastructureRef", "kind")
    if kind is None and at(cluster, "spec", "topology"):
        template = _template_ref(cluster, "infrastructure", find).get("kind")
        return template in (None, "HarvesterClusterTemplate")
    return bool(kind == "HarvesterCluster")


def is_suspended(cluster: Obj) -> bool:
    """Whether annotation `addons.caphv.io/suspend` suspends its bundles."""
    return at(cluster, "metadata", "annotations", names.SUSPEND_ADDONS_ANNOTATION) == "true"


def fleet_clusters(objs: Iterable[Obj]) -> dict[Key, frozenset[FleetCluster]]:
    """Return the Fleet Clusters of each Cluster, with the managers that created them."""
    imported: dict[Key, set[FleetCluster]] = defaultdict(set)
    for obj in objs:
        manager = RANCHER if _rancher_owner(obj) else CAAPF
        imported[fleet_cluster_owner(obj)].add(FleetCluster(manager, *_key(obj)))
    return {key: frozenset(clusters) for key, clusters in imported.items()}


def fleet_cluster_owner(obj: Obj) -> Key:
    """Return the Cluster of a Fleet Cluster.

    A Fleet Cluster of Rancher carries labels with the owner's name and namespace. A Fleet Cluster
    of CAAPF is in the namespace of its Cluster, which owns it, or has its name if CAAPF sets no
    owner.
    """
    namespace, name = _key(obj)
    return _rancher_owner(obj) or Key(namespace, _owner(obj) or name)


def _rancher_owner(obj: Obj) -> Key | None:
    labels = at(obj, "metadata", "labels")
    namespace = at(labels, names.CAPI_OWNER_NAMESPACE_LABEL)
    name = at(labels, names.CAPI_OWNER_LABEL)
    return Key(str(namespace), str(name)) if namespace and name else None


def _owner(obj: Obj) -> str:
    """Return the name of the Cluster that owns an object, empty if no Cluster does."""
    owners = at(obj, "metadata", "ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if at(owner, "kind") == "Cluster" and _group(at(owner, "apiVersion")) == CLUSTER_API_GROUP:
            return text_at(owner, "name")
    return ""


class _Objects:
    """Objects by kind and name. An object in a file without a namespace is in every namespace."""

    def __init__(self, objs: Iterable[Obj]) -> None:
        self._kinds: dict[tuple[str, str], dict[Key, Obj]] = defaultdict(dict)
        self._all: dict[tuple[str, str], list[Obj]] = defaultdict(list)
        for obj in objs:
            kind = (_group(obj.get("apiVersion")), str(obj.get("kind")))
            if at(obj, "metadata", "name"):
                self._all[kind].append(obj)
                self._kinds[kind].setdefault(Key(_text(obj, "namespace"), _text(obj, "name")), obj)

    def of_kind(self, group: str, kind: str) -> Iterator[Obj]:
        # Return all objects, even two with one name, because the caller reports duplicates.
        return iter(self._all.get((group, kind), ()))

    def find(self, group: str, kind: str, key: Key) -> Obj | None:
        named = self._kinds.get((group, kind), {})
        return named.get(key) or named.get(Key("", key.name))


def _key(obj: Obj) -> Key:
    return ClusterFacts(obj).key


def _text(obj: Obj, field: str) -> str:
    return text_at(obj, "metadata", field)


def _group(api_version: Any) -> str:
    return str(api_version or "").rpartition("/")[0]


def _follow_ref(cluster: Obj, field: str, find: Find) -> Obj | None:
    ref = at(cluster, "spec", field)
    return _find(ref, _key(cluster).namespace, find) if isinstance(ref, dict) else None


def _find(ref: Obj, namespace: str, find: Find) -> Obj | None:
    """Return the object of a reference, which has a group in `v1beta2`, a version in `v1beta1`."""
    group = str(ref.get("apiGroup") or _group(ref.get("apiVersion")))
    key = Key(str(ref.get("namespace") or namespace), str(ref.get("name")))
    return find(group, str(ref.get("kind")), key)


def _class(cluster: Obj, find: Find) -> Obj:
    # `v1beta2` has field `classRef`, and `v1beta1` has fields `class` and `classNamespace`.
    topology = at(cluster, "spec", "topology")
    name = at(topology, "classRef", "name") or at(topology, "class")
    namespace = (
        at(topology, "classRef", "namespace")
        or at(topology, "classNamespace")
        or _key(cluster).namespace
    )
    return find(CLUSTER_API_GROUP, "ClusterClass", Key(str(namespace), str(name))) or {}


def _template_ref(cluster: Obj, part: str, find: Find) -> Obj:
    # `v1beta2` has field `templateRef`, and `v1beta1` has field `ref`.
    fields = at(_class(cluster, find), "spec", part)
    ref = at(fields, "templateRef") or at(fields, "ref")
    return ref if isinstance(ref, dict) else {}


def _part_of_class(cluster: Obj, part: str, find: Find) -> Obj:
    """Return the object that a class creates for a part of a Cluster, before any patches."""
    ref = _template_ref(cluster, part, find)
    namespace = str(at(_class(cluster, find), "metadata", "namespace") or _key(cluster).namespace)
    template = _find(ref, namespace, find) if ref else None
    kind = str(ref.get("kind") or "").removesuffix(_TEMPLATE)
    spec = dict_at(template, "spec", "template", "spec")
    return {"kind": kind, "spec": spec} if kind else {"spec": spec}


def _control_plane_of_class(cluster: Obj, find: Find) -> Obj:
    cni = _variable(cluster, names.CNI_VARIABLE, find)
    patch = {"spec": {"serverConfig": {"cni": cni}}} if cni else {}
    return merge(_part_of_class(cluster, "controlPlane", find), patch)


def _harvester_cluster_of_class(cluster: Obj, find: Find) -> Obj:
    delivery = _variable(cluster, names.CLOUD_CONFIG_VARIABLE, find)
    patch: Obj = {}
    if delivery == "Manifest":
        patch = {"spec": {"updateCloudProviderConfig": _MANIFEST_SECRET}}
    elif delivery:
        patch = {"spec": {"cloudConfig": {"delivery": delivery}}}
    return merge(_part_of_class(cluster, "infrastructure", find), patch)


def _variable(cluster: Obj, name: str, find: Find) -> Any:
    """Return the value of a variable in the Cluster, else its default in the class."""
    values = at(cluster, "spec", "topology", "variables")
    schemas = at(_class(cluster, find), "spec", "variables")
    for rows, path in ((values, ("value",)), (schemas, ("schema", "openAPIV3Schema", "default"))):
        for row in rows if isinstance(rows, list) else ():
            if at(row, "name") == name and (value := at(row, *path)) is not None:
                return value
    return None
