"""The shipped ClusterClasses, ready to be applied to a namespace."""

from __future__ import annotations

from caphv import data
from caphv.runtime.resource import Obj
from sandbox import manifests

HARVESTER_RKE2 = "harvester-rke2"


def objects(namespace: str, name: str = HARVESTER_RKE2) -> list[Obj]:
    """A ClusterClass and all its templates, templates first."""
    found = manifests.read(sorted((data.folder("clusterclass") / name).glob("*.yaml")))
    for obj in found:
        obj["metadata"]["namespace"] = namespace
    return sorted(found, key=lambda obj: str(obj["kind"]) == "ClusterClass")
