"""Manage accounts on Harvester for the cloud provider and the CSI driver in a guest cluster.

The provider creates an account for each cluster that it manages
(`reconciler.cluster.cloudaccount`). This module creates accounts for clusters outside Cluster API,
as the cloud provider's script `generate_addon.sh` does, but without kubectl and jq.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from caphv.api.names import (
    CLOUD_PROVIDER_ROLE,
    OWNER_ANNOTATION,
    SERVICE_ACCOUNT_ANNOTATION,
    SERVICE_ACCOUNT_TOKEN_TYPE,
)
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    labels_of,
    uid_of,
)
from caphv.api.resources import VIRTUAL_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from reconciler.harvester.accountobjects import token_secret
from reconciler.harvester.identityaccount import (
    AccountError,
    expiring_token,
    published_ca,
    wait_for_token,
)
from reconciler.harvester.kubeconfig import api_server, kubeconfig, virtual_address

CLUSTER_ROLE = CLOUD_PROVIDER_ROLE
LABEL = "caphv.io/cloud-config"
"""Label of account, binding and token Secrets: the name of the account."""
SECRET = Key("kube-system", "harvester-cloud-config")
SECRET_KEYS = ("cloud-config", "cloud-provider-config")
"""Two keys with the same content.

The chart of the cloud provider reads the first key, the chart of the CSI driver only the second.
"""
FILES = ("/etc/kubernetes/cloud-config", "/etc/kubernetes/cloud-provider-config")
_INGRESS = Key("kube-system", "ingress-expose")


@dataclass(frozen=True, slots=True)
class GuestAccount:
    """Objects of an account on Harvester; absent objects are None."""

    key: Key
    account: Obj | None = None
    binding: Obj | None = None
    tokens: tuple[Obj, ...] = ()

    @property
    def current(self) -> str:
        """Name of the newest token Secret, empty for none."""
        return str(self.tokens[-1]["metadata"]["name"]) if self.tokens else ""

    def obstacles(self) -> list[str]:
        """Say which objects of this name belong to something else."""
        messages = []
        for kind, obj in (("ServiceAccount", self.account), ("ClusterRoleBinding", self.binding)):
            owner = annotations_of(obj).get(OWNER_ANNOTATION) if obj else ""
            if owner:
                messages.append(
                    f"{kind} {self.key.name} belongs to {owner}: the provider delivers its cloud "
                    "config itself"
                )
        if self.binding is not None and not grants(self.binding, self.key):
            messages.append(
                f"ClusterRoleBinding {self.key.name} binds something else; choose another name"
            )
        return messages


def grant(key: Key) -> Obj:
    """Return role and subjects for the binding of an account."""
    return {
        "roleRef": {
            "apiGroup": CLUSTER_ROLE_BINDINGS.group,
            "kind": "ClusterRole",
            "name": CLUSTER_ROLE,
        },
        "subjects": [{"kind": "ServiceAccount", "name": key.name, "namespace": key.namespace}],
    }


def grants(binding: Obj, key: Key) -> bool:
    """Return whether a binding grants an account the role of cloud providers, and nothing else."""
    intended = grant(key)
    subjects = [
        {name: subject.get(name) for name in ("kind", "name", "namespace")}
        for subject in binding.get("subjects") or ()
    ]
    return binding.get("roleRef") == intended["roleRef"] and subjects == intended["subjects"]


async def read(client: ApiClient, key: Key) -> GuestAccount:
    """Read the objects of an account. Raises `ApiError`, `Unreachable`."""
    selector = f"{LABEL}={key.name}"
    listed = (await client.list(SECRETS, key.namespace, label_selector=selector))["items"]
    tokens = [
        obj for obj in listed if annotations_of(obj).get(SERVICE_ACCOUNT_ANNOTATION) == key.name
    ]
    return GuestAccount(
        key,
        await _find(client, SERVICE_ACCOUNTS, key),
        await _find(client, CLUSTER_ROLE_BINDINGS, Key("", key.name)),
        tuple(sorted(tokens, key=lambda obj: (_number(obj), str(obj["metadata"]["name"])))),
    )


async def ensure(client: ApiClient, guest: GuestAccount) -> None:
    """Create namespace, account and binding, where they are absent.

    Raises `AccountError`, `ApiError`.
    """
    obstacles = guest.obstacles()
    if obstacles:
        raise AccountError("; ".join(obstacles))

    key = guest.key
    labels = {LABEL: guest.key.name}
    namespace = {"metadata": {"name": key.namespace}}
    account = {"metadata": {"name": key.name, "namespace": key.namespace, "labels": labels}}
    binding = {"metadata": {"name": key.name, "labels": labels}, **grant(key)}

    if await _find(client, NAMESPACES, Key("", key.namespace)) is None:
        await client.create(NAMESPACES, namespace)
    if guest.account is None:
        await client.create(SERVICE_ACCOUNTS, account)
    if guest.binding is None:
        await client.create(CLUSTER_ROLE_BINDINGS, binding)


class ServerToken(NamedTuple):
    """A token, and the CA (PEM) of the server that accepts it."""

    token: str
    ca: str


async def token(
    client: ApiClient, guest: GuestAccount, *, seconds: int, renew: bool
) -> ServerToken:
    """Return a token of an account.

    Raises `AccountError`, `ApiError`.

    :param client: client of Harvester
    :param guest: the account
    :param seconds: lifetime of a new token; 0 for a token that does not expire and is reused
    :param renew: create another token that does not expire, although one exists
    """
    key = guest.key
    if seconds:
        expiring = await expiring_token(client, key, seconds)
        return ServerToken(expiring, await published_ca(client, key.namespace))

    name = guest.current
    if renew or not name:
        number = _number(guest.tokens[-1]) + 1 if guest.tokens else 1
        name = f"{key.name}-cloud-config-{number}"
        secret = token_secret(key.namespace, key.name, name)
        secret["metadata"]["labels"] = {LABEL: key.name}
        try:
            await client.create(SECRETS, secret)
        except AlreadyExists:
            raise AccountError(
                f"Secret {key.namespace}/{name} on Harvester exists: delete it, or use it"
            ) from None

    data = (await wait_for_token(client, Key(key.namespace, name)))["data"]
    lasting = base64.b64decode(data["token"]).decode()
    return ServerToken(lasting, base64.b64decode(data["ca.crt"]).decode())


async def server(client: ApiClient) -> str:
    """Return the URL at which guests reach Harvester.

    Guests use Harvester's virtual address, or the server of the client if there is none.
    """
    return virtual_address(await _find(client, SERVICES, _INGRESS)) or api_server(client.server)


async def works(content: str, namespace: str) -> None:
    """Check that a cloud config reaches Harvester and may read VMs.

    Raises `ApiError`, `Unreachable`.
    """
    probe = parse_kubeconfig(content).client(name="harvester", user_agent="caphv-cli", timeout=15)
    try:
        await probe.list(VIRTUAL_MACHINES, namespace, limit=1)
    finally:
        await probe.close()


def former(guest: GuestAccount, current: str) -> list[Obj]:
    """Return all token Secrets except the current one."""
    return [obj for obj in guest.tokens if obj["metadata"]["name"] != current]


async def delete(client: ApiClient, guest: GuestAccount) -> None:
    """Delete binding, tokens and account. Raises `ApiError`."""
    # Delete the binding first, so that a token that remains after a failure has no rights.
    await delete_all(
        client, [(CLUSTER_ROLE_BINDINGS, guest.binding), *((SECRETS, obj) for obj in guest.tokens)]
    )
    await delete_all(client, [(SERVICE_ACCOUNTS, guest.account)])


async def delete_all(client: ApiClient, objs: list[tuple[Resource, Obj | None]]) -> None:
    """Delete objects that this module has created. Raises `ApiError`."""
    for resource, obj in objs:
        if obj is None or LABEL not in labels_of(obj):
            continue
        metadata = obj["metadata"]
        try:
            await client.delete(
                resource, metadata["name"], metadata.get("namespace", ""), uid=uid_of(obj)
            )
        except NotFound:
            continue


def cloud_config(server_url: str, ca: str, bearer: str, namespace: str) -> str:
    """Return the kubeconfig of a cloud provider."""
    return kubeconfig(server=server_url, ca=ca, token=bearer, namespace=namespace)


def cloud_init(content: str) -> str:
    """Return user data that writes a cloud config to the paths of cloud provider and CSI driver.

    Only root may read the file.
    """
    encoded = base64.b64encode(content.encode()).decode()
    files = [
        {
            "path": path,
            "owner": "root:root",
            "permissions": "0600",
            "encoding": "b64",
            "content": encoded,
        }
        for path in FILES
    ]
    return "#cloud-config\n" + yaml.safe_dump(
        {"write_files": files}, sort_keys=False, width=1_000_000
    )


def workload_secret(content: str) -> Obj:
    """Return the Secret in a workload cluster that charts of cloud provider and CSI driver read."""
    encoded = base64.b64encode(content.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET.name, "namespace": SECRET.namespace},
        "type": "Opaque",
        "data": dict.fromkeys(SECRET_KEYS, encoded),
    }


def _number(secret: Obj) -> int:
    """Return the number at the end of a token Secret's name, 0 for none."""
    last = str(secret["metadata"]["name"]).rpartition("-")[2]
    ours = secret.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE and last.isascii() and last.isdigit()
    return int(last[:6]) if ours else 0


async def _find(client: ApiClient, resource: Resource, key: Key) -> Obj | None:
    """Return an object, None if it does not exist."""
    try:
        return await client.get(resource, key.name, key.namespace)
    except NotFound:
        return None
