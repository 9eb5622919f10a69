"""Decide whether admission refuses an object, warns about it, or fills in defaults.

This module does no I/O, so every entry point can use it.

An upgrade of the provider never stops a cluster:

- A change is refused only for faults that it introduces. Older faults are warnings, and a change
  that keeps the spec is not checked.
- Clones of a stored template, and objects that a move or a restore creates, only get warnings for
  rules that the Go provider did not have, so that scaling, remediation and moves continue. The same
  faults refuse the template itself, and objects that users write.
- Objects that are being deleted are never refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from caphv.api import names
from caphv.api.bounds import beyond
from caphv.api.object import Obj, at
from caphv.validation import schema as compiled
from caphv.validation.finding import Fault, Finding, in_order
from caphv.validation.rule import Rule
from webhooks.rules import (
    addresses,
    cluster,
    devices,
    guest,
    images,
    immutability,
    interfaces,
    machine,
    objectnames,
    placement,
    pools,
    volumes,
)
from webhooks.rules.cluster import UNSET_HOST
from webhooks.rules.model import (
    CLUSTER,
    CLUSTER_TEMPLATE,
    CLUSTERS,
    MACHINE,
    MACHINE_TEMPLATE,
    Field,
    Subject,
    as_advice,
)

CLONED_FROM_ANNOTATION = names.CLONED_FROM_ANNOTATION
RESTORED_LABEL = "velero.io/restore-name"
_EMPTY = frozenset({"schema-minItems", "schema-minLength"})
_FINALIZERS = frozenset(
    (
        names.CLUSTER_FINALIZER,
        names.LEGACY_CLUSTER_FINALIZER,
        names.MACHINE_FINALIZER,
        names.LEGACY_MACHINE_FINALIZER,
    )
)
# The load balancer of every cluster listens here.
API_PORT = 6443
# Findings are limited, because a hostile object exceeds bounds at each of its values.
_MAX_OVERSIZED = 100


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
        devices.RULES,
        volumes.RULES,
        images.RULES,
        addresses.RULES,
        interfaces.RULES,
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


def _needed_fields(rule: Rule) -> frozenset[str]:
    """Return the fields of which a spec must have one for the rule to apply; none if unknown."""
    fields = {re.split(r"[.\[]", field)[0] for field in rule.fields}
    return frozenset() if fields & {"*", "metadata", "spec"} else frozenset(fields)


# Rules are grouped only once, because each review needs them.
_RULES_OF_KIND = {
    kind: [(rule, _needed_fields(rule)) for rule in RULES.values() if kind in rule.kinds]
    for kind in KINDS
}


@dataclass(frozen=True)
class Review:
    """A request to create, change or delete an object.

    `kind` is a key of `KINDS`. `version` is the API version of the object.

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
    """The object is refused if there are `errors`. `warnings` are for the user who sent it."""

    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


def validate(review: Review, *, without: Collection[str] = ()) -> Verdict:
    """Validate a review by schema and rules, except for rules named in `without`.

    Does not report fields that the schema does not know, because the API server drops them first.
    Never raises, whatever the objects contain.
    """
    obj = review.object
    if review.operation not in ("CREATE", "UPDATE") or not isinstance(obj, dict):
        return Verdict()
    # Removing a finalizer must be possible, whatever else is wrong with the object.
    if _is_being_deleted(obj):
        return Verdict()
    old = review.old if review.operation == "UPDATE" and isinstance(review.old, dict) else None
    # Controllers often change labels, finalizers and owners, even of objects that a newer release
    # would refuse.
    if old is not None and old.get("spec") == obj.get("spec"):
        return Verdict()

    findings = [
        replace(finding, advice=False) if finding.rule in review.enforced else finding
        for finding in _findings(review, obj, old, without)
    ]
    if old is None and _existed_before(Subject.of(review.kind, obj)):
        findings = [_tolerate_unless_go_refused(finding, review.kind) for finding in findings]
    # Only errors can stop the change. Without errors, the older state need not be validated.
    elif old is not None and not all(finding.advice for finding in findings):
        older_findings = _findings(review, old, None, without)
        findings = list(_tolerate_older(findings, older_findings))

    ordered = in_order(findings)
    return Verdict(
        errors=tuple(finding for finding in ordered if not finding.advice),
        warnings=tuple(finding for finding in ordered if finding.advice),
    )


def defaults(review: Review) -> list[Obj]:
    """Return the JSON Patch (RFC 6902) that fills in defaults, empty if none are missing.

    Most fields have no default here, because their absence has a meaning: a disk without
    `bootOrder`, a network without `subnetMask`. Only the endpoint of a cluster has defaults:

    - The contract fixes the port. A template that the Go provider stored without a port stays
      without one, because it must not change, not even by a default.
    - The endpoint that a cluster already has replaces a placeholder, because the ClusterClass of
      the Go provider has a placeholder, which the topology of a Cluster would set repeatedly.
    """
    if not isinstance(review.object, dict) or review.kind not in CLUSTERS:
        return []
    if _is_being_deleted(review.object):
        return []
    endpoint = _endpoint(review.kind, review.object)
    old_endpoint = _endpoint(review.kind, review.old)
    path = "".join(f"/{part}" for part in endpoint.path)

    is_placeholder = review.kind == CLUSTER and endpoint.at("host").text == UNSET_HOST
    if is_placeholder and old_endpoint.at("host").text not in ("", UNSET_HOST):
        return [{"op": "replace", "path": path, "value": old_endpoint.value}]

    if not endpoint.at("host").text or "port" in endpoint.mapping:
        return []
    is_stored_template = review.kind == CLUSTER_TEMPLATE and isinstance(review.old, dict)
    if is_stored_template and "port" not in old_endpoint.mapping:
        return []
    return [{"op": "add", "path": f"{path}/port", "value": API_PORT}]


