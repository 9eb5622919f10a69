"""Objects in memory behind the methods of `ApiClient`, with discovery, dry runs and errors at will.

There are no schemas, and watches only tell of later changes: for decisions about what requests return. What an API
server itself decides is tested against a real one.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from caphv.api.conditions import rfc3339
from caphv.api.object import SELF_SUBJECT_ACCESS_REVIEWS, Key, Obj, Resource, key_of
from caphv.api.objectid import group_of
from caphv.runtime.errors import AlreadyExists, ApiError, Conflict, NotFound, TooLarge, Unreachable

_CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ExtensionConfig",
    "IPPool",
    "Namespace",
    "Node",
    "Setting",
    "StorageClass",
}
_BUILT_IN = {"", "apps", "coordination.k8s.io", "rbac.authorization.k8s.io", "storage.k8s.io"}
_VERBS = ["create", "delete", "get", "list", "patch", "update"]


def plural_of(kind: str) -> str:
    """Return the plural of a kind as API servers have it."""
    name = kind.lower()
    return f"{name}es" if name.endswith("s") else f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


# `name=value`, or `name in (value,value)`.
_REQUIREMENT = re.compile(r"([\w./-]+)(?:=([^,]*)| in \(([^)]*)\))")


def _selects(selector: str, labels: dict[str, str]) -> bool:
    return all(
        labels.get(name) in (values.split(",") if values else [value])
        for name, value, values in _REQUIREMENT.findall(selector)
    )


class MemoryServer:
    """Serves the kinds of its objects, and those of `served` (`group/version` and kind).

    `errors` holds what requests meet, by verb and kind (`get Secret`), or by verb, kind and name. Dry runs have their
    own verbs (`dry-run create`). `requests` lists all that changed something, in the same form. `denied` holds verb and
    plural of rights that reviews deny. A page of a list with more objects than `longest_page` is too large.
    """

    budget = None
    time = None
    name = "memory"
    limits: tuple[str, ...] = ()
    longest_page = 10**6

    def __init__(self, *objs: Obj, served: Iterable[tuple[str, str]] = (), server: str = "https://memory:6443") -> None:
        self.server = server
        self.errors: dict[str, ApiError | Unreachable] = {}
        self.requests: list[str] = []
        self.closings = 0
        self.denied: set[tuple[str, str]] = set()
        self._numbers = itertools.count(1)
        self._watches: dict[tuple[str, str], list[asyncio.Queue[tuple[str, Obj] | None]]] = defaultdict(list)
        self._objs: dict[tuple[str, str], dict[Key, Obj]] = defaultdict(dict)
        self._kinds: dict[str, dict[str, None]] = defaultdict(dict)
        for version, kind in [*served, ("v1", "Secret"), ("v1", "ConfigMap"), ("v1", "Namespace")]:
            self._kinds[version][kind] = None
        for obj in objs:
            self.put(obj)

    def put(self, obj: Obj) -> Obj:
        """Store an object as it is; return what is stored."""
        version, kind = str(obj["apiVersion"]), str(obj["kind"])
        self._kinds[version][kind] = None
        stored = copy.deepcopy(obj)
        stored["metadata"].setdefault("uid", f"uid-{next(self._numbers)}")
        stored["metadata"]["resourceVersion"] = str(next(self._numbers))
        event = "MODIFIED" if key_of(obj) in self._objs[group_of(version), kind] else "ADDED"
        self._objs[group_of(version), kind][key_of(obj)] = stored
        self._tell(event, group_of(version), stored)
        return stored

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Remove an object, as another client does: it is not in `requests`."""
        stored = self._objs[resource.group, resource.kind].pop(Key(namespace, name))
        self._tell("DELETED", resource.group, stored)

    def serve(self, version: str, kind: str) -> None:
        """Serve a kind of which there is no object."""
        self._kinds[version][kind] = None

    def find(self, kind: str, name: str, namespace: str = "") -> Obj | None:
        """Return a stored object."""
        return next(
            (
                objs[Key(namespace, name)]
                for (_, of), objs in self._objs.items()
                if of == kind and Key(namespace, name) in objs
            ),
            None,
        )

    def stored(self, resource: Resource) -> list[Obj]:
        """Return all objects of a kind, by namespace and name."""
        return [obj for _, obj in sorted(self._objs[resource.group, resource.kind].items())]

    async def request(self, method: str, path: str, **_: Any) -> Any:
        assert method == "GET", path
        self._meet("discover", path)
        if path == "/version":
            return {"gitVersion": "v1.36.2"}
        groups: dict[str, list[str]] = defaultdict(list)
        for version in self._kinds:
            groups[group_of(version)].append(version.rpartition("/")[2])
        if path == "/apis":
            return {"groups": [_group(name, versions) for name, versions in groups.items() if name]}
        name = path.removeprefix("/apis/").removeprefix("/api/")
        if name in self._kinds:
            return {"resources": [_resource(kind) for kind in self._kinds[name]]}
        if name in groups and "/" not in name:
            return _group(name, groups[name])
        raise NotFound(404, "NotFound", "the server could not find the requested resource")

    def end_watches(self, resource: Resource) -> None:
        """End the watches of a kind in good order."""
        for queue in self._watches[resource.group, resource.kind]:
            queue.put_nowait(None)

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        self._meet("get", resource.kind, name)
        return self._answer(self._stored(resource, name, namespace))

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        **_: Any,
    ) -> Obj:
        self._meet("list", resource.kind)
        if resource.group not in _BUILT_IN and resource.kind not in self._kinds[resource.api_version]:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        items = [
            self._answer(obj)
            for key, obj in sorted(self._objs[resource.group, resource.kind].items())
            if namespace in ("", key.namespace) and _selects(label_selector, obj["metadata"].get("labels") or {})
        ]
        start, most = int(continue_token or 0), limit or len(items)
        page = items[start : start + most]
        if len(page) > self.longest_page:
            raise TooLarge(f"the list of {resource} has {len(page)} objects")
        more = {"continue": str(start + most)} if start + most < len(items) else {}
        return {"metadata": {"resourceVersion": "1000", **more}, "items": page}

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        on_open: Callable[[], None],
        **_: Any,
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        self._meet("watch", resource.kind)
        queue: asyncio.Queue[tuple[str, Obj] | None] = asyncio.Queue()
        self._watches[resource.group, resource.kind].append(queue)
        on_open()
        while (item := await queue.get()) is not None:
            event, obj = item
            if namespace in ("", key_of(obj).namespace):
                yield event, obj

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        if resource is SELF_SUBJECT_ACCESS_REVIEWS:
            attributes = obj["spec"]["resourceAttributes"]
            return {"status": {"allowed": (attributes["verb"], attributes["resource"]) not in self.denied}}
        self._change("create", resource, obj["metadata"]["name"], dry_run=dry_run)
        if key_of(obj) in self._objs[resource.group, resource.kind]:
            raise AlreadyExists(409, "AlreadyExists", f"{resource} {key_of(obj)} already exists")
        return self._store(resource, obj, dry_run=dry_run)

    async def apply(self, resource: Resource, obj: Obj, *, manager: str, dry_run: bool = False, **_: Any) -> Obj:
        assert manager
        self._change("apply", resource, obj["metadata"]["name"], dry_run=dry_run)
        before = self._objs[resource.group, resource.kind].get(key_of(obj), {})
        return self._store(resource, merged(before, obj), dry_run=dry_run)

    async def patch(
        self, resource: Resource, name: str, namespace: str, patch: Any, *, dry_run: bool = False, **_: Any
    ) -> Obj:
        self._change("patch", resource, name, dry_run=dry_run)
        before = self._stored(resource, name, namespace)
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version not in (None, before["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        return self._store(resource, merged(before, patch), dry_run=dry_run)

    async def replace(self, resource: Resource, obj: Obj, **_: Any) -> Obj:
        self._change("replace", resource, obj["metadata"]["name"], dry_run=False)
        self._stored(resource, *reversed(key_of(obj)))
        return self._store(resource, obj, dry_run=False)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        **_: Any,
    ) -> Obj | None:
        self._change("delete", resource, name, dry_run=False)
        stored = self._stored(resource, name, namespace)
        if uid and uid != stored["metadata"]["uid"]:
            raise NotFound(404, "NotFound", name)
        if resource_version not in ("", stored["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        if stored["metadata"].get("finalizers"):
            stored["metadata"].setdefault("deletionTimestamp", rfc3339(datetime.now(UTC)))
            return self._answer(stored)
        del self._objs[resource.group, resource.kind][key_of(stored)]
        self._tell("DELETED", resource.group, stored)
        return None

    @property
    def closed(self) -> bool:
        return self.closings > 0

    async def close(self) -> None:
        self.closings += 1

    def _tell(self, event: str, group: str, obj: Obj) -> None:
        for queue in self._watches[group, obj["kind"]]:
            queue.put_nowait((event, copy.deepcopy(obj)))

    def _meet(self, verb: str, *what: str) -> None:
        for length in range(len(what) + 1):
            if error := self.errors.get(" ".join((verb, *what[:length]))):
                raise error

    def _change(self, verb: str, resource: Resource, name: str, *, dry_run: bool) -> None:
        if dry_run:
            verb = f"dry-run {verb}"
        else:
            self.requests.append(f"{verb} {resource.kind} {name}")
        self._meet(verb, resource.kind, name)

    def _stored(self, resource: Resource, name: str, namespace: str) -> Obj:
        key = Key(namespace if resource.namespaced else "", name)
        try:
            return self._objs[resource.group, resource.kind][key]
        except KeyError:
            raise NotFound(404, "NotFound", f'{resource} "{name}" not found') from None

    def _store(self, resource: Resource, obj: Obj, *, dry_run: bool) -> Obj:
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        if dry_run:
            return self._answer({**head, **obj})
        stored = self.put({**head, **obj})
        if "deletionTimestamp" in stored["metadata"] and not stored["metadata"].get("finalizers"):
            del self._objs[resource.group, resource.kind][key_of(stored)]
        return self._answer(stored)

    @staticmethod
    def _answer(obj: Obj) -> Obj:
        return copy.deepcopy(obj)


def merged(before: Any, patch: Any) -> Any:
    """Return what a merge patch makes of an object."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _group(name: str, versions: Iterable[str]) -> Obj:
    served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def _resource(kind: str) -> Obj:
    return {"name": plural_of(kind), "kind": kind, "namespaced": kind not in _CLUSTER_SCOPED, "verbs": _VERBS}
