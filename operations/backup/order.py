"""Decide in which order and form the objects of a backup are created.

Kubernetes collects an object whose owner does not exist as garbage, so owners come first and
references get their new uids. Clusters are created paused. Objects that belong to no Cluster get
the annotation that pauses them, so that no controller acts on half of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from caphv.api import names, parking, resources
from caphv.api.object import (
    Obj,
    annotations_of,
    at,
    being_deleted,
    owner_reference,
    text_at,
    uid_of,
)
from caphv.api.objectid import ObjectId, group_of, id_of
from operations.backup.files import Backup
from operations.read.graph import is_cluster_api, references

# Fields of metadata that the API server sets.
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
# The API server sets these for a deletion that was under way.
_DELETION_FINALIZERS = ("foregroundDeletion", "orphan")
# Owners of objects on Harvester.
_OWNERS = {
    (kind.group, kind.kind) for kind in (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES)
}
_CLUSTER = (resources.CLUSTER_API_GROUP, "Cluster")
_IP_ADDRESS = (resources.IPAM_GROUP, "IPAddress")
_IP_ADDRESS_CLAIM = "IPAddressClaim"


class Action(StrEnum):
    """How a restore treats an object."""

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
    """Where objects come from: the `identity` of the backup, the `uid` of the old cluster."""

    identity: str
    uid: str = ""


def plan(backup: Backup, existing: Mapping[ObjectId, Obj], origin: str) -> tuple[Step, ...]:
    """Return a step for each object, in order.

    :param backup: the objects
    :param existing: objects of the target
    :param origin: identifies objects that this backup restored before
    """
    levels = _Levels(backup.objects)
    steps = [
        Step(
            identity=identity,
            obj=obj,
            level=levels.of(identity),
            action=_action(obj, existing.get(identity), origin),
            uid=text_at(existing.get(identity), "metadata", "uid"),
        )
        for identity, obj in backup.objects.items()
    ]

    return tuple(sorted(steps, key=lambda step: (step.level, step.identity)))


def missing_of(backup: Backup) -> dict[str, str]:
    """Return the objects that a backup lacks, and how that is known."""
    missing = dict(backup.missing)
    if all(identity[:2] != _CLUSTER for identity in backup.objects):
        missing.setdefault("Cluster", "the backup has no Cluster at all")

    for identity, obj in sorted(backup.objects.items()):
        needed = [(reference, f"{identity} refers to it") for reference in references(obj)]
        needed += [
            (owner, f"it owns {identity}")
            for owner in _owner_ids(obj, deciding_owners(obj))
            if is_cluster_api(owner.group)
        ]

        for other, reason in needed:
            # A reference has the namespace of its object even if its kind has no namespaces.
            cluster_scoped = other._replace(namespace="")
            is_present = other in backup.objects or cluster_scoped in backup.objects
            # The backup did not lose an object that was absent when it was made.
            if not is_present and str(other) not in backup.absent:
                missing.setdefault(str(other), reason)
    return missing


def absent_in_use(backup: Backup) -> list[str]:
    """Return the absent objects that something other than a template refers to.

    Templates of a ClusterClass have placeholders, which variables of each Cluster replace.
    """
    placeholders: set[str] = set()
    in_use: set[str] = set()
    for identity, obj in backup.objects.items():
        names_of_kind = placeholders if identity.kind.endswith("Template") else in_use
        names_of_kind.update(map(str, references(obj)))
    return sorted(name for name in backup.absent if name in in_use or name not in placeholders)


def created_form(
    obj: Obj, uids: Mapping[ObjectId, str], source: Source, *, paused: bool = True
) -> Obj:
    """Return the form in which an object is created.

    It lacks the fields that the server sets, and its owners have their new uids.

    :param obj: the object of a backup
    :param uids: the uids of objects that exist on the target
    :param source: where the object comes from
    :param paused: False for the form that the object has once the pause has ended
    """
    identity = id_of(obj)
    metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_SIDE}

    # Owners that are not in the backup are left out, because Kubernetes would collect the object as
    # garbage.
    references = obj["metadata"].get("ownerReferences") or ()
    metadata["ownerReferences"] = [
        {**reference, "uid": uids[owner]}
        for reference, owner in zip(references, _owners(obj), strict=True)
        if owner in uids
    ]

    # The provider of the target removes the finalizer of an identity that no HarvesterCluster uses,
    # and adds its own to one in use.
    metadata["finalizers"] = [
        finalizer
        for finalizer in metadata.get("finalizers") or ()
        if finalizer not in _DELETION_FINALIZERS
        and not finalizer.startswith(names.IDENTITY_FINALIZER_PREFIX)
    ]

    # An owner of objects on Harvester records its former uid, so that the provider adopts these
    # objects even where no VM proves that they belong together.
    annotations = {**annotations_of(obj), names.RESTORED_FROM_ANNOTATION: source.identity}
    if source.uid and identity[:2] in _OWNERS and uid_of(obj):
        annotations[names.FORMER_OWNER_ANNOTATION] = f"{source.uid}/{uid_of(obj)}"
    metadata["annotations"] = annotations

    created = {name: value for name, value in obj.items() if name != "status"}
    created["metadata"] = metadata
    if paused and identity[:2] == _CLUSTER:
        # The provider leaves a parked cluster and its VMs alone until the restore is confirmed.
        if names.PAUSED_BY_PARK_ANNOTATION in annotations:
            annotations[names.PAUSED_BY_PARK_ANNOTATION] = parking.PAUSED_BY_RESTORE
        created["spec"] = {**(obj.get("spec") or {}), "paused": True}
    elif paused and _pauses_itself(obj):
        annotations.setdefault(names.PAUSED_ANNOTATION, "true")
    return created


def is_paused(obj: Obj) -> bool:
    """Whether an object is paused: a Cluster by its spec, others by an annotation."""
    if id_of(obj)[:2] == _CLUSTER:
        return bool(at(obj, "spec", "paused"))
    return names.PAUSED_ANNOTATION in annotations_of(obj)


def is_held(obj: Obj) -> bool:
    """Whether an object is paused, and not only because its cluster is parked."""
    return is_paused(obj) and not parking.owns_pause(obj)


def unpause_patch(obj: Obj, live: Obj) -> Obj | None:
    """Return the patch that ends the pause of `created_form`, None if that pauses nothing.

    An object that was paused in the backup stays paused, and a cluster that was parked stays so.

    :param obj: the object of the backup
    :param live: what the restore has created of it
    """
    if is_held(obj):
        return None
    if is_paused(obj) and parking.has_begun(live):
        return {"metadata": {"annotations": {names.PAUSED_BY_PARK_ANNOTATION: "true"}}}
    if is_paused(obj):
        # Without that record, the provider resumes nothing, and the pause would never end.
        annotations = {names.PAUSED_BY_PARK_ANNOTATION: None}
        return {"metadata": {"annotations": annotations}, "spec": {"paused": None}}
    if id_of(obj)[:2] == _CLUSTER:
        return {"spec": {"paused": None}}
    if _pauses_itself(obj):
        return {"metadata": {"annotations": {names.PAUSED_ANNOTATION: None}}}
    return None


def managed_fields(obj: Obj, uids: Mapping[ObjectId, str]) -> list[Obj]:
    """Return the managed fields of the backup, with the new uids of owners.

    The answer is empty when no one applies fields of the object. Without the former managers, a
    field that the core applied would belong to our command as well, and would stay when the core
    stops applying it.
    """
    entries = [
        entry
        for entry in obj["metadata"].get("managedFields") or ()
        if not entry.get("subresource")
    ]
    if all(entry.get("operation") != "Apply" for entry in entries):
        return []

    # The set of managed fields names an entry of `ownerReferences` by its uid.
    renames = {}
    references = obj["metadata"].get("ownerReferences") or ()
    for reference, owner in zip(references, _owners(obj), strict=True):
        if owner in uids:
            old = reference["uid"]
            new = uids[owner]
            renames[f'k:{{"uid":"{old}"}}'] = f'k:{{"uid":"{new}"}}'
    return [_rename(entry, renames) for entry in entries]


def differences(expected: Obj, live: Obj) -> tuple[str, ...]:
    """Return the fields of an expected object that the live object lacks.

    A field that only the live object has is no difference, because the server adds fields. Neither
    is what the provider changes when it parks or resumes a cluster.
    """
    content = {
        name: value
        for name, value in expected.items()
        if name not in ("apiVersion", "kind", "metadata", "stringData")
    }
    metadata = {name: expected["metadata"].get(name) or {} for name in ("labels", "annotations")}
    changing = {f"metadata.annotations.{name}" for name in parking.RECORDS}
    if parking.owns_pause(expected):
        changing.add("spec.paused")
    paths = [
        path
        for path in _differences({**content, "metadata": metadata}, live)
        if path not in changing
    ]

    for name in ("ownerReferences", "finalizers"):
        live_entries = live["metadata"].get(name) or ()
        if any(entry not in live_entries for entry in expected["metadata"].get(name) or ()):
            paths.append(f"metadata.{name}")
    return tuple(paths)


def requested_deletions(steps: Iterable[Step]) -> tuple[ObjectId, ...]:
    """Return the objects that were being deleted when the backup was made.

    A restore creates them and does not delete them again.
    """
    return tuple(step.identity for step in steps if being_deleted(step.obj))


class _Levels:
    """Places in the order: owners first, classes before Clusters, controllers' objects last."""

    def __init__(self, objects: Mapping[ObjectId, Obj]) -> None:
        self._objects = objects
        self._known: dict[ObjectId, int] = {}

    def of(self, identity: ObjectId) -> int:
        if identity not in self._known:
            self._known[identity] = _first_level(identity)  # ends a cycle of owners
            owners = [owner for owner in _owners(self._objects[identity]) if owner in self._objects]
            self._known[identity] = max(
                [_first_level(identity), *(self.of(owner) + 1 for owner in owners)]
            )
        return self._known[identity]


