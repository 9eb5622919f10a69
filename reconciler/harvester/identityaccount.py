"""A least-privilege account on Harvester for this provider, and its kubeconfig.

The account has the roles of `deploy/harvester`, with which tests run the provider. With target
namespaces, the account can write objects of machines and load balancers only there. Without target
namespaces, it can write them in all namespaces, so that the provider can create target namespaces.
It can create accounts and tokens of guests in target namespaces only.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from caphv import data
from caphv.api import remedies
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
    list_at,
    text_at,
)
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import BOUND_PREFIX
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from reconciler.harvester.kubeconfig import API_PORT, kubeconfig
from reconciler.harvester.watchedcollections import HARVESTER_NAMESPACE

MANAGER = "caphv-identity"
MOVE_LABEL = "clusterctl.cluster.x-k8s.io/move"
CLUSTER_WIDE_ROLE = "caphv-account"
POOLS_ROLE = "caphv-account-pools"
IMAGES_ROLE = "caphv-account-images"
BACKUPS_ROLE = "caphv-account-backups"
NAMESPACE_ROLE = "caphv-account-namespace"
GUESTS_ROLE = "caphv-account-guests"
AVAILABILITY_ROLE = "caphv-identity"
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
class Account:
    """A ServiceAccount on Harvester.

    :param targets: target namespaces of the account; if empty, its rights hold in all namespaces
    :param pools: whether the account may create and delete IPPools
    :param token: name of the Secret with the lasting token, empty for the default
    :param images: namespaces into which the account may import images
    :param backups: whether the account may back up the VMs of its target namespaces
    """

    name: str
    namespace: str
    targets: tuple[str, ...] = ()
    pools: bool = False
    token: str = ""
    images: tuple[str, ...] = ()
    backups: bool = False

    @property
    def token_secret(self) -> str:
        """Name of the Secret into which Harvester writes the token."""
        return self.token or f"{self.name}-token"


@dataclass(frozen=True, slots=True)
class Existing:
    """Properties of an account that exists on Harvester.

    :param targets: target namespaces of the account
    :param token: name of the Secret with the lasting token, empty for none
    """

    targets: tuple[str, ...]
    token: str


def objects(
    account: Account,
    *,
    lasting_token: bool = True,
    former: Mapping[str, Iterable[str]] | None = None,
) -> list[Obj]:
    """Return all objects of the account on Harvester, in an order in which they can be applied.

    :param lasting_token: include a Secret with a token that never expires
    :param former: bindings of single clusters by target namespace, which the account may delete
    """
    roles = [
        role
        for path in sorted(data.folder("deploy/harvester").glob("*.yaml"))
        for role in yaml.safe_load_all(path.read_text("utf-8"))  # noqa: TID251 - our own files
    ]

    metadata = {"name": account.name, "namespace": account.namespace}
    namespaces = dict.fromkeys((account.namespace, *account.targets, *account.images))
    token = token_secret(account.namespace, account.name, account.token_secret)

    return [
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in namespaces
        ),
        *roles,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        *([token] if lasting_token else []),
        _binding(account, CLUSTER_WIDE_ROLE),
        _binding(account, AVAILABILITY_ROLE, of="Role", namespace=HARVESTER_NAMESPACE),
        *([_binding(account, POOLS_ROLE)] if account.pools else []),
        *(_binding(account, NAMESPACE_ROLE, namespace=name) for name in account.targets or ("",)),
        *(_binding(account, IMAGES_ROLE, namespace=name) for name in account.images),
        *(
            _binding(account, BACKUPS_ROLE, namespace=name)
            for name in (account.targets or ("",) if account.backups else ())
        ),
        *([] if account.targets else _own_tokens(account)),
        *(
            obj
            for name in account.targets
            for obj in _guests(account, name, sorted((former or {}).get(name, ())))
        ),
    ]


async def existing(client: ApiClient, account: Account) -> Existing | None:
    """Return the account that exists on Harvester, None if it does not. Raises `ApiError`."""
    try:
        await client.get(SERVICE_ACCOUNTS, account.name, account.namespace)
    except NotFound:
        return None

    name = _binding_name(account, NAMESPACE_ROLE)
    bindings = [obj["metadata"] for obj in (await client.list(ROLE_BINDINGS))["items"]]
    targets = {str(binding["namespace"]) for binding in bindings if binding["name"] == name}

    tokens = [
        str(obj["metadata"]["name"])
        for obj in (await client.list(SECRETS, account.namespace))["items"]
        if obj.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE
        and annotations_of(obj).get(SERVICE_ACCOUNT_ANNOTATION) == account.name
    ]
    token = account.token_secret if account.token_secret in tokens else max(tokens, default="")
    return Existing(tuple(sorted(targets)), token)


def rights_of(account: Account, objs: Iterable[Obj]) -> frozenset[tuple[str, str, str]]:
    """Return namespace, kind and name of each role that bindings among objects give an account.

    Bindings to the role with which the account renews its own tokens do not count.
    """
    subject = "ServiceAccount", account.namespace, account.name
    return frozenset(
        (
            text_at(obj, "metadata", "namespace"),
            text_at(obj, "roleRef", "kind"),
            text_at(obj, "roleRef", "name"),
        )
        for obj in objs
        for found in list_at(obj, "subjects")
        if (text_at(found, "kind"), text_at(found, "namespace"), text_at(found, "name")) == subject
        and not text_at(obj, "roleRef", "name").startswith(BOUND_PREFIX)
    )


def problem_of_namespaces(account: Account, bindings: Iterable[Obj]) -> str:
    """Return why accounts of two identities could issue tokens of each other; empty if they cannot.

    In its target namespaces, an account may issue tokens of any ServiceAccount.

    :param bindings: all bindings on Harvester
    """
    own = Key(account.namespace, account.name)
    if own.namespace in account.targets:
        return f"namespace {own.namespace} is one of targetNamespaces: choose another namespace"

    for obj in bindings:
        role = text_at(obj, "roleRef", "name")
        if role == GUESTS_ROLE and text_at(obj, "metadata", "namespace") == own.namespace:
            return (
                f"namespace {own.namespace} is a target namespace of another account, which may "
                "issue tokens in it: choose another namespace"
            )
        if role != CLUSTER_WIDE_ROLE:
            continue

        for subject in list_at(obj, "subjects"):
            other = Key(text_at(subject, "namespace"), text_at(subject, "name"))
            if other.namespace in account.targets and other != own:
                return (
                    f"target namespace {other.namespace} has account {other} of another identity, "
                    "whose tokens this one could issue: choose another target namespace"
                )
    return ""


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
    for obj in objects(account, lasting_token=lasting_token and not expires_in, former=former):
        await client.apply(_RESOURCES[obj["kind"]], obj, manager=MANAGER)
    if not expires_in and not lasting_token:
        return ""

    if expires_in:
        key = Key(account.namespace, account.name)
        token = await expiring_token(client, key, expires_in)
        ca = await published_ca(client, account.namespace) or ca
    else:
        secret = await wait_for_token(client, Key(account.namespace, account.token_secret))
        token = base64.b64decode(secret["data"]["token"]).decode()
        ca = base64.b64decode(secret["data"]["ca.crt"]).decode()

    # A kubeconfig that does not work must not reach the management cluster.
    namespace = account.targets[0] if account.targets else "default"
    content = kubeconfig(server=server, ca=ca, token=token, namespace=namespace)
    probe = parse_kubeconfig(content).client(name="harvester")
    try:
        await probe.get(NAMESPACES, "kube-system")
    finally:
        await probe.close()
    return content


def token_secret(namespace: str, account: str, name: str) -> Obj:
    """Return a Secret into which Harvester writes a token of an account that never expires."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "annotations": {SERVICE_ACCOUNT_ANNOTATION: account},
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": SERVICE_ACCOUNT_TOKEN_TYPE,
    }


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


