"""Rules about the affinities of a machine. KubeVirt would refuse invalid ones with the VM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from caphv.api import names
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINES, Field, Subject
from webhooks.rules.values import is_label, is_label_key, is_label_value

RULES = Rules()

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
# Selectors of Pods do not compare numbers.
_NODE_OPERATORS = (*_SELECTOR_OPERATORS, "Gt", "Lt")
# A failure domain is the value of one of these labels.
_TOPOLOGY = (names.ZONE_LABEL, "kubernetes.io/hostname")
_INTEGER = re.compile(r"-?[0-9]+")


@RULES.rule(
    "affinity-operator",
    MACHINES,
    "The operator of a requirement must be one that Kubernetes knows.",
    "nodeAffinity",
    "workloadAffinity",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchExpressions: [{key: kubernetes.io/hostname, operator: Equals, values: "
        "[host-1]}]}]}}"
    ),
)
def _affinity_operator(subject: Subject) -> Iterator[Finding]:
    for demand, operators in _demands(subject):
        operator = demand.at("operator")
        if isinstance(operator.value, str) and operator.text not in operators:
            yield operator.problem(Fault.UNSUPPORTED, f"must be one of {', '.join(operators)}")


@RULES.rule(
    "affinity-values",
    MACHINES,
    "`In` and `NotIn` must have values, `Exists` and `DoesNotExist` none, `Gt` and `Lt` one "
    "integer.",
    "nodeAffinity",
    "workloadAffinity",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchExpressions: [{key: kubernetes.io/hostname, operator: In}]}]}}"
    ),
)
def _affinity_values(subject: Subject) -> Iterator[Finding]:
    for demand, _ in _demands(subject):
        operator = demand.at("operator").text
        values = demand.at("values")
        texts = [value.text for value in values.each()]

        # ValidateNodeSelectorRequirement of Kubernetes has the same checks.
        if operator in ("In", "NotIn") and not texts:
            yield values.required(f"operator {operator} compares with values: name at least one")
        if operator in ("Exists", "DoesNotExist") and texts:
            yield values.forbidden(f"operator {operator} takes no values: remove them, or use In")
        if operator in ("Gt", "Lt") and not (len(texts) == 1 and _INTEGER.fullmatch(texts[0])):
            yield values.invalid(f"operator {operator} takes exactly one integer")


@RULES.rule(
    "affinity-labels",
    MACHINES,
    "Keys and values of an affinity must be valid keys and values of labels.",
    "nodeAffinity",
    "workloadAffinity",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchExpressions: [{key: rack number, operator: Exists}]}]}}"
    ),
)
def _affinity_labels(subject: Subject) -> Iterator[Finding]:
    for demand, _ in _demands(subject):
        key = demand.at("key")
        if isinstance(key.value, str) and not is_label_key(key.text):
            yield key.invalid("must be the key of a label, for example topology.kubernetes.io/zone")
        for value in demand.at("values").each():
            if isinstance(value.value, str) and not is_label_value(value.text):
                yield value.invalid(
                    "must be the value of a label: at most 63 letters, digits, '-', '_' or '.'"
                )

    for selector in _pod_selectors(subject):
        labels = selector.at("matchLabels")
        for name, text in labels.mapping.items():
            is_valid_value = not isinstance(text, str) or is_label_value(text)
            if not is_label_key(name) or not is_valid_value:
                yield labels.at(name).invalid("must be key and value of a label")


@RULES.rule(
    "affinity-weight",
    MACHINES,
    "The weight of a preference must be from 1 to 100.",
    f"nodeAffinity.{_PREFERRED}[].weight",
    f"workloadAffinity.{_PREFERRED}[].weight",
    example=(
        "nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: "
        "{matchExpressions: [{key: disk, operator: Exists}]}}]}"
    ),
)
def _affinity_weight(subject: Subject) -> Iterator[Finding]:
    for field in ("nodeAffinity", "workloadAffinity"):
        for preference in subject.spec.at(field, _PREFERRED).each():
            weight = preference.at("weight")
            # ValidatePreferredSchedulingTerms of Kubernetes has the same check.
            if weight.number is not None and not 1 <= weight.number <= 100:
                yield weight.invalid("must be from 1 to 100")


@RULES.rule(
    "node-affinity-terms",
    MACHINES,
    "A required node affinity must have terms.",
    f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}"
    ),
)
def _node_affinity_terms(subject: Subject) -> Iterator[Finding]:
    terms = subject.spec.at("nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    if terms.value == []:
        yield terms.required("name at least one term, or remove the demand")


@RULES.rule(
    "node-affinity-empty-term",
    MACHINES,
    "A node selector term must not be empty: it would match no host.",
    f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms[]",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}"
    ),
    advice=True,
)
def _node_affinity_empty_term(subject: Subject) -> Iterator[Finding]:
    for term in subject.spec.at("nodeAffinity", _REQUIRED, "nodeSelectorTerms").each():
        has_demands = term.at("matchExpressions").present or term.at("matchFields").present
        if isinstance(term.value, dict) and not has_demands:
            yield term.invalid("matches no host: give it demands, or remove it")


@RULES.rule(
    "node-affinity-dropped",
    MACHINES,
    "A required node affinity must not demand what Harvester removes from VMs: keys that begin "
    "with `network.harvesterhci.io`, and terms without `matchExpressions`.",
    f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms[]",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchFields: [{key: metadata.name, operator: In, values: [host-1]}]}]}}"
    ),
)
def _ineffective_node_affinity(subject: Subject) -> Iterator[Finding]:
    for term in subject.spec.at("nodeAffinity", _REQUIRED, "nodeSelectorTerms").each():
        if term.at("matchFields").each() and not term.at("matchExpressions").each():
            yield term.at("matchExpressions").required(
                "Harvester removes a term without it from the VM: demand a label of hosts, for "
                "example kubernetes.io/hostname"
            )

        for demand in term.at("matchExpressions").each():
            if demand.at("key").text.startswith(names.NETWORK_LABELS_PREFIX):
                yield demand.at("key").forbidden(
                    "Harvester sets demands on this label itself and removes yours"
                )


@RULES.rule(
    "node-affinity-cpumanager",
    MACHINES,
    "A required node affinity must not demand label `cpumanager` of Harvester before 1.9, which "
    "removes that from VMs.",
    f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms[]",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchExpressions: [{key: cpumanager, operator: Exists}]}]}}"
    ),
    advice=True,
)
def _node_affinity_cpu_manager(subject: Subject) -> Iterator[Finding]:
    # This is only advice, because the release of Harvester is not known here.
    for term in subject.spec.at("nodeAffinity", _REQUIRED, "nodeSelectorTerms").each():
        for demand in term.at("matchExpressions").each():
            if demand.at("key").text == names.CPU_MANAGER_LABEL:
                yield demand.at("key").invalid(
                    "Harvester before 1.9 removes this demand: use a label of your own"
                )


@RULES.rule(
    "node-affinity-fields",
    MACHINES,
    "A node selector must use no field other than `metadata.name`, with one value.",
    "nodeAffinity",
    example=(
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchFields: [{key: metadata.namespace, operator: In, values: [default]}]}]}}"
    ),
)
def _node_affinity_fields(subject: Subject) -> Iterator[Finding]:
    for term in _node_terms(subject):
        for demand in term.at("matchFields").each():
            key = demand.at("key")
            operator = demand.at("operator")
            values = demand.at("values")
            # `nodeFieldSelectorValidators` in validation.go of Kubernetes has only this entry.
            if isinstance(key.value, str) and key.text != "metadata.name":
                yield key.problem(Fault.UNSUPPORTED, "must be metadata.name")
            if operator.text not in ("", "In", "NotIn"):
                yield operator.problem(Fault.UNSUPPORTED, "must be In or NotIn")
            elif operator.text and len(values.each()) != 1:
                yield values.invalid("must be exactly one name of a host")


@RULES.rule(
    "workload-affinity-topology",
    MACHINES,
    "`topologyKey` must be the key of a label of hosts.",
    "workloadAffinity",
    example=(
        'workloadAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: ""}]}'
    ),
)
def _workload_affinity_topology(subject: Subject) -> Iterator[Finding]:
    for term in _pod_terms(subject):
        key = term.at("topologyKey")
        if isinstance(key.value, str) and not is_label_key(key.text):
            yield key.invalid(
                "must be the key of a label of hosts, for example kubernetes.io/hostname"
            )
        for namespace in term.at("namespaces").each():
            if isinstance(namespace.value, str) and not is_label(namespace.text):
                yield namespace.invalid("must be the name of a namespace")


@RULES.rule(
    "failure-domain",
    MACHINES,
    "A failure domain must be the value of a label: the name of a zone or host.",
    "failureDomain",
    example="failureDomain: zone a",
)
def _failure_domain(subject: Subject) -> Iterator[Finding]:
    domain = subject.spec.at("failureDomain")
    if domain.text and not is_label_value(domain.text):
        yield domain.invalid("must be a name from the HarvesterCluster's status.failureDomains")


@RULES.rule(
    "failure-domain-affinity",
    MACHINES,
    "`nodeAffinity` must not exclude every host of the failure domain.",
    "failureDomain",
    "nodeAffinity",
    example=(
        "{failureDomain: zone-a, nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        "{nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: "
        "In, values: [zone-b]}]}]}}}"
    ),
    advice=True,
)
def _failure_domain_affinity(subject: Subject) -> Iterator[Finding]:
    # It is advice, because only Harvester knows whether a failure domain is a zone or a host.
    domain = subject.spec.at("failureDomain")
    terms = subject.spec.at("nodeAffinity", _REQUIRED, "nodeSelectorTerms").each()
    if domain.text and terms and all(_excludes(term, domain.text) for term in terms):
        yield domain.invalid(
            "no term of nodeAffinity allows it, so the VM would find no host: correct one of "
            "the two"
        )


def _excludes(term: Field, domain: str) -> bool:
    """Return whether a term of a node affinity excludes the zone or host with this name."""
    for demand in term.at("matchExpressions").each():
        if demand.at("key").text not in _TOPOLOGY:
            continue

        operator = demand.at("operator").text
        is_listed = domain in [value.text for value in demand.at("values").each()]
        if (operator == "In" and not is_listed) or (operator == "NotIn" and is_listed):
            return True
    return False


class _Demand(NamedTuple):
    """A requirement of a selector, and the operators that it may have."""

    field: Field
    operators: tuple[str, ...]


def _demands(subject: Subject) -> Iterator[_Demand]:
    """Yield every demand on labels, with the operators that it may have."""
    for term in _node_terms(subject):
        for demand in term.at("matchExpressions").each():
            yield _Demand(demand, _NODE_OPERATORS)
    for selector in _pod_selectors(subject):
        for demand in selector.at("matchExpressions").each():
            yield _Demand(demand, _SELECTOR_OPERATORS)


def _node_terms(subject: Subject) -> Iterator[Field]:
    """Yield the terms of the node affinity, required and preferred."""
    affinity = subject.spec.at("nodeAffinity")
    yield from affinity.at(_REQUIRED, "nodeSelectorTerms").each()
    for preference in affinity.at(_PREFERRED).each():
        yield preference.at("preference")


def _pod_terms(subject: Subject) -> Iterator[Field]:
    """Yield the terms of the workload affinity, required and preferred."""
    affinity = subject.spec.at("workloadAffinity")
    yield from affinity.at(_REQUIRED).each()
    for preference in affinity.at(_PREFERRED).each():
        yield preference.at("podAffinityTerm")


def _pod_selectors(subject: Subject) -> Iterator[Field]:
    """Yield the selectors of Pods and of namespaces in the workload affinity."""
    for term in _pod_terms(subject):
        yield term.at("labelSelector")
        yield term.at("namespaceSelector")
