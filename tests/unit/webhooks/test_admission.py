"""What is refused, what is only warned about, and what is filled in."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.object import Obj
from tests import corpus
from tests.support.admission import base, changed, create, spec_of, update
from tests.support.reconciler.machines import machine_spec
from webhooks.admission import CLONED_FROM_ANNOTATION, KINDS, Review, defaults, validate

pytestmark = pytest.mark.unit


@pytest.fixture
def wrong_machine() -> Obj:
    """Wrong by a rule that the Go provider did not have."""
    return changed("HarvesterMachine", networks=["default/a", "default/a"])


def test_clones_of_stored_templates_get_warnings(wrong_machine: Obj) -> None:
    assert validate(create(wrong_machine)).errors
    wrong_machine["metadata"]["annotations"] = {CLONED_FROM_ANNOTATION: "old"}
    verdict = validate(create(wrong_machine))
    assert verdict.errors == ()
    assert [finding.rule for finding in verdict.warnings] == ["networks-unique"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"finalizers": [names.MACHINE_FINALIZER]},
        {"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "a", "uid": "b"}]},
        {"labels": {"velero.io/restore-name": "monday"}},
        {"annotations": {names.RESTORED_FROM_ANNOTATION: "monday"}},
    ],
)
def test_what_a_move_or_a_restore_creates_gets_warnings(wrong_machine: Obj, metadata: Obj) -> None:
    wrong_machine["metadata"] |= metadata
    verdict = validate(create(wrong_machine))
    assert verdict.errors == ()
    assert [finding.rule for finding in verdict.warnings] == ["networks-unique"]


def test_templates_of_the_go_class_can_be_restored() -> None:
    """Patches of the class fill in its disks, networks and key pair."""
    template = changed("HarvesterMachineTemplate", sshKeyPair="", networks=[], volumes=[])
    fields = ["spec.template.spec.networks", "spec.template.spec.sshKeyPair", "spec.template.spec.volumes"]
    assert sorted(finding.field for finding in validate(create(template)).errors) == fields

    template["metadata"]["annotations"] = {names.RESTORED_FROM_ANNOTATION: "monday"}
    verdict = validate(create(template))
    assert verdict.errors == ()
    assert sorted(finding.field for finding in verdict.warnings) == fields


def test_a_machine_without_disks_is_refused_although_it_was_restored() -> None:
    machine = changed("HarvesterMachine", volumes=[])
    machine["metadata"]["annotations"] = {names.RESTORED_FROM_ANNOTATION: "monday"}
    assert [finding.field for finding in validate(create(machine)).errors] == ["spec.volumes"]


def test_finalizers_and_labels_of_others_prove_no_move(wrong_machine: Obj) -> None:
    wrong_machine["metadata"] |= {"finalizers": ["example.com/keep"], "labels": {"a": "b"}, "ownerReferences": []}
    assert validate(create(wrong_machine)).errors


def test_enforced_rules_refuse_new_references_only() -> None:
    obj = changed("HarvesterCluster", identitySecret={"name": "harvester-identity", "namespace": "team-b"})
    enforced = ("cross-namespace-reference",)
    review = Review("CREATE", "HarvesterCluster", "v1beta1", obj, enforced=enforced)
    assert [finding.field for finding in validate(review).errors] == ["spec.identitySecret.namespace"]
    moved = copy.deepcopy(obj)
    moved["metadata"]["annotations"] = {CLONED_FROM_ANNOTATION: "class"}
    assert not validate(Review("CREATE", "HarvesterCluster", "v1beta1", moved, enforced=enforced)).errors
    new = copy.deepcopy(obj)
    new["spec"]["targetNamespace"] = "another"
    verdict = validate(Review("UPDATE", "HarvesterCluster", "v1beta1", new, obj, enforced=enforced))
    assert "cross-namespace-reference" not in {finding.rule for finding in verdict.errors}
    assert "cross-namespace-reference" in {finding.rule for finding in verdict.warnings}


def test_clones_are_refused_for_what_the_go_provider_refused() -> None:
    obj = changed("HarvesterMachine", cpu=0, volumes=[{"volumeType": "image", "volumeSize": "40Gi"}])
    obj["metadata"]["annotations"] = {CLONED_FROM_ANNOTATION: "old"}
    assert {finding.rule for finding in validate(create(obj)).errors} == {"schema-minimum", "volume-image"}


def test_what_was_wrong_before_is_a_warning(wrong_machine: Obj) -> None:
    new = copy.deepcopy(wrong_machine)
    new["spec"]["sshUser"] = "sles"
    verdict = validate(update(wrong_machine, new))
    assert verdict.errors == ()
    assert [finding.rule for finding in verdict.warnings] == ["networks-unique"]


def test_what_was_wrong_before_may_move_in_its_list() -> None:
    old = changed("HarvesterMachine", networks=["default/a", "default/b", "default/b"])
    new = changed("HarvesterMachine", networks=["default/b", "default/b"])
    assert validate(update(old, new)).errors == ()


def test_the_same_fault_again_is_refused() -> None:
    old = changed("HarvesterMachine", networks=["default/b", "default/b"])
    new = changed("HarvesterMachine", networks=["default/b", "default/b", "default/b"])
    assert [finding.field for finding in validate(update(old, new)).errors] == ["spec.networks[2]"]


def test_metadata_of_a_wrong_object_can_be_changed(wrong_machine: Obj) -> None:
    new = copy.deepcopy(wrong_machine)
    new["metadata"] |= {"labels": {"a": "b"}, "finalizers": []}
    assert validate(update(wrong_machine, new)) == validate(Review("DELETE", "HarvesterMachine", "v1beta1", None))


def test_objects_that_go_are_never_blocked(wrong_machine: Obj) -> None:
    wrong_machine["metadata"]["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    assert validate(update(base("HarvesterMachine"), wrong_machine)).errors == ()


@pytest.mark.parametrize("kind", KINDS)
def test_deletion_is_always_allowed(kind: str) -> None:
    assert validate(Review("DELETE", kind, "v1alpha1", None, {"spec": 1})).errors == ()


@pytest.mark.parametrize("kind", ["HarvesterCluster", "HarvesterClusterTemplate"])
def test_the_port_of_an_endpoint_is_filled_in_once(kind: str) -> None:
    obj = changed(kind, controlPlaneEndpoint={"host": "0.0.0.0"})
    (operation,) = defaults(create(obj))
    path = "/spec/template/spec" if "Template" in kind else "/spec"
    assert operation == {"op": "add", "path": f"{path}/controlPlaneEndpoint/port", "value": 6443}
    spec_of(obj)["controlPlaneEndpoint"]["port"] = operation["value"]
    assert defaults(create(obj)) == []
    assert validate(create(obj)).errors == ()


@pytest.mark.parametrize("kind", ["HarvesterCluster", "HarvesterClusterTemplate"])
def test_an_endpoint_without_a_port_that_the_go_provider_stored_stops_no_update(kind: str) -> None:
    before = changed(kind, controlPlaneEndpoint={"host": "0.0.0.0" if "Template" in kind else "172.17.1.50"})
    before["status"] = {"ready": True}
    owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass", "name": "a", "uid": "b"}
    after = copy.deepcopy(before)
    after["metadata"]["ownerReferences"] = [owner]
    for operation in defaults(update(before, after)):
        assert (kind, operation["path"]) == ("HarvesterCluster", "/spec/controlPlaneEndpoint/port")
        after["spec"]["controlPlaneEndpoint"]["port"] = operation["value"]
    assert validate(update(before, after)).errors == ()
    spec_of(after)["controlPlaneEndpoint"]["port"] = 443
    assert [finding.field for finding in validate(update(before, after)).errors]


def test_a_template_that_is_replaced_without_the_port_keeps_that_which_was_filled_in() -> None:
    given = changed("HarvesterClusterTemplate", controlPlaneEndpoint={"host": "0.0.0.0"})
    stored = changed("HarvesterClusterTemplate", controlPlaneEndpoint={"host": "0.0.0.0", "port": 6443})
    assert [operation["value"] for operation in defaults(update(stored, given))] == [6443]


def test_an_endpoint_that_is_known_stays_where_a_class_has_a_placeholder() -> None:
    known = {"host": "10.0.0.1", "port": 6443}
    before = changed("HarvesterCluster", controlPlaneEndpoint=known)
    after = changed("HarvesterCluster", controlPlaneEndpoint={"host": "0.0.0.0", "port": 6443})
    (operation,) = defaults(update(before, after))
    assert operation == {"op": "replace", "path": "/spec/controlPlaneEndpoint", "value": known}
    # Nothing is known yet, or the other endpoint is none that a class would have: that is for the rules.
    assert defaults(update(after, after)) == []
    assert (
        defaults(update(before, changed("HarvesterCluster", controlPlaneEndpoint={**known, "host": "10.0.0.2"}))) == []
    )


def test_nothing_else_is_filled_in() -> None:
    for case in corpus.valid():
        endpoint = spec_of(case.object).get("controlPlaneEndpoint", {"port": 6443})
        assert bool(defaults(create(case.object))) == ("port" not in endpoint), case


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
SAMPLE = corpus.invalid()[::5] + corpus.valid()[::5]


@given(data=st.data())
def test_any_value_anywhere_is_validated(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SAMPLE))
    obj = copy.deepcopy(case.object)
    place = data.draw(st.sampled_from(list(places(obj))))
    place[0][place[1]] = data.draw(JSON)
    for review in (create({**obj, "kind": case.kind}), update({**case.object}, {**obj, "kind": case.kind})):
        validate(review)
        defaults(review)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys or indices."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        yield value, key
        yield from places(item)


def test_machines_of_the_integration_tests_are_right() -> None:
    assert validate(create(changed("HarvesterMachine", **machine_spec()))).errors == ()


def test_documents_show_right_objects(checkout: Path) -> None:
    found = 0
    for page in [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))]:
        for block in page.read_text(encoding="utf-8").split("```yaml\n")[1:]:
            for obj in yaml.safe_load_all(block.split("```")[0]):
                if isinstance(obj, dict) and obj.get("kind") in KINDS and "spec" in obj:
                    found += 1
                    assert validate(create(obj)).errors == (), page.name
    assert found


def test_dry_run_of_another_machine_is_answered_with_a_warning() -> None:
    """The provider of RKE2's control plane asks so, and takes a refusal for an error of its rollout."""
    old = {**base("HarvesterMachine"), "status": {"ready": True}}
    new = copy.deepcopy(old)
    new["spec"]["cpu"] = 64
    review = Review("UPDATE", "HarvesterMachine", "v1beta1", new, old, True)
    verdict = validate(review)
    assert not verdict.errors
    assert ("machine-immutable", "spec.cpu") in {(finding.rule, finding.field) for finding in verdict.warnings}
    assert "machine-immutable" in {
        finding.rule for finding in validate(dataclasses.replace(review, dry_run=False)).errors
    }
