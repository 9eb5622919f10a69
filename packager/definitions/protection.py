"""Keeps objects on the management cluster when Fleet uninstalls their bundle.

Fleet applies a folder as a Helm release and uninstalls the release when the folder, its path, the branch or the GitRepo
disappears. Without protection that deletes Clusters, and with them all VMs. Helm leaves objects alone that carry
annotation `helm.sh/resource-policy: keep`, in the release as well as in the cluster.

So removing a cluster takes two commits: one without the annotation, and, after Fleet has applied it, one without the
folder. The first one is made when the Cluster carries the annotation that confirms its removal.

What a definition drops is deleted by the same rule: only if Fleet finds it without the annotation. So objects on which
nothing runs never carry it, and a MachineDeployment loses it in the commit before the one that removes it, see
`packager.definitions.dropped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caphv.api import names
from caphv.api.object import Obj
from packager.addons.merge import at
from packager.definitions.dropped import disposable

POLICY, KEEP = "helm.sh/resource-policy", "keep"


def protected(objects: Sequence[Obj]) -> list[Obj]:
    """Return objects with the annotation, except disposable ones; without it if the removal is confirmed."""
    if any(obj.get("kind") == "Cluster" and is_confirmed(obj) for obj in objects):
        return unprotected(objects)
    bare = {id(obj) for obj in disposable(objects)}
    return [
        obj if id(obj) in bare or at(obj, "metadata", "annotations", POLICY) else _annotated(obj) for obj in objects
    ]


def unprotected(objects: Iterable[Obj]) -> list[Obj]:
    """Return objects without the annotation."""
    return [_without(obj) if is_protected(obj) else obj for obj in objects]


def is_protected(obj: Obj) -> bool:
    """Whether an object outlives its release."""
    return bool(at(obj, "metadata", "annotations", POLICY) == KEEP)


def is_confirmed(cluster: Obj) -> bool:
    """Whether the user confirmed that the definition of a Cluster may be removed."""
    return bool(at(cluster, "metadata", "annotations", names.CONFIRM_REMOVAL_ANNOTATION) == "true")


def _annotated(obj: Obj) -> Obj:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return obj
    return {**obj, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), POLICY: KEEP}}}


def _without(obj: Obj) -> Obj:
    kept = {name: value for name, value in obj["metadata"]["annotations"].items() if name != POLICY}
    metadata = {name: value for name, value in obj["metadata"].items() if name != "annotations"}
    return {**obj, "metadata": {**metadata, **({"annotations": kept} if kept else {})}}
