"""ConfigMaps that tests write to check how changes arrive."""

from __future__ import annotations

from caphv.api.object import Obj


def config_map(name: str, namespace: str, **data: str) -> Obj:
    metadata = {"namespace": namespace, "name": name, "labels": {"test": namespace}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
