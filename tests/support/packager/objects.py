"""Objects of Cluster API and Fleet as the packager reads them."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj

INFRASTRUCTURE, CONTROL_PLANE = "infrastructure.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"


def obj(group: str, kind: str, name: str, spec: Obj | None = None, namespace: str = "team", **metadata: Any) -> Obj:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **metadata}
    return {"apiVersion": f"{group}/v1beta1", "kind": kind, "metadata": metadata, "spec": spec or {}}


def cluster(name: str = "demo", namespace: str = "team", **spec: Any) -> Obj:
    return obj("cluster.x-k8s.io", "Cluster", name, spec, namespace)


def reference(group: str, kind: str, version: str) -> Obj:
    place = {"apiGroup": group} if version == "v1beta2" else {"apiVersion": f"{group}/v1beta1", "namespace": "team"}
    return {"kind": kind, "name": "demo", **place}


CLASS = obj(
    "cluster.x-k8s.io",
    "ClusterClass",
    "rke2",
    {
        "infrastructure": {"ref": {"apiVersion": f"{INFRASTRUCTURE}/v1beta1", "kind": "HarvesterClusterTemplate"}},
        "controlPlane": {"templateRef": reference(CONTROL_PLANE, "RKE2ControlPlaneTemplate", "v1beta2")},
        "variables": [{"name": "cni", "schema": {"openAPIV3Schema": {"default": "canal"}}}],
    },
)


TEMPLATE = obj(
    CONTROL_PLANE,
    "RKE2ControlPlaneTemplate",
    "demo",
    {"template": {"spec": {"serverConfig": {"cni": "calico", "cloudProviderName": "harvester"}}}},
)
