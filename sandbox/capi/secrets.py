"""Secrets of a cluster that its control plane provider creates: CAs, join token, kubeconfig."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from caphv.api.names import CLUSTER_NAME_LABEL
from caphv.api.object import SECRETS, Key, Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig
from sandbox.capi.caches import Caches
from sandbox.capi.distribution import Distribution
from sandbox.capi.resources import SECRET_TYPE, reference
from sandbox.processes import pki

SERVER_CA, CLIENT_CA = "ca", "cca"


@dataclass(frozen=True)
class Credentials:
    """What guests join with: the CAs by the suffix of their Secret, and the token."""

    authorities: Mapping[str, pki.CA] = field(repr=False)
    token: str = field(repr=False)


def values(secret: Obj) -> dict[str, bytes]:
    """Decoded data of a Secret."""
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


def credentials(store: Informer, cluster: Key, distribution: Distribution) -> Credentials | None:
    """CAs and token of a cluster; None until all exist."""
    token = store.get(cluster.namespace, f"{cluster.name}-token")
    found = {name: store.get(cluster.namespace, f"{cluster.name}-{name}") for name in distribution.authorities}
    if token is None or not all(found.values()):
        return None
    return Credentials({name: _authority(secret) for name, secret in found.items() if secret}, _token(token))


def access(store: Informer, cluster: Key) -> Kubeconfig | None:
    """Access to the workload API of a cluster; None until its kubeconfig exists."""
    secret = store.get(cluster.namespace, f"{cluster.name}-kubeconfig")
    return parse_kubeconfig(values(secret)["value"]) if secret is not None else None


async def ensure(client: ApiClient, caches: Caches, cluster: Key, endpoint: str, owner: Obj) -> None:
    """Create missing Secrets; a CA provided by the user is kept."""
    store, distribution = caches.secrets, caches.distribution

    async def make(suffix: str, data: dict[str, bytes]) -> None:
        secret = cluster_secret(cluster, f"{cluster.name}-{suffix}", data, owner)
        store.observe(await client.create(SECRETS, secret))

    def exists(suffix: str) -> bool:
        return store.get(cluster.namespace, f"{cluster.name}-{suffix}") is not None

    for suffix in distribution.authorities:
        if not exists(suffix):
            pair = pki.CA.create(f"{cluster.name}-{suffix}").pair
            await make(suffix, {"tls.crt": pair.certificate, "tls.key": pair.key})
    if not exists("token"):
        await make("token", {"value": secrets.token_hex(16).encode()})
    if not exists("kubeconfig"):
        found = credentials(store, cluster, distribution)
        assert found is not None  # noqa: S101 - made above
        await make("kubeconfig", {"value": _kubeconfig(cluster.name, endpoint, found.authorities)})


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


def _authority(secret: Obj) -> pki.CA:
    pair = values(secret)
    return pki.CA(pki.KeyPair(pair["tls.crt"], pair["tls.key"]))


def _token(secret: Obj) -> str:
    return values(secret)["value"].decode()


def _kubeconfig(name: str, endpoint: str, authorities: Mapping[str, pki.CA]) -> bytes:
    user = pki.certificate_user(authorities[CLIENT_CA].client(f"{name}-admin", ["system:masters"]))
    certificate = authorities[SERVER_CA].certificate
    server = f"https://{endpoint}"
    return pki.to_yaml(pki.kubeconfig(server, certificate, name=name, user=f"{name}-admin", credentials=user))
