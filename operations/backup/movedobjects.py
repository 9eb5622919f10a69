"""Choose the objects of a move: those to pause, to copy, to wait for, and to delete.

`operations.change.move` makes the steps. Their order makes a move safe: the clusters are paused,
the target adopts their VMs, and only then are they deleted on the source. Nothing is deleted until
Harvester itself says that each VM belongs to the target. From then on the provider of the source
would refuse to touch a VM, even if it were not paused. Objects are deleted without their
finalizers, dependents before their owners and the Cluster last, so that no controller ever sees a
machine that is being deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from caphv.api import names, resources
from caphv.api.clusterapi import externally_managed
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, Resource, annotations_of, at, key_of, uid_of
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from operations.backup.files import Backup, Origin
from operations.backup.order import Action, Step, deciding_owners, is_paused
from operations.backup.writing import Restore
from operations.read.objects import condition_of

CLUSTER = (resources.CLUSTER_API_GROUP, "Cluster")
_MOVE = "move-"
_HARVESTER_CLUSTER = (names.GROUP, "HarvesterCluster")
_HARVESTER_MACHINE = (names.GROUP, "HarvesterMachine")


def backup_of_move(backup: Backup, named: Iterable[Key]) -> Backup:
    """Return a backup without the pause, under an identity that repeated moves share.

    :param backup: the objects of the source
    :param named: clusters that a user named, of which a former call may have moved some
    """
    objects = {identity: _strip_pause(obj) for identity, obj in backup.objects.items()}
    if backup.origin is None:
        return replace(backup, objects=objects)

    # After an interruption the backup lacks the clusters that were moved already. Their names must
    # still count, or the repeated call would be another move.
    clusters = {str(key) for key in named} or backup.clusters
    origin = replace(backup.origin, identity=_identity(backup.origin, clusters))
    return replace(backup, objects=objects, origin=origin)


def interrupted_moves(target: Restore) -> list[tuple[list[str], bool]]:
    """Return the Clusters on the target of each other move that left some of them paused.

    This move resumes none of them. The second value says whether the list names all clusters of the
    other move.
    """
    moves: dict[str, list[Obj]] = {}
    for identity, obj in sorted(target.existing.items()):
        move = annotations_of(obj).get(names.RESTORED_FROM_ANNOTATION, "")
        if identity[:2] == CLUSTER and move.startswith(_MOVE) and move != target.source.identity:
            moves.setdefault(move, []).append(obj)

    # A move that had all its clusters on the target has their names in its identity.
    origin = target.backup.origin
    unfinished = []
    for move, objs in moves.items():
        if any(map(is_paused, objs)):
            clusters = [str(key_of(obj)) for obj in objs]
            is_complete = origin is not None and _identity(origin, clusters) == move
            unfinished.append((clusters, is_complete))
    return unfinished


async def find_moved(client: ApiClient, clusters: Resource, keys: Iterable[Key]) -> set[Key]:
    """Return the Clusters that an interrupted move has already brought to the target.

    The move has deleted them on the source. Raises `ApiError`, `Unreachable`.
    """
    moved = set()
    for key in keys:
        try:
            obj = await client.get(clusters, key.name, key.namespace)
        except NotFound:
            continue
        move = annotations_of(obj).get(names.RESTORED_FROM_ANNOTATION, "")
        if move.startswith(_MOVE) and not at(obj, "spec", "paused"):
            moved.add(key)
    return moved


def objects_to_delete(backup: Backup) -> frozenset[ObjectId]:
    """Return the Clusters, and the objects that only these Clusters own.

    Classes, identities and namespaces stay. So does a template that a Cluster outside the move
    uses, because the core adds each such Cluster to the owners of the template. An IPAddress
    is deleted with its claim.
    """
    uids = {uid_of(obj) for identity, obj in backup.objects.items() if identity[:2] == CLUSTER}

    # An owner may come after its dependents, so that one pass may not find them all.
    while True:
        dependents = set()
        for obj in backup.objects.values():
            owners = {str(owner.get("uid")) for owner in deciding_owners(obj)}
            if owners and owners <= uids:
                dependents.add(uid_of(obj))
        if dependents <= uids:
            break
        uids |= dependents
    return frozenset(identity for identity, obj in backup.objects.items() if uid_of(obj) in uids)


def shared_objects(backup: Backup) -> list[ObjectId]:
    """Return the objects that the Clusters share with other owners.

    A move copies them, and does not delete them.
    """
    moved = objects_to_delete(backup)
    uids = {uid_of(backup.objects[identity]) for identity in moved}
    return sorted(
        identity
        for identity, obj in backup.objects.items()
        if identity not in moved and _owners(obj) & uids
    )


def is_resumed(restore: Restore) -> bool:
    """Whether a former call of this move began to end the pause on the target.

    By then it had created everything. An object that is absent on the target was deleted there
    since. It must not be created again, because nothing would pause it.
    """
    return any(
        step.identity[:2] == CLUSTER
        and step.action is Action.RESTORED
        and not is_paused(restore.existing[step.identity])
        for step in restore.steps()
    )


def uncopied_objects(target: Restore) -> list[ObjectId]:
    """Return the objects to delete on the source that do not exist on the target."""
    return sorted(objects_to_delete(target.backup) - target.existing.keys())


def unpaused_objects(objs: Iterable[Obj]) -> list[str]:
    """Return the objects for which the provider has not confirmed the pause.

    The provider does not write to a HarvesterCluster that another controller manages. These do not
    count, because it never confirms their pause.
    """
    unconfirmed = []
    for obj in objs:
        if condition_of(obj, ConditionType.PAUSED).get("status") == "True":
            continue
        if obj["kind"] == "HarvesterCluster" and externally_managed(obj):
            continue
        unconfirmed.append(f"{obj['kind']} {key_of(obj)}")
    return sorted(unconfirmed)


def of_kind(backup: Backup, group: str, kind: str) -> list[Obj]:
    """Return the objects of a kind."""
    return [
        obj for identity, obj in sorted(backup.objects.items()) if identity[:2] == (group, kind)
    ]


def harvester_objects(backup: Backup) -> list[Obj]:
    """Return the HarvesterClusters and HarvesterMachines."""
    return [*of_kind(backup, *_HARVESTER_CLUSTER), *of_kind(backup, *_HARVESTER_MACHINE)]


async def pause(client: ApiClient, clusters: Resource, backup: Backup, target: str) -> None:
    """Pause the Clusters, with a note that this move did it. Raises `ApiError`, `Unreachable`."""
    for obj in of_kind(backup, *CLUSTER):
        patch = {
            "metadata": {"annotations": {names.MOVING_ANNOTATION: target}},
            "spec": {"paused": True},
        }
        await client.patch(clusters, key_of(obj).name, key_of(obj).namespace, patch)


async def delete_source(
    client: ApiClient,
    kinds: dict[tuple[str, str], Resource],
    steps: Iterable[Step],
    chosen: frozenset[ObjectId],
) -> list[str]:
    """Delete the moved objects, dependents before their owners; return what failed.

    VMs are not touched.

    :param client: client of the source
    :param kinds: resources by group and kind
    :param steps: the objects in the order of their creation
    :param chosen: the objects to delete
    """
    for step in sorted(steps, key=lambda step: (step.identity[:2] == CLUSTER, -step.level)):
        if step.identity not in chosen:
            continue

        resource = kinds[step.identity.group, step.identity.kind]
        uid = uid_of(step.obj)
        key = Key(step.identity.namespace, step.identity.name)
        # The uid is a precondition. It protects an object of the same name that was created
        # meanwhile.
        patch = {"metadata": {"uid": uid, "finalizers": None}}
        try:
            await client.patch(resource, key.name, key.namespace, patch)
            if await client.delete(resource, key.name, key.namespace, uid=uid):
                # Until the deletion is requested, the core adds its finalizer again, even to
                # paused objects.
                await client.patch(resource, key.name, key.namespace, patch)
        except NotFound:
            continue
        except RequestError as error:
            return [f"{step.identity}: {error}"]
    return []


def _identity(origin: Origin, clusters: Iterable[str]) -> str:
    """Return an identity that depends on source and clusters only, for all calls of a move."""
    source = "\0".join((origin.uid or origin.server, *sorted(clusters)))
    return f"{_MOVE}{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def _strip_pause(obj: Obj) -> Obj:
    """Return an object without the pause of a former call of this move."""
    if names.MOVING_ANNOTATION not in annotations_of(obj):
        return obj
    annotations = {
        name: value
        for name, value in annotations_of(obj).items()
        if name != names.MOVING_ANNOTATION
    }
    spec = obj.get("spec") or {}
    unpaused = {name: value for name, value in spec.items() if name != "paused"}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}, "spec": unpaused}


def _owners(obj: Obj) -> set[str]:
    """Return the uids of the owners of an object."""
    return {str(owner.get("uid")) for owner in obj["metadata"].get("ownerReferences") or ()}