def identity_secret(name: str, namespace: str, content: str) -> Obj:
    """Return the identity Secret for the management cluster (contract: key `kubeconfig`)."""
    # The label makes `clusterctl move` move the Secret, too.
    metadata = {"name": name, "namespace": namespace, "labels": {MOVE_LABEL: ""}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": {"kubeconfig": content},
    }


def shared_identity(name: str, namespace: str, content: str, allowed: Iterable[str]) -> list[Obj]:
    """Return a HarvesterClusterIdentity with its Secret, both with the same name.

    :param namespace: namespace of the provider
    :param content: the kubeconfig for Harvester
    :param allowed: namespaces that may use it
    """
    secret = identity_secret(name, namespace, content)
    # `clusterctl move` would delete it on the source, where clusters of other namespaces use it.
    del secret["metadata"]["labels"]
    kind = HARVESTER_CLUSTER_IDENTITIES
    identity = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name},
        "spec": {
            "secretRef": {"name": name, "namespace": namespace},
            "allowedNamespaces": {"list": list(allowed)},
        },
    }
    return [secret, identity]


def command_for(
    target: str, *, pools: bool = False, images: str = "", backups: bool = False
) -> str:
    """Return the end of a message about a refused request: the command that grants the right.

    :param images: namespace into which images may be imported, empty for none
    :param backups: whether the right to back up VMs is missing
    """
    # The command names the target namespace, so that a new account never gets rights in all
    # namespaces.
    more = " --create-ip-pools" if pools else ""
    more += f" --import-images {images}" if images else ""
    more += " --back-up-vms" if backups else ""
    command = remedies.GRANT_RIGHTS(target=target, more=more)
    return (
        f"; an administrator of Harvester can grant it: {command}, with --name and --namespace of "
        "the account"
    )