def _first_level(identity: ObjectId) -> int:
    """Return the place of an object by its kind: Namespaces first, acting objects last."""
    if identity.kind == "Namespace" and not identity.group:
        return -1
    if not identity.group or identity.kind.endswith("Template"):
        return 0
    if identity[:2] == _CLUSTER:
        return 3
    return 1 if identity.kind == "ClusterClass" else 4


def deciding_owners(obj: Obj) -> list[Obj]:
    """Return the references to those owners that a backup or a move of an object needs.

    By the contract of IPAM providers, the owners of an IPAddress are its claim and its pool. The
    pool stays.
    """
    owners: list[Obj] = obj["metadata"].get("ownerReferences") or []
    if id_of(obj)[:2] != _IP_ADDRESS:
        return owners
    return [owner for owner in owners if owner.get("kind") == _IP_ADDRESS_CLAIM] or owners


def _owners(obj: Obj) -> Iterator[ObjectId]:
    """Yield the owners of an object in the order of its `ownerReferences`."""
    return _owner_ids(obj, obj["metadata"].get("ownerReferences") or ())


def _owner_ids(obj: Obj, owner_references: Iterable[Obj]) -> Iterator[ObjectId]:
    """Yield the owners in some of the `ownerReferences` of an object."""
    # An owner and its dependents are in the same namespace.
    namespace = str(obj["metadata"].get("namespace") or "")
    for owner in owner_references:
        group = group_of(owner.get("apiVersion"))
        yield ObjectId(group, str(owner.get("kind")), namespace, str(owner.get("name")))


