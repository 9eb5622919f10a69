"""The rule set of this provider's objects, without an API server: each by the webhook's rules, and all together.

What depends on other objects cannot be refused at admission, which sees one object at a time. Files come as a whole.
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
from webhooks.crossobject import bootstrap, machines, networks, objects, references, rendered, topology
from webhooks.crossobject.model import BOOTSTRAP_GROUP, CONTROL_PLANE_GROUP, Inventory, locate

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
    """Whether an object is one that rules here are about: of this provider, or of Cluster API's own groups."""
    return _group(obj) in (GROUP, CLUSTER_API_GROUP, CONTROL_PLANE_GROUP, BOOTSTRAP_GROUP)


def check(obj: Obj) -> list[Finding]:
    """Return what the webhook and the CRD would report when the object is created; nothing for kinds of other groups.

    An unknown kind or version of this provider's group is a finding.
    """
    if _group(obj) != GROUP:
        return []
    kind, version = obj.get("kind"), str(obj["apiVersion"]).partition("/")[2]
    if not isinstance(kind, str) or kind not in KINDS:
        detail = f"group {GROUP} of this provider has no such kind{did_you_mean(str(kind), KINDS)}"
        return [Finding(("kind",), Fault.UNSUPPORTED, detail, "kind", kind)]
    if version not in VERSIONS:
        detail = f"must be {' or '.join(f'{GROUP}/{served}' for served in reversed(VERSIONS))}"
        return [Finding(("apiVersion",), Fault.UNSUPPORTED, detail, "api-version", obj["apiVersion"])]
    # The webhook never sees unknown fields, because the API server drops them before.
    strict = schema.load(KINDS[kind].schema).findings(obj, version=version)
    unknown = [finding for finding in strict if finding.fault is Fault.UNKNOWN]
    # The webhook lets pass what is being deleted. A file cannot be: it was printed from a cluster.
    verdict = validate(Review("CREATE", kind, version, _without_deletion(obj)))
    return in_order([*verdict.errors, *verdict.warnings, *unknown])


def check_together(objs: Sequence[Obj]) -> list[LocatedFinding[int]]:
    """Return what is wrong among objects, and with objects of Cluster API as far as this provider is concerned."""
    inventory = Inventory(objs)
    unique: dict[tuple[int, str, str, str], LocatedFinding[int]] = {}
    for rule in CROSS_OBJECT_RULES:
        for found in locate(rule, inventory):
            finding = found.finding
            unique.setdefault((found.place, finding.field, finding.rule, finding.detail), found)
    return [unique[key] for key in sorted(unique)]


def rules() -> Sequence[Rule]:
    """Return the rules about one object and those about several."""
    return (*RULES.values(), *CROSS_OBJECT_RULES)


def _without_deletion(obj: Obj) -> Obj:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or "deletionTimestamp" not in metadata:
        return obj
    return obj | {"metadata": {key: value for key, value in metadata.items() if key != "deletionTimestamp"}}


def _group(obj: Obj) -> str:
    api_version = obj.get("apiVersion")
    return api_version.rpartition("/")[0] if isinstance(api_version, str) else ""
