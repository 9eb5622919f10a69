"""Kubeconfigs that lead to Harvester: what they contain, and which server they name. Pure functions."""

from __future__ import annotations

import base64
import ipaddress

import yaml

from caphv.api.object import Obj, annotations_of

API_PORT = 6443
VIP_ANNOTATION = "kube-vip.io/loadbalancerIPs"


def kubeconfig(*, server: str, ca: str, token: str, namespace: str) -> str:
    """A kubeconfig as Harvester's own generator writes it (contract: context `context`, entries `default`).

    `ca` is PEM; `namespace` is that of the VMs, where the cloud provider looks for them.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "default",
                "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca.encode()).decode()},
            }
        ],
        "users": [{"name": "default", "user": {"token": token}}],
        "contexts": [{"name": "context", "context": {"cluster": "default", "user": "default", "namespace": namespace}}],
        "current-context": "context",
    }
    return yaml.safe_dump(config, sort_keys=False)


def virtual_address(service: Obj | None) -> str:
    """URL of Harvester's API at its virtual address, from Service `kube-system/ingress-expose`; empty without one."""
    address = annotations_of(service).get(VIP_ANNOTATION, "").split(",")[0].strip() if service else ""
    try:
        return f"https://{ipaddress.IPv4Address(address)}:{API_PORT}"
    except ValueError:
        return ""
