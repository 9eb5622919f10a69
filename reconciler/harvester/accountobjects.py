"""The objects on Harvester that make up an account for this provider, and their rights. Pure.

`reconciler.harvester.identityaccount` writes them. The account has the roles of `deploy/harvester`,
with which tests run the provider. With target namespaces, the account can write objects of machines
and load balancers only there. Without target namespaces, it can write them in all namespaces, so
that the provider can create target namespaces. It can create accounts and tokens of guests in
target namespaces only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from caphv import data
from caphv.api.names import (
    CLOUD_PROVIDER_ROLE,
    GUESTS_PREFIX,
    SERVICE_ACCOUNT_ANNOTATION,
    SERVICE_ACCOUNT_TOKEN_TYPE,
)
from caphv.api.object import CLUSTER_ROLES, Key, Obj, list_at, text_at
from caphv.api.tokenrenewal import BOUND_PREFIX
from reconciler.harvester.watchedcollections import HARVESTER_NAMESPACE

CLUSTER_WIDE_ROLE = "caphv-account"
POOLS_ROLE = "caphv-account-pools"
IMAGES_ROLE = "caphv-account-images"
BACKUPS_ROLE = "caphv-account-backups"
NAMESPACE_ROLE = "caphv-account-namespace"
GUESTS_ROLE = "caphv-account-guests"
AVAILABILITY_ROLE = "caphv-identity"


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


def account_objects(
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

    namespaces = dict.fromkeys((account.namespace, *account.targets, *account.images))
    metadata = {"name": account.name, "namespace": account.namespace}
    objs: list[Obj] = [
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in namespaces
        ),
        *roles,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
    ]
    if lasting_token:
        objs.append(token_secret(account.namespace, account.name, account.token_secret))

    objs.append(_binding(account, CLUSTER_WIDE_ROLE))
    objs.append(_binding(account, AVAILABILITY_ROLE, of="Role", namespace=HARVESTER_NAMESPACE))
    if account.pools:
        objs.append(_binding(account, POOLS_ROLE))

    # Without target namespaces, one binding without a namespace gives the rights in all of them.
    writable = account.targets or ("",)
    objs += [_binding(account, NAMESPACE_ROLE, namespace=name) for name in writable]
    objs += [_binding(account, IMAGES_ROLE, namespace=name) for name in account.images]
    if account.backups:
        objs += [_binding(account, BACKUPS_ROLE, namespace=name) for name in writable]

    if not account.targets:
        objs += _own_tokens(account)
    for name in account.targets:
        objs += _guests(account, name, sorted((former or {}).get(name, ())))
    return objs


class BoundRole(NamedTuple):
    """A role that an account has in a namespace, empty for all namespaces."""

    namespace: str
    kind: str
    name: str


def rights_of(account: Account, objs: Iterable[Obj]) -> frozenset[BoundRole]:
    """Return the roles that the bindings among objects give to an account.

    Bindings to the role with which the account renews its own tokens do not count.
    """
    rights = set()
    for obj in objs:
        role = text_at(obj, "roleRef", "name")
        if role.startswith(BOUND_PREFIX) or not _is_subject(account, obj):
            continue
        namespace = text_at(obj, "metadata", "namespace")
        rights.add(BoundRole(namespace, text_at(obj, "roleRef", "kind"), role))
    return frozenset(rights)


def _is_subject(account: Account, binding: Obj) -> bool:
    """Return whether a binding names an account."""
    return any(
        text_at(subject, "kind") == "ServiceAccount"
        and text_at(subject, "namespace") == account.namespace
        and text_at(subject, "name") == account.name
        for subject in list_at(binding, "subjects")
    )


def problem_of_namespaces(account: Account, bindings: Iterable[Obj]) -> str:
    """Return why accounts of two identities could issue tokens of each other; empty if they cannot.

    In its target namespaces, an account may issue tokens of any ServiceAccount.

    :param bindings: all bindings on Harvester
    """
    key = Key(account.namespace, account.name)
    if key.namespace in account.targets:
        return f"namespace {key.namespace} is one of targetNamespaces: choose another namespace"

    for obj in bindings:
        role = text_at(obj, "roleRef", "name")
        if role == GUESTS_ROLE and text_at(obj, "metadata", "namespace") == key.namespace:
            return (
                f"namespace {key.namespace} is a target namespace of another account, which may "
                "issue tokens in it: choose another namespace"
            )
        if role != CLUSTER_WIDE_ROLE:
            continue

        for subject in list_at(obj, "subjects"):
            other = Key(text_at(subject, "namespace"), text_at(subject, "name"))
            if other.namespace in account.targets:
                return (
                    f"target namespace {other.namespace} has account {other} of another identity, "
                    "whose tokens this one could issue: choose another target namespace"
                )
    return ""


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


def binding_name(account: Account, role: str) -> str:
    """Return the name of an account's binding to a role."""
    # Several accounts can share a Harvester and a target namespace.
    return f"{role}:{account.namespace}:{account.name}"


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


def _role(kind: str, metadata: Obj, rules: list[Obj]) -> Obj:
    """Return a Role or ClusterRole."""
    return {
        "apiVersion": f"{CLUSTER_ROLES.group}/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": rules,
    }


def _binding(account: Account, role: str, *, of: str = "ClusterRole", namespace: str = "") -> Obj:
    """Return the binding of an account to a role.

    :param of: kind of the role
    :param namespace: where the rights hold, empty for all namespaces
    """
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    return {
        "apiVersion": f"{CLUSTER_ROLES.group}/v1",
        "kind": kind,
        "metadata": {
            "name": binding_name(account, role),
            **({"namespace": namespace} if namespace else {}),
        },
        "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": of, "name": role},
        "subjects": [
            {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
        ],
    }
