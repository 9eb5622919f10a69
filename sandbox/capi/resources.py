"""Kinds, labels and annotations that the stand-ins share with the core and with the real providers."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from caphv.api import names, resources
from caphv.api.object import Key, Obj, Resource, annotations_of, being_deleted, owner_reference, uid_of

CORE = resources.CLUSTER_API_GROUP
CLUSTERS = resources.clusters("v1beta2")
MACHINES = resources.machines("v1beta2")

CLONED_FROM_NAME = "cluster.x-k8s.io/cloned-from-name"
CLONED_FROM_KIND = "cluster.x-k8s.io/cloned-from-groupkind"
SECRET_TYPE = "cluster.x-k8s.io/secret"  # noqa: S105 - a type, not a secret


def now() -> str:
    """The current time in the API's format."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reference(owner: Obj, *, controller: bool = False) -> Obj:
    """An owner reference to an object."""
    found = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
    }
    return found | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def object_reference(target: Resource, key: Key, core: str) -> Obj:
    """A reference in an object of the core, whose API version is `core`."""
    if core == "v1beta1":
        return {"apiVersion": target.api_version, "kind": target.kind, "name": key.name, "namespace": key.namespace}
    return {"apiGroup": target.group, "kind": target.kind, "name": key.name}


def ownership_of(obj: Obj, control_plane: Obj) -> bool:
    """Whether an object belongs to this control plane, by uid."""
    owner = owner_reference(obj, control_plane["kind"], control_plane["apiVersion"].partition("/")[0])
    return owner is not None and owner["uid"] == uid_of(control_plane)


def paused(cluster: Obj, obj: Obj) -> bool:
    """Whether a cluster or an object of it is paused."""
    return bool(cluster["spec"].get("paused")) or names.PAUSED_ANNOTATION in annotations_of(obj)


def condition(obj: Obj, kind: str, field: str = "status") -> str:
    """Status or another field of a condition; empty if missing."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((str(entry.get(field) or "") for entry in found if entry["type"] == kind), "")


def merged_conditions(obj: Obj, wanted: Iterable[Obj]) -> list[Obj]:
    """Conditions with their transition times, kept while the status is unchanged."""
    before = {entry["type"]: entry for entry in (obj.get("status") or {}).get("conditions") or ()}
    result = []
    for entry in wanted:
        old = before.get(entry["type"], {})
        time = old["lastTransitionTime"] if old.get("status") == entry["status"] else now()
        result.append({**entry, "lastTransitionTime": time})
    return result


def alive(objects: Iterable[Obj]) -> list[Obj]:
    """The objects that are not being deleted."""
    return [obj for obj in objects if not being_deleted(obj)]
