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


def shipped_objects(core: str) -> list[Obj]:
    """Return the ClusterClasses for a core with the API version `core`, and their templates.

    They are in namespace `default`.
    """
    if core != v1beta1.VERSION:
        return [obj for name in NAMES for obj in objects("default", name)]

    # The class of kubeadm has fields that v1beta1 does not have.
    return [
        v1beta1.to_v1beta1(obj)
        for name in (HARVESTER_RKE2, HARVESTER_K3S)
        for obj in objects("default", name)
    ]


def objects(namespace: str, name: str) -> list[Obj]:
    """Read a ClusterClass and all its templates, templates first."""
    files = sorted((data.folder("clusterclass") / name).glob("*.yaml"))
    class_and_templates = manifests.read(files)
    for obj in class_and_templates:
        obj["metadata"]["namespace"] = namespace
    return sorted(class_and_templates, key=lambda obj: str(obj["kind"]) == "ClusterClass")


def rename(class_and_templates: list[Obj], name: str, new_name: str) -> list[Obj]:
    """Copy a ClusterClass and its templates, and replace the prefix `name` in their names."""
    return [_rename(obj, name, new_name) for obj in class_and_templates]


def _rename(node: Any, name: str, new_name: str) -> Any:
    if isinstance(node, list):
        return [_rename(entry, name, new_name) for entry in node]
    if not isinstance(node, dict):
        return node

    copy = {key: _rename(value, name, new_name) for key, value in node.items()}
    # Replace only names of objects, in their metadata and in references to them. Names of variables
    # and patches stay.
    is_object_name = "kind" in copy or "namespace" in copy
    if is_object_name and str(copy.get("name", "")).startswith(name):
        copy["name"] = new_name + copy["name"].removeprefix(name)
    return copy