def _pauses_itself(obj: Obj) -> bool:
    """Whether an object acts without a Cluster, such as a ClusterClass or a ClusterResourceSet."""
    identity = id_of(obj)
    if not is_cluster_api(identity.group) or identity[:2] == _CLUSTER:
        return False
    if identity.kind.endswith("Template"):
        return False
    # The pause of a Cluster holds for all that belongs to it.
    owned = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP) is not None
    return not owned and not any(_owners(obj))


def _action(obj: Obj, live: Obj | None, origin: str) -> Action:
    """Return how to treat an object.

    :param obj: the object of the backup
    :param live: the object on the target; None if it does not exist
    :param origin: identifies objects that this backup restored before
    """
    if live is None:
        return Action.CREATE
    if annotations_of(live).get(names.RESTORED_FROM_ANNOTATION) == origin:
        return Action.RESTORED
    bare = {name: value for name, value in obj.items() if name not in ("metadata", "status")}
    return Action.DIFFERENT if differences({**bare, "metadata": {}}, live) else Action.SAME


def _differences(expected: Any, live: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which a live value differs from the expected one."""
    if isinstance(expected, dict) and isinstance(live, dict):
        for name, value in expected.items():
            yield from _differences(value, live.get(name), f"{path}.{name}" if path else name)
    elif isinstance(expected, list) and isinstance(live, list) and len(expected) == len(live):
        for index, (value, live_value) in enumerate(zip(expected, live, strict=True)):
            yield from _differences(value, live_value, f"{path}[{index}]")
    elif expected != live:
        # A server leaves out empty values.
        omitted = not expected and not live and isinstance(expected, (dict, list, type(None)))
        if not omitted:
            yield path


def _rename(value: Any, renames: Mapping[str, str]) -> Any:
    """Return a value with its keys renamed, however deep they are."""
    if isinstance(value, dict):
        return {renames.get(name, name): _rename(item, renames) for name, item in value.items()}
    if isinstance(value, list):
        return [_rename(item, renames) for item in value]
    return value
