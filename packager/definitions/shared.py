"""What all clusters of a namespace share: the namespace itself, and the shipped ClusterClasses that they use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from caphv import data
from caphv.api.object import Obj
from packager.definitions.model import Definition

NAMESPACE = "namespace"
_FOLDER = "clusterclass"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shared(definition: Definition) -> dict[str, Sequence[Obj]]:
    """Return groups of objects by name, the same for each cluster of the namespace that uses them."""
    namespace = definition.key.namespace
    found: dict[str, Sequence[Obj]] = {
        NAMESPACE: [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    }
    if definition.cluster_class and (objects := cluster_class(definition.cluster_class, namespace)):
        found[definition.cluster_class] = objects
    return found


@lru_cache(maxsize=256)
def cluster_class(name: str, namespace: str) -> Sequence[Obj]:
    """Return a shipped ClusterClass and its templates, templates first; nothing when there is none of that name.

    Each call returns the same objects, for a thousand clusters of a namespace: do not modify them.
    """
    folder = data.folder(_FOLDER) / name
    found = [obj for file in sorted(folder.glob("*.yaml")) for obj in _read(file)] if folder.is_dir() else []
    for obj in found:
        obj["metadata"]["namespace"] = namespace
    return sorted(found, key=lambda obj: str(obj["kind"]) == "ClusterClass")


def _read(file: Path) -> list[Obj]:
    return list(yaml.load_all(file.read_text(encoding="utf-8"), Loader=_LOADER))  # noqa: TID251 - our own files
