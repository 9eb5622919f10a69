"""Check references of a HarvesterCluster to objects in other namespaces.

The provider may read every identity Secret and patch every ConfigMap. Without a rule, every user
who may create a HarvesterCluster could have it use objects of other teams. Therefore the owner of
an object decides. The provider uses an object in another namespace only if annotation
`caphv.io/allowed-namespaces` of the object names the namespace of the HarvesterCluster, and a
HarvesterClusterIdentity only if its field `allowedNamespaces` allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caphv.api import resources
from caphv.api.identities import (
    Refused,
    describe,
    identity_of,
    is_cluster_identity,
    not_allowed,
    owner_allows,
    reference_of,
)
from caphv.api.names import ConditionType, Reason
from caphv.api.object import CONFIG_MAPS, Key, Obj, being_deleted, key_of
from reconciler.cluster.scope import ClusterScope
from reconciler.remote.clusteridentities import NotRead

_CONDITION = ConditionType.REFERENCES_ALLOWED


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another namespace. `allowed` is None while the object has not been read.

    :param refusal: why it is refused, if no annotation of the object decides
    """

    kind: str
    key: Key
    allowed: bool | None
    refusal: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def may_use(obj: Obj, cluster: Obj) -> bool:
    """Return whether the owner of an object allows a HarvesterCluster to use it."""
    namespace = cluster["metadata"]["namespace"]
    return key_of(obj).namespace == namespace or owner_allows(obj, namespace)


def resolve_identity(scope: ClusterScope) -> Key | Refused:
    """Return the Secret of the HarvesterClusterIdentity that a cluster names, or why it gets none.

    Raises `NotRead` while it cannot be decided.
    """
    if scope.context.namespace:
        return Refused(
            f"{describe(identity_of(scope.obj))}: this provider reads objects in namespace "
            f"{scope.context.namespace} only (--namespace); use spec.identitySecret",
            is_permission=False,
        )
    identities = scope.context.cluster_identities
    # The deletion of a cluster begins with its machines, before the HarvesterCluster is deleted.
    is_ending = any(being_deleted(obj) for obj in (scope.obj, scope.cluster) if obj)
    name = reference_of(scope.obj)
    namespace = scope.key.namespace
    return identities.resolve(name, namespace, is_ending=is_ending)


async def refused_references(scope: ClusterScope) -> list[Reference]:
    """Return the references that are not permitted, and report them in the condition."""
    references: list[Reference] = []
    permitted = scope.context.cross_namespace_refs
    identity = identity_of(scope.obj)

    if is_cluster_identity(identity):
        references.append(_cluster_identity(scope, identity.name))
    elif identity.namespace != scope.key.namespace:
        listed = scope.context.caches.secrets.get(*identity)
        allowed = listed is not None and owner_allows(listed, scope.key.namespace)
        references.append(Reference("Secret", identity, permitted and allowed))
    config_map = config_map_of(scope.obj)
    if config_map and config_map.namespace != scope.key.namespace:
        permission = await _allowed_config_map(scope, config_map)
        allowed_now = None if permission is None else permitted and permission
        references.append(Reference("ConfigMap", config_map, allowed_now))

    refused = [reference for reference in references if not reference.allowed]
    if scope.read_only:
        return refused

    # While an object has not been read, an existing condition stays the same.
    unread = [str(reference) for reference in references if reference.allowed is None]
    if not unread:
        _report(scope, refused)
    elif not scope.draft.has(_CONDITION):
        scope.draft.set_unknown(
            _CONDITION, Reason.REFERENCES_CHECKING, f"reading {', '.join(unread)}"
        )
    return refused


def config_map_of(obj: Obj) -> Key | None:
    """Return the key of the ConfigMap that a HarvesterCluster names, None for none."""
    config = obj["spec"].get("updateCloudProviderConfig")
    if not config:
        return None
    return Key(str(config["manifestsConfigMapNamespace"]), str(config["manifestsConfigMapName"]))


def refusal(scope: ClusterScope, reference: str) -> str:
    """Return why a reference is refused, and how the owner of the object can allow it."""
    if not scope.context.cross_namespace_refs:
        return (
            f"{reference}: is in another namespace, and this provider uses none of other "
            "namespaces (--no-cross-namespace-refs); create it in the namespace of the "
            "HarvesterCluster"
        )
    return not_allowed(reference, scope.key.namespace)


def _cluster_identity(scope: ClusterScope, name: str) -> Reference:
    """Return the reference of a cluster to a HarvesterClusterIdentity.

    A problem with the Secret of an identity that is allowed is none of the reference.
    """
    kind = resources.HARVESTER_CLUSTER_IDENTITIES.kind
    key = Key("", name)
    try:
        answer = resolve_identity(scope)
    except NotRead:
        return Reference(kind, key, None)
    if isinstance(answer, Refused) and answer.is_permission:
        return Reference(kind, key, False, answer.message)
    return Reference(kind, key, True)


async def _allowed_config_map(scope: ClusterScope, target: Key) -> bool | None:
    """Return whether the ConfigMap permits the reference, None while it has not been read."""
    watch = await scope.context.object_watches.ensure(
        scope.key, scope.context.client, CONFIG_MAPS, target
    )
    if watch is None:
        return None
    config_map = watch.get(*target)
    return config_map is not None and owner_allows(config_map, scope.key.namespace)


def _report(scope: ClusterScope, refused: Sequence[Reference]) -> None:
    """Set the condition, with an Event if other references are refused than before."""
    if not refused:
        scope.draft.set_true(_CONDITION)
        return

    messages = [reference.refusal for reference in refused if reference.refusal]
    if not_allowed_by_owner := [str(reference) for reference in refused if not reference.refusal]:
        messages.append(refusal(scope, ", ".join(not_allowed_by_owner)))
    message = "; ".join(messages)
    if not scope.draft.has_message(_CONDITION, message):
        scope.warning_event(Reason.REFERENCE_NOT_ALLOWED, message)
    scope.draft.set_false(_CONDITION, Reason.REFERENCE_NOT_ALLOWED, message)
