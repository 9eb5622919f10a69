"""Create an account for this provider on Harvester, and read or issue its tokens.

`reconciler.harvester.accountobjects` says which objects make up the account.
"""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass

from caphv.api.names import (
    CLOUD_PROVIDER_ROLE,
    GUESTS_PREFIX,
    SERVICE_ACCOUNT_ANNOTATION,
    SERVICE_ACCOUNT_TOKEN_TYPE,
)
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Key,
    Obj,
    annotations_of,
    text_at,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from caphv.runtime.listing import list_pages
from reconciler.harvester.accountobjects import (
    NAMESPACE_ROLE,
    Account,
    account_objects,
    binding_name,
)
from reconciler.harvester.kubeconfig import kubeconfig

MANAGER = "caphv-identity"
_RESOURCES = {
    resource.kind: resource
    for resource in (
        NAMESPACES,
        SERVICE_ACCOUNTS,
        SECRETS,
        CLUSTER_ROLE_BINDINGS,
        ROLE_BINDINGS,
        CLUSTER_ROLES,
        ROLES,
    )
}
_TOKEN_SECONDS = 30.0


class AccountError(Exception):
    """The account cannot be created; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Existing:
    """Properties of an account that exists on Harvester.

    :param targets: target namespaces of the account
    :param token: name of the Secret with the lasting token, empty for none
    """

    targets: tuple[str, ...]
    token: str


async def existing(client: ApiClient, account: Account) -> Existing | None:
    """Return the account that exists on Harvester, None if it does not. Raises `ApiError`."""
    try:
        await client.get(SERVICE_ACCOUNTS, account.name, account.namespace)
    except NotFound:
        return None

    name = binding_name(account, NAMESPACE_ROLE)
    targets = {
        str(binding["metadata"]["namespace"])
        async for page in list_pages(client, ROLE_BINDINGS)
        for binding in page
        if binding["metadata"]["name"] == name
    }

    tokens = [
        str(obj["metadata"]["name"])
        async for page in list_pages(client, SECRETS, account.namespace)
        for obj in page
        if obj.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE
        and annotations_of(obj).get(SERVICE_ACCOUNT_ANNOTATION) == account.name
    ]
    token = account.token_secret if account.token_secret in tokens else max(tokens, default="")
    return Existing(tuple(sorted(targets)), token)


async def create(
    client: ApiClient,
    account: Account,
    server: str,
    *,
    lasting_token: bool = True,
    expires_in: int = 0,
    ca: str = "",
) -> str:
    """Apply the objects, get a token, test it, and return a kubeconfig.

    The kubeconfig is empty without a token. Raises `AccountError`, `ApiError`.

    :param server: URL of Harvester for the kubeconfig
    :param lasting_token: get a token that never expires, the same at each call
    :param expires_in: issue a new token that is valid for so many seconds; 0 for none
    :param ca: CA (PEM) to use with such a token if Harvester publishes none
    """
    # Read the former bindings before the role for guests is applied, because the role names them.
    former = await _former_bindings(client) if account.targets else {}
    is_lasting = lasting_token and not expires_in
    for obj in account_objects(account, lasting_token=is_lasting, former=former):
        await client.apply(_RESOURCES[obj["kind"]], obj, manager=MANAGER)
    if not expires_in and not lasting_token:
        return ""

    if expires_in:
        key = Key(account.namespace, account.name)
        token = await expiring_token(client, key, expires_in)
        server_ca = await published_ca(client, account.namespace) or ca
    else:
        secret = await wait_for_token(client, Key(account.namespace, account.token_secret))
        token = base64.b64decode(secret["data"]["token"]).decode()
        server_ca = base64.b64decode(secret["data"]["ca.crt"]).decode()

    # A kubeconfig that does not work must not reach the management cluster.
    namespace = account.targets[0] if account.targets else "default"
    content = kubeconfig(server=server, ca=server_ca, token=token, namespace=namespace)
    probe = parse_kubeconfig(content).client(name="harvester")
    try:
        await probe.get(NAMESPACES, "kube-system")
    finally:
        await probe.close()
    return content


async def _former_bindings(client: ApiClient) -> dict[str, list[str]]:
    """Return the names of bindings of single guests to cloud providers' role, by namespace."""
    bindings: dict[str, list[str]] = {}
    pages = list_pages(client, CLUSTER_ROLE_BINDINGS)
    for obj in [obj async for page in pages for obj in page]:
        subjects = obj.get("subjects") or []
        name = str(obj["metadata"]["name"])
        if (
            text_at(obj, "roleRef", "name") != CLOUD_PROVIDER_ROLE
            or len(subjects) != 1
            or name.startswith(GUESTS_PREFIX)
        ):
            continue
        namespace = text_at(subjects[0], "namespace")
        if namespace and text_at(subjects[0], "kind") == SERVICE_ACCOUNTS.kind:
            bindings.setdefault(namespace, []).append(name)
    return bindings


async def expiring_token(client: ApiClient, account: Key, seconds: int) -> str:
    """Issue a token of a ServiceAccount. Harvester may limit how long it is valid."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    path = SERVICE_ACCOUNTS.path(*account, "token")
    answer = await client.request("POST", path, resource=SERVICE_ACCOUNTS, body=request)
    return str(answer["status"]["token"])


async def published_ca(client: ApiClient, namespace: str) -> str:
    """Return the CA that kube-controller-manager publishes in each namespace; empty without one."""
    try:
        published = await client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace)
    except NotFound:
        return ""
    return str((published.get("data") or {}).get("ca.crt", ""))


async def wait_for_token(client: ApiClient, name: Key) -> Obj:
    """Return a token Secret once Harvester has filled it. Raises `AccountError`, `ApiError`."""
    deadline = time.monotonic() + _TOKEN_SECONDS
    while time.monotonic() < deadline:
        secret = await client.get(SECRETS, name.name, name.namespace)
        if {"token", "ca.crt"} <= (secret.get("data") or {}).keys():
            return secret
        await asyncio.sleep(0.2)
    raise AccountError(
        f"Harvester has written no token into Secret {name} within "
        f"{_TOKEN_SECONDS:.0f} s: check its kube-controller-manager, and run this command again"
    )
