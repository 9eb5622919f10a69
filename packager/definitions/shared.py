"""What all clusters of a namespace share: the namespace itself, and the shipped ClusterClasses that they use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
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


_KNOWN = {
    "harvester-rke2": "8f321c2129d8d8feb1b9551380aeb5f0f7818322fbb8589b179500b9262c0842",
    "harvester-k3s": "37f69c6d8c95c79792bcf1685718250405902e147fd9bac8f4356c2cef1d9c4d",
    "harvester-kubeadm": "eb53af289ecb96b821ac35b76e087eb29a582b6e4f7cf17f6452f1a9c467005c",
}
"""ClusterClasses of 0.11, by the hash of their objects: today's replace them without replacing a machine."""


def is_of_earlier_release(objects: Sequence[Obj]) -> bool:
    """Whether objects are a shipped ClusterClass of 0.11 as it was, which today's may replace in place."""
    name = next((str(obj["metadata"]["name"]) for obj in objects if obj.get("kind") == "ClusterClass"), "")
    return _KNOWN.get(name) == _hash(objects)


def _hash(objects: Sequence[Obj]) -> str:
    content = [{**obj, "metadata": obj["metadata"]["name"]} for obj in objects]
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _read(file: Path) -> list[Obj]:
    return list(yaml.load_all(file.read_text(encoding="utf-8"), Loader=_LOADER))  # noqa: TID251 - our own files