def _own_tokens(account: Account) -> list[Obj]:
    """Return role and binding that let the account replace its own expiring token."""
    role = f"caphv-account:{account.name}"
    rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"]}
    rule |= {"resourceNames": [account.name], "verbs": ["create"]}
    return [
        _role("Role", {"name": role, "namespace": account.namespace}, [rule]),
        _binding(account, role, of="Role", namespace=account.namespace),
    ]


def _guests(account: Account, namespace: str, former: list[str]) -> list[Obj]:
    """Return roles and bindings that let the account create accounts of guests in a namespace.

    They also let it bind these accounts to the role of cloud providers.

    :param former: bindings of single clusters, which the account may delete
    """
    name = f"{GUESTS_PREFIX}{namespace}"
    group = CLUSTER_ROLES.group
    bindings = {"apiGroups": [group], "resources": ["clusterrolebindings"]}
    rules = [
        {**bindings, "resourceNames": [name], "verbs": ["patch"]},
        {
            "apiGroups": [group],
            "resources": ["clusterroles"],
            "resourceNames": [CLOUD_PROVIDER_ROLE],
            "verbs": ["bind"],
        },
    ]

    if former:
        rules.append({**bindings, "resourceNames": former, "verbs": ["delete"]})

    reference = {"apiGroup": group, "kind": "ClusterRole", "name": CLOUD_PROVIDER_ROLE}
    return [
        _binding(account, GUESTS_ROLE, namespace=namespace),
        # The binding has no subjects. The provider adds a subject for each cluster.
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": reference,
        },
        _role("ClusterRole", {"name": name}, rules),
        _binding(account, name),
    ]


async def _former_bindings(client: ApiClient) -> dict[str, list[str]]:
    """Return the names of bindings of single guests to cloud providers' role, by namespace."""
    bindings: dict[str, list[str]] = {}
    for obj in (await client.list(CLUSTER_ROLE_BINDINGS))["items"]:
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


def _role(kind: str, metadata: Obj, rules: list[Obj]) -> Obj:
    return {
        "apiVersion": f"{CLUSTER_ROLES.group}/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": rules,
    }


def _binding(account: Account, role: str, *, of: str = "ClusterRole", namespace: str = "") -> Obj:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    return {
        "apiVersion": f"{CLUSTER_ROLES.group}/v1",
        "kind": kind,
        "metadata": {
            "name": _binding_name(account, role),
            **({"namespace": namespace} if namespace else {}),
        },
        "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": of, "name": role},
        "subjects": [
            {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
        ],
    }


def _binding_name(account: Account, role: str) -> str:
    # Several accounts can share a Harvester and a target namespace.
    return f"{role}:{account.namespace}:{account.name}"


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
