"""What is refused, what is only warned about, and what is filled in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.object import Obj
from tests import corpus
from tests.support.reconciler.machines import machine_spec
from webhooks.admission import CLONED_FROM_ANNOTATION, KINDS, RULES, Review, defaults, validate

pytestmark = pytest.mark.unit

ADVICE = {
    "small-machine": ("HarvesterMachine", {"cpu": 1, "memory": "2Gi"}, {"spec.cpu", "spec.memory"}),
    "ssh-user-root": ("HarvesterMachine", {"sshUser": "root"}, {"spec.sshUser"}),
    "static-address-of-template": (
        "HarvesterMachineTemplate",
        {"networkConfig": {"address": "172.17.1.10", "gateway": "172.17.1.1"}},
        {"spec.template.spec.networkConfig.address"},
    ),
    "boot-disk": (
        "HarvesterMachine",
        {"volumes": [{"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": "40Gi"}]},
        {"spec.volumes[0]"},
    ),
    "volume-not-migratable": (
        "HarvesterMachine",
        {
            "volumes": [
                {"volumeType": "image", "imageName": "a/b", "volumeSize": "40Gi", "accessMode": "ReadWriteOnce"},
            ]
        },
        {"spec.volumes[0].accessMode"},
    ),
    "user-data-secret": (
        "HarvesterMachine",
        {"guestConfig": {"userData": "password: swordfish"}},
        {"spec.guestConfig.userData"},
    ),
    "node-affinity-empty-term": (
        "HarvesterMachine",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        {"spec.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"},
    ),
    "pool-ref-unused": (
        "HarvesterCluster",
        {
            "vmNetworkConfig": {
                "gateway": "10.0.0.1",
                "subnetMask": "255.0.0.0",
                "ipPoolRef": "a",
                "ipPoolRefs": ["b"],
            }
        },
        {"spec.vmNetworkConfig.ipPoolRef"},
    ),
    "ip-pool-subnet-host": (
        "HarvesterCluster",
        {
            "loadBalancerConfig": {
                "ipamType": "pool",
                "ipPool": {"subnet": "10.0.0.9/24", "gateway": "10.0.0.1", "vmNetwork": "default/production"},
            }
        },
        {"spec.loadBalancerConfig.ipPool.subnet"},
    ),
    "target-namespace-system": (
        "HarvesterCluster",
        {"targetNamespace": "harvester-system"},
        {"spec.targetNamespace"},
    ),
    "cloud-config-namespace": (
        "HarvesterCluster",
        {
            "updateCloudProviderConfig": {
                "manifestsConfigMapName": "ccm",
                "manifestsConfigMapNamespace": "default",
                "manifestsConfigMapKey": "ccm.yaml",
                "cloudConfigCredentialsSecretName": "cloud-config",
                "cloudConfigCredentialsSecretKey": "cloud-config",
            }
        },
        {"spec.updateCloudProviderConfig.manifestsConfigMapNamespace"},
    ),
    "cross-namespace-reference": (
        "HarvesterCluster",
        {"identitySecret": {"name": "harvester-identity", "namespace": "team-b"}},
        {"spec.identitySecret.namespace"},
    ),
    "failure-domain-affinity": (
        "HarvesterMachine",
        {
            "failureDomain": "zone-a",
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-b"]}
                            ]
                        },
                        {
                            "matchExpressions": [
                                {"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["zone-a"]}
                            ]
                        },
                    ]
                }
            },
        },
        {"spec.failureDomain"},
    ),
    "vm-network-like-pool": (
        "HarvesterCluster",
        {
            "vmNetworkConfig": {
                "gateway": "172.17.0.1",
                "subnetMask": "255.255.0.0",
                "ipPool": {"subnet": "172.17.3.0/24", "gateway": "172.17.3.1", "vmNetwork": "default/production"},
            }
        },
        {"spec.vmNetworkConfig.gateway", "spec.vmNetworkConfig.subnetMask"},
    ),
    "endpoint-port": (
        "HarvesterCluster",
        {"controlPlaneEndpoint": {"host": "172.17.1.50", "port": 443}},
        {"spec.controlPlaneEndpoint.port"},
    ),
    "endpoint-of-template": (
        "HarvesterClusterTemplate",
        {"controlPlaneEndpoint": {"host": "172.17.1.50", "port": 6443}},
        {"spec.template.spec.controlPlaneEndpoint.host"},
    ),
}


@cache
def bases() -> dict[str, Obj]:
    # The first of a kind: it has versions.
    return {case.kind: case.object for case in reversed(corpus.valid()) if case.name.endswith(": base")}


def base(kind: str) -> Obj:
    return copy.deepcopy(bases()[kind])


def spec_of(obj: Obj) -> Obj:
    return obj["spec"]["template"]["spec"] if "template" in obj["spec"] else obj["spec"]


def changed(kind: str, **spec: Any) -> Obj:
    obj = base(kind)
    spec_of(obj).update(spec)
    return obj


def create(obj: Obj) -> Review:
    return Review("CREATE", obj["kind"], "v1beta1", obj)


def update(old: Obj, new: Obj, **options: Any) -> Review:
    return Review("UPDATE", new["kind"], "v1beta1", new, old, **options)


# Warnings


def test_every_advice_has_an_example() -> None:
    # Rules about changes have tests of their own.
    assert ADVICE.keys() == {name for name, rule in RULES.items() if rule.advice and not rule.before}


@pytest.mark.parametrize("rule", ADVICE)
def test_what_is_legal_and_discouraged_is_warned_about(rule: str) -> None:
    kind, spec, fields = ADVICE[rule]
    review = create(changed(kind, **spec))
    assert validate(review).errors == ()
    assert {finding.field for finding in validate(review).warnings if finding.rule == rule} == fields
    assert rule not in {finding.rule for finding in validate(review, without={rule}).warnings}
    assert rule not in {finding.rule for finding in validate(create(base(kind))).warnings}


POOLS = {"gateway": "10.0.0.1", "subnetMask": "255.0.0.0"}
DESCRIBED = {"subnet": "10.0.0.0/24", "gateway": "10.0.0.1", "vmNetwork": "default/production"}


def source_warnings(old: Obj, new: Obj, status: Obj) -> list[str]:
    """Fields with a warning that a changed source of the control plane address is not applied."""
    before, after = changed("HarvesterCluster", **old), changed("HarvesterCluster", **new)
    verdict = validate(update({**before, "status": status}, {**after, "status": status}))
    assert verdict.errors == ()
    return [found.field for found in verdict.warnings if found.rule == "load-balancer-address-source"]


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "b"}},
            ["spec.loadBalancerConfig.ipPoolRef"],
            id="another pool",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "dhcp"}},
            ["spec.loadBalancerConfig.ipamType"],
            id="DHCP",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRefs": ["b", "a"]}},
            ["spec.vmNetworkConfig.ipPoolRefs[0]"],
            id="new first pool of the machines",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRefs": ["a", "b"]}},
            [],
            id="new last pool of the machines",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "default/a"}},
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "a"}},
            [],
            id="the same pool",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPool": DESCRIBED}},
            {"loadBalancerConfig": {"ipamType": "pool", "ipPool": DESCRIBED, "ipPoolRef": "clusters-demo-ippool"}},
            [],
            id="name of the created pool",
        ),
    ],
)
def test_changed_source_of_the_address_is_warned_about(old: Obj, new: Obj, fields: list[str]) -> None:
    assert source_warnings(old, new, {"ready": True}) == fields
    assert source_warnings(old, new, {}) == []
    reported = {"type": "LoadBalancerReady", "status": "True", "message": "ipPoolRef: a is not applied"}
    assert source_warnings(old, new, {"ready": True, "conditions": [reported]}) == []


def test_secrets_are_not_repeated() -> None:
    for data in ("password: swordfish", "#!swordfish", "- swordfish", "a: [swordfish"):
        verdict = validate(create(changed("HarvesterMachine", guestConfig={"userData": data})))
        assert verdict.errors or verdict.warnings
        assert "swordfish" not in repr(verdict)


# Upgrades never stop a cluster


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


# Defaults


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


# Whatever arrives

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


# What this project itself applies is right


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
