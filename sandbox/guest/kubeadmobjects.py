"""What `kubeadm init` makes in a new workload cluster, as far as control plane providers and joining nodes read it."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from caphv.api.object import Obj
from sandbox.processes import pki

SYSTEM, PUBLIC = "kube-system", "kube-public"
JOINING = "system:bootstrappers:kubeadm:default-node-token"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
COREDNS = "registry.k8s.io/coredns/coredns:v1.12.1"
_RBAC = "rbac.authorization.k8s.io"
_READY: Obj = {
    "phase": "Running",
    "conditions": [
        {"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ],
}


def of_init(cluster: Obj, endpoint: str, ca: bytes) -> list[Obj]:
    """The objects of a cluster, from its configuration and CA (PEM)."""
    unknown = pki.kubeconfig(f"https://{endpoint}", ca, name="", user="", credentials={})
    for name in ("users", "contexts", "current-context"):
        unknown.pop(name)
    version = str(cluster["kubernetesVersion"])
    return [
        _config_map("kubeadm-config", SYSTEM, {"ClusterConfiguration": yaml.safe_dump(cluster)}),
        _config_map("cluster-info", PUBLIC, {"kubeconfig": yaml.safe_dump(unknown)}),
        _config_map("coredns", SYSTEM, {"Corefile": ".:53 {\n    errors\n}\n"}),
        *_read_by("kubeadm:nodes-kubeadm-config", SYSTEM, "kubeadm-config", Group=[JOINING, "system:nodes"]),
        *_read_by("kubeadm:bootstrap-signer-clusterinfo", PUBLIC, "cluster-info", User=["system:anonymous"]),
        _cluster_role_binding("kubeadm:cluster-admins", "cluster-admin", "kubeadm:cluster-admins"),
        _cluster_role_binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINING),
        _workload("DaemonSet", "kube-proxy", f"registry.k8s.io/kube-proxy:{version}"),
        _workload("Deployment", "coredns", COREDNS),
    ]


def static_pods(node: str, version: str) -> list[Obj]:
    """The mirror Pods of a control plane node, which kubelet reports ready."""
    return [_static_pod(component, node, version) for component in COMPONENTS]


def _static_pod(component: str, node: str, version: str) -> Obj:
    container = {"name": component, "image": f"registry.k8s.io/{component}:{version}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{component}-{node}",
            "namespace": SYSTEM,
            "labels": {"component": component, "tier": "control-plane"},
            "annotations": {"kubernetes.io/config.mirror": "sandbox", "kubernetes.io/config.source": "file"},
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            # No kubelet confirms that the container has stopped.
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
        "status": _READY,
    }


def _config_map(name: str, namespace: str, data: dict[str, str]) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def _read_by(name: str, namespace: str, config_map: str, **names: Sequence[str]) -> list[Obj]:
    """A Role that reads one ConfigMap, and its binding to subjects by their kinds."""
    subjects = [
        {"apiGroup": _RBAC, "kind": kind, "name": subject} for kind, found in names.items() for subject in found
    ]
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [config_map], "verbs": ["get"]}
    metadata = {"name": name, "namespace": namespace}
    reference = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": subjects,
        },
    ]


def _cluster_role_binding(name: str, role: str, group: str) -> Obj:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
    }


def _workload(kind: str, name: str, image: str) -> Obj:
    labels = {"k8s-app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": name, "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": SYSTEM, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
