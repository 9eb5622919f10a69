"""Creates the objects of a backup on a management cluster, verifies them, and ends their pause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from caphv.api import names
from caphv.api.object import NAMESPACES, Obj, Resource, annotations_of, key_of, uid_of
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from overview.backup.files import Backup
from overview.backup.order import (
    Action,
    Source,
    Step,
    created_form,
    differences,
    is_paused,
    managed_fields,
    plan,
    unpausing,
)
from overview.backup.reading import kinds_to_copy
from overview.reader import list_all

_REQUESTS_AT_ONCE = 16
_WITHOUT_INDEX = "without-index"
_MOST_CONFLICTS = 20
# As the API server names the manager of what a command creates, by its user agent.
_OWN = ("caphv-cli", "Update", "")


@dataclass(slots=True)
class Restore:
    """A backup on its way into a management cluster."""

    backup: Backup
    server: str
    uid: str
    """Of the target's namespace `kube-system`; empty when it may not be read."""
    kinds: dict[tuple[str, str], Resource]
    existing: dict[ObjectId, Obj] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Why it cannot begin."""

    @property
    def source(self) -> Source:
        """What identifies objects of this backup."""
        origin = self.backup.origin
        return Source(origin.identity or _WITHOUT_INDEX, origin.uid) if origin else Source(_WITHOUT_INDEX)

    def steps(self) -> tuple[Step, ...]:
        """What is to be done with each object, in order."""
        return plan(self.backup, self.existing, self.source.identity)


async def prepare(client: ApiClient, backup: Backup) -> Restore:
    """Compare a backup with a management cluster. Raises `ApiError`, `Unreachable`."""
    versions = {(each.group, each.kind): _version(obj) for each, obj in backup.objects.items()}
    kinds = await kinds_to_copy(client, versions)
    try:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except ApiError:
        uid = ""
    found = Restore(backup, client.server, uid, kinds)
    found.problems += sorted(set(_unserved(backup, kinds)))
    found.existing = await _existing(client, found)
    return found


async def create(client: ApiClient, restore: Restore) -> list[str]:
    """Create what does not exist, level by level; answer what failed. Nothing after a level that failed is created."""
    uids = {step.identity: step.uid for step in restore.steps() if step.uid}
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def one(step: Step) -> str:
        async with limit:
            try:
                created = await _create(client, restore, step, uids)
            except (ApiError, Unreachable) as error:
                return f"{step.identity}: {error}"
        uids[step.identity] = uid_of(created)
        return ""

    for _, level in groupby(restore.steps(), key=lambda step: step.level):
        answers = await asyncio.gather(*(one(step) for step in level if _is_unfinished(restore, step)))
        if failed := [answer for answer in answers if answer]:
            return failed
    return []


async def verify(client: ApiClient, restore: Restore) -> list[str]:
    """Read everything back; answer what is absent or different from what should have been created."""
    restore.existing = await _existing(client, restore)
    uids = {identity: uid_of(obj) for identity, obj in restore.existing.items()}
    found = []
    for identity, obj in sorted(restore.backup.objects.items()):
        there = restore.existing.get(identity)
        if there is None:
            found.append(f"{identity} does not exist")
            continue
        # An interrupted call may have ended the pause of some objects.
        wanted = created_form(obj, uids, restore.source, paused=is_paused(there))
        if identity.kind == "Namespace" or not _is_of(there, restore.source.identity):
            continue  # it existed before, and was compared before
        found += [f"{identity}: {field} differs from the backup" for field in differences(wanted, there)]
    return found


def is_paused_by_us(restore: Restore) -> bool:
    """Whether an object is still paused that the backup has unpaused."""
    return next(_paused(restore), None) is not None


async def unpause(client: ApiClient, restore: Restore) -> list[str]:
    """End the pause of everything that was not paused in the backup; answer what failed."""
    failed = []
    for identity, patch in _paused(restore):
        resource = restore.kinds[identity.group, identity.kind]
        try:
            await client.patch(resource, identity.name, identity.namespace, patch)
        except (ApiError, Unreachable) as error:
            failed.append(f"{identity}: {error}")
    return failed


def _paused(restore: Restore) -> Iterator[tuple[ObjectId, Obj]]:
    """What is to be unpaused, and how: classes before Clusters, as they were created."""
    for step in restore.steps():
        there, patch = restore.existing.get(step.identity), unpausing(step.obj)
        if there is None or patch is None or not _is_of(there, restore.source.identity):
            continue
        if is_paused(there):
            yield step.identity, patch


def _is_of(obj: Obj, origin: str) -> bool:
    """Whether an object was created by restoring this backup."""
    return annotations_of(obj).get(names.RESTORED_FROM_ANNOTATION) == origin


def _is_unfinished(restore: Restore, step: Step) -> bool:
    """Whether an object is to be created, or was created by a restore that ended before its fields had managers."""
    if step.action is not Action.RESTORED:
        return step.action is Action.CREATE
    there = _managers(restore.existing[step.identity])
    return any(each not in there for each in _managers(step.obj) if each[1] == "Apply")


async def _create(client: ApiClient, restore: Restore, step: Step, uids: dict[ObjectId, str]) -> Obj:
    resource = restore.kinds[step.identity.group, step.identity.kind]
    created = restore.existing.get(step.identity)
    if created is None:
        try:
            created = await client.create(resource, created_form(step.obj, uids, restore.source))
        except AlreadyExists:
            # A controller was faster, or an answer of ours was lost; the verification compares it.
            return await client.get(resource, step.identity.name, step.identity.namespace)
    if fields := managed_fields(step.obj, uids):
        await _restore_managers(client, resource, created, fields)
    return created


async def _restore_managers(client: ApiClient, resource: Resource, created: Obj, fields: list[Obj]) -> None:
    """Write who manages which field, in place of us; controllers write to a new object at the same time."""
    key, live = key_of(created), created
    replaced = {_OWN, *map(_manager, fields)}
    for attempt in range(_MOST_CONFLICTS):
        others = [each for each in live["metadata"].get("managedFields") or () if _manager(each) not in replaced]
        metadata = {"resourceVersion": live["metadata"]["resourceVersion"], "managedFields": [*fields, *others]}
        try:
            await client.patch(resource, key.name, key.namespace, {"metadata": metadata})
        except Conflict:
            if attempt == _MOST_CONFLICTS - 1:
                raise
            live = await client.get(resource, key.name, key.namespace)
        else:
            return


def _managers(obj: Obj) -> set[tuple[str, str, str]]:
    return set(map(_manager, obj["metadata"].get("managedFields") or ()))


def _manager(entry: Obj) -> tuple[str, str, str]:
    return str(entry.get("manager")), str(entry.get("operation")), str(entry.get("subresource") or "")


def _version(obj: Obj) -> str:
    return str(obj["apiVersion"]).rpartition("/")[2]


def _unserved(backup: Backup, kinds: dict[tuple[str, str], Resource]) -> Iterator[str]:
    for identity, obj in backup.objects.items():
        resource, version = kinds.get((identity.group, identity.kind)), str(obj["apiVersion"])
        if resource is None:
            yield f"{identity.kind} of {identity.group} is not installed there: install its provider first"
        elif resource.api_version != version:
            yield (
                f"{identity.kind} is not served as {version} there, only as {resource.api_version}: install the "
                "provider in the version of the old management cluster, and upgrade it afterwards"
            )


async def _existing(client: ApiClient, restore: Restore) -> dict[ObjectId, Obj]:
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def read(resource: Resource, namespace: str) -> list[Obj]:
        async with limit:
            try:
                return await list_all(client, resource, namespace)
            except NotFound:
                return []

    places = {(identity.group, identity.kind, identity.namespace) for identity in restore.backup.objects}
    known = [(restore.kinds[group, kind], space) for group, kind, space in places if (group, kind) in restore.kinds]
    lists = await asyncio.gather(*(read(resource, space) for resource, space in known))
    return {id_of(obj): obj for objs in lists for obj in objs if id_of(obj) in restore.backup.objects}
