"""Which credentials a HarvesterCluster uses, and whether it may: pure.

A HarvesterCluster names a Secret in `identitySecret`, or a HarvesterClusterIdentity in
`identityRef`. The Secret of the latter is in the provider's own namespace, and the clusters of the
namespaces in its `allowedNamespaces` may use it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, list_at, text_at
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES

ALL_NAMESPACES = "*"
KUBECONFIG_KEY = "kubeconfig"
CLOUD_CREDENTIAL_KEY = "harvestercredentialConfig-kubeconfigContent"
"""Key of a kubeconfig in a cloud credential of Rancher for Harvester."""
_KIND = HARVESTER_CLUSTER_IDENTITIES.kind


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a namespace gets no credentials of a HarvesterClusterIdentity, and what to do."""

    message: str
    is_permission: bool = True
    """Whether the permission is missing, not a valid Secret."""


def owner_allows(obj: Obj, namespace: str) -> bool:
    """Return whether HarvesterClusters of another namespace may use a Secret or a ConfigMap.

    Annotation `caphv.io/allowed-namespaces` of the object names the namespaces; `*` allows all.
    """
    annotation = annotations_of(obj).get(ALLOWED_NAMESPACES_ANNOTATION, "")
    allowed = {name.strip() for name in annotation.split(",")}
    return namespace in allowed or ALL_NAMESPACES in allowed


def not_allowed(reference: str, namespace: str) -> str:
    """Return that an object may not be used from a namespace, and how its owner can allow it.

    The text does not depend on the existence of the object, because tenants must not learn which
    objects others have.

    :param reference: the kind of the object, its namespace and name
    """
    return (
        f"{reference}: is in another namespace, and may not be used from namespace {namespace}; "
        f"its owner can allow it with annotation {ALLOWED_NAMESPACES_ANNOTATION}: {namespace}"
    )


def kubeconfig_key(secret: Obj) -> str:
    """Return the key of the kubeconfig in an identity Secret; empty if it has none.

    Rancher's key counts only in a Secret without the other one.
    """
    for key in (KUBECONFIG_KEY, CLOUD_CREDENTIAL_KEY):
        if at(secret, "data", key) or at(secret, "stringData", key):
            return key
    return ""


def decode_kubeconfig(key: str, value: str) -> bytes:
    """Return the text of a kubeconfig in a Secret. Raises `binascii.Error`.

    The text in a cloud credential may itself be base64, as Rancher's node driver accepts it.

    :param key: the key of the Secret
    :param value: its value, in base64
    """
    text = base64.b64decode(value)
    if key == CLOUD_CREDENTIAL_KEY:
        try:
            # Go's decoder ignores line breaks, which `base64` of coreutils writes.
            return base64.b64decode(text.translate(None, b"\r\n"), validate=True)
        except binascii.Error:
            return text  # no kubeconfig is valid base64
    return text


def reference_of(harvester_cluster: Obj) -> str:
    """Return the name of the HarvesterClusterIdentity of a cluster, empty for an identity Secret.

    A cluster with both, which the CRD refuses, gets only what this object allows.
    """
    return text_at(harvester_cluster, "spec", "identityRef", "name")


def identity_of(harvester_cluster: Obj) -> Key:
    """Return the key under which the identity of a cluster is known.

    The key of a HarvesterClusterIdentity has its kind in place of a namespace. No namespace has
    this name, so that no Secret can be taken for it.
    """
    if name := reference_of(harvester_cluster):
        return cluster_identity(name)
    secret = dict_at(harvester_cluster, "spec", "identitySecret")
    return Key(str(secret.get("namespace") or ""), str(secret.get("name") or ""))


def cluster_identity(name: str) -> Key:
    """Return the key of a HarvesterClusterIdentity, as `identity_of` does."""
    return Key(_KIND, name)


def is_cluster_identity(identity: Key) -> bool:
    """Return whether a key of `identity_of` names a HarvesterClusterIdentity."""
    return identity.namespace == _KIND


def describe(identity: Key) -> str:
    """Return how messages name an identity, for a key of `identity_of`."""
    if is_cluster_identity(identity):
        return f"{_KIND} {identity.name}"
    return f"identity Secret {identity}"


def secret_name(identity: Key | str) -> str:
    """Return what follows the word Secret in a message about credentials.

    :param identity: a key of `identity_of`, or its text
    """
    kind, _, name = str(identity).partition("/")
    return f"of {_KIND} {name}" if kind == _KIND else str(identity)


def secret_of(identity: Obj) -> Key:
    """Return the key of the Secret that a HarvesterClusterIdentity names."""
    secret = dict_at(identity, "spec", "secretRef")
    return Key(str(secret.get("namespace") or ""), str(secret.get("name") or ""))


def depends_on_labels(identity: Obj, namespace: str) -> bool:
    """Return whether labels of a namespace decide if it may use a HarvesterClusterIdentity.

    Otherwise they need not be read. A namespace that is allowed by name needs no labels.
    """
    selector = at(identity, "spec", "allowedNamespaces", "selector", "matchLabels")
    return bool(selector) and not allows(identity, namespace, None)


def allows(identity: Obj, namespace: str, labels: Mapping[str, str] | None) -> bool:
    """Return whether clusters of a namespace may use a HarvesterClusterIdentity.

    Nothing allows none: neither an absent or empty field nor an empty selector.

    :param labels: labels of the namespace, None if they are not known
    """
    if not namespace:
        return False
    allowed = list_at(identity, "spec", "allowedNamespaces", "list")
    if namespace in allowed or ALL_NAMESPACES in allowed:
        return True
    required = at(identity, "spec", "allowedNamespaces", "selector", "matchLabels")
    return bool(required) and labels is not None and required.items() <= labels.items()


def resolve(
    name: str,
    identity: Obj | None,
    namespace: str,
    labels: Mapping[str, str] | None,
    provider_namespace: str,
) -> Key | Refused:
    """Return the Secret whose credentials clusters of a namespace get, or why they get none.

    The answer does not tell whether an identity exists that is not allowed: tenants must not learn
    what others have.

    :param name: name of the HarvesterClusterIdentity
    :param identity: the object, None if there is none
    :param namespace: namespace of the HarvesterCluster
    :param labels: labels of this namespace, None if they are not known
    :param provider_namespace: namespace of the provider, the only one with Secrets of identities;
        empty if any may have them, which only a person may choose who reads with own rights
    """
    if identity is None or not allows(identity, namespace, labels):
        return Refused(
            f"{_KIND} {name}: does not exist, or does not allow namespace {namespace}; have its "
            "owner add the namespace to spec.allowedNamespaces, or use spec.identitySecret"
        )

    secret = secret_of(identity)
    if not secret.namespace or provider_namespace not in ("", secret.namespace):
        return Refused(
            f"{_KIND} {name}: its Secret is not in namespace {provider_namespace} of the "
            "provider, so it is not read; have its owner store the Secret there, and set "
            "spec.secretRef.namespace",
            is_permission=False,
        )
    return secret
