"""Create the objects of a backup on a management cluster, verify them, and end their pause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from caphv.api import names
from caphv.api.object import NAMESPACES, Obj, Resource, annotations_of, key_of, uid_of
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, Conflict, NotFound, RequestError
from operations.backup.files import Backup
from operations.backup.order import (
    Action,
    Source,
    Step,
    created_form,
    differences,
    is_held,
    managed_fields,
    plan,
    unpause_patch,
)
from operations.backup.reading import kinds_to_copy
from operations.read.management import list_all

_REQUESTS_AT_ONCE = 16
_WITHOUT_INDEX = "without-index"
_MAX_CONFLICTS = 20
# The API server names the manager of fields after the user agent of the command that wrote them.
_OUR_MANAGER = ("caphv-cli", "Update", "")


@dataclass(slots=True)
class Restore:
    """A backup that is being restored into a management cluster."""

    backup: Backup
    server: str
    uid: str
    """The uid of the target's namespace `kube-system`; empty when it may not be read."""
    kinds: dict[tuple[str, str], Resource]
    existing: dict[ObjectId, Obj] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Why the restore cannot begin."""

    @property
    def source(self) -> Source:
        """The mark of objects that this backup restores."""
        origin = self.backup.origin
        if origin is None:
            return Source(_WITHOUT_INDEX)
        return Source(origin.identity or _WITHOUT_INDEX, origin.uid)

    def steps(self) -> tuple[Step, ...]:
        """Return a step for each object, in order."""
        return plan(self.backup, self.existing, self.source.identity)


async def prepare(client: ApiClient, backup: Backup) -> Restore:
    """Compare a backup with a management cluster. Raises `ApiError`, `Unreachable`."""
    versions = {
        (identity.group, identity.kind): str(obj["apiVersion"]).rpartition("/")[2]
        for identity, obj in backup.objects.items()
    }
    kinds = await kinds_to_copy(client, versions)
    try:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except ApiError:
        uid = ""

    restore = Restore(backup, client.server, uid, kinds)
    restore.problems += sorted(set(_unserved_kinds(backup, kinds)))
    restore.existing = await _read_existing(client, restore)
    return restore


async def create(client: ApiClient, restore: Restore) -> list[str]:
    """Create the objects that do not exist, level by level; return what failed.

    A failure stops the restore after its level.
    """
    uids = {step.identity: step.uid for step in restore.steps() if step.uid}
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def create_step(step: Step) -> str:
        async with limit:
            try:
                created = await _create(client, restore, step, uids)
            except RequestError as error:
                return f"{step.identity}: {error}"
        uids[step.identity] = uid_of(created)
        return ""

    # Owners have lower levels, so that their uids are known when their dependents are created.
    for _, level in groupby(restore.steps(), key=lambda step: step.level):
        unfinished = [step for step in level if _is_unfinished(restore, step)]
        answers = await asyncio.gather(*map(create_step, unfinished))
        if failed := [answer for answer in answers if answer]:
            return failed
    return []


async def verify(client: ApiClient, restore: Restore) -> list[str]:
    """Read all objects back; return which are absent or differ from their expected form."""
    restore.existing = await _read_existing(client, restore)
    uids = {identity: uid_of(obj) for identity, obj in restore.existing.items()}
    problems = []
    for identity, obj in sorted(restore.backup.objects.items()):
        live = restore.existing.get(identity)
        if live is None:
            problems.append(f"{identity} does not exist")
            continue
        # Objects that existed before the restore were compared by its plan.
        if identity.kind == "Namespace" or not _is_restored_from(live, restore.source.identity):
            continue

        # An interrupted call may have ended the pause of some objects.
        expected = created_form(obj, uids, restore.source, paused=is_held(live))
        paths = differences(expected, live)
        problems += [f"{identity}: {path} differs from the backup" for path in paths]
    return problems


def is_paused_by_us(restore: Restore) -> bool:
    """Whether an object is still paused that was not paused in the backup."""
    return next(_unpausing_patches(restore), None) is not None


async def unpause(client: ApiClient, restore: Restore) -> list[str]:
    """End the pause of everything that was not paused in the backup; return what failed."""
    failed = []
    for identity, patch in _unpausing_patches(restore):
        resource = restore.kinds[identity.group, identity.kind]
        try:
            await client.patch(resource, identity.name, identity.namespace, patch)
        except RequestError as error:
            failed.append(f"{identity}: {error}")
    return failed


def _unpausing_patches(restore: Restore) -> Iterator[tuple[ObjectId, Obj]]:
    """Yield paused objects with their patches, classes before Clusters, as they were created."""
    for step in restore.steps():
        live = restore.existing.get(step.identity)
        if live is None or not is_held(live):
            continue
        patch = unpause_patch(step.obj, live)
        if patch and _is_restored_from(live, restore.source.identity):
            yield step.identity, patch


def _is_restored_from(obj: Obj, origin: str) -> bool:
    """Whether an object was created by restoring this backup."""
    return annotations_of(obj).get(names.RESTORED_FROM_ANNOTATION) == origin


def _is_unfinished(restore: Restore, step: Step) -> bool:
    """Whether an object must be created, or the managers of its fields must be restored."""
    if step.action is not Action.RESTORED:
        return step.action is Action.CREATE

    # A former call may have been interrupted between the two requests.
    managers = _managers(restore.existing[step.identity])
    return any(manager not in managers for manager in _managers(step.obj) if manager[1] == "Apply")


async def _create(
    client: ApiClient, restore: Restore, step: Step, uids: dict[ObjectId, str]
) -> Obj:
    """Create an object unless it exists, and restore who manages its fields.

    :param client: client of the target
    :param restore: the backup that is being restored
    :param step: the object
    :param uids: new uids of owners
    """
    resource = restore.kinds[step.identity.group, step.identity.kind]
    created = restore.existing.get(step.identity)
    if created is None:
        try:
            created = await client.create(resource, created_form(step.obj, uids, restore.source))
        except AlreadyExists:
            # A controller was faster, or the answer to our request was lost. The verification
            # compares the object.
            return await client.get(resource, step.identity.name, step.identity.namespace)
    if fields := managed_fields(step.obj, uids):
        await _restore_managers(client, resource, created, fields)
    return created


async def _restore_managers(
    client: ApiClient, resource: Resource, created: Obj, fields: list[Obj]
) -> None:
    """Replace this command by the former managers in the managed fields of an object.

    :param client: client of the target
    :param resource: the kind of the object
    :param created: the object
    :param fields: the managed fields of the backup
    """
    key = key_of(created)
    live = created
    replaced = {_OUR_MANAGER, *map(_manager, fields)}

    # Controllers write to a new object at the same time, so that several attempts are needed.
    for attempt in range(_MAX_CONFLICTS):
        others = [
            entry
            for entry in live["metadata"].get("managedFields") or ()
            if _manager(entry) not in replaced
        ]
        metadata = {
            "resourceVersion": live["metadata"]["resourceVersion"],
            "managedFields": [*fields, *others],
        }

        try:
            await client.patch(resource, key.name, key.namespace, {"metadata": metadata})
        except Conflict:
            if attempt == _MAX_CONFLICTS - 1:
                raise
            live = await client.get(resource, key.name, key.namespace)
        else:
            return


class _Manager(NamedTuple):
    """The fields that identify an entry of managed fields."""

    name: str
    operation: str
    subresource: str


def _managers(obj: Obj) -> set[_Manager]:
    """Return the managers that an object records."""
    return set(map(_manager, obj["metadata"].get("managedFields") or ()))


def _manager(entry: Obj) -> _Manager:
    """Return the manager of an entry of managed fields."""
    return _Manager(
        str(entry.get("manager")),
        str(entry.get("operation")),
        str(entry.get("subresource") or ""),
    )


def _unserved_kinds(backup: Backup, kinds: dict[tuple[str, str], Resource]) -> Iterator[str]:
    """Name the kinds of a backup that the target does not serve in their version."""
    for identity, obj in backup.objects.items():
        # Another version of a kind could lose fields silently.
        resource = kinds.get((identity.group, identity.kind))
        version = str(obj["apiVersion"])
        if resource is None:
            yield (
                f"{identity.kind} of {identity.group} is not installed there: install its provider "
                "first"
            )

        elif resource.api_version != version:
            yield (
                f"{identity.kind} is not served as {version} there, only as "
                f"{resource.api_version}: install the provider in the version of the old "
                "management cluster, and upgrade it afterwards"
            )


async def _read_existing(client: ApiClient, restore: Restore) -> dict[ObjectId, Obj]:
    """Return the objects of the backup that exist on the target."""
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def read(resource: Resource, namespace: str) -> list[Obj]:
        async with limit:
            try:
                return await list_all(client, resource, namespace)
            except NotFound:
                return []

    backup_objects = restore.backup.objects
    places = {(identity.group, identity.kind, identity.namespace) for identity in backup_objects}
    lists = await asyncio.gather(
        *(
            read(restore.kinds[group, kind], namespace)
            for group, kind, namespace in places
            if (group, kind) in restore.kinds
        )
    )
    return {id_of(obj): obj for objs in lists for obj in objs if id_of(obj) in backup_objects}
