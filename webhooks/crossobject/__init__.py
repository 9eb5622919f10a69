"""Check objects without an API server, each by the webhook's rules, and all of them together.

Admission sees one object at a time, so it cannot refuse faults that depend on several objects. A
set of files has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation import schema
from caphv.validation.finding import Fault, Finding, LocatedFinding, did_you_mean, in_order
from caphv.validation.rule import Rule
from webhooks.admission import KINDS, RULES, Review, validate
from webhooks.crossobject import (
    bootstrap,
    machines,
    networks,
    objects,
    references,
    rendered,
    topology,
)
from webhooks.crossobject.model import BOOTSTRAP_GROUP, CONTROL_PLANE_GROUP, Inventory, locate
from webhooks.rules.model import CLUSTER_IDENTITY

CROSS_OBJECT_RULES: tuple[Rule, ...] = (
    *objects.RULES,
    *references.RULES,
    *networks.RULES,
    *machines.RULES,
    *bootstrap.RULES,
    *topology.RULES,
    *rendered.RULES,
)


def concerns(obj: Obj) -> bool:
    """Return whether the object is in a group of this provider or Cluster API, which have rules."""
    return _group(obj) in (GROUP, CLUSTER_API_GROUP, CONTROL_PLANE_GROUP, BOOTSTRAP_GROUP)


def check(obj: Obj) -> list[Finding]:
    """Return the findings of webhook and CRD on creation. Kinds of other groups have none.

    An unknown kind or version of this provider's group is a finding.
    """
    if _group(obj) != GROUP:
        return []

    kind = obj.get("kind")
    version = str(obj["apiVersion"]).partition("/")[2]
    if not isinstance(kind, str) or kind not in (*KINDS, CLUSTER_IDENTITY):
        suggestion = did_you_mean(str(kind), (*KINDS, CLUSTER_IDENTITY))
        detail = f"group {GROUP} of this provider has no such kind{suggestion}"
        return [Finding(("kind",), Fault.UNSUPPORTED, detail, "kind", kind)]
    if version not in VERSIONS:
        served = " or ".join(f"{GROUP}/{served}" for served in reversed(VERSIONS))
        path = ("apiVersion",)
        value = obj["apiVersion"]
        return [Finding(path, Fault.UNSUPPORTED, f"must be {served}", "api-version", value)]

    if kind == CLUSTER_IDENTITY:
        # The CRD says all about it, so that it needs no webhook.
        return schema.load("harvesterclusteridentity.json").findings(obj, version=version)

    # The webhook never sees unknown fields, because the API server drops them before.
    strict = schema.load(KINDS[kind].schema).findings(obj, version=version)
    unknown = [finding for finding in strict if finding.fault is Fault.UNKNOWN]
    # The webhook skips objects that are being deleted. An object in a file is not being deleted,
    # but may have been printed from a cluster in this state.
    verdict = validate(
        Review(operation="CREATE", kind=kind, version=version, object=_without_deletion(obj))
    )
    return in_order([*verdict.errors, *verdict.warnings, *unknown])


def check_together(objs: Sequence[Obj]) -> list[LocatedFinding[int]]:
    """Return findings about references and conflicts between objects, including Cluster API's."""
    inventory = Inventory(objs)
    # Drop repetitions, because rules that follow references check an object once per reference.
    unique: dict[tuple[int, str, str, str], LocatedFinding[int]] = {}
    for rule in CROSS_OBJECT_RULES:
        for located in locate(rule, inventory):
            finding = located.finding
            key = (located.place, finding.field, finding.rule, finding.detail)
            unique.setdefault(key, located)
    return [unique[key] for key in sorted(unique)]


def rules() -> Sequence[Rule]:
    """Return the rules about single objects, and the rules about several objects."""
    return (*RULES.values(), *CROSS_OBJECT_RULES)


def _without_deletion(obj: Obj) -> Obj:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or "deletionTimestamp" not in metadata:
        return obj
    kept = {key: value for key, value in metadata.items() if key != "deletionTimestamp"}
    return {**obj, "metadata": kept}


def _group(obj: Obj) -> str:
    api_version = obj.get("apiVersion")
    return api_version.rpartition("/")[0] if isinstance(api_version, str) else ""
