"""Build kubeconfigs for Harvester, and find the address that they should name. Pure functions."""

from __future__ import annotations

import base64
import ipaddress
from urllib.parse import urlsplit

import yaml

from caphv.api import names
from caphv.api.object import Obj, annotations_of

API_PORT = 6443


def kubeconfig(*, server: str, ca: str, token: str, namespace: str) -> str:
    """Return a kubeconfig as Harvester's own generator writes it.

    :param server: URL of Harvester's API
    :param ca: CA of the server (PEM)
    :param token: token of the account
    :param namespace: namespace of the VMs, where the cloud provider looks for them
    """
    # The names of the context and of its entries are part of the contract.
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "default",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(ca.encode()).decode(),
                },
            }
        ],
        "users": [{"name": "default", "user": {"token": token}}],
        "contexts": [
            {
                "name": "context",
                "context": {"cluster": "default", "user": "default", "namespace": namespace},
            }
        ],
        "current-context": "context",
    }
    return yaml.safe_dump(config, sort_keys=False)


def virtual_address(service: Obj | None) -> str:
    """Return the URL of Harvester's API at its virtual address, empty without one.

    :param service: Service `kube-system/ingress-expose` of Harvester
    """
    if service is None:
        return ""
    address = annotations_of(service).get(names.VIP_ANNOTATION, "").split(",")[0].strip()
    try:
        return f"https://{ipaddress.IPv4Address(address)}:{API_PORT}"
    except ValueError:
        return ""


def api_server(url: str) -> str:
    """Return the URL of Harvester's own API server.

    :param url: URL of that API server, or of Rancher's proxy in front of it
    """
    # The kubeconfig that Harvester offers for download leads to the proxy, which accepts no tokens
    # of ServiceAccounts.
    parts = urlsplit(url)
    if not parts.path.startswith("/k8s/clusters/"):
        return url.rstrip("/")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"https://{host}:{API_PORT}"
