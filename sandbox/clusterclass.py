"""The shipped ClusterClasses, ready to be applied to a namespace."""

from __future__ import annotations

from typing import Any

from caphv import data
from caphv.api.object import Obj
from sandbox import manifests
from sandbox.capi import v1beta1

HARVESTER_RKE2 = "harvester-rke2"
HARVESTER_K3S = "harvester-k3s"
HARVESTER_KUBEADM = "harvester-kubeadm"
NAMES = (HARVESTER_RKE2, HARVESTER_K3S, HARVESTER_KUBEADM)


def shipped(namespace: str, core: str) -> list[Obj]:
    """All ClusterClasses that a core of an API version can use; kubeadm's has fields that v1beta1 does not have."""
    if core == v1beta1.VERSION:
        return [v1beta1.written(obj) for name in (HARVESTER_RKE2, HARVESTER_K3S) for obj in objects(namespace, name)]
    return [obj for name in NAMES for obj in objects(namespace, name)]


def objects(namespace: str, name: str) -> list[Obj]:
    """A ClusterClass and all its templates, templates first."""
    found = manifests.read(sorted((data.folder("clusterclass") / name).glob("*.yaml")))
    for obj in found:
        obj["metadata"]["namespace"] = namespace
    return sorted(found, key=lambda obj: str(obj["kind"]) == "ClusterClass")


def renamed(found: list[Obj], name: str, new_name: str) -> list[Obj]:
    """A copy of a ClusterClass in which its name and those of its templates start with the new name."""
    return [_renamed(obj, name, new_name) for obj in found]


def _renamed(node: Any, name: str, new_name: str) -> Any:
    if isinstance(node, list):
        return [_renamed(entry, name, new_name) for entry in node]
    if not isinstance(node, dict):
        return node
    changed = {key: _renamed(value, name, new_name) for key, value in node.items()}
    # Names of objects, in their metadata and in references to them.
    if str(changed.get("name", "")).startswith(name) and ("kind" in changed or "namespace" in changed):
        changed["name"] = new_name + changed["name"].removeprefix(name)
    return changed