def _endpoint(kind: str, obj: Obj | None) -> Field:
    """Return the endpoint of a cluster or a template, without a value if there is no object."""
    subject = Subject.of(kind, obj if isinstance(obj, dict) else {})
    return subject.spec.at("controlPlaneEndpoint")


def _findings(
    review: Review, obj: Obj, old: Obj | None, without: Collection[str]
) -> Iterable[Finding]:
    """Yield the findings about an object of a review, by its size, the schema, and the rules.

    :param review: the review, for kind and version of the object
    :param obj: the object, before or after the change
    :param old: the object before the change, None to skip checks of the change itself
    :param without: names of rules to skip
    """
    if size_findings := list(_size_findings(obj)):
        # Skip schema and rules, because they would read each value of the object.
        yield from size_findings
        return

    schema = compiled.load(KINDS[review.kind].schema)
    schema_findings = schema.findings(obj, version=review.version, unknown_fields=False)
    yield from schema_findings

    # Rules must not repeat in other words what the schema has reported about a field.
    reported = {finding.path for finding in schema_findings}
    subject = Subject.of(review.kind, obj, old=old, dry_run=review.dry_run)
    for finding in _rule_findings(subject, without):
        if finding.path not in reported:
            yield finding


def _size_findings(obj: Obj) -> Iterator[Finding]:
    """Yield a finding for each value beyond the bounds of the CRDs for lists, maps and texts."""
    for path, unit, limit in islice(beyond(obj.get("spec"), ("spec",)), _MAX_OVERSIZED):
        if unit == "characters":
            detail = f"must have at most {limit:,} characters"
            yield Finding(path, Fault.TOO_LONG, detail, "schema-maxLength")
        else:
            detail = f"must have at most {limit:,} {unit}"
            yield Finding(path, Fault.TOO_MANY, detail, "schema-maxItems")


def _rule_findings(subject: Subject, without: Collection[str]) -> Iterator[Finding]:
    """Yield the findings of all rules about the kind of a subject, except for some rules."""
    # Skip rules without their fields. A rule costs a microsecond, and most objects have few fields.
    present = set(subject.spec.mapping)
    if subject.old:
        present.update(subject.old.spec.mapping)

    for rule, needed_fields in _RULES_OF_KIND[subject.kind]:
        is_needed = not needed_fields or not present.isdisjoint(needed_fields)
        if is_needed and rule.name not in without:
            yield from rule.findings(subject)


def _tolerate_unless_go_refused(finding: Finding, kind: str) -> Finding:
    """Return a finding as a warning, unless the Go provider or the schema also refuses it.

    Patches of a ClusterClass fill in what is empty in its templates: those of the Go provider's
    class have neither disks nor networks.
    """
    rule = RULES.get(finding.rule)
    is_filled_in = kind == MACHINE_TEMPLATE and finding.rule in _EMPTY
    is_new = rule is not None and not rule.refused_by_go
    return as_advice(finding) if is_new or is_filled_in else finding


def _tolerate_older(
    findings: Iterable[Finding], older_findings: Iterable[Finding]
) -> Iterator[Finding]:
    """Yield the findings, but as warnings if the older object had the same fault."""
    tolerated = Counter(_FaultKey.of(finding) for finding in older_findings)
    for finding in findings:
        key = _FaultKey.of(finding)
        yield as_advice(finding) if tolerated[key] > 0 else finding
        # If one of two equal faults existed before, the second one is new.
        tolerated[key] -= 1


class _FaultKey(NamedTuple):
    """A key that is equal for two findings of the same fault, before and after a change.

    :param path: path of the field with `*` for positions in lists, because a position depends on
        the items before it
    :param value: text of the value, which may be a list or a mapping
    """

    rule: str
    path: tuple[str, ...]
    value: str

    @classmethod
    def of(cls, finding: Finding) -> _FaultKey:
        """Return the key of a finding."""
        path = tuple("*" if isinstance(part, int) else part for part in finding.path)
        return cls(finding.rule, path, repr(finding.value))


def _existed_before(subject: Subject) -> bool:
    """Return whether a new object was stored before, because it was cloned, moved or restored.

    A user who writes an object knows no UID of an owner and sets no finalizer.
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


def _is_being_deleted(obj: Obj) -> bool:
    """Return whether an object is being deleted. Unlike `being_deleted`, accept any metadata."""
    return bool(at(obj, "metadata", "deletionTimestamp"))
