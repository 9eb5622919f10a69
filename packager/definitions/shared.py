"""What all clusters of a namespace share: the namespace itself, and the shipped ClusterClasses that they use."""

from __future__ import annotations

import copy
from functools import cache

import yaml

from caphv import data
from packager.definitions.model import Definition
from packager.merge import Obj

NAMESPACE = "namespace"
_FOLDER = "clusterclass"


def shared(definition: Definition) -> dict[str, list[Obj]]:
    """Return groups of objects by name, the same for each cluster of the namespace that uses them."""
    namespace = definition.key.namespace
    found = {NAMESPACE: [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]}
    if definition.cluster_class and (objects := cluster_class(definition.cluster_class, namespace)):
        found[definition.cluster_class] = objects
    return found


def cluster_class(name: str, namespace: str) -> list[Obj]:
    """Return a shipped ClusterClass and its templates, templates first; nothing when there is none of that name."""
    found = copy.deepcopy(_shipped().get(name, []))
    for obj in found:
        obj["metadata"]["namespace"] = namespace
    return found


@cache
def _shipped() -> dict[str, list[Obj]]:
    folders = sorted(path for path in data.folder(_FOLDER).iterdir() if path.is_dir())
    return {folder.name: _objects(folder.name) for folder in folders}


def _objects(name: str) -> list[Obj]:
    files = sorted((data.folder(_FOLDER) / name).glob("*.yaml"))
    found = [obj for file in files for obj in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    return sorted(found, key=lambda obj: str(obj["kind"]) == "ClusterClass")
