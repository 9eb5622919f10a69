"""The shipped ClusterClasses, ready to be applied to a namespace."""

from __future__ import annotations

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
