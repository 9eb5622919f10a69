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
from caphv.api.object import CONFIG_MAPS, SECRETS, Key, Obj, annotations_of, key_of
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


def may_use(obj: Obj, cluster: Obj, kind: str = SECRETS.kind) -> bool:
    """Whether a HarvesterCluster may use an object, a Secret or `kind`, as far as other tenants are concerned."""
    key, namespace = key_of(obj), cluster["metadata"]["namespace"]
    if key.namespace == namespace or allows(obj, namespace):
        return True
    known = in_use_before(cluster)
    return known is None or f"{kind} {key}" in known


async def check_references(scope: ClusterScope, secret: Key) -> Decision:
    """Decide about the references of a cluster, and report those without permission in its condition."""
    found: list[Reference] = []
    if secret.namespace != scope.key.namespace:
        listed = scope.context.caches.secrets.get(*secret)
        found.append(Reference("Secret", secret, listed is not None and allows(listed, scope.key.namespace)))
    config_map = config_map_of(scope.obj)
    if config_map and config_map.namespace != scope.key.namespace:
        found.append(Reference("ConfigMap", config_map, await _allowed_config_map(scope, config_map)))
    known = _known(scope)
    decision = decide(found, known, cross_namespace=scope.context.cross_namespace_refs)
    if known is None:
        scope.memory.references_before_the_rule = frozenset(map(str, decision.tolerated))
    if scope.read_only:
        return decision
    unread = [str(reference) for reference in found if reference.allowed is None]
    if not unread:
        _report(scope, decision)
    elif not scope.draft.has(_CONDITION):
        _report_unread(scope, decision, unread)
    return decision


def _known(scope: ClusterScope) -> Collection[str] | None:
    """What `in_use_before` says, or what was found before: a user may keep the condition from being written.

    Each write of the status is a conflict while the user changes the object all the time.
    """
    known = in_use_before(scope.obj)
    if known is None:
        return scope.memory.references_before_the_rule
    if scope.memory.references_before_the_rule is None and not scope.read_only:
        scope.memory.references_before_the_rule = frozenset(known)
    return known


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


def _report_unread(scope: ClusterScope, decision: Decision, unread: Sequence[str]) -> None:
    """Set the condition although references have not been read: without it, all that a ready cluster has is used.

    Else a user could provision a cluster with a reference that is never read, and name the Secrets of others then.
    """
    if decision.tolerated:
        scope.draft.set_false(_CONDITION, Reason.CROSS_NAMESPACE_REFERENCE, _tolerated(scope, decision))
    else:
        scope.draft.set_unknown(_CONDITION, Reason.REFERENCES_CHECKING, f"reading {', '.join(unread)}")


def _tolerated(scope: ClusterScope, decision: Decision) -> str:
    names = ", ".join(map(str, decision.tolerated))
    return (
        f"{names}: in another namespace, and used without permission; the next version refuses this. Its owner has "
        f"to set annotation {ALLOWED_NAMESPACES_ANNOTATION}: {scope.key.namespace}"
    )


def _report(scope: ClusterScope, decision: Decision) -> None:
    if decision.tolerated:
        message, reason = _tolerated(scope, decision), Reason.CROSS_NAMESPACE_REFERENCE
    elif decision.refused:
        message = refusal(scope, ", ".join(map(str, decision.refused)))
        reason = Reason.REFERENCE_NOT_ALLOWED
    else:
        scope.draft.set_true(_CONDITION)
        return
    if not scope.draft.has_message(_CONDITION, message):
        scope.warning_event(reason, message)
    scope.draft.set_false(_CONDITION, reason, message)
