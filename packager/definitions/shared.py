"""Objects that all clusters of a namespace share: the Namespace and shipped ClusterClasses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import yaml

from caphv import data
from caphv.api.object import Obj
from packager.definitions.model import Definition

NAMESPACE = "namespace"
_FOLDER = "clusterclass"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shared_groups(definition: Definition) -> dict[str, Sequence[Obj]]:
    """Return groups of objects by name, which clusters of the namespace share."""
    # The Namespace comes first, because all other objects are in it.
    namespace = definition.key.namespace
    groups: dict[str, Sequence[Obj]] = {
        NAMESPACE: [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    }
    if definition.cluster_class and (objects := cluster_class(definition.cluster_class, namespace)):
        groups[definition.cluster_class] = objects
    return groups


@lru_cache(maxsize=256)
def cluster_class(name: str, namespace: str) -> Sequence[Obj]:
    """Return a shipped ClusterClass and its templates, templates first; empty for other names.

    Do not modify the objects, because each call returns the same ones, even for a thousand clusters
    of a namespace.
    """
    folder = data.folder(_FOLDER) / name
    if not folder.is_dir():
        return []
    # Sort by file name, so that the result does not depend on the file system.
    objects: list[Obj] = []
    for file in sorted(folder.glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        objects += yaml.load_all(text, Loader=_LOADER)  # noqa: TID251 - our own files
    for obj in objects:
        obj["metadata"]["namespace"] = namespace
    return sorted(objects, key=lambda obj: str(obj["kind"]) == "ClusterClass")
