"""What admission does with an object: refuse it, warn, or fill in what is left out. Pure, for every entry point.

Upgrades never stop a cluster. A change is refused only for what it brings about: what was wrong before stays a warning,
and a change that leaves the spec alone is no matter of ours. What Cluster API clones from a template that is stored,
and what a move or a restore creates, gets warnings for rules that the Go provider did not have, so that scaling,
remediation and moves continue; the template itself, and what people make by hand, is refused. Objects that are going
are never blocked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from caphv.api import names
from caphv.api.bounds import beyond
from caphv.api.object import Obj
from caphv.validation import schema as compiled
from caphv.validation.finding import Fault, Finding, in_order
from caphv.validation.rule import Rule
from webhooks.rules import addresses, cluster, guest, immutability, machine, objectnames, placement, pools, volumes
from webhooks.rules.cluster import UNSET_HOST
from webhooks.rules.model import (
    CLUSTER,
    CLUSTER_TEMPLATE,
    CLUSTERS,
    MACHINE,
    MACHINE_TEMPLATE,
    Subject,
    as_advice,
)

CLONED_FROM_ANNOTATION = names.CLONED_FROM_ANNOTATION
RESTORED_LABEL = "velero.io/restore-name"
_FINALIZERS = frozenset(
    (
        names.CLUSTER_FINALIZER,
        names.LEGACY_CLUSTER_FINALIZER,
        names.MACHINE_FINALIZER,
        names.LEGACY_MACHINE_FINALIZER,
    )
)
API_PORT = 6443
_MOST_OVERSIZED = 100


class Kind(NamedTuple):
    """Plural of a kind, and its file in `schemas/`."""

    plural: str
    schema: str


KINDS = {
    CLUSTER: Kind("harvesterclusters", "harvestercluster.json"),
    CLUSTER_TEMPLATE: Kind("harvesterclustertemplates", "harvesterclustertemplate.json"),
    MACHINE: Kind("harvestermachines", "harvestermachine.json"),
    MACHINE_TEMPLATE: Kind("harvestermachinetemplates", "harvestermachinetemplate.json"),
}

RULES: dict[str, Rule] = {
    rule.name: rule
    for rules in (
        machine.RULES,
        volumes.RULES,
        addresses.RULES,
        pools.RULES,
        cluster.RULES,
        guest.RULES,
        placement.RULES,
        objectnames.RULES,
        immutability.RULES,
    )
    for rule in rules
}
"""Every rule by its name, in the order of the documentation."""


def _fields(rule: Rule) -> frozenset[str]:
    """The fields of a spec without any of which a rule finds nothing; empty for a rule that may find something."""
    fields = {re.split(r"[.\[]", field)[0] for field in rule.fields}
    return frozenset(() if fields & {"*", "metadata", "spec"} else fields)


_OF_KIND = {kind: tuple((rule, _fields(rule)) for rule in RULES.values() if kind in rule.kinds) for kind in KINDS}


@dataclass(frozen=True)
class Review:
    """A request to create, change or delete an object: `kind` as in `KINDS`, `version` of the API it is written in.

    `enforced` names rules whose warnings are errors in this installation.
    """

    operation: str
    kind: str
    version: str
    object: Obj | None
    old: Obj | None = None
    dry_run: bool = False
    enforced: Collection[str] = ()


@dataclass(frozen=True)
class Verdict:
    """The object is refused if there are `errors`; `warnings` are for the person who sent it."""

    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


def validate(review: Review, *, without: Collection[str] = ()) -> Verdict:
    """Validate a review by schema and rules; rules named in `without` are left out.

    Fields that the schema does not know are no matter of admission: the API server has dropped them before. Raises
    nothing, whatever the objects look like.
    """
    obj = review.object
    if review.operation not in ("CREATE", "UPDATE") or not isinstance(obj, dict) or _deleted(obj):
        return Verdict()
    old = review.old if review.operation == "UPDATE" and isinstance(review.old, dict) else None
    if old is not None and old.get("spec") == obj.get("spec"):
        return Verdict()
    found = [
        replace(finding, advice=False) if finding.rule in review.enforced else finding
        for finding in _findings(review, obj, old, without)
    ]
    if old is None and _existed_before(Subject.of(review.kind, obj)):
        found = [finding if _refused_by_go(finding) else as_advice(finding) for finding in found]
    elif old is not None and not all(finding.advice for finding in found):
        found = list(_known_as_advice(found, _findings(review, old, None, without)))
    ordered = in_order(found)
    return Verdict(
        tuple(finding for finding in ordered if not finding.advice),
        tuple(finding for finding in ordered if finding.advice),
    )


def defaults(review: Review) -> list[Obj]:
    """Return what to fill in as operations of a JSON Patch (RFC 6902), none when nothing is left to fill in.

    Most fields have no default here because their absence says something: a disk without `bootOrder`, a network without
    `subnetMask`. The port of an endpoint is the one that the contract fixes. An endpoint that is known is filled in for
    a placeholder: the Go provider's ClusterClass has one, and the topology of a Cluster would set it again and again.
    A template that the Go provider stored without a port stays without: it must not change, not even by a default.
    """
    if not isinstance(review.object, dict) or review.kind not in CLUSTERS or _deleted(review.object):
        return []
    endpoint = Subject.of(review.kind, review.object).spec.at("controlPlaneEndpoint")
    path = "".join(f"/{part}" for part in endpoint.path)
    if endpoint.at("host").text == UNSET_HOST and review.kind == CLUSTER and isinstance(review.old, dict):
        known = Subject.of(review.kind, review.old).spec.at("controlPlaneEndpoint")
        if known.at("host").text not in ("", UNSET_HOST):
            return [{"op": "replace", "path": path, "value": known.value}]
    if not endpoint.at("host").text or "port" in endpoint.mapping:
        return []
    if review.kind == CLUSTER_TEMPLATE and isinstance(review.old, dict):
        stored = Subject.of(review.kind, review.old).spec.at("controlPlaneEndpoint")
        if "port" not in stored.mapping:
            return []
    return [{"op": "add", "path": f"{path}/port", "value": API_PORT}]


def _findings(review: Review, obj: Obj, old: Obj | None, without: Collection[str]) -> Iterable[Finding]:
    if oversized := list(_oversized(obj)):
        # Schema and rules would read each of its values.
        yield from oversized
        return
    schema = compiled.load(KINDS[review.kind].schema)
    found = schema.findings(obj, version=review.version, unknown_fields=False)
    yield from found
    # What the schema has reported of a field, no rule repeats in other words.
    reported = {finding.path for finding in found}
    for finding in _of_rules(Subject.of(review.kind, obj, old=old, dry_run=review.dry_run), without):
        if finding.path not in reported:
            yield finding


def _oversized(obj: Obj) -> Iterator[Finding]:
    """What is beyond the bounds that the CRDs set for every list, map and text."""
    for path, unit, most in islice(beyond(obj.get("spec"), ("spec",)), _MOST_OVERSIZED):
        if unit == "characters":
            yield Finding(path, Fault.TOO_LONG, f"must have at most {most:,} characters", "schema-maxLength")
        else:
            yield Finding(path, Fault.TOO_MANY, f"must have at most {most:,} {unit}", "schema-maxItems")


def _of_rules(subject: Subject, without: Collection[str]) -> Iterator[Finding]:
    # Most machines have few of the fields, and a rule costs a microsecond.
    present = set(subject.spec.mapping)
    if subject.old:
        present.update(subject.old.spec.mapping)
    for rule, fields in _OF_KIND[subject.kind]:
        if not (fields and present.isdisjoint(fields)) and rule.name not in without:
            yield from rule.findings(subject)


def _known_as_advice(found: Iterable[Finding], before: Iterable[Finding]) -> Iterator[Finding]:
    """Turn into warnings as many findings of one kind as there were before."""
    known = Counter(map(_identity, before))
    for finding in found:
        identity = _identity(finding)
        yield as_advice(finding) if known[identity] > 0 else finding
        known[identity] -= 1


def _refused_by_go(finding: Finding) -> bool:
    rule = RULES.get(finding.rule)
    return rule is None or rule.refused_by_go or finding.advice


def _identity(finding: Finding) -> tuple[Any, ...]:
    """What makes two findings the same; not the place in a list, which changes with what stands before it."""
    path = tuple("*" if isinstance(part, int) else part for part in finding.path)
    return finding.rule, path, repr(finding.value)


def _existed_before(subject: Subject) -> bool:
    """Whether a new object is a clone of a stored template, or was stored before a move or a restore.

    A user who writes an object knows no uid of an owner, and sets no finalizer.
    """
    metadata = subject.obj.at("metadata")
    finalizers = [finalizer.text for finalizer in metadata.at("finalizers").each()]
    return (
        CLONED_FROM_ANNOTATION in subject.annotations
        or metadata.at("ownerReferences").present
        or not _FINALIZERS.isdisjoint(finalizers)
        or names.RESTORED_FROM_ANNOTATION in subject.annotations
        or RESTORED_LABEL in metadata.at("labels").mapping
    )


def _deleted(obj: Obj) -> bool:
    metadata = obj.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))
