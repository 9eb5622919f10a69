"""References of a HarvesterCluster to objects of other namespaces: the owner of the object decides.

The provider may read every identity Secret and patch every ConfigMap. Without a rule, every user who may create
a HarvesterCluster could have it use those of other teams. Therefore an object in another namespace is used only if its
annotation `caphv.io/allowed-namespaces` names the namespace of the HarvesterCluster.

HarvesterClusters that were provisioned before this rule keep what they used, with a warning. Nothing that a user may
write proves this, so condition `ReferencesAllowed` remembers it: once it is set, a new reference needs permission.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from caphv.api import conditions
from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION, ConditionType, Reason
from caphv.api.object import CONFIG_MAPS, Key, Obj, annotations_of
from reconciler.cluster.scope import ClusterScope

_CONDITION = ConditionType.REFERENCES_ALLOWED


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another namespace. `allowed` is None while the object has not been read."""

    kind: str
    key: Key
    allowed: bool | None

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


@dataclass(frozen=True, slots=True)
class Decision:
    """References that need permission and have none: still used with a warning, or refused."""

    tolerated: tuple[Reference, ...] = ()
    refused: tuple[Reference, ...] = ()


def allows(obj: Obj, namespace: str) -> bool:
    """Whether the annotation of an object names a namespace; `*` names all."""
    allowed = {name.strip() for name in annotations_of(obj).get(ALLOWED_NAMESPACES_ANNOTATION, "").split(",")}
    return namespace in allowed or "*" in allowed


def decide(references: Sequence[Reference], known: Collection[str] | None, *, cross_namespace: bool) -> Decision:
    """Decide about references. `known` are those in use since before the rule, None if all are."""
    if not cross_namespace:
        return Decision(refused=tuple(references))
    open_ones = [reference for reference in references if not reference.allowed]
    tolerated = tuple(each for each in open_ones if known is None or str(each) in known)
    return Decision(tolerated, tuple(each for each in open_ones if each not in tolerated))


def in_use_before(obj: Obj) -> Collection[str] | None:
    """References that a HarvesterCluster has used since before the rule; None for all that it has now.

    Only its status counts, which users do not write.
    """
    status = obj.get("status") or {}
    condition = conditions.get_condition(status.get("conditions") or [], _CONDITION)
    if condition is None:
        return None if (status.get("initialization") or {}).get("provisioned") else ()
    if condition.get("reason") != Reason.CROSS_NAMESPACE_REFERENCE:
        return ()
    return str(condition.get("message")).partition(": ")[0].split(", ")


def may_use(secret: Obj, cluster: Obj) -> bool:
    """Whether a HarvesterCluster may use an identity Secret, as far as other tenants are concerned."""
    key, namespace = Key(secret["metadata"]["namespace"], secret["metadata"]["name"]), cluster["metadata"]["namespace"]
    if key.namespace == namespace or allows(secret, namespace):
        return True
    known = in_use_before(cluster)
    return known is None or f"Secret {key}" in known


async def check_references(scope: ClusterScope, secret: Key) -> Decision:
    """Decide about the references of a cluster, and report those without permission in its condition."""
    found: list[Reference] = []
    if secret.namespace != scope.key.namespace:
        listed = scope.context.caches.secrets.get(*secret)
        found.append(Reference("Secret", secret, listed is not None and allows(listed, scope.key.namespace)))
    config_map = config_map_of(scope.obj)
    if config_map and config_map.namespace != scope.key.namespace:
        found.append(Reference("ConfigMap", config_map, await _allowed_config_map(scope, config_map)))
    decision = decide(found, in_use_before(scope.obj), cross_namespace=scope.context.cross_namespace_refs)
    if not scope.read_only and all(reference.allowed is not None for reference in found):
        _report(scope, decision)
    return decision


def config_map_of(obj: Obj) -> Key | None:
    """The ConfigMap with manifests that a HarvesterCluster names, None for none."""
    config = obj["spec"].get("updateCloudProviderConfig")
    if not config:
        return None
    return Key(str(config["manifestsConfigMapNamespace"]), str(config["manifestsConfigMapName"]))


def refusal(scope: ClusterScope, reference: str) -> str:
    """Why a reference is refused, and what its owner can do; the same whether or not the object exists."""
    if not scope.context.cross_namespace_refs:
        return (
            f"{reference}: is in another namespace, and this provider uses none of other namespaces "
            "(--no-cross-namespace-refs); create it in the namespace of the HarvesterCluster"
        )
    return (
        f"{reference}: is in another namespace, and may not be used from namespace {scope.key.namespace}; its owner "
        f"can allow it with annotation {ALLOWED_NAMESPACES_ANNOTATION}: {scope.key.namespace}"
    )


async def _allowed_config_map(scope: ClusterScope, target: Key) -> bool | None:
    watch = await scope.context.object_watches.ensure(scope.key, scope.context.client, CONFIG_MAPS, target)
    if watch is None:
        return None
    known = watch.get(*target)
    return known is not None and allows(known, scope.key.namespace)


def _report(scope: ClusterScope, decision: Decision) -> None:
    if decision.tolerated:
        names = ", ".join(map(str, decision.tolerated))
        message = (
            f"{names}: in another namespace, and used without permission; the next version refuses this. Its owner has "
            f"to set annotation {ALLOWED_NAMESPACES_ANNOTATION}: {scope.key.namespace}"
        )
        reason = Reason.CROSS_NAMESPACE_REFERENCE
    elif decision.refused:
        message, reason = refusal(scope, ", ".join(map(str, decision.refused))), Reason.REFERENCE_NOT_ALLOWED
    else:
        scope.draft.set_true(_CONDITION)
        return
    if not scope.draft.has_message(_CONDITION, message):
        scope.warning_event(reason, message)
    scope.draft.set_false(_CONDITION, reason, message)
