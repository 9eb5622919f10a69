"""In which order and form the objects of a backup are created, and what blocks that: pure.

An object whose owner does not exist is collected as garbage by Kubernetes, so owners come first and references get
their new uids. Clusters are created paused, and what belongs to no Cluster carries the annotation that pauses it:
nothing acts on half of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from caphv.api import names, resources
from caphv.api.object import Obj, annotations_of, being_deleted, owner_reference, uid_of
from caphv.api.objectid import ObjectId, group_of, id_of
from overview.backup.files import Backup
from overview.backup.graph import is_cluster_api, references

_SERVER_SIDE = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
# Those of a deletion that was under way: the API server's own.
_DELETION_FINALIZERS = ("foregroundDeletion", "orphan")
_OWNERS = {(each.group, each.kind) for each in (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES)}
_CLUSTER = (resources.CLUSTER_API_GROUP, "Cluster")


def _is_left_out(finalizer: str) -> bool:
    """Whether a finalizer is not restored: those of a deletion, and that of identities in use.

    The provider of the target adds the latter once a HarvesterCluster uses the identity, and removes it before.
    """
    return finalizer in _DELETION_FINALIZERS or finalizer.startswith(names.IDENTITY_FINALIZER_PREFIX)


class Action(StrEnum):
    """What restoring does with an object."""

    CREATE = "create"
    RESTORED = "restored before"
    SAME = "exists and is the same"
    DIFFERENT = "exists and is different"


@dataclass(frozen=True, slots=True)
class Step:
    """One object of a backup; `level` is its place in the order."""

    identity: ObjectId
    obj: Obj
    level: int
    action: Action
    uid: str = ""
    """Uid of the object that exists."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where objects come from: the identity of the backup, and the uid of the old management cluster if known."""

    identity: str
    uid: str = ""


def plan(backup: Backup, existing: Mapping[ObjectId, Obj], origin: str) -> tuple[Step, ...]:
    """Return what to do with each object, in order. `origin` identifies objects that this backup restored before."""
    levels = _Levels(backup.objects)
    steps = [
        Step(identity, obj, levels.of(identity), _action(obj, existing.get(identity), origin), _uid(existing, identity))
        for identity, obj in backup.objects.items()
    ]
    return tuple(sorted(steps, key=lambda step: (step.level, step.identity)))


def missing_of(backup: Backup) -> dict[str, str]:
    """What the backup lacks: what, and why it is known. Empty for a whole one."""
    found = dict(backup.missing)
    if all(identity[:2] != _CLUSTER for identity in backup.objects):
        found.setdefault("Cluster", "the backup has no Cluster at all")
    for identity, obj in sorted(backup.objects.items()):
        needed = [(reference, f"{identity} refers to it") for reference in references(obj)]
        needed += [(owner, f"it owns {identity}") for owner in _owners(obj) if is_cluster_api(owner.group)]
        for other, why in needed:
            everywhere = other._replace(namespace="")  # as kinds without namespaces have it
            if not {other, everywhere} & backup.objects.keys() and str(other) not in backup.absent:
                found.setdefault(str(other), why)
    return found


def created_form(obj: Obj, uids: Mapping[ObjectId, str], source: Source, *, paused: bool = True) -> Obj:
    """Return an object as it is created: paused, with the new uids of its owners, without what the server sets.

    Without `paused` it is in the form that it has once the pause has ended.

    What owns objects on Harvester says who it was, so that it adopts them also where no VM proves it. Owners that are
    not in the backup are left out: with them, the object would be collected as garbage.
    """
    metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_SIDE}
    metadata["ownerReferences"] = list(_renewed_owners(obj, uids))
    metadata["finalizers"] = [each for each in metadata.get("finalizers") or () if not _is_left_out(each)]
    metadata["annotations"] = {**annotations_of(obj), names.RESTORED_FROM_ANNOTATION: source.identity}
    if source.uid and id_of(obj)[:2] in _OWNERS and uid_of(obj):
        metadata["annotations"][names.FORMER_OWNER_ANNOTATION] = f"{source.uid}/{uid_of(obj)}"
    created = {name: value for name, value in obj.items() if name != "status"} | {"metadata": metadata}
    if paused and id_of(obj)[:2] == _CLUSTER:
        created["spec"] = {**(obj.get("spec") or {}), "paused": True}
    elif paused and _pauses_itself(obj):
        metadata["annotations"].setdefault(names.PAUSED_ANNOTATION, "true")
    return created


def is_paused(obj: Obj) -> bool:
    """Whether `created_form` or a user paused this object: a Cluster by its spec, others by an annotation."""
    if id_of(obj)[:2] == _CLUSTER:
        return bool((obj.get("spec") or {}).get("paused"))
    return names.PAUSED_ANNOTATION in annotations_of(obj)


