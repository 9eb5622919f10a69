"""An account on Harvester for this provider, with the rights that it needs and no others, and its kubeconfig.

The rights are those of `deploy/harvester`, on which tests run the provider. With target namespaces the account can
touch objects of machines and load balancers there only; without, anywhere, so that the provider can make new ones.
"""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from caphv import data
from caphv.api.object import NAMESPACES, SECRETS, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from reconciler.cluster.account import ACCOUNT_ANNOTATION, CLUSTER_ROLE_BINDINGS, SERVICE_ACCOUNTS, TOKEN_TYPE
from reconciler.cluster.kubeconfig import API_PORT, kubeconfig
from reconciler.harvester.session import HARVESTER_NAMESPACE

MANAGER = "caphv-identity"
MOVE_LABEL = "clusterctl.cluster.x-k8s.io/move"
EVERYWHERE, IN_NAMESPACE = "caphv-identity", "caphv-identity-namespace"
_RBAC = "rbac.authorization.k8s.io"
_ROLE_BINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding")
_RESOURCES = {
    resource.kind: resource
    for resource in (
        NAMESPACES,
        SERVICE_ACCOUNTS,
        SECRETS,
        CLUSTER_ROLE_BINDINGS,
        _ROLE_BINDINGS,
        Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
        Resource(_RBAC, "v1", "roles", "Role"),
    )
}
_TOKEN_SECONDS = 30.0


class AccountError(Exception):
    """The account cannot be made; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """A ServiceAccount `name` in `namespace` on Harvester; without `targets` its rights hold in all namespaces."""

    name: str
    namespace: str
    targets: tuple[str, ...] = ()

    @property
    def token_secret(self) -> str:
        """Name of the Secret that Harvester puts the token into."""
        return f"{self.name}-token"


def objects(account: Account) -> list[Obj]:
    """All that has to be on Harvester, in the order in which it can be applied."""
    roles = [
        role
        for path in sorted(data.folder("deploy/harvester").glob("*.yaml"))
        for role in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    place = {"name": account.name, "namespace": account.namespace}
    namespaces = dict.fromkeys((account.namespace, *account.targets))
    return [
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in namespaces),
        *roles,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**place, "name": account.token_secret, "annotations": {ACCOUNT_ANNOTATION: account.name}},
            "type": TOKEN_TYPE,
        },
        _binding(account, EVERYWHERE),
        _binding(account, EVERYWHERE, of="Role", namespace=HARVESTER_NAMESPACE),
        *(_binding(account, IN_NAMESPACE, namespace=name) for name in account.targets or ("",)),
    ]


async def create(client: ApiClient, account: Account, server: str) -> str:
    """Apply the objects, wait for the token, try it, and answer the kubeconfig; `server` is what it will name.

    Raises AccountError when Harvester makes no token or the kubeconfig does not work; ApiError when Harvester refuses.
    """
    for obj in objects(account):
        await client.apply(_RESOURCES[obj["kind"]], obj, manager=MANAGER)
    secret = await _filled(client, account)
    token, ca = (base64.b64decode(secret["data"][key]).decode() for key in ("token", "ca.crt"))
    namespace = account.targets[0] if account.targets else "default"
    content = kubeconfig(server=server, ca=ca, token=token, namespace=namespace)
    probe = parse_kubeconfig(content).client(name="harvester")
    try:
        await probe.get(NAMESPACES, "kube-system")
    finally:
        await probe.close()
    return content


def api_server(url: str) -> str:
    """Where Harvester's own API server listens; the kubeconfig that Harvester offers leads to Rancher's proxy in it.

    Rancher's proxy takes tokens of its users only, not those of ServiceAccounts.
    """
    parts = urlsplit(url)
    if not parts.path.startswith("/k8s/clusters/"):
        return url.rstrip("/")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"https://{host}:{API_PORT}"


def identity_secret(name: str, namespace: str, content: str) -> Obj:
    """The identity Secret for the management cluster (contract: key `kubeconfig`); `clusterctl move` takes it along."""
    metadata = {"name": name, "namespace": namespace, "labels": {MOVE_LABEL: ""}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": {"kubeconfig": content},
    }


def _binding(account: Account, role: str, *, of: str = "ClusterRole", namespace: str = "") -> Obj:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    # Several accounts can share a Harvester, and each its target namespaces.
    name = f"{role}:{account.namespace}:{account.name}"
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": _RBAC, "kind": of, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
    }


async def _filled(client: ApiClient, account: Account) -> Obj:
    deadline = time.monotonic() + _TOKEN_SECONDS
    while time.monotonic() < deadline:
        secret = await client.get(SECRETS, account.token_secret, account.namespace)
        if {"token", "ca.crt"} <= (secret.get("data") or {}).keys():
            return secret
        await asyncio.sleep(0.2)
    raise AccountError(
        f"Harvester has put no token into Secret {account.namespace}/{account.token_secret} within "
        f"{_TOKEN_SECONDS:.0f} s: see whether its kube-controller-manager works, and call this again"
    )
