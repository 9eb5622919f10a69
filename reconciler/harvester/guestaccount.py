"""Accounts on Harvester for the cloud provider and the CSI driver in a guest cluster.

The provider makes one for each cluster that it manages (`reconciler.cluster.cloudaccount`). This module makes those of
clusters outside Cluster API, as the cloud provider's script `generate_addon.sh` does, without kubectl and jq.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

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
from reconciler.harvester.identityaccount import (
    AccountError,
    api_server,
    expiring_token,
    published_ca,
    token_secret,
    wait_for_token,
)
from reconciler.harvester.kubeconfig import kubeconfig, virtual_address

CLUSTER_ROLE = CLOUD_PROVIDER_ROLE
LABEL = "caphv.io/cloud-config"
"""On account, binding and token Secrets: the name of the account."""
SECRET = Key("kube-system", "harvester-cloud-config")
SECRET_KEYS = ("cloud-config", "cloud-provider-config")
"""The same content twice: the cloud provider's chart reads the first key, the CSI driver's only the second."""
FILES = ("/etc/kubernetes/cloud-config", "/etc/kubernetes/cloud-provider-config")
_INGRESS = Key("kube-system", "ingress-expose")


@dataclass(frozen=True, slots=True)
class GuestAccount:
    """What an account has on Harvester; absent objects are None."""

    key: Key
    account: Obj | None = None
    binding: Obj | None = None
    tokens: tuple[Obj, ...] = ()

    @property
    def current(self) -> str:
        """Name of the newest token Secret, empty for none."""
        return str(self.tokens[-1]["metadata"]["name"]) if self.tokens else ""

    def obstacles(self) -> list[str]:
        """Say which objects of this name are another's."""
        found = []
        for kind, obj in (("ServiceAccount", self.account), ("ClusterRoleBinding", self.binding)):
            if owner := annotations_of(obj).get(OWNER_ANNOTATION) if obj else "":
                found.append(
                    f"{kind} {self.key.name} belongs to {owner}: the provider delivers its cloud config itself"
                )
        if self.binding is not None and not grants(self.binding, self.key):
            found.append(f"ClusterRoleBinding {self.key.name} binds something else; choose another name")
        return found