def unpausing(obj: Obj) -> Obj | None:
    """The patch that ends the pause of `created_form`; None for objects that it does not pause, or were paused."""
    if is_paused(obj):
        return None
    if id_of(obj)[:2] == _CLUSTER:
        return {"spec": {"paused": None}}
    return {"metadata": {"annotations": {names.PAUSED_ANNOTATION: None}}} if _pauses_itself(obj) else None


def managed_fields(obj: Obj, uids: Mapping[ObjectId, str]) -> list[Obj]:
    """Who manages which field, as it was, with the new uids of owners; empty when no one applies fields of the object.

    Without it, whatever the core applied would have two managers, and what it takes back later would stay.
    """
    entries = [entry for entry in obj["metadata"].get("managedFields") or () if not entry.get("subresource")]
    if all(entry.get("operation") != "Apply" for entry in entries):
        return []
    references = obj["metadata"].get("ownerReferences") or ()
    owners = [(ref["uid"], uids[owner]) for ref, owner in zip(references, _owners(obj), strict=True) if owner in uids]
    renames = {f'k:{{"uid":"{old}"}}': f'k:{{"uid":"{new}"}}' for old, new in owners}
    return [_renamed(entry, renames) for entry in entries]


def differences(wanted: Obj, found: Obj) -> tuple[str, ...]:
    """Fields that an object was created with and does not have; what a server adds is no difference."""
    own = {
        name: value for name, value in wanted.items() if name not in ("apiVersion", "kind", "metadata", "stringData")
    }
    metadata = {name: wanted["metadata"].get(name) or {} for name in ("labels", "annotations")}
    lost = [
        f"metadata.{name}"
        for name in ("ownerReferences", "finalizers")
        if any(each not in (found["metadata"].get(name) or ()) for each in wanted["metadata"].get(name) or ())
    ]
    return (*_differences({**own, "metadata": metadata}, found), *lost)


def were_being_deleted(steps: Iterable[Step]) -> tuple[ObjectId, ...]:
    """Objects whose deletion had been requested when the backup was made: they are restored, and not deleted again."""
    return tuple(step.identity for step in steps if being_deleted(step.obj))


class _Levels:
    """Places in the order: owners before what they own, classes before Clusters, Clusters before all that acts."""

    def __init__(self, objects: Mapping[ObjectId, Obj]) -> None:
        self._objects = objects
        self._known: dict[ObjectId, int] = {}

    def of(self, identity: ObjectId) -> int:
        if identity not in self._known:
            self._known[identity] = _first_level(identity)  # ends a cycle of owners
            owners = [owner for owner in _owners(self._objects[identity]) if owner in self._objects]
            self._known[identity] = max([_first_level(identity), *(self.of(owner) + 1 for owner in owners)])
        return self._known[identity]


def _first_level(identity: ObjectId) -> int:
    if not identity.group or identity.kind.endswith("Template"):
        return -1 if identity.kind == "Namespace" else 0
    if identity[:2] == _CLUSTER:
        return 3
    return 1 if identity.kind == "ClusterClass" else 4


def _owners(obj: Obj) -> Iterator[ObjectId]:
    for owner in obj["metadata"].get("ownerReferences") or ():
        namespace = str(obj["metadata"].get("namespace") or "")
        yield ObjectId(group_of(owner.get("apiVersion")), str(owner.get("kind")), namespace, str(owner.get("name")))


def _renewed_owners(obj: Obj, uids: Mapping[ObjectId, str]) -> Iterator[Obj]:
    for reference, owner in zip(obj["metadata"].get("ownerReferences") or (), _owners(obj), strict=True):
        if owner in uids:
            yield {**reference, "uid": uids[owner]}


def _pauses_itself(obj: Obj) -> bool:
    """Whether an object acts without a Cluster, such as a ClusterClass or a ClusterResourceSet."""
    identity = id_of(obj)
    if not is_cluster_api(identity.group) or identity.kind.endswith("Template") or identity[:2] == _CLUSTER:
        return False
    return owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP) is None and not any(_owners(obj))


def _action(obj: Obj, found: Obj | None, origin: str) -> Action:
    if found is None:
        return Action.CREATE
    if annotations_of(found).get(names.RESTORED_FROM_ANNOTATION) == origin:
        return Action.RESTORED
    bare = {name: value for name, value in obj.items() if name not in ("metadata", "status")}
    return Action.DIFFERENT if differences({**bare, "metadata": {}}, found) else Action.SAME


def _uid(existing: Mapping[ObjectId, Obj], identity: ObjectId) -> str:
    found = existing.get(identity)
    return str(found["metadata"].get("uid") or "") if found else ""


def _differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name, value in wanted.items():
            yield from _differences(value, found.get(name), f"{path}.{name}" if path else name)
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif wanted != found and not (not wanted and not found and isinstance(wanted, (dict, list, type(None)))):
        yield path


def _renamed(value: Any, renames: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {renames.get(name, name): _renamed(each, renames) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, renames) for each in value]
    return value
