"""Finds objects that a cluster no longer defines, and decides whether they may be deleted.

A MachineHealthCheck, and the ClusterResourceSets of a definition with their ConfigMaps, can be
deleted at any time, because nothing runs on them and the next deployment creates them again. They
are not protected, so Fleet deletes them once the manifest drops them.

Deleting a MachineDeployment deletes its VMs. It stays in the manifest, with its templates, until it
has been defined with `replicas: 0`. Even then it is protected while it is defined, because the
manifest does not tell whether it was scaled up in the cluster. Once it is dropped, one commit lifts
its protection, and the next one removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caphv.api.object import Obj, at, dict_at, list_at, text_at
from packager.definitions.rules.metadata import ADDONS_LABEL

WHY = (
    "it is no longer defined, but its machines keep running; to delete them with their VMs, define "
    "it with replicas: 0 and without limits of the autoscaler, and remove it once that is "
    "applied; deleting it by hand does not end this"
)
_AUTOSCALER = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-"
_Identity = tuple[str, str, str, str]


def disposable(objects: Sequence[Obj]) -> list[Obj]:
    """Return the objects of a cluster on which nothing runs."""
    clusters = {_name(obj) for obj in objects if obj.get("kind") == "Cluster"}
    sets = [
        obj
        for obj in objects
        if obj.get("kind") == "ClusterResourceSet" and _selected_cluster(obj) in clusters
    ]
    content: set[tuple[str, str]] = set()
    for obj in sets:
        for row in list_at(obj, "spec", "resources"):
            content.add((_namespace(obj), str(at(row, "name"))))

    # A definition has one MachineHealthCheck, and a ConfigMap for each of its ClusterResourceSets.
    disposables = [*sets]
    for obj in objects:
        kind = obj.get("kind")
        is_check = kind == "MachineHealthCheck" and str(at(obj, "spec", "clusterName")) in clusters
        is_content = kind == "ConfigMap" and (_namespace(obj), _name(obj)) in content
        if is_check or is_content:
            disposables.append(obj)
    return disposables


def dropped_objects(before: Sequence[Obj], after: Sequence[Obj], namespace: str) -> list[Obj]:
    """Return the objects that a cluster no longer has.

    `namespace` is for objects that name none.
    """
    identities = {_identity(obj, namespace) for obj in after}
    return [obj for obj in before if _identity(obj, namespace) not in identities]


def staying_pools(before: Sequence[Obj], after: Sequence[Obj], namespace: str) -> list[Obj]:
    """Return the dropped MachineDeployments that may have machines, each after its templates."""
    return _dropped_pools(before, after, namespace, empty=False)


def empty_pools(before: Sequence[Obj], after: Sequence[Obj], namespace: str) -> list[Obj]:
    """Return the dropped MachineDeployments without machines, each after its templates."""
    return _dropped_pools(before, after, namespace, empty=True)


def is_pool(obj: Obj) -> bool:
    """Whether machines run on an object."""
    return obj.get("kind") == "MachineDeployment"


def _dropped_pools(
    before: Sequence[Obj], after: Sequence[Obj], namespace: str, *, empty: bool
) -> list[Obj]:
    objects = dropped_objects(before, after, namespace)
    pools: list[Obj] = []
    for obj in objects:
        if not is_pool(obj) or _is_empty(obj) != empty:
            continue
        templates = {*_templates(obj)}
        pools += [other for other in objects if (str(other.get("kind")), _name(other)) in templates]
        pools.append(obj)
    # Several pools may share a template.
    return list({id(obj): obj for obj in pools}.values())


def _templates(deployment: Obj) -> Iterator[tuple[str, str]]:
    machine = at(deployment, "spec", "template", "spec")
    for reference in (at(machine, "bootstrap", "configRef"), at(machine, "infrastructureRef")):
        yield str(at(reference, "kind")), str(at(reference, "name"))


def _is_empty(deployment: Obj) -> bool:
    """Whether a MachineDeployment is defined without machines and without an autoscaler."""
    annotations = dict_at(deployment, "metadata", "annotations")
    return at(deployment, "spec", "replicas") == 0 and not any(
        str(key).startswith(_AUTOSCALER) for key in annotations
    )


def _selected_cluster(resource_set: Obj) -> str:
    """Return the only Cluster that the ClusterResourceSet of a definition selects.

    The name is empty if another client created the ClusterResourceSet.
    """
    labels = at(resource_set, "spec", "clusterSelector", "matchLabels")
    if not isinstance(labels, dict) or [*labels] != [ADDONS_LABEL]:
        return ""
    return str(labels[ADDONS_LABEL])


def _name(obj: Obj) -> str:
    return str(at(obj, "metadata", "name"))


def _namespace(obj: Obj) -> str:
    return text_at(obj, "metadata", "namespace")


def _identity(obj: Obj, namespace: str) -> _Identity:
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return group, str(obj.get("kind")), _namespace(obj) or namespace, _name(obj)
