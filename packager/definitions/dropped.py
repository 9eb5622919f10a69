"""What happens to objects that a cluster no longer defines.

Some can be deleted at any time, because nothing runs on them and the next deployment creates them again: a
MachineHealthCheck, and the ClusterResourceSets of a definition with their ConfigMaps. They are not protected, so Fleet
deletes them once the manifest drops them.

Deleting a MachineDeployment deletes its VMs. It stays in the manifest, with its templates, until it has been defined
with `replicas: 0`. Even then it is protected while it is defined: the manifest does not tell whether it was scaled up
in the cluster. Once it is dropped, one commit lifts its protection, and the next one removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caphv.api.object import Obj
from packager.addons.merge import at
from packager.definitions.rules import ADDONS_LABEL

WHY = (
    "it is no longer defined, but its machines keep running; to delete them with their VMs, define it with replicas: 0 "
    "and without limits of the autoscaler, and remove it once that is applied; deleting it by hand does not end this"
)
_AUTOSCALER = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-"
_Identity = tuple[str, str, str, str]


def disposable(objects: Sequence[Obj]) -> list[Obj]:
    """Return the objects of a cluster on which nothing runs."""
    clusters = {_name(obj) for obj in objects if obj.get("kind") == "Cluster"}
    sets = [obj for obj in objects if obj.get("kind") == "ClusterResourceSet" and _selected(obj) in clusters]
    content = {(_namespace(obj), str(at(row, "name"))) for obj in sets for row in at(obj, "spec", "resources") or ()}
    found = [*sets]
    for obj in objects:
        is_own = str(at(obj, "spec", "clusterName")) in clusters
        if (obj.get("kind") == "MachineHealthCheck" and is_own) or (
            obj.get("kind") == "ConfigMap" and (_namespace(obj), _name(obj)) in content
        ):
            found.append(obj)
    return found


def dropped(before: Sequence[Obj], after: Sequence[Obj], namespace: str) -> list[Obj]:
    """Return the objects that are no longer among those of a cluster; `namespace` is for objects that name none."""
    wanted = {_identity(obj, namespace) for obj in after}
    return [obj for obj in before if _identity(obj, namespace) not in wanted]


def staying(before: Sequence[Obj], after: Sequence[Obj], namespace: str) -> list[Obj]:
    """Return the dropped MachineDeployments that may have machines, each after its templates."""
    return _dropped_pools(before, after, namespace, empty=False)


def emptied(before: Sequence[Obj], after: Sequence[Obj], namespace: str) -> list[Obj]:
    """Return the dropped MachineDeployments that were defined without machines, each after its templates."""
    return _dropped_pools(before, after, namespace, empty=True)


def is_pool(obj: Obj) -> bool:
    """Whether machines run on an object."""
    return obj.get("kind") == "MachineDeployment"


def _dropped_pools(before: Sequence[Obj], after: Sequence[Obj], namespace: str, *, empty: bool) -> list[Obj]:
    gone = dropped(before, after, namespace)
    found: list[Obj] = []
    for obj in gone:
        if is_pool(obj) and _is_empty(obj) == empty:
            templates = {*_templates(obj)}
            found += [one for one in gone if (str(one.get("kind")), _name(one)) in templates]
            found.append(obj)
    return list({id(obj): obj for obj in found}.values())


def _templates(deployment: Obj) -> Iterator[tuple[str, str]]:
    machine = at(deployment, "spec", "template", "spec")
    for reference in (at(machine, "bootstrap", "configRef"), at(machine, "infrastructureRef")):
        yield str(at(reference, "kind")), str(at(reference, "name"))


def _is_empty(deployment: Obj) -> bool:
    """Whether a MachineDeployment is defined without machines, and without an autoscaler that adds some."""
    annotations = at(deployment, "metadata", "annotations") or {}
    return at(deployment, "spec", "replicas") == 0 and not any(str(key).startswith(_AUTOSCALER) for key in annotations)


def _selected(resource_set: Obj) -> str:
    """Return the name of the one Cluster that the ClusterResourceSet of a definition selects, else an empty text."""
    labels = at(resource_set, "spec", "clusterSelector", "matchLabels")
    return str(labels[ADDONS_LABEL]) if isinstance(labels, dict) and [*labels] == [ADDONS_LABEL] else ""


def _name(obj: Obj) -> str:
    return str(at(obj, "metadata", "name"))


def _namespace(obj: Obj) -> str:
    return str(at(obj, "metadata", "namespace") or "")


def _identity(obj: Obj, namespace: str) -> _Identity:
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return group, str(obj.get("kind")), _namespace(obj) or namespace, _name(obj)