def grant(key: Key) -> Obj:
    """Return role and subjects of the binding of an account."""
    return {
        "roleRef": {"apiGroup": CLUSTER_ROLE_BINDINGS.group, "kind": "ClusterRole", "name": CLUSTER_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": key.name, "namespace": key.namespace}],
    }


def grants(binding: Obj, key: Key) -> bool:
    """Whether a binding grants an account the role of cloud providers, and nothing else."""
    wanted = grant(key)
    subjects = [
        {name: subject.get(name) for name in ("kind", "name", "namespace")} for subject in binding.get("subjects") or ()
    ]
    return binding.get("roleRef") == wanted["roleRef"] and subjects == wanted["subjects"]


async def read(client: ApiClient, key: Key) -> GuestAccount:
    """Read what an account has. Raises `ApiError`, `Unreachable`."""
    selector = f"{LABEL}={key.name}"
    listed = (await client.list(SECRETS, key.namespace, label_selector=selector))["items"]
    tokens = [obj for obj in listed if annotations_of(obj).get(SERVICE_ACCOUNT_ANNOTATION) == key.name]
    return GuestAccount(
        key,
        await _find(client, SERVICE_ACCOUNTS, key),
        await _find(client, CLUSTER_ROLE_BINDINGS, Key("", key.name)),
        tuple(sorted(tokens, key=lambda obj: (_number(obj), str(obj["metadata"]["name"])))),
    )


async def ensure(client: ApiClient, found: GuestAccount) -> None:
    """Create namespace, account and binding, where they are absent. Raises `AccountError`, `ApiError`."""
    if found.obstacles():
        raise AccountError("; ".join(found.obstacles()))
    key, labels = found.key, {LABEL: found.key.name}
    wanted: list[tuple[Resource, Obj | None, Obj]] = [
        (NAMESPACES, await _find(client, NAMESPACES, Key("", key.namespace)), {"metadata": {"name": key.namespace}}),
        (SERVICE_ACCOUNTS, found.account, {"metadata": {**_metadata(key), "labels": labels}}),
        (CLUSTER_ROLE_BINDINGS, found.binding, {"metadata": {"name": key.name, "labels": labels}, **grant(key)}),
    ]
    for resource, present, obj in wanted:
        if present is None:
            await client.create(resource, obj)


async def token(client: ApiClient, found: GuestAccount, *, seconds: int, renew: bool) -> tuple[str, str]:
    """Return a token and the CA (PEM) of the server that takes it.

    With `seconds` it expires and is new at each call; otherwise it does not expire, and is new only with `renew`.
    Raises `AccountError`, `ApiError`.
    """
    key = found.key
    if seconds:
        return await expiring_token(client, key, seconds), await published_ca(client, key.namespace)
    name = found.current
    if renew or not name:
        number = _number(found.tokens[-1]) + 1 if found.tokens else 1
        name = f"{key.name}-cloud-config-{number}"
        secret = token_secret(key.namespace, key.name, name)
        secret["metadata"]["labels"] = {LABEL: key.name}
        try:
            await client.create(SECRETS, secret)
        except AlreadyExists:
            raise AccountError(f"Secret {key.namespace}/{name} on Harvester exists: delete it, or use it") from None
    secret = await wait_for_token(client, Key(key.namespace, name))
    found_token, ca = (base64.b64decode(secret["data"][part]).decode() for part in ("token", "ca.crt"))
    return found_token, ca


async def server(client: ApiClient) -> str:
    """URL at which guests reach Harvester: its virtual address, else the server of the client."""
    return virtual_address(await _find(client, SERVICES, _INGRESS)) or api_server(client.server)


async def works(content: str, namespace: str) -> None:
    """Check that a cloud config reaches Harvester and may read VMs. Raises `ApiError`, `Unreachable`."""
    probe = parse_kubeconfig(content).client(name="harvester", user_agent="caphv-cli", timeout=15)
    try:
        await probe.list(VIRTUAL_MACHINES, namespace, limit=1)
    finally:
        await probe.close()


def former(found: GuestAccount, kept: str) -> list[Obj]:
    """Return the token Secrets but one."""
    return [obj for obj in found.tokens if obj["metadata"]["name"] != kept]


async def delete(client: ApiClient, found: GuestAccount) -> None:
    """Delete binding, tokens and account, in this order: what remains is of no use to a token. Raises `ApiError`."""
    await delete_all(client, [(CLUSTER_ROLE_BINDINGS, found.binding), *((SECRETS, obj) for obj in found.tokens)])
    await delete_all(client, [(SERVICE_ACCOUNTS, found.account)])


async def delete_all(client: ApiClient, objs: list[tuple[Resource, Obj | None]]) -> None:
    """Delete objects that this module made. Raises `ApiError`."""
    for resource, obj in objs:
        if obj is None or LABEL not in labels_of(obj):
            continue
        metadata = obj["metadata"]
        try:
            await client.delete(resource, metadata["name"], metadata.get("namespace", ""), uid=uid_of(obj))
        except NotFound:
            continue


def cloud_config(server_url: str, ca: str, found_token: str, namespace: str) -> str:
    """The kubeconfig of a cloud provider."""
    return kubeconfig(server=server_url, ca=ca, token=found_token, namespace=namespace)


def cloud_init(content: str) -> str:
    """User data that writes a cloud config where cloud provider and CSI driver look for it, readable by root only."""
    encoded = base64.b64encode(content.encode()).decode()
    files = [
        {"path": path, "owner": "root:root", "permissions": "0600", "encoding": "b64", "content": encoded}
        for path in FILES
    ]
    return "#cloud-config\n" + yaml.safe_dump({"write_files": files}, sort_keys=False, width=1_000_000)


def workload_secret(content: str) -> Obj:
    """The Secret in a workload cluster that charts of cloud provider and CSI driver read."""
    encoded = base64.b64encode(content.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET.name, "namespace": SECRET.namespace},
        "type": "Opaque",
        "data": dict.fromkeys(SECRET_KEYS, encoded),
    }


def _number(secret: Obj) -> int:
    last = str(secret["metadata"]["name"]).rpartition("-")[2]
    ours = secret.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE and last.isascii() and last.isdigit()
    return int(last[:6]) if ours else 0


def _metadata(key: Key) -> Obj:
    return {"name": key.name, "namespace": key.namespace}


async def _find(client: ApiClient, resource: Resource, key: Key) -> Obj | None:
    try:
        return await client.get(resource, key.name, key.namespace)
    except NotFound:
        return None
