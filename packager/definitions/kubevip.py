"""kube-vip without a ClusterClass, in the same way as patches of the shipped classes.

Machines of the control plane hold the address of its endpoint, one at a time. Each of them runs
kube-vip as a static Pod, with the kubeconfig that its distribution writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from caphv.api.object import Obj, at, list_at
from caphv.validation.finding import Fault, Finding
from packager.rendering import yaml

RULE = "live-kube-vip"

FILES = {
    "rke2": "/var/lib/rancher/rke2/agent/pod-manifests/kube-vip.yaml",
    "k3s": "/var/lib/rancher/k3s/agent/pod-manifests/kube-vip.yaml",
    "kubeadm": "/etc/kubernetes/manifests/kube-vip.yaml",
}
_KUBEADM_LINK = "/etc/kubernetes/kube-vip.conf"
_KUBECONFIGS = {
    "rke2": "/etc/rancher/rke2/rke2.yaml",
    "k3s": "/etc/rancher/k3s/k3s.yaml",
    "kubeadm": _KUBEADM_LINK,
}
_CONFIGS: tuple[tuple[str, ...], ...] = ((), ("kthreesConfigSpec",), ("kubeadmConfigSpec",))
"""Paths below the spec of a control plane where its distribution has files."""
_IMAGE = "kube-vip/kube-vip:v1.2.3"
_REGISTRY = "ghcr.io"
# Only super-admin.conf has rights while `kubeadm init` runs, and only the first machine has it.
_LINK_FIRST_CREDENTIALS = (
    f"if [ -f /run/kubeadm/kubeadm.yaml ]; then ln -sf super-admin.conf {_KUBEADM_LINK}; "
    f"else ln -sf admin.conf {_KUBEADM_LINK}; fi"
)
_LINK_CREDENTIALS = f"ln -sf admin.conf {_KUBEADM_LINK}"


def with_image(balancer: Mapping[str, Any], registry: str) -> Obj:
    """Return `spec.loadBalancer` of a definition with the image of kube-vip from a registry.

    Returns it as it is without kube-vip, with an image, or without a `registry`.
    """
    settings = balancer.get("kubeVip")
    if settings is None or "image" in settings or not registry:
        return dict(balancer)
    return {**balancer, "kubeVip": {**settings, "image": f"{registry}/{_IMAGE}"}}


def server_files(distribution: str, balancer: Mapping[str, Any]) -> Sequence[Obj]:
    """Return the static Pod among the files of servers; nothing without kube-vip.

    :param balancer: `spec.loadBalancer` of a definition
    """
    if "kubeVip" not in balancer:
        return []
    pod = _pod(balancer["kubeVip"], balancer["endpoint"]["host"], _KUBECONFIGS[distribution])
    return [
        {
            "path": FILES[distribution],
            "owner": "root:root",
            "permissions": "0600",
            "content": yaml.dump(pod),
        }
    ]


class KubeadmCommands(NamedTuple):
    """Commands that servers run before and after kubeadm."""

    before: Sequence[str] = ()
    after: Sequence[str] = ()


def kubeadm_commands(balancer: Mapping[str, Any]) -> KubeadmCommands:
    """Return the commands of servers; nothing without kube-vip."""
    if "kubeVip" not in balancer:
        return KubeadmCommands()
    return KubeadmCommands([_LINK_FIRST_CREDENTIALS], [_LINK_CREDENTIALS])


def check_change(existing: Sequence[Obj], desired: Sequence[Obj]) -> Iterator[Finding]:
    """Yield a refusal if a running cluster would get kube-vip or lose it.

    The classes have the same rule for their variable.
    """
    old = _holds_endpoint(existing)
    new = _holds_endpoint(desired)
    if old is None or new is None or old == new:
        return
    if new:
        detail = (
            "must not be added to a running cluster, because its endpoint has a holder already: "
            "remove it, or create a new cluster"
        )
    else:
        detail = (
            "must not be removed from a running cluster, because nothing would hold its endpoint "
            "after the rollout: set it back, or create a new cluster"
        )
    yield Finding(("spec", "loadBalancer", "kubeVip"), Fault.FORBIDDEN, detail, RULE)


def _holds_endpoint(objects: Sequence[Obj]) -> bool | None:
    """Return whether servers of a cluster hold its endpoint by kube-vip; None if unknown.

    A topology says so in a variable. Without a topology, the file of the static Pod shows it.
    """
    by_kind = {str(obj.get("kind")): obj for obj in objects}
    cluster = by_kind.get("Cluster")
    if at(cluster, "spec", "topology"):
        variables = list_at(cluster, "spec", "topology", "variables")
        balancers = [at(row, "value") for row in variables if at(row, "name") == "loadBalancer"]
        return any(at(balancer, "kubeVip") is not None for balancer in balancers)

    infrastructure = by_kind.get("HarvesterCluster")
    servers = [obj for kind, obj in by_kind.items() if kind.endswith("ControlPlane")]
    if not infrastructure or not servers:
        return None
    # With a load balancer on Harvester, users may have a Pod of their own there for Services.
    if at(infrastructure, "spec", "loadBalancerConfig", "ipamType") != "none":
        return False
    specs = [at(obj, "spec", *path) for obj in servers for path in _CONFIGS]
    files = [file for spec in specs for file in list_at(spec, "files")]
    return any(at(file, "path") in FILES.values() for file in files)


def _pod(settings: Mapping[str, Any], address: str, kubeconfig: str) -> Obj:
    """Return the static Pod of kube-vip, which announces an address by ARP.

    :param settings: `spec.loadBalancer.kubeVip` of a definition
    :param address: address of the endpoint
    :param kubeconfig: the kubeconfig that the distribution writes on a server
    """
    interface = {"vip_interface": settings["interface"]} if "interface" in settings else {}
    environment = {
        "vip_arp": "true",
        "port": "6443",
        **interface,
        "vip_subnet": "32",
        "dns_mode": "first",
        "cp_enable": "true",
        "cp_namespace": "kube-system",
        "svc_enable": "false",
        "vip_leaderelection": "true",
        "vip_leasename": "plndr-cp-lock",
        "vip_leaseduration": "5",
        "vip_renewdeadline": "3",
        "vip_retryperiod": "1",
        "address": address,
        # kube-vip of the cloud provider may serve its metrics on port 2112 of the machine.
        "prometheus_server": "127.0.0.1:2113",
    }
    node_name = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    container = {
        "name": "kube-vip",
        "image": settings.get("image") or f"{_REGISTRY}/{_IMAGE}",
        "imagePullPolicy": "IfNotPresent",
        "args": ["manager"],
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            {"name": "vip_nodename", "valueFrom": node_name},
        ],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "kubeconfig", "mountPath": "/etc/kubernetes/admin.conf", "readOnly": True}
        ],
    }

    # A missing kubeconfig must not become a folder, which its writer cannot replace.
    volume = {"name": "kubeconfig", "hostPath": {"path": kubeconfig, "type": "File"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-vip", "namespace": "kube-system"},
        "spec": {
            "containers": [container],
            # kube-vip calls the API server of its machine by this name.
            "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["kubernetes"]}],
            "hostNetwork": True,
            "volumes": [volume],
        },
    }
