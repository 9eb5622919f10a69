"""Ask a management cluster by dry runs for the objects after manifests are applied."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from caphv.api import names
from caphv.api.object import Key, Obj, Resource, annotations_of, at, key_of
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import ApiError, NotFound
from caphv.runtime.text import TextError, load_json
from operations.backup.reading import read_objects
from operations.capacity.machinechanges import Action, Field, fields
from operations.capacity.machinepools import Objects, clusters_of
from operations.read.graph import is_cluster_api, references
from operations.read.management import kinds_of, list_all

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SERVER_SIDE = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
    "selfLink",
)
_REQUESTS_AT_ONCE = 8
# Other manifests need objects of these kinds, which a dry run does not create.
_MADE_FIRST = ("Namespace", "ClusterClass")


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """The effect of one manifest on its object; `error` says why the API server refuses it."""

    identity: ObjectId
    action: Action | None
    fields: tuple[Field, ...] = ()
    error: str = ""


@dataclass(slots=True)
class Preview:
    """Objects before and after manifests are applied, and the affected clusters."""

    before: dict[ObjectId, Obj] = field(default_factory=dict)
    after: dict[ObjectId, Obj] = field(default_factory=dict)
    changes: list[ObjectChange] = field(default_factory=list)
    clusters: list[Key] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


class _Manifest(NamedTuple):
    """A manifest, with its kind; None for a kind that is not served."""

    resource: Resource | None
    obj: Obj


async def read_preview(
    client: ApiClient, manifests: Iterable[Obj], default_namespace: str
) -> Preview:
    """Compare manifests with the existing objects.

    Raises `ApiError`, `Unreachable` when the server cannot be read at all.
    """
    preview = Preview()
    discovery = Discovery(client)
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)
    located = [await _locate(discovery, obj, default_namespace) for obj in manifests]

    async def compare_all(group: Iterable[_Manifest]) -> None:
        async def compare(manifest: _Manifest) -> None:
            async with limit:
                await _preview(client, preview, manifest.resource, manifest.obj)

        await asyncio.gather(*map(compare, group))

    # Whether the other objects are refused depends on the objects that are created first.
    for kind in _MADE_FIRST:
        await compare_all(manifest for manifest in located if manifest.obj["kind"] == kind)
    await compare_all(manifest for manifest in located if manifest.obj["kind"] not in _MADE_FIRST)
    preview.changes.sort(key=lambda change: change.identity)

    changed = {
        change.identity: preview.after[change.identity]
        for change in preview.changes
        if change.identity in preview.after
    }

    # The effect on machines depends on further objects of the same clusters.
    namespaces = await _affected_namespaces(client, changed)
    live, preview.unseen = await read_objects(client, namespaces, changed.values())
    preview.before = live | preview.before
    preview.after = preview.before | preview.after
    preview.clusters = list(clusters_of(changed, preview.after))
    return preview


async def _affected_namespaces(client: ApiClient, changed: Objects) -> set[str]:
    """Return the namespaces of changed objects, and of clusters that may use changed classes."""
    namespaces = {
        identity.namespace
        for identity in changed
        if identity.namespace and is_cluster_api(identity.group)
    }

    # Clusters in every namespace may use a class and its templates.
    kinds = {identity.kind for identity in changed}
    if any(kind == "ClusterClass" or kind.endswith("Template") for kind in kinds):
        clusters = await list_all(client, (await kinds_of(client))["clusters"])
        namespaces |= {key_of(obj).namespace for obj in clusters if at(obj, "spec", "topology")}
    return namespaces


async def _locate(discovery: Discovery, manifest: Obj, default_namespace: str) -> _Manifest:
    """Return a manifest with its namespace."""
    obj = copy.deepcopy(manifest)
    resource = None
    with suppress(LookupError, NotFound):
        resource = await discovery.resource(obj)
    if resource is None or resource.namespaced:
        obj["metadata"].setdefault("namespace", default_namespace)
    return _Manifest(resource, obj)


async def _preview(
    client: ApiClient, preview: Preview, resource: Resource | None, obj: Obj
) -> None:
    """Add the effect of one manifest to a preview.

    :param client: client of the management cluster
    :param preview: gets the object before and after, and the change
    :param resource: the kind of the manifest; None for a kind that is not served
    :param obj: the manifest
    """
    identity = id_of(obj)
    if resource is None:
        error = f"{identity.kind} is not served as {obj['apiVersion']}: install its provider"
        preview.changes.append(ObjectChange(identity, Action.REFUSED, error=error))
        return

    # Responses may lack their version and kind.
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    live: Obj | None = None
    with suppress(NotFound):
        live = {**head, **await client.get(resource, identity.name, identity.namespace)}

    try:
        desired = await _desired(client, resource, obj, live)
    except ApiError as error:
        if not _needs_others(preview, obj, error):
            refusal = _refusal(error, identity.namespace)
            preview.changes.append(ObjectChange(identity, Action.REFUSED, error=refusal))
            return
        # The server cannot say more, because the object that it asks for does not exist in a dry
        # run.
        desired = obj if live is None else _overlay(live, obj)

    desired = {**head, **desired}
    preview.after[identity] = desired
    if live is None:
        preview.changes.append(ObjectChange(identity, Action.CREATE))
        return

    preview.before[identity] = live
    different = tuple(fields(_comparable(live), _comparable(desired)))
    # Values of Secrets must not appear in the terminal.
    shown = () if identity.kind == "Secret" else different
    action = Action.CHANGE if different else None
    preview.changes.append(ObjectChange(identity, action, shown))


def _refusal(error: ApiError, namespace: str) -> str:
    """Return the server's answer, and what to do about a namespace that does not exist."""
    answer = str(error)
    if isinstance(error, NotFound) and answer.startswith(f'namespaces "{namespace}"'):
        return f"{answer}: create it first, or add it to the manifests"
    return answer


