"""Which objects of a management cluster belong to a cluster: pure.

`clusterctl move` follows owner references alone, and refuses clusters that are not provisioned. Here references count
as well, so that a cluster that failed early, whose objects have no owners yet, is found whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from caphv.api import clusterapi, resources
from caphv.api.object import Key, Obj, key_of, labels_of, uid_of
from caphv.api.objectid import ObjectId, group_of, id_of

_SECRET, _CONFIG_MAP = "Secret", "ConfigMap"
# By these suffixes Cluster API finds the Secrets of a cluster, whether or not they carry its label.
_SECRET_SUFFIXES = ("ca", "cca", "etcd", "kubeconfig", "proxy", "sa", "token")
_ADDONS_GROUP = "addons.cluster.x-k8s.io"
# Tokens of ServiceAccounts are the API server's own; a copy would be refused, or invalid.
_NOT_COPIED = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})


@dataclass(slots=True)
class Belongings:
    """Objects of clusters, and what they refer to without its being there: the reference, and who refers to it."""

    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    absent: dict[ObjectId, ObjectId] = field(default_factory=dict)


def is_cluster_api(group: str) -> bool:
    """Whether an API group is of Cluster API or one of its providers."""
    return group == resources.CLUSTER_API_GROUP or group.endswith(f".{resources.CLUSTER_API_GROUP}")


def belongings(clusters: Iterable[Key], objs: Iterable[Obj]) -> Belongings:
    """Return everything among the objects that the clusters need, by ownership, label, name and reference."""
    search = _Search(frozenset(clusters), list(objs))
    return search.run()


def references(obj: Obj) -> Iterator[ObjectId]:
    """Yield what the spec of an object refers to: objects of Cluster API, Secrets and ConfigMaps."""
    namespace = key_of(obj).namespace
    spec = obj.get("spec")
    if isinstance(spec, dict):
        yield from _references(spec, namespace)
        if id_of(obj)[:2] == (resources.CLUSTER_API_GROUP, "Cluster"):
            yield from _class_of(spec, namespace)


class _Search:
    def __init__(self, clusters: frozenset[Key], objs: list[Obj]) -> None:
        self._clusters = clusters
        self._objs = [obj for obj in objs if str(obj.get("type")) not in _NOT_COPIED]
        self._known = {id_of(obj): obj for obj in self._objs}
        self._owned: dict[str, list[Obj]] = defaultdict(list)
        for obj in self._objs:
            for owner in obj["metadata"].get("ownerReferences") or ():
                self._owned[str(owner.get("uid"))].append(obj)
        self._found = Belongings()
        self._queue: list[Obj] = []

    def run(self) -> Belongings:
        for key in sorted(self._clusters):
            identity = ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key)
            cluster = self._known.get(identity)
            if cluster is not None:
                self._add(cluster)
                for obj in self._of_cluster(cluster):
                    self._add(obj)
        while self._queue:
            obj = self._queue.pop()
            for owned in self._owned.get(uid_of(obj), ()):
                self._add(owned)
            for reference in references(obj):
                self._refer(reference, obj)
        return self._found

    def _add(self, obj: Obj) -> None:
        identity = id_of(obj)
        if identity not in self._found.objects and not self._of_another(obj):
            self._found.objects[identity] = obj
            self._queue.append(obj)

    def _refer(self, reference: ObjectId, source: Obj) -> None:
        target = self._known.get(reference) or self._known.get(reference._replace(namespace=""))
        if target is not None:
            self._add(target)
        else:
            self._found.absent.setdefault(reference, id_of(source))

    def _of_another(self, obj: Obj) -> bool:
        """Whether an object is that of another cluster, which shares an owner with ours."""
        spec = obj.get("spec")
        name = clusterapi.cluster_name(obj) or str((spec if isinstance(spec, dict) else {}).get("clusterName") or "")
        if not name or id_of(obj).kind in (_SECRET, _CONFIG_MAP):
            return False
        return Key(key_of(obj).namespace, name) not in self._clusters

    def _of_cluster(self, cluster: Obj) -> Iterator[Obj]:
        """Objects that are a cluster's by label, name or selector, whatever their owners are."""
        key = key_of(cluster)
        secrets = {f"{key.name}-{suffix}" for suffix in _SECRET_SUFFIXES}
        for obj in self._objs:
            namespace, name = key_of(obj)
            if namespace != key.namespace:
                continue
            by_name = obj["kind"] == _SECRET and name in secrets
            if by_name or clusterapi.cluster_name(obj) == key.name or _selects(obj, cluster):
                yield obj


def _selects(obj: Obj, cluster: Obj) -> bool:
    """Whether a ClusterResourceSet selects a cluster."""
    if id_of(obj)[:2] != (_ADDONS_GROUP, "ClusterResourceSet"):
        return False
    selector = (obj.get("spec") or {}).get("clusterSelector") or {}
    wanted, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    labels = labels_of(cluster)
    return bool(wanted or expressions) and (
        wanted.items() <= labels.items() and all(_fulfils(labels, each) for each in expressions)
    )


def _fulfils(labels: dict[str, str], expression: Obj) -> bool:
    value, values = labels.get(str(expression.get("key"))), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def _references(value: Any, namespace: str, within: str = "") -> Iterator[ObjectId]:
    """Walk through a spec; `within` is the name of the field that holds the value, in lower case."""
    if isinstance(value, list):
        for each in value:
            yield from _references(each, namespace, within)
        return
    if not isinstance(value, dict):
        return
    reference = _reference(value, namespace, within)
    if reference is not None:
        yield reference
    for name, each in value.items():
        if isinstance(each, str):
            named = _by_field_name(name, each, value, namespace)
            if named is not None:
                yield named
        else:
            yield from _references(each, namespace, name.lower())


def _reference(value: Obj, namespace: str, within: str) -> ObjectId | None:
    """What a mapping with a name refers to: by its kind, or by the field that holds it (`identitySecret`)."""
    name, kind = value.get("name"), value.get("kind")
    if not isinstance(name, str) or not name:
        return None
    place = str(value.get("namespace") or namespace)
    if isinstance(kind, str) and kind:
        group = str(value.get("apiGroup") or group_of(value.get("apiVersion")))
        known = is_cluster_api(group) if group else kind in (_SECRET, _CONFIG_MAP)
        return ObjectId(group, kind, place, name) if known else None
    core = _SECRET if "secret" in within else _CONFIG_MAP if "configmap" in within else ""
    return ObjectId("", core, place, name) if core else None


def _by_field_name(field_name: str, text: str, value: Obj, namespace: str) -> ObjectId | None:
    """What fields such as `dataSecretName`, or `manifestsConfigMapName` with its `…Namespace`, refer to."""
    for kind in (_SECRET, _CONFIG_MAP):
        if text and field_name.lower().endswith(f"{kind.lower()}name"):
            place = value.get(f"{field_name[: -len('Name')]}Namespace")
            return ObjectId("", kind, str(place or namespace), text)
    return None


def _class_of(spec: Obj, namespace: str) -> Iterator[ObjectId]:
    """The ClusterClass of a topology: `classRef` of v1beta2, or `class` with `classNamespace`."""
    topology = spec.get("topology") or {}
    ref = topology.get("classRef") or {}
    name = ref.get("name") or topology.get("class")
    if name:
        place = ref.get("namespace") or topology.get("classNamespace") or namespace
        yield ObjectId(resources.CLUSTER_API_GROUP, "ClusterClass", str(place), str(name))
