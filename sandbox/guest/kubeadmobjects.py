"""The objects that `kubeadm init` creates in a new workload cluster.

They are limited to the objects that control plane providers and joining nodes read.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from caphv.api.object import Obj
from sandbox.guest.kubelet import mirror_pod
from sandbox.processes import pki

SYSTEM = "kube-system"
PUBLIC = "kube-public"
JOINING = "system:bootstrappers:kubeadm:default-node-token"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
COREDNS = "registry.k8s.io/coredns/coredns:v1.12.1"
_ETCD_CERTIFICATES = "etcd-certs"
_ETCD_PKI = "/etc/kubernetes/pki/etcd"
_RBAC = "rbac.authorization.k8s.io"
_READY: Obj = {
    "phase": "Running",
    "conditions": [
        {"type": kind, "status": "True"}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ],
}


def init_objects(cluster: Obj, endpoint: str, ca: bytes) -> list[Obj]:
    """Return the objects of a new cluster.

    :param cluster: the ClusterConfiguration
    :param endpoint: `host:port` of the cluster's API
    :param ca: the CA of the cluster, PEM
    """
    # Nodes read `cluster-info` before they have credentials, so it names only the server and its
    # CA.
    anonymous = pki.kubeconfig(f"https://{endpoint}", ca, name="", user="", credentials={})
    for name in ("users", "contexts", "current-context"):
        anonymous.pop(name)

    version = str(cluster["kubernetesVersion"])
    return [
        _config_map("kubeadm-config", SYSTEM, {"ClusterConfiguration": yaml.safe_dump(cluster)}),
        _config_map("cluster-info", PUBLIC, {"kubeconfig": yaml.safe_dump(anonymous)}),
        _config_map("coredns", SYSTEM, {"Corefile": ".:53 {\n    errors\n}\n"}),
        # Joining nodes read the first ConfigMap with their token, and the second without a token.
        *_allow_reading(
            "kubeadm:nodes-kubeadm-config",
            SYSTEM,
            "kubeadm-config",
            Group=[JOINING, "system:nodes"],
        ),
        *_allow_reading(
            "kubeadm:bootstrap-signer-clusterinfo",
            PUBLIC,
            "cluster-info",
            User=["system:anonymous"],
        ),
        _cluster_role_binding("kubeadm:cluster-admins", "cluster-admin", "kubeadm:cluster-admins"),
        _cluster_role_binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINING),
        _workload("DaemonSet", "kube-proxy", f"registry.k8s.io/kube-proxy:{version}"),
        _workload("Deployment", "coredns", COREDNS),
    ]


def static_pods(node: str, version: str) -> list[Obj]:
    """Return the mirror Pods of a control plane node, which the kubelet reports as ready."""
    pods = [
        mirror_pod(component, node, component, f"registry.k8s.io/{component}:{version}")
        | {"status": _READY}
        for component in COMPONENTS
    ]

    # The certificates of etcd, by which clients recognize its Pod as one of kubeadm.
    spec = pods[COMPONENTS.index("etcd")]["spec"]
    spec["volumes"] = [{"name": _ETCD_CERTIFICATES, "hostPath": {"path": _ETCD_PKI}}]
    mount = {"name": _ETCD_CERTIFICATES, "mountPath": _ETCD_PKI}
    spec["containers"] = [{**spec["containers"][0], "volumeMounts": [mount]}]
    return pods


def _config_map(name: str, namespace: str, data: dict[str, str]) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def _allow_reading(name: str, namespace: str, config_map: str, **names: Sequence[str]) -> list[Obj]:
    """Return a Role that reads one ConfigMap, and its binding to subjects.

    `names` are the names of the subjects by their kinds.
    """
    metadata = {"name": name, "namespace": namespace}
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [config_map],
        "verbs": ["get"],
    }
    role = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": [rule],
    }

    subjects = [
        {"apiGroup": _RBAC, "kind": kind, "name": subject}
        for kind, subjects_of_kind in names.items()
        for subject in subjects_of_kind
    ]
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": subjects,
    }
    return [role, binding]


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
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": name, "image": image}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": SYSTEM, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
