"""Asks a management cluster what objects would be after manifests were applied: by dry runs, which change nothing."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from caphv.api import names
from caphv.api.object import Key, Obj, Resource, annotations_of, key_of
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import ApiError, NotFound
from caphv.runtime.text import TextError, load_json
from overview.backup.graph import is_cluster_api, references
from overview.backup.reading import read_objects
from overview.plan.machinechanges import Action, Field, fields
from overview.plan.pools import Objects, clusters_of
from overview.reader import kinds_of, list_all

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SERVER_SIDE = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid", "selfLink")
_REQUESTS_AT_ONCE = 8
# What other manifests need; in a dry run it does not exist.
_MADE_FIRST = ("Namespace", "ClusterClass")


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What applying one manifest does to its object; `error` says why the API server refuses it."""

    identity: ObjectId
    action: Action | None
    fields: tuple[Field, ...] = ()
    error: str = ""


@dataclass(slots=True)
class Preview:
    """Objects before and after manifests were applied, and the clusters that this concerns."""

    before: dict[ObjectId, Obj] = field(default_factory=dict)
    after: dict[ObjectId, Obj] = field(default_factory=dict)
    changes: list[ObjectChange] = field(default_factory=list)
    clusters: list[Key] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


async def read_preview(client: ApiClient, manifests: Iterable[Obj], default_namespace: str) -> Preview:
    """Compare manifests with what is there. Raises `ApiError`, `Unreachable` when the server cannot be read at all."""
    found = Preview()
    discovery = Discovery(client)
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)
    wanted = [await _placed(discovery, obj, default_namespace) for obj in manifests]

    async def one(resource: Resource | None, obj: Obj) -> None:
        async with limit:
            await _preview(client, found, resource, obj)

    for kind in _MADE_FIRST:
        await asyncio.gather(*(one(*each) for each in wanted if each[1]["kind"] == kind))
    await asyncio.gather(*(one(*each) for each in wanted if each[1]["kind"] not in _MADE_FIRST))
    found.changes.sort(key=lambda change: change.identity)
    changed = {each.identity: found.after[each.identity] for each in found.changes if each.identity in found.after}
    spaces = await _namespaces(client, changed)
    live, found.unseen = await read_objects(client, spaces, changed.values())
    found.before = live | found.before
    found.after = found.before | found.after
    found.clusters = list(clusters_of(changed, found.after))
    return found


async def _namespaces(client: ApiClient, changed: Objects) -> set[str]:
    """Namespaces to read: those of the objects, and of the clusters of classes, for a class that changes."""
    found = {identity.namespace for identity in changed if identity.namespace and is_cluster_api(identity.group)}
    if any(identity.kind == "ClusterClass" or identity.kind.endswith("Template") for identity in changed):
        clusters = await list_all(client, (await kinds_of(client))["clusters"])
        found |= {key_of(obj).namespace for obj in clusters if (obj.get("spec") or {}).get("topology")}
    return found


async def _placed(discovery: Discovery, obj: Obj, default_namespace: str) -> tuple[Resource | None, Obj]:
    """The resource of a manifest, and the manifest with its namespace; None for a kind that is not served."""
    obj = copy.deepcopy(obj)
    try:
        resource: Resource | None = await discovery.resource(obj)
    except (LookupError, NotFound):
        resource = None
    if resource is None or resource.namespaced:
        obj["metadata"].setdefault("namespace", default_namespace)
    return resource, obj


async def _preview(client: ApiClient, found: Preview, resource: Resource | None, obj: Obj) -> None:
    identity = id_of(obj)
    if resource is None:
        error = f"{identity.kind} is not served as {obj['apiVersion']}: install its provider"
        found.changes.append(ObjectChange(identity, Action.REFUSED, error=error))
        return
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    try:
        live: Obj | None = {**head, **await client.get(resource, identity.name, identity.namespace)}
    except NotFound:
        live = None
    try:
        desired = await _desired(client, resource, obj, live)
    except ApiError as error:
        if not _needs_others(found, obj, error):
            found.changes.append(ObjectChange(identity, Action.REFUSED, error=str(error)))
            return
        # The server cannot say more: what it refuses to do without does not exist in a dry run.
        desired = obj if live is None else _overlaid(live, obj)
    desired = {**head, **desired}
    found.after[identity] = desired
    if live is None:
        found.changes.append(ObjectChange(identity, Action.CREATE))
        return
    found.before[identity] = live
    different = tuple(fields(_comparable(live), _comparable(desired)))
    shown = () if identity.kind == "Secret" else different
    found.changes.append(ObjectChange(identity, Action.CHANGE if different else None, shown))


def _needs_others(found: Preview, obj: Obj, error: ApiError) -> bool:
    """Whether an object is refused because its namespace or class is missing, which the same manifests create."""
    created = {change.identity for change in found.changes if change.action is Action.CREATE}
    if isinstance(error, NotFound):
        return ObjectId("", "Namespace", "", key_of(obj).namespace) in created
    return any(each.kind == "ClusterClass" and each in created for each in references(obj))


def _overlaid(live: Any, wanted: Any) -> Any:
    """The live object with the fields of a manifest; lists are those of the manifest."""
    if not isinstance(live, dict) or not isinstance(wanted, dict):
        return wanted
    return {**live, **{name: _overlaid(live.get(name), value) for name, value in wanted.items()}}


async def _desired(client: ApiClient, resource: Resource, obj: Obj, live: Obj | None) -> Obj:
    """What the object would be: as `kubectl apply` would make it where that wrote it, else by server-side apply."""
    last = _last_applied(live)
    if live is None:
        return await client.create(resource, obj, dry_run=True)
    if last is None:
        return await client.apply(resource, obj, manager=_manager(live), dry_run=True)
    key = key_of(live)
    patch = three_way(last, obj, live)
    return await client.patch(resource, key.name, key.namespace, patch, dry_run=True) if patch else live


def three_way(last: Any, wanted: Any, live: Any) -> Obj:
    """The merge patch of `kubectl apply` for custom resources: removes what was applied before and is not any more."""
    patch: Obj = {}
    for name in last if isinstance(last, dict) else ():
        if name not in wanted and isinstance(live, dict) and name in live:
            patch[name] = None
    for name, value in wanted.items():
        there = live.get(name) if isinstance(live, dict) else None
        before = last.get(name) if isinstance(last, dict) else None
        if isinstance(value, dict) and isinstance(there, dict):
            if inner := three_way(before, value, there):
                patch[name] = inner
        elif value != there:
            patch[name] = value
    return patch


def _last_applied(live: Obj | None) -> Obj | None:
    text = annotations_of(live).get(_LAST_APPLIED) if live else None
    if not text:
        return None
    try:
        found = load_json(text)
    except TextError:
        return None
    return found if isinstance(found, dict) else None


def _manager(live: Obj) -> str:
    """Who applied the object: by that name a field that is not applied any more is removed."""
    entries = live["metadata"].get("managedFields") or ()
    applied = [str(each.get("manager")) for each in entries if each.get("operation") == "Apply"]
    return next((each for each in applied if not each.startswith("capi-")), "kubectl")


def _comparable(obj: Obj) -> Obj:
    metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_SIDE}
    ignored = (_LAST_APPLIED, names.RECONCILE_AT_ANNOTATION)
    notes = {name: value for name, value in (metadata.get("annotations") or {}).items() if name not in ignored}
    return {
        **{name: value for name, value in obj.items() if name != "status"},
        "metadata": metadata | {"annotations": notes},
    }
