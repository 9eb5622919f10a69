"""Keeps objects on the management cluster when Fleet uninstalls their bundle.

Fleet applies a folder as a Helm release and uninstalls the release when the folder, its path, the
branch or the GitRepo disappears. Without protection, this deletes Clusters, and with them all VMs.
Helm leaves objects alone that carry annotation `helm.sh/resource-policy: keep`, in the release as
well as in the cluster.

So removing a cluster takes two commits. The first removes the annotation, and after Fleet has
applied it, the second removes the folder. The first commit follows once the Cluster carries the
annotation that confirms its removal.

Helm also deletes a dropped object only if it does not carry the annotation. So objects on which
nothing runs never carry it, and a MachineDeployment loses it one commit before it is removed, see
`packager.definitions.dropped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caphv.api import names
from caphv.api.object import Obj, at, dict_at
from packager.definitions.dropped import disposable

POLICY = "helm.sh/resource-policy"
KEEP = "keep"


def protect(objects: Sequence[Obj]) -> list[Obj]:
    """Return objects with the annotation, except disposable ones.

    If the removal is confirmed, no object has the annotation.
    """
    if any(obj.get("kind") == "Cluster" and is_confirmed(obj) for obj in objects):
        return unprotect(objects)
    bare = {id(obj) for obj in disposable(objects)}
    return [
        obj if id(obj) in bare or at(obj, "metadata", "annotations", POLICY) else _annotate(obj)
        for obj in objects
    ]


def unprotect(objects: Iterable[Obj]) -> list[Obj]:
    """Return objects without the annotation."""
    return [_remove_annotation(obj) if is_protected(obj) else obj for obj in objects]


def is_protected(obj: Obj) -> bool:
    """Whether an object outlives its release."""
    return bool(at(obj, "metadata", "annotations", POLICY) == KEEP)


def is_confirmed(cluster: Obj) -> bool:
    """Whether the user confirmed that the definition of a Cluster may be removed."""
    return bool(at(cluster, "metadata", "annotations", names.CONFIRM_REMOVAL_ANNOTATION) == "true")


def _annotate(obj: Obj) -> Obj:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return obj
    # A file may hold anything. The API server refuses annotations that are not an object.
    annotations = {**dict_at(metadata, "annotations"), POLICY: KEEP}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def _remove_annotation(obj: Obj) -> Obj:
    metadata = dict(obj["metadata"])
    annotations = dict(metadata.pop("annotations"))
    del annotations[POLICY]
    # Empty annotations would differ from an object that never had any.
    if annotations:
        metadata["annotations"] = annotations
    return {**obj, "metadata": metadata}
