"""Moves clusters between management clusters: pauses them, has them adopted on the target, then deletes them here.

The order is what makes it safe. Until Harvester itself says that each VM belongs to the target, nothing is deleted;
from then on the provider of the source would refuse to touch a VM, even if it were not paused. Objects are deleted
without their finalizers, what is owned before its owner and the Cluster last, so that no controller ever sees a machine
that is being deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from caphv.api import names, resources
from caphv.api.clusterapi import externally_managed
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, Resource, annotations_of, key_of, uid_of
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from overview.backup.files import Backup, Origin
from overview.backup.order import Action, Step, is_paused
from overview.backup.writing import Restore
from overview.objects import condition_of

CLUSTER = (resources.CLUSTER_API_GROUP, "Cluster")
_MOVE = "move-"
_HARVESTER_CLUSTER = (names.GROUP, "HarvesterCluster")
_HARVESTER_MACHINE = (names.GROUP, "HarvesterMachine")


def as_moved(backup: Backup, named: Iterable[Key] = ()) -> Backup:
    """Return a backup of clusters as before their pause, with an identity that a repeated move shares.

    The identity is that of the clusters that a user named, as long as one of them is left, else of all in the backup.
    """
    objects = {identity: _as_before(obj) for identity, obj in backup.objects.items()}
    if backup.origin is None:
        return replace(backup, objects=objects)
    clusters = {str(key) for key in named} or backup.clusters
    return replace(backup, objects=objects, origin=replace(backup.origin, identity=_identity(backup.origin, clusters)))


def interrupted(target: Restore) -> list[tuple[list[str], bool]]:
    """Return the Clusters on the target of each other move that left some of them paused: this one resumes none.

    With each move, whether these are all its clusters.
    """
    moves: dict[str, list[Obj]] = {}
    for identity, obj in sorted(target.existing.items()):
        move = annotations_of(obj).get(names.RESTORED_FROM_ANNOTATION, "")
        if identity[:2] == CLUSTER and move.startswith(_MOVE) and move != target.source.identity:
            moves.setdefault(move, []).append(obj)
    origin, found = target.backup.origin, []
    for move, objs in moves.items():
        if any(map(is_paused, objs)):
            clusters = [str(key_of(obj)) for obj in objs]
            found.append((clusters, origin is not None and _identity(origin, clusters) == move))
    return found


async def moved_before(client: ApiClient, clusters: Resource, keys: Iterable[Key]) -> set[Key]:
    """Return which Clusters run on the target after a move: an interrupted one deleted them on the source already.

    Raises `ApiError`, `Unreachable`.
    """
    found = set()
    for key in keys:
        try:
            obj = await client.get(clusters, key.name, key.namespace)
        except NotFound:
            continue
        if annotations_of(obj).get(names.RESTORED_FROM_ANNOTATION, "").startswith(_MOVE) and not (
            obj.get("spec") or {}
        ).get("paused"):
            found.add(key)
    return found


def owned(backup: Backup) -> frozenset[ObjectId]:
    """Return the Clusters and what they alone own: what is deleted. Classes, identities and namespaces stay.

    The core adds each Cluster that uses a template to the owners of the template. One that is not moved still needs it.
    """
    uids = {uid_of(obj) for identity, obj in backup.objects.items() if identity[:2] == CLUSTER}
    while more := {uid_of(obj) for obj in backup.objects.values() if _owners(obj) and _owners(obj) <= uids} - uids:
        uids |= more
    return frozenset(identity for identity, obj in backup.objects.items() if uid_of(obj) in uids)


def shared(backup: Backup) -> list[ObjectId]:
    """Return what the Clusters own together with others: it is copied, and stays on the source."""
    moved = owned(backup)
    uids = {uid_of(backup.objects[identity]) for identity in moved}
    return sorted(identity for identity, obj in backup.objects.items() if identity not in moved and _owners(obj) & uids)


def is_resumed(restore: Restore) -> bool:
    """Whether a former call of this move began to end the pause on the target: by then it had created everything.

    What is absent there now was deleted there. It is not created again: nothing would pause it.
    """
    return any(
        step.identity[:2] == CLUSTER
        and step.action is Action.RESTORED
        and not is_paused(restore.existing[step.identity])
        for step in restore.steps()
    )


def absent_on(target: Restore) -> list[ObjectId]:
    """Return what is to be deleted on the source, and does not exist on the target."""
    return sorted(owned(target.backup) - target.existing.keys())


def not_paused_yet(objs: Iterable[Obj]) -> list[str]:
    """Return the HarvesterClusters and HarvesterMachines for which the provider has not confirmed the pause.

    It does not write to a HarvesterCluster that another controller manages, and so never confirms it there.
    """
    return sorted(
        f"{obj['kind']} {key_of(obj)}"
        for obj in objs
        if condition_of(obj, ConditionType.PAUSED).get("status") != "True"
        and not (obj["kind"] == "HarvesterCluster" and externally_managed(obj))
    )


def of_kind(backup: Backup, group: str, kind: str) -> list[Obj]:
    """Return the objects of a kind."""
    return [obj for identity, obj in sorted(backup.objects.items()) if identity[:2] == (group, kind)]


def harvester_objects(backup: Backup) -> list[Obj]:
    """Return the HarvesterClusters and HarvesterMachines."""
    return [*of_kind(backup, *_HARVESTER_CLUSTER), *of_kind(backup, *_HARVESTER_MACHINE)]


async def pause(client: ApiClient, clusters: Resource, backup: Backup, target: str) -> None:
    """Pause the Clusters, with a note that this move did it. Raises `ApiError`, `Unreachable`."""
    for obj in of_kind(backup, *CLUSTER):
        patch = {"metadata": {"annotations": {names.MOVING_ANNOTATION: target}}, "spec": {"paused": True}}
        await client.patch(clusters, key_of(obj).name, key_of(obj).namespace, patch)


async def delete_source(
    client: ApiClient, kinds: dict[tuple[str, str], Resource], steps: Iterable[Step], chosen: frozenset[ObjectId]
) -> list[str]:
    """Delete what was moved, what is owned before its owner; answer what failed. Nothing of a VM is touched."""
    for step in sorted(steps, key=lambda step: (step.identity[:2] == CLUSTER, -step.level)):
        if step.identity not in chosen:
            continue
        resource, uid = kinds[step.identity.group, step.identity.kind], uid_of(step.obj)
        key = Key(step.identity.namespace, step.identity.name)
        try:
            # The uid is a precondition: an object of the same name that was created meanwhile stays.
            patch = {"metadata": {"uid": uid, "finalizers": None}}
            await client.patch(resource, key.name, key.namespace, patch)
            if await client.delete(resource, key.name, key.namespace, uid=uid):
                # The core adds its finalizer again, also to what is paused, until the deletion is requested.
                await client.patch(resource, key.name, key.namespace, patch)
        except NotFound:
            continue
        except (ApiError, Unreachable) as error:
            return [f"{step.identity}: {error}"]
    return []


def _identity(origin: Origin, clusters: Iterable[str]) -> str:
    source = "\0".join((origin.uid or origin.server, *sorted(clusters)))
    return f"{_MOVE}{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def _as_before(obj: Obj) -> Obj:
    if names.MOVING_ANNOTATION not in annotations_of(obj):
        return obj
    annotations = {name: value for name, value in annotations_of(obj).items() if name != names.MOVING_ANNOTATION}
    spec = {name: value for name, value in (obj.get("spec") or {}).items() if name != "paused"}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}, "spec": spec}


def _owners(obj: Obj) -> set[str]:
    return {str(owner.get("uid")) for owner in obj["metadata"].get("ownerReferences") or ()}