def _needs_others(preview: Preview, obj: Obj, error: ApiError) -> bool:
    """Whether an object is refused only because the manifests create its namespace or class."""
    created = {change.identity for change in preview.changes if change.action is Action.CREATE}
    if isinstance(error, NotFound):
        return ObjectId("", "Namespace", "", key_of(obj).namespace) in created
    return any(ref.kind == "ClusterClass" and ref in created for ref in references(obj))


def _overlay(live: Any, manifest: Any) -> Any:
    """Return the live object with the fields of a manifest, which replaces whole lists."""
    if not isinstance(live, dict) or not isinstance(manifest, dict):
        return manifest
    changed = {name: _overlay(live.get(name), value) for name, value in manifest.items()}
    return {**live, **changed}


async def _desired(client: ApiClient, resource: Resource, obj: Obj, live: Obj | None) -> Obj:
    """Return the object after the manifest is applied, without changing it.

    An object that `kubectl apply` wrote is patched in the same way, others by server-side apply.

    :param client: client of the management cluster
    :param resource: the kind of the object
    :param obj: the manifest
    :param live: the live object, None if it does not exist
    """
    if live is None:
        return await client.create(resource, obj, dry_run=True)

    last = _last_applied(live)
    if last is None:
        return await client.apply(resource, obj, manager=_manager(live), dry_run=True)

    patch = three_way(last, obj, live)
    if not patch:
        return live
    key = key_of(live)
    return await client.patch(resource, key.name, key.namespace, patch, dry_run=True)


def three_way(last: Any, manifest: Obj, live: Obj) -> Obj:
    """Return the merge patch of `kubectl apply` for custom resources.

    It removes fields that were applied before and are no longer in the manifest.
    """
    applied: Obj = last if isinstance(last, dict) else {}
    patch: Obj = {name: None for name in applied if name not in manifest and name in live}

    for name, value in manifest.items():
        live_value = live.get(name)
        if isinstance(value, dict) and isinstance(live_value, dict):
            if inner := three_way(applied.get(name), value, live_value):
                patch[name] = inner
        elif value != live_value:
            patch[name] = value
    return patch


def _last_applied(live: Obj) -> Obj | None:
    """Return the manifest that `kubectl apply` recorded, None if it did not write the object."""
    text = annotations_of(live).get(_LAST_APPLIED)
    if not text:
        return None

    # Any user can write the annotation, so that an invalid value counts as absent.
    try:
        manifest = load_json(text)
    except TextError:
        return None
    return manifest if isinstance(manifest, dict) else None


def _manager(live: Obj) -> str:
    """Return the field manager that applied the object.

    Under the same name the server removes a field that is no longer applied.
    """
    for entry in live["metadata"].get("managedFields") or ():
        manager = str(entry.get("manager"))
        # Cluster API's controllers also use apply, for the objects of a topology.
        if entry.get("operation") == "Apply" and not manager.startswith("capi-"):
            return manager
    return "kubectl"


def _comparable(obj: Obj) -> Obj:
    """Return an object without the fields that manifests do not have."""
    ignored = (_LAST_APPLIED, names.RECONCILE_AT_ANNOTATION)
    metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_SIDE}
    metadata["annotations"] = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name not in ignored
    }
    content = {name: value for name, value in obj.items() if name != "status"}
    return {**content, "metadata": metadata}
