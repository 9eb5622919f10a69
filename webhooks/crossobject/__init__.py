"""Objects judged without an API server: each by the webhook's rules, and all of them together.

What needs other objects cannot be refused at admission, where one object comes at a time. Files are there as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api.names import GROUP, VERSIONS
from caphv.validation import schema
from caphv.validation.finding import Fault, Finding, in_order
from webhooks.admission import KINDS, RULES, Review, judge
from webhooks.crossobject import machines, networks, objects, references, topology
from webhooks.crossobject.model import CONTROL_PLANE_GROUP, CORE_GROUP, Check, Inventory, Obj, Remark, did_you_mean

__all__ = ["CHECKS", "Check", "Remark", "alone", "concerns", "described", "together"]

CHECKS: tuple[Check, ...] = (
    *objects.CHECKS,
    *references.CHECKS,
    *networks.CHECKS,
    *machines.CHECKS,
    *topology.CHECKS,
)


def concerns(obj: Obj) -> bool:
    """Whether an object is one that rules here are about: of this provider, or of Cluster API's own groups."""
    return _group(obj) in (GROUP, CORE_GROUP, CONTROL_PLANE_GROUP)


def alone(obj: Obj) -> list[Finding]:
    """Return what the webhook and the CRD would say of an object that is created; nothing of other groups' kinds.

    A kind or version of this provider's group that there is not is a finding.
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
    verdict = judge(Review("CREATE", kind, version, obj))
    return in_order([*verdict.errors, *verdict.warnings, *unknown])


def together(objs: Sequence[Obj]) -> list[Remark]:
    """Return what is wrong among objects, and with objects of Cluster API as far as this provider is concerned."""
    inventory = Inventory(objs)
    unique: dict[tuple[int, str, str, str], Remark] = {}
    for check in CHECKS:
        for remark in check.remarks(inventory):
            finding = remark.finding
            unique.setdefault((remark.index, finding.field, finding.rule, finding.detail), remark)
    return [unique[key] for key in sorted(unique)]


def described() -> dict[str, str]:
    """Return what each rule says, by its name: those about one object and those about several."""
    return {rule.name: rule.description for rule in RULES.values()} | {
        check.name: check.description for check in CHECKS
    }


def _group(obj: Obj) -> str:
    api_version = obj.get("apiVersion")
    return api_version.rpartition("/")[0] if isinstance(api_version, str) else ""
