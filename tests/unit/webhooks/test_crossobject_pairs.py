"""Checks of several clusters, of shared identities and of addresses together, and what is no finding."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from caphv.api.identities import allows
from caphv.api.object import Obj
from tests.support.crossobject import changed, cluster_objects, findings, second_cluster
from webhooks.crossobject import check, check_together

pytestmark = pytest.mark.unit

REF = "infrastructureRef"
TEMPLATE = "spec.template.spec"


@pytest.fixture
def objects() -> dict[str, Obj]:
    return cluster_objects()


@pytest.mark.parametrize(
    ("name", "allowed", "problem"),
    [
        ("shared", {"list": ["clusters"]}, ""),
        ("shared", {"list": ["*"]}, ""),
        ("shared", {"selector": {"matchLabels": {"a": "b"}}}, ""),
        ("shared", {"list": ["others"]}, "does not allow namespace clusters: add it to allowedNamespaces.list of"),
        ("shared", {}, "does not allow namespace clusters"),
        ("sharde", {"list": ["clusters"]}, "did you mean"),
        ("elsewhere", {"list": ["clusters"]}, ""),
    ],
)
def test_a_shared_identity_allows_the_namespace(objects: dict[str, Obj], name: str, allowed: Obj, problem: str) -> None:
    objects["infrastructure"]["spec"]["identityRef"] = {"name": name}
    del objects["infrastructure"]["spec"]["identitySecret"]
    head = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HarvesterClusterIdentity"}
    spec = {"secretRef": {"name": "shared", "namespace": "caphv-system"}, "allowedNamespaces": allowed}
    shared = {**head, "metadata": {"name": "shared"}, "spec": spec}
    found = [located.finding for located in check_together([*objects.values(), shared])]
    assert [finding.rule for finding in found] == (["identity-namespace"] if problem else [])
    assert all(finding.field == "spec.identityRef.name" and problem in finding.detail for finding in found)


def test_the_example_of_a_shared_identity_is_right(checkout: Path) -> None:
    text = (checkout / "examples" / "identities" / "shared.yaml").read_text()
    example, renewed = yaml.safe_load_all(text)
    assert check(example) == check(renewed) == []
    assert allows(example, "team-a", None)
    assert allows(example, "team-b", {"harvester": "shared"})
    assert not allows(example, "team-b", {})


def test_the_account_of_renewed_tokens_is_in_no_target_namespace(checkout: Path) -> None:
    path = checkout / "examples" / "identities" / "shared.yaml"
    shared, renewed = yaml.safe_load_all(path.read_text())
    assert [located.finding.rule for located in check_together([shared, renewed])] == []
    renewed["spec"]["tokenRenewal"]["serviceAccount"]["targetNamespaces"].append("caphv-system")
    (located,) = check_together([shared, renewed])
    assert located.finding.rule == "identity-account"
    assert located.finding.field == "spec.tokenRenewal.serviceAccount.namespace"


def test_the_secret_of_a_renewed_identity_is_no_renewed_token(checkout: Path) -> None:
    path = checkout / "examples" / "identities" / "shared.yaml"
    shared, renewed = yaml.safe_load_all(path.read_text())
    for identity in (shared, renewed):
        identity["spec"]["secretRef"]["name"] = "renewed-token.other"
    (located,) = check_together([shared, renewed])
    assert located.finding.rule == "identity-renewed-secret"
    assert located.finding.field == "spec.secretRef.name"


def test_a_shared_identity_is_checked_by_its_schema() -> None:
    head = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HarvesterClusterIdentity"}
    identity = {**head, "metadata": {"name": "shared"}, "spec": {"allowedNamespaces": {"names": ["team-a"]}}}
    found = {(finding.field, finding.rule) for finding in check(identity)}
    assert {("spec.secretRef", "schema-required")} < found
    assert any(field.startswith("spec.allowedNamespaces") for field, _ in found)


def test_two_clusters_in_one_target_namespace(objects: dict[str, Obj]) -> None:
    more = second_cluster(objects)
    rules = {rule for rule, _ in findings(objects | {f"second {name}": obj for name, obj in more.items()})}
    assert rules == {"machine-name-taken", "cluster-name-taken", "static-address-duplicate", "pool-overlap"}


def test_static_addresses_of_interfaces_are_unique_and_outside_of_pools(objects: dict[str, Obj]) -> None:
    machines = {}
    for name, last in (("one", 200), ("two", 200), ("three", 201)):
        machine = copy.deepcopy(objects["machine"])
        machine["metadata"]["name"] = name
        machine["spec"].pop("networkConfig", None)
        entries = [{"address": f"10.99.0.{last}/24"}, {"address": f"fd00::{last}/64"}]
        machine["spec"]["networkInterfaces"] = [{"network": machine["spec"]["networks"][0], "addresses": entries}]
        machines[name] = machine
    located = check_together([*machines.values()])
    found = {(item.finding.rule, item.finding.field) for item in located}
    assert found >= {
        ("static-address-duplicate", "spec.networkInterfaces[0].addresses[0].address"),
        ("static-address-duplicate", "spec.networkInterfaces[0].addresses[1].address"),
    }
    assert [item.finding.rule for item in located].count("static-address-duplicate") == 2


def test_routes_need_an_address_of_the_first_interface_or_of_the_cluster(objects: dict[str, Obj]) -> None:
    routes = [{"to": "10.20.0.0/16", "via": "172.17.1.254"}]
    settings: Obj = {"networks": ["net"], "networkInterfaces": [{"network": "net", "routes": routes}]}
    objects["template"]["spec"]["template"]["spec"] |= settings
    objects["machine"]["spec"] |= settings
    assert "interface-route-dhcp" not in {rule for rule, _ in findings(objects)}

    del objects["infrastructure"]["spec"]["vmNetworkConfig"]
    found = {field for rule, field in findings(objects) if rule == "interface-route-dhcp"}
    # The machine has a static address.
    assert found == {"spec.template.spec.networkInterfaces[0].routes"}
    del objects["machine"]["spec"]["networkConfig"]
    found = {field for rule, field in findings(objects) if rule == "interface-route-dhcp"}
    assert found == {"spec.template.spec.networkInterfaces[0].routes", "spec.networkInterfaces[0].routes"}


def test_two_clusters_apart(objects: dict[str, Obj]) -> None:
    more = second_cluster(objects)
    # Another namespace is another VM network `net`, too: Harvester refuses its pool nevertheless.
    more["infrastructure"]["spec"]["targetNamespace"] = "other"
    both = objects | {f"second {name}": obj for name, obj in more.items()}
    assert findings(both) == {("pool-overlap", "spec.loadBalancerConfig.ipPool.rangeStart")}
    more["infrastructure"]["spec"]["identitySecret"]["name"] = "another"
    more["secret"] = copy.deepcopy(objects["secret"])
    more["secret"]["metadata"]["name"] = "another"
    both = objects | {f"second {name}": obj for name, obj in more.items()}
    assert findings(both) == set()


def test_a_pool_that_overlaps_only_a_pool_with_an_overlap_is_reported(objects: dict[str, Obj]) -> None:
    ranges = {"first": ("50", "60"), "second": ("55", "100"), "third": ("90", "120")}
    pools = {}
    for name, (start, end) in ranges.items():
        pool = copy.deepcopy(objects["pool"])
        pool["metadata"]["name"] = name
        addresses = {"rangeStart": f"172.18.1.{start}", "rangeEnd": f"172.18.1.{end}"}
        pool["spec"]["ranges"] = [{"subnet": "172.18.1.0/24", **addresses}]
        pools[name] = pool
    located = check_together(list(pools.values()))
    assert [(finding.place, finding.other) for finding in located] == [(1, 0), (2, 1)]


def test_an_endpoint_that_differs_from_the_infrastructure_is_reported(objects: dict[str, Obj]) -> None:
    changed(objects["cluster"], {"spec.controlPlaneEndpoint": {"host": "172.17.1.51", "port": 6443}})
    assert findings(objects) == set()
    changed(objects["infrastructure"], {"spec.controlPlaneEndpoint": {"host": "172.17.1.50"}})
    assert findings(objects) == {("cluster-endpoint-given", "spec.controlPlaneEndpoint.host")}


def test_an_external_endpoint_may_have_another_port(objects: dict[str, Obj]) -> None:
    external = {
        "spec.loadBalancerConfig": {"ipamType": "none"},
        "spec.controlPlaneEndpoint": {"host": "a", "port": 443},
    }
    changed(objects["infrastructure"], external)
    changed(objects["cluster"], {"spec.controlPlaneEndpoint": {"host": "a", "port": 443}})
    assert findings(objects) == set()
    changed(objects["cluster"], {"spec.controlPlaneEndpoint": {"host": "a", "port": 6443}})
    assert findings(objects) == {("cluster-endpoint-given", "spec.controlPlaneEndpoint.port")}


@pytest.mark.parametrize("verified", [True, False])
def test_a_store_whose_verification_is_decided_is_no_finding(objects: dict[str, Obj], verified: bool) -> None:
    s3 = {"endpoint": "s3.example.com", "enforceSslVerify": verified}
    objects["control_plane"]["spec"]["serverConfig"] = {"etcd": {"backupConfig": {"s3": s3}}}
    assert check_together(list(objects.values())) == []


def test_a_schedule_that_can_be_read_is_no_finding(objects: dict[str, Obj]) -> None:
    schedule = {"caphv.io/park-schedule": "Mon-Fri 20:00-06:00 Europe/Berlin; Sat-Sun"}
    changed(objects["cluster"], {"metadata.annotations": schedule})
    assert findings(objects) == set()


def test_a_name_that_is_nearly_one_is_suggested(objects: dict[str, Obj]) -> None:
    changed(objects["workers"], {f"{TEMPLATE}.{REF}.name": "tempalte"})
    (located,) = check_together(list(objects.values()))
    assert located.finding.advice
    assert 'did you mean "template"?' in located.finding.detail


def test_what_other_providers_do_is_not_checked(objects: dict[str, Obj]) -> None:
    foreign = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DockerCluster", "name": "x"}
    cluster = copy.deepcopy(objects["cluster"])
    cluster["spec"] |= {
        REF: foreign | {"apiGroup": "infrastructure.example.com"},
        "controlPlaneEndpoint": {"port": 443},
    }
    assert findings({"cluster": cluster}) == set()


def test_findings_name_the_other_object(objects: dict[str, Obj]) -> None:
    changed(objects["pool"], {"spec.ranges": [{"subnet": "172.17.1.0/24", "rangeStart": "172.17.1.55"}]})
    names = list(objects)
    (located,) = check_together(list(objects.values()))
    assert located.other is not None
    assert {names[located.place], names[located.other]} == {"pool", "infrastructure"}
