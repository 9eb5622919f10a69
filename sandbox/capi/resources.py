"""Kinds, labels and annotations that the stand-ins share with the core and the real providers."""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api import names, resources
from caphv.api.conditions import current_time
from caphv.api.object import (
    Key,
    Obj,
    Resource,
    annotations_of,
    being_deleted,
    list_at,
    owner_reference,
    uid_of,
)

CORE = resources.CLUSTER_API_GROUP
CLUSTERS = resources.clusters("v1beta2")
MACHINES = resources.machines("v1beta2")

CLONED_FROM_NAME = "cluster.x-k8s.io/cloned-from-name"
CLONED_FROM_KIND = "cluster.x-k8s.io/cloned-from-groupkind"
SECRET_TYPE = "cluster.x-k8s.io/secret"  # noqa: S105 - a type, not a secret

NOT_INITIALIZED = "Waiting for Cluster control plane to be initialized"
"""Message of conditions of a control plane and its machines."""


def new_condition(kind: str, status: str, reason: str, message: str = "") -> Obj:
    """Return a condition in the form of metav1.Condition, without its time."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def true_condition(kind: str) -> Obj:
    """Return a true condition of contract v1beta1, without its time."""
    return {"type": kind, "status": "True"}


def false_condition(kind: str, severity: str, reason: str, message: str = "") -> Obj:
    """Return a false condition of contract v1beta1, without its time."""
    return {
        "type": kind,
        "status": "False",
        "severity": severity,
        "reason": reason,
        "message": message,
    }


def reference(owner: Obj, *, controller: bool = False) -> Obj:
    """Return an owner reference to an object."""
    result = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
    }
    return result | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def object_reference(target: Resource, key: Key, core: str) -> Obj:
    """Return a reference from an object of a core with the API version `core`."""
    if core == "v1beta1":
        return {
            "apiVersion": target.api_version,
            "kind": target.kind,
            "name": key.name,
            "namespace": key.namespace,
        }
    return {"apiGroup": target.group, "kind": target.kind, "name": key.name}


def is_owned_by(obj: Obj, control_plane: Obj) -> bool:
    """Return whether an object belongs to this control plane.

    The uid decides, because a control plane may be created again under the same name.
    """
    owner = owner_reference(
        obj, control_plane["kind"], control_plane["apiVersion"].partition("/")[0]
    )
    return owner is not None and owner["uid"] == uid_of(control_plane)


def is_paused(cluster: Obj, obj: Obj) -> bool:
    """Return whether a cluster or one of its objects is paused."""
    return bool(cluster["spec"].get("paused")) or names.PAUSED_ANNOTATION in annotations_of(obj)


def condition(obj: Obj, kind: str, field: str = "status") -> str:
    """Return the status or another field of a condition, empty if missing."""
    conditions = list_at(obj, "status", "conditions")
    return next((str(entry.get(field) or "") for entry in conditions if entry["type"] == kind), "")


def with_transition_times(obj: Obj, conditions: Iterable[Obj]) -> list[Obj]:
    """Return conditions with their transition times. An unchanged status keeps its time."""
    before = {entry["type"]: entry for entry in list_at(obj, "status", "conditions")}
    result = []
    for entry in conditions:
        old = before.get(entry["type"], {})
        time = old["lastTransitionTime"] if old.get("status") == entry["status"] else current_time()
        result.append({**entry, "lastTransitionTime": time})
    return result


def alive(objects: Iterable[Obj]) -> list[Obj]:
    """Return the objects that are not being deleted."""
    return [obj for obj in objects if not being_deleted(obj)]
