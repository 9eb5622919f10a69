"""Secrets of a cluster that its control plane provider creates: CA, join token, kubeconfig."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field

from caphv.api.names import CLUSTER_NAME_LABEL
from caphv.api.object import SECRETS, Key, Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig
from sandbox.capi.resources import SECRET_TYPE, reference
from sandbox.processes import pki


@dataclass(frozen=True)
class Credentials:
    """Credentials with which guests join."""

    authority: pki.CA = field(repr=False)
    token: str = field(repr=False)


def values(secret: Obj) -> dict[str, bytes]:
    """Decoded data of a Secret."""
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


def credentials(store: Informer, cluster: Key) -> Credentials | None:
    """CA and token of a cluster; None until both exist."""
    authority = store.get(cluster.namespace, f"{cluster.name}-ca")
    token = store.get(cluster.namespace, f"{cluster.name}-token")
    if authority is None or token is None:
        return None
    pair = values(authority)
    return Credentials(pki.CA(pki.KeyPair(pair["tls.crt"], pair["tls.key"])), values(token)["value"].decode())


def access(store: Informer, cluster: Key) -> Kubeconfig | None:
    """Access to the workload API of a cluster; None until its kubeconfig exists."""
    secret = store.get(cluster.namespace, f"{cluster.name}-kubeconfig")
    return parse_kubeconfig(values(secret)["value"]) if secret is not None else None


async def ensure(client: ApiClient, store: Informer, cluster: Key, endpoint: str, owner: Obj) -> None:
    """Create missing Secrets; a CA provided by the user is kept."""

    async def make(suffix: str, data: dict[str, bytes]) -> None:
        if store.get(cluster.namespace, f"{cluster.name}-{suffix}") is None:
            secret = cluster_secret(cluster, f"{cluster.name}-{suffix}", data, owner)
            store.observe(await client.create(SECRETS, secret))

    if store.get(cluster.namespace, f"{cluster.name}-ca") is None:
        authority = pki.CA.create(cluster.name).pair
        await make("ca", {"tls.crt": authority.certificate, "tls.key": authority.key})
    await make("token", {"value": secrets.token_hex(16).encode()})
    if store.get(cluster.namespace, f"{cluster.name}-kubeconfig") is None:
        found = credentials(store, cluster)
        assert found is not None  # noqa: S101 - made above
        await make("kubeconfig", {"value": _kubeconfig(cluster.name, endpoint, found.authority)})


def cluster_secret(cluster: Key, name: str, data: dict[str, bytes], owner: Obj) -> Obj:
    """A Secret of a cluster, deleted with its owner."""
    metadata = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": {CLUSTER_NAME_LABEL: cluster.name},
        "ownerReferences": [reference(owner, controller=True)],
    }
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE, "metadata": metadata, "data": encoded}


def _kubeconfig(name: str, endpoint: str, authority: pki.CA) -> bytes:
    user = pki.certificate_user(authority.client(f"{name}-admin", ["system:masters"]))
    server = f"https://{endpoint}"
    return pki.to_yaml(pki.kubeconfig(server, authority.certificate, name=name, user=f"{name}-admin", credentials=user))
