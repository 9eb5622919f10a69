"""Identify an object in any management cluster, whatever its version."""

from __future__ import annotations

from typing import Any, NamedTuple

from caphv.api.object import Key, Obj, key_of


class ObjectId(NamedTuple):
    """An object whatever its version: group, kind, namespace and name."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {Key(self.namespace, self.name)}"


def id_of(obj: Obj) -> ObjectId:
    """Return the identity of an object in any management cluster."""
    return ObjectId(group_of(obj.get("apiVersion")), str(obj["kind"]), *key_of(obj))


def group_of(api_version: Any) -> str:
    """Return the API group of an `apiVersion`; empty for the core group."""
    group, slash, _ = str(api_version or "").partition("/")
    return group if slash else ""
