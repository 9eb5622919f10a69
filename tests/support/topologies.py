"""A cluster of a shipped class with two pools, and edits of its topology."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from caphv.api.object import Key, Obj
from caphv.api.objectid import ObjectId, id_of
from tests.support.clusterclasses import objects as class_objects

KEY = Key("team", "shop")


def world(name: str = "harvester-rke2") -> dict[ObjectId, Obj]:
    """A cluster with two pools and its class."""
    variables = {
        "targetNamespace": "vms",
        "image": "default/sles-15",
        "sshKeyPair": "default/key",
        "vmNetworks": ["default/production"],
        "ipPoolRef": "machines",
        "gateway": "10.0.0.1",
        "subnetMask": "255.255.255.0",
        "cpuCount": 2,
        "memorySize": "4Gi",
    }
    pools = [{"class": "default-worker", "name": pool, "replicas": 2} for pool in ("md-0", "md-1")]
    cluster = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": KEY.name, "namespace": KEY.namespace},
        "spec": {
            "topology": {
                "classRef": {"name": name, "namespace": "classes"},
                "version": "v1.36.2",
                "controlPlane": {"replicas": 3},
                "workers": {"machineDeployments": pools},
                "variables": [{"name": key, "value": value} for key, value in variables.items()],
            }
        },
    }
    objs = [cluster, *copy.deepcopy(class_objects(name))]
    for obj in objs[1:]:
        obj["metadata"]["namespace"] = "classes"
    return {id_of(obj): obj for obj in objs}


def topology(objects: dict[ObjectId, Obj]) -> Obj:
    return next(obj for identity, obj in objects.items() if identity.kind == "Cluster")["spec"]["topology"]


def variable(name: str, value: Any) -> Callable[[Obj], None]:
    def edit(found: Obj) -> None:
        found["variables"] = [each for each in found["variables"] if each["name"] != name]
        found["variables"].append({"name": name, "value": value})

    return edit
