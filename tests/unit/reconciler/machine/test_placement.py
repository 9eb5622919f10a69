"""Which hosts a VM may run on: rules that keep it from hosts come and go, and those of its user stay."""

from __future__ import annotations

import copy

import pytest

from caphv.api.names import AVOIDED_HOSTS_ANNOTATION
from caphv.api.object import Obj, annotations_of, at
from reconciler.machine.placement import REQUIRED, avoidance_patch, avoided_hosts
from tests.support.memoryserver import merged

pytestmark = pytest.mark.unit

USER = {"key": "rack", "operator": "In", "values": ["1", "2"]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
FIELDS = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["h3"]}]}


def avoids(*hosts: str) -> Obj:
    return {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(hosts)}


def requires(*terms: Obj) -> Obj:
    return {REQUIRED: {"nodeSelectorTerms": list(terms)}}


def vm(node_affinity: Obj) -> Obj:
    spec = {"affinity": {"nodeAffinity": copy.deepcopy(node_affinity)}}
    return {"metadata": {"name": "vm"}, "spec": {"template": {"spec": spec}}}


def rules_of(obj: Obj) -> Obj:
    return at(obj, "spec", "template", "spec", "affinity", "nodeAffinity") or {}


@pytest.mark.parametrize(
    "before",
    [{}, PREFERRED, requires({"matchExpressions": [USER]}), requires({"matchExpressions": [USER]}, FIELDS) | PREFERRED],
)
def test_a_vm_avoids_hosts_and_ends_with_the_rules_that_it_had(before: Obj) -> None:
    first = merged(vm(before), avoidance_patch(vm(before), ["h0"]))
    terms = rules_of(first)[REQUIRED]["nodeSelectorTerms"]
    assert all(avoids("h0") in term["matchExpressions"] for term in terms)
    assert avoided_hosts(first) == ["h0"]

    second = merged(first, avoidance_patch(first, ["h0", "h1"]))
    for term in rules_of(second)[REQUIRED]["nodeSelectorTerms"]:
        assert [rule for rule in term["matchExpressions"] if rule != USER] == [avoids("h0", "h1")]

    last = merged(second, avoidance_patch(second, []))
    assert rules_of(last) == before
    assert AVOIDED_HOSTS_ANNOTATION not in annotations_of(last)


def test_a_rule_of_a_user_that_reads_the_same_stays() -> None:
    before = vm(requires({"matchExpressions": [avoids("h0")]}))
    assert rules_of(merged(before, avoidance_patch(before, []))) == rules_of(before)
