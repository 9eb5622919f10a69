"""Find the objects of a management cluster that belong to a cluster.

`clusterctl move` follows owner references alone, and refuses clusters that are not provisioned.
Here references count as well, because objects of a cluster that failed early have no owners yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from caphv.api import clusterapi, resources
from caphv.api.object import Key, Obj, dict_at, key_of, labels_of, text_at, uid_of
from caphv.api.objectid import ObjectId, group_of, id_of
from caphv.api.tokenrenewal import SECRET_TYPE
from operations.read.selectors import selects

_SECRET = "Secret"  # noqa: S105 - a kind, not a secret
_CONFIG_MAP = "ConfigMap"
# Cluster API finds the Secrets of a cluster by these suffixes, with or without the cluster's label.
_SECRET_SUFFIXES = ("ca", "cca", "etcd", "kubeconfig", "proxy", "sa", "token")
_ADDONS_GROUP = "addons.cluster.x-k8s.io"
# The API server issues the tokens of ServiceAccounts. It would refuse a copy, or the copy would be
# invalid. Each provider gets renewed tokens of its own, and revokes those only.
_NOT_COPIED = frozenset(
    {"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", SECRET_TYPE}
)
# Fields that name pools of IPAM providers. Clusters share a pool, and a copy would give out again
# the addresses that others have, because it knows nothing of them.
_POOL_FIELDS = frozenset({"addressesFromPools", "poolRef"})


@dataclass(slots=True)
class Belongings:
    """Objects of clusters, and absent objects, each with an object that refers to it."""

    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    absent: dict[ObjectId, ObjectId] = field(default_factory=dict)


def is_cluster_api(group: str) -> bool:
    """Whether an API group belongs to Cluster API or to one of its providers."""
    return group == resources.CLUSTER_API_GROUP or group.endswith(f".{resources.CLUSTER_API_GROUP}")


def belongings(clusters: Iterable[Key], objs: Iterable[Obj]) -> Belongings:
    """Return the objects that the clusters need, by ownership, label, name and reference."""
    return _Search(frozenset(clusters), list(objs)).run()


def references(obj: Obj) -> Iterator[ObjectId]:
    """Yield the objects of Cluster API, Secrets and ConfigMaps that a spec refers to.

    Pools of IPAM providers are none of them.
    """
    namespace = key_of(obj).namespace
    spec = obj.get("spec")
    if isinstance(spec, dict):
        kind = id_of(obj)[:2]
        if kind == (resources.CLUSTER_API_GROUP, "ClusterClass"):
            # Schemas of variables have examples, which look like references.
            spec = {name: value for name, value in spec.items() if name != "variables"}
        yield from _references(spec, namespace)
        if kind == (resources.CLUSTER_API_GROUP, "Cluster"):
            yield from _class_of(spec, namespace)


class _Search:
    """Walk from the Clusters along ownership and references, each object once."""

    def __init__(self, clusters: frozenset[Key], objs: list[Obj]) -> None:
        self._clusters = clusters
        self._objs = [obj for obj in objs if str(obj.get("type")) not in _NOT_COPIED]
        self._known = {id_of(obj): obj for obj in self._objs}
        self._owned: dict[str, list[Obj]] = defaultdict(list)
        for obj in self._objs:
            for owner in obj["metadata"].get("ownerReferences") or ():
                self._owned[str(owner.get("uid"))].append(obj)

        self._belongings = Belongings()
        self._queue: list[Obj] = []

    def run(self) -> Belongings:
        """Return the objects that belong to the Clusters, and references to absent ones."""
        for key in sorted(self._clusters):
            cluster = self._known.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key))
            if cluster is not None:
                self._add(cluster)
                for obj in self._own_objects(cluster):
                    self._add(obj)

        while self._queue:
            obj = self._queue.pop()
            for owned in self._owned.get(uid_of(obj), ()):
                self._add(owned)
            for reference in references(obj):
                self._follow(reference, obj)
        return self._belongings

    def _add(self, obj: Obj) -> None:
        identity = id_of(obj)
        if identity not in self._belongings.objects and not self._is_foreign(obj):
            self._belongings.objects[identity] = obj
            self._queue.append(obj)

    def _follow(self, reference: ObjectId, source: Obj) -> None:
        """Add the object of a reference, or record that it is absent."""
        # A reference does not tell whether its kind has namespaces.
        target = self._known.get(reference) or self._known.get(reference._replace(namespace=""))
        if target is not None:
            self._add(target)
        else:
            self._belongings.absent.setdefault(reference, id_of(source))

    def _is_foreign(self, obj: Obj) -> bool:
        """Whether an object belongs to another cluster, which shares an owner with ours."""
        name = clusterapi.cluster_name(obj) or text_at(obj, "spec", "clusterName")
        # A Secret may be labelled for one cluster, and used by others.
        if not name or id_of(obj).kind in (_SECRET, _CONFIG_MAP):
            return False
        return Key(key_of(obj).namespace, name) not in self._clusters

    def _own_objects(self, cluster: Obj) -> Iterator[Obj]:
        """Yield the objects that belong to a cluster by label, name or selector, owned or not."""
        key = key_of(cluster)
        secrets = {f"{key.name}-{suffix}" for suffix in _SECRET_SUFFIXES}
        for obj in self._objs:
            namespace, name = key_of(obj)
            if namespace != key.namespace:
                continue
            is_named = obj["kind"] == _SECRET and name in secrets
            is_labelled = clusterapi.cluster_name(obj) == key.name
            if is_named or is_labelled or _selects(obj, cluster):
                yield obj


def _selects(obj: Obj, cluster: Obj) -> bool:
    """Whether a ClusterResourceSet selects a cluster."""
    if id_of(obj)[:2] != (_ADDONS_GROUP, "ClusterResourceSet"):
        return False
    # An empty selector would select all clusters, but the core refuses it.
    selector = dict_at(obj, "spec", "clusterSelector")
    return any(selector.values()) and selects(selector, labels_of(cluster))


def _references(value: Any, namespace: str, within: str = "") -> Iterator[ObjectId]:
    """Yield the references anywhere in a value of a spec.

    :param value: the spec, or a value in it
    :param namespace: the namespace of references that name none
    :param within: lower-case name of the field that holds the value
    """
    if isinstance(value, list):
        for item in value:
            yield from _references(item, namespace, within)
        return
    if not isinstance(value, dict):
        return

    reference = _reference(value, namespace, within)
    if reference is not None:
        yield reference
    for name, content in value.items():
        if name in _POOL_FIELDS:
            continue
        if not isinstance(content, str):
            yield from _references(content, namespace, name.lower())
            continue
        named = _by_field_name(name, content, value, namespace)
        if named is not None:
            yield named


def _reference(value: Obj, default_namespace: str, within: str) -> ObjectId | None:
    """Return the object that a mapping names, by its kind or a field such as `identitySecret`."""
    name = value.get("name")
    kind = value.get("kind")
    if not isinstance(name, str) or not name:
        return None
    namespace = str(value.get("namespace") or default_namespace)

    if isinstance(kind, str) and kind:
        group = str(value.get("apiGroup") or group_of(value.get("apiVersion")))
        followed = is_cluster_api(group) if group else kind in (_SECRET, _CONFIG_MAP)
        return ObjectId(group, kind, namespace, name) if followed else None
    if within == "identityref":
        identity = resources.HARVESTER_CLUSTER_IDENTITIES
        return ObjectId(identity.group, identity.kind, "", name)
    if "secret" in within:
        return ObjectId("", _SECRET, namespace, name)
    if "configmap" in within:
        return ObjectId("", _CONFIG_MAP, namespace, name)
    return None


def _by_field_name(field_name: str, text: str, value: Obj, namespace: str) -> ObjectId | None:
    """Return the object that a field such as `dataSecretName` and its `…Namespace` refer to."""
    for kind in (_SECRET, _CONFIG_MAP):
        if text and field_name.lower().endswith(f"{kind.lower()}name"):
            named = value.get(f"{field_name[: -len('Name')]}Namespace")
            return ObjectId("", kind, str(named or namespace), text)
    return None


def _class_of(spec: Obj, namespace: str) -> Iterator[ObjectId]:
    """Yield the class of a topology: `classRef` of v1beta2, or `class` with `classNamespace`."""
    topology = spec.get("topology") or {}
    ref = topology.get("classRef") or {}
    name = ref.get("name") or topology.get("class")
    if name:
        of_class = ref.get("namespace") or topology.get("classNamespace") or namespace
        yield ObjectId(resources.CLUSTER_API_GROUP, "ClusterClass", str(of_class), str(name))
