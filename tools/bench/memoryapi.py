"""An API server that holds objects in memory: without admission, schemas and authorization.

It answers creations, reads, patches, deletions, lists and watches as kube-apiserver does, as far as
the provider asks.
"""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from caphv.api.conditions import rfc3339
from caphv.api.object import Obj, at, key_of

_HISTORY = 5000
_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "ownerReferences",
)


class Refused(Exception):
    """A request was refused: an answer other than 2xx."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "kind": "Status",
            "code": status,
            "reason": reason,
            "message": message or reason,
        }


@dataclass(eq=False)
class Watch:
    """A watch that is open."""

    namespace: str
    name: str
    metadata_only: bool
    events: list[bytes] = field(default_factory=list)
    has_events: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, kind: str, obj: Obj) -> None:
        """Queue an event if the watch selects the object."""
        metadata = obj["metadata"]
        if self.selects(metadata.get("namespace", ""), metadata["name"]):
            shown = {"metadata": _select_metadata(metadata)} if self.metadata_only else obj
            self.events.append(orjson.dumps({"type": kind, "object": shown}) + b"\n")
            self.has_events.set()

    def take_events(self) -> list[bytes]:
        """Return the queued events and empty the queue."""
        events = self.events
        self.events = []
        self.has_events.clear()
        return events

    def selects(self, namespace: str, name: str) -> bool:
        """Return whether an object is in the namespace, and has the name, of the watch."""
        return self.namespace in ("", namespace) and self.name in ("", name)


@dataclass
class Collection:
    """All objects of one resource; `history` has the last changes."""

    objects: dict[tuple[str, str], Obj] = field(default_factory=dict)
    watches: set[Watch] = field(default_factory=set)
    history: deque[tuple[int, str, Obj]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    oldest: int = 0


class Server:
    """One API server; it calls `on_change` for each change, before watches report it."""

    def __init__(self, name: str, on_change: Callable[[Server, str, str, Obj], None]) -> None:
        self.name = name
        self._on_change = on_change
        self._version = 1
        self._collections: dict[str, Collection] = {}

    def collection(self, plural: str) -> Collection:
        """Return the objects of a resource."""
        return self._collections.setdefault(plural, Collection())

    def create(self, plural: str, namespace: str, obj: Obj) -> Obj:
        """Create an object. Raises `Refused`."""
        metadata = dict(obj["metadata"])
        if namespace:
            metadata["namespace"] = namespace
        key = namespace, metadata["name"]
        if key in self.collection(plural).objects:
            raise Refused(409, "AlreadyExists")

        metadata |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now()}
        return self._put(plural, "ADDED", {**obj, "metadata": metadata})

    def get(self, plural: str, namespace: str, name: str) -> Obj:
        """Return an object. Raises `Refused`."""
        obj = self.collection(plural).objects.get((namespace, name))
        if obj is None:
            raise Refused(404, "NotFound", f"{plural} {namespace}/{name}")
        return obj

    def patch(
        self, plural: str, namespace: str, name: str, patch: Any, subresource: str = ""
    ) -> Obj:
        """Apply a merge patch, or a JSON patch if it is a list. Raises `Refused`."""
        before = self.get(plural, namespace, name)
        if isinstance(patch, list):
            after = orjson.loads(orjson.dumps(before))
            for step in patch:
                _apply_json_patch(after, step)
        else:
            version = at(patch, "metadata", "resourceVersion")
            if version and version != before["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict")
            after = {
                **before,
                "status": _apply_merge_patch(before.get("status"), patch.get("status")),
            }
            if subresource != "status":
                after = _apply_merge_patch(before, patch)

        metadata = {**after["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
        if after.get("spec") != before.get("spec"):
            metadata["generation"] = before["metadata"]["generation"] + 1
        after = {**after, "metadata": metadata}

        # Like an API server, report no event for a write that changes nothing.
        if after == before:
            return before
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self._remove(plural, after)
        return self._put(plural, "MODIFIED", after)

    def delete(self, plural: str, namespace: str, name: str) -> Obj:
        """Delete an object, or mark it while it has finalizers. Raises `Refused`."""
        obj = self.get(plural, namespace, name)
        if not obj["metadata"].get("finalizers"):
            self._remove(plural, obj)
            return {"kind": "Status", "status": "Success"}
        metadata = {**obj["metadata"], "deletionTimestamp": _now()}
        return self._put(plural, "MODIFIED", {**obj, "metadata": metadata})

    def items(self, plural: str, watch: Watch) -> Obj:
        """Return the list of the objects that a watch selects."""
        items = [
            {"metadata": _select_metadata(obj["metadata"])} if watch.metadata_only else obj
            for key, obj in self.collection(plural).objects.items()
            if watch.selects(*key)
        ]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    def open(self, plural: str, watch: Watch, since: int) -> None:
        """Begin a watch after a version. Raises `Refused` if the history begins later."""
        collection = self.collection(plural)
        if since < collection.oldest:
            raise Refused(410, "Expired")
        for version, kind, obj in collection.history:
            if version > since:
                watch.offer(kind, obj)
        collection.watches.add(watch)

    def bookmark(self) -> bytes:
        """Return an event that says how far a watch is."""
        metadata = {"resourceVersion": str(self._version)}
        return orjson.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}) + b"\n"

    def _put(self, plural: str, kind: str, obj: Obj) -> Obj:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.collection(plural).objects[key_of(obj)] = obj
        return self._record(plural, kind, obj)

    def _remove(self, plural: str, obj: Obj) -> Obj:
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        del self.collection(plural).objects[key_of(obj)]
        return self._record(plural, "DELETED", obj)

    def _record(self, plural: str, kind: str, obj: Obj) -> Obj:
        collection = self.collection(plural)
        if len(collection.history) == _HISTORY:
            # The deque drops this change. A client whose watch begins before it has to list again.
            collection.oldest = collection.history[0][0]
        collection.history.append((self._version, kind, obj))

        self._on_change(self, plural, kind, obj)
        for watch in collection.watches:
            watch.offer(kind, obj)
        return obj


def _select_metadata(metadata: Obj) -> Obj:
    return {name: metadata[name] for name in _METADATA if name in metadata}


def _apply_merge_patch(before: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return before if patch is None else patch
    merged = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _apply_merge_patch(merged.get(name), value)
    return merged


def _apply_json_patch(obj: Any, step: Obj) -> None:
    """Apply a step of a JSON patch in place: `add`, `remove` or `test`. Raises `Refused`."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    parents = parts[:-1]
    last = parts[-1]
    for part in parents:
        obj = obj[int(part)] if isinstance(obj, list) else obj.setdefault(part, {})

    place: Any = int(last) if isinstance(obj, list) else last
    if step["op"] == "remove":
        del obj[place]
    elif step["op"] == "add":
        obj[place] = step["value"]
    elif obj[place] != step["value"]:
        raise Refused(422, "Invalid")


def _now() -> str:
    return rfc3339(datetime.datetime.now(datetime.UTC))
