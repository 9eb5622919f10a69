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

SERVER_CA = "ca"
CLIENT_CA = "cca"


@dataclass(frozen=True)
class Credentials:
    """The credentials with which guests join: the token, and the CAs by their Secret's suffix."""

    authorities: Mapping[str, pki.CA] = field(repr=False)
    token: str = field(repr=False)


def values(secret: Obj) -> dict[str, bytes]:
    """Return the decoded data of a Secret."""
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


def credentials(store: Informer, cluster: Key, distribution: Distribution) -> Credentials | None:
    """Return the CAs and the token of a cluster, None until all of them exist."""
    authorities = {}
    for suffix in distribution.authorities:
        secret = store.get(cluster.namespace, f"{cluster.name}-{suffix}")
        if secret is None:
            return None
        authorities[suffix] = _authority(secret)

    token = store.get(cluster.namespace, f"{cluster.name}-token")
    if token is None:
        return None
    return Credentials(authorities, values(token)["value"].decode())


def kubeconfig(store: Informer, cluster: Key) -> Kubeconfig | None:
    """Return the kubeconfig of a cluster, None until it exists."""
    secret = store.get(cluster.namespace, f"{cluster.name}-kubeconfig")
    return parse_kubeconfig(values(secret)["value"]) if secret is not None else None


async def ensure(
    client: ApiClient, caches: Caches, cluster: Key, endpoint: str, owner: Obj
) -> None:
    """Create missing Secrets. A CA that the user provides stays.

    :param endpoint: `host:port` of the workload API
    :param owner: the control plane, whose deletion also deletes the Secrets
    """
    store = caches.secrets
    distribution = caches.distribution

    async def create(suffix: str, data: dict[str, bytes]) -> None:
        secret = cluster_secret(cluster, f"{cluster.name}-{suffix}", data, owner)
        store.observe(await client.create(SECRETS, secret))

    def exists(suffix: str) -> bool:
        return store.get(cluster.namespace, f"{cluster.name}-{suffix}") is not None

    for suffix in distribution.authorities:
        if not exists(suffix):
            pair = pki.CA.create(f"{cluster.name}-{suffix}").pair
            await create(suffix, {"tls.crt": pair.certificate, "tls.key": pair.key})
    if not exists("token"):
        await create("token", {"value": secrets.token_hex(16).encode()})

    # Create the kubeconfig last, because the CAs above sign its certificate.
    if not exists("kubeconfig"):
        complete = credentials(store, cluster, distribution)
        assert complete is not None  # noqa: S101 - created above
        authorities = complete.authorities
        content = new_kubeconfig(
            cluster.name, endpoint, authorities[SERVER_CA], authorities[CLIENT_CA]
        )
        await create("kubeconfig", {"value": content})


def cluster_secret(cluster: Key, name: str, data: dict[str, bytes], owner: Obj) -> Obj:
    """Return a Secret of a cluster that is deleted with its owner."""
    metadata = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": {CLUSTER_NAME_LABEL: cluster.name},
        "ownerReferences": [reference(owner, controller=True)],
    }
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": metadata,
        "data": encoded,
    }


def _authority(secret: Obj) -> pki.CA:
    pair = values(secret)
    return pki.CA(pki.KeyPair(pair["tls.crt"], pair["tls.key"]))


def new_kubeconfig(name: str, endpoint: str, server: pki.CA, clients: pki.CA) -> bytes:
    """Return the administrator's kubeconfig of the cluster `name`.

    :param endpoint: `host:port` of the workload API
    :param server: the CA of the API server
    :param clients: the CA of its clients
    """
    user = pki.certificate_user(clients.client(f"{name}-admin", ["system:masters"]))
    url = f"https://{endpoint}"
    return pki.to_yaml(
        pki.kubeconfig(url, server.certificate, name=name, user=f"{name}-admin", credentials=user)
    )
