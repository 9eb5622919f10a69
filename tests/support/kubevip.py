"""Clusters of the shipped classes whose control plane machines hold their address by kube-vip."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj
from caphv.clusterclass.templates import Part, apply_patches, variables_of
from tests.support.clusterclasses import objects, templates

DISTRIBUTIONS = ["rke2", "k3s", "kubeadm"]
ADDRESS = "172.16.0.5"


def balancer(**settings: str) -> Obj:
    return {"ipamType": "none", "endpoint": {"host": ADDRESS}, "kubeVip": settings}


def the_class(distribution: str) -> Obj:
    (cluster_class,) = (obj for obj in objects(f"harvester-{distribution}") if obj["kind"] == "ClusterClass")
    return cluster_class


def patched(distribution: str, role: str, kind: str, values: Obj) -> Obj:
    """Return the spec of a template after the patches of a Cluster with these variables."""
    (template,) = (obj for _, obj in templates(f"harvester-{distribution}") if obj["kind"].endswith(kind))
    values = {"identitySecretName": "identity", "targetNamespace": "demo", **values}
    if distribution != "kubeadm":
        values.setdefault("cni", "calico" if distribution == "rke2" else "flannel")
    topology = {"variables": [{"name": name, "value": value} for name, value in values.items()]}
    cluster = {"metadata": {"name": "demo", "namespace": "team"}, "spec": {"topology": topology}}
    cluster_class = the_class(distribution)
    return apply_patches(cluster_class, Part(role, template), variables_of(cluster_class, cluster))


def server(distribution: str, **values: Any) -> Obj:
    spec = patched(distribution, "controlPlane", "ControlPlaneTemplate", values)
    return spec.get("kthreesConfigSpec") or spec.get("kubeadmConfigSpec") or spec
