"""Which objects belong to a cluster."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.api.tokenrenewal import SECRET_TYPE
from operations.read.graph import belongings, references
from tests.support.backup import ADDONS, CORE, INFRASTRUCTURE, made, pool_with_claims, whole_cluster

pytestmark = pytest.mark.unit

SHOP = [Key("team", "shop")]


def labels(objs: list[Obj], clusters: list[Key] = SHOP) -> set[str]:
    return {str(identity) for identity in belongings(clusters, objs).objects}


def all_of(objs: list[Obj]) -> set[str]:
    return {str(id_of(obj)) for obj in objs}


@given(st.randoms(use_true_random=False))
def test_everything_of_a_cluster_is_found_in_any_order(order: random.Random) -> None:
    own, other = whole_cluster(), whole_cluster("other", identity="other-identity")
    objs = [*own, *other, made("v1", "Secret", "unrelated"), made("v1", "ConfigMap", "kube-root-ca.crt")]
    for obj in other:
        obj["metadata"]["labels"] = {
            key: value for key, value in (obj["metadata"].get("labels") or {}).items() if key != "env"
        }
    other_set = next(obj for obj in other if obj["kind"] == "ClusterResourceSet")
    other_set["spec"]["clusterSelector"] = {"matchLabels": {"env": "other"}}
    order.shuffle(objs)
    found = belongings(SHOP, objs)
    assert {str(identity) for identity in found.objects} == all_of(own)
    assert found.absent == {}


def test_a_cluster_without_owner_references_is_found_whole() -> None:
    objs = whole_cluster()
    for obj in objs:
        obj["metadata"].pop("ownerReferences", None)
    assert labels(objs) == all_of(objs)


def test_clusters_share_what_they_refer_to() -> None:
    objs = [*whole_cluster(), *whole_cluster("other")]
    assert "Secret team/identity" in labels(objs)
    assert "Secret team/identity" in labels(objs, [Key("team", "other")])
    assert "Machine team/other-0" not in labels(objs)


def test_shared_credentials_belong_to_a_cluster_that_refers_to_them() -> None:
    objs = whole_cluster()
    infrastructure = next(obj for obj in objs if obj["kind"] == "HarvesterCluster")
    del infrastructure["spec"]["identitySecret"]
    infrastructure["spec"]["identityRef"] = {"name": "shared"}
    identity = {
        "apiVersion": INFRASTRUCTURE,
        "kind": "HarvesterClusterIdentity",
        "metadata": {"name": "shared", "uid": "shared"},
        "spec": {"secretRef": {"name": "shared-harvester", "namespace": "caphv-system"}},
    }
    secret = made("v1", "Secret", "shared-harvester")
    secret["metadata"]["namespace"] = "caphv-system"
    renewed = made("v1", "Secret", "renewed-token.shared", identity, namespace="caphv-system", type=SECRET_TYPE)
    found = labels([*objs, identity, secret, renewed])
    assert "Secret caphv-system/renewed-token.shared" not in found, "another token is issued elsewhere"
    assert {"HarvesterClusterIdentity shared", "Secret caphv-system/shared-harvester"} < found
    assert "Secret team/identity" not in found


def test_bindings_of_other_clusters_stay() -> None:
    objs = whole_cluster()
    addons = next(obj for obj in objs if obj["kind"] == "ClusterResourceSet")
    for name in ("shop", "other"):
        objs.append(made(ADDONS, "ClusterResourceSetBinding", name, addons, spec={"clusterName": name}))
    assert "ClusterResourceSetBinding team/shop" in labels(objs)
    assert "ClusterResourceSetBinding team/other" not in labels(objs)


def test_what_is_referred_to_and_absent_is_named_with_who_needs_it() -> None:
    objs = [obj for obj in whole_cluster() if obj["metadata"]["name"] != "identity"]
    absent = belongings(SHOP, objs).absent
    assert {str(one): str(other) for one, other in absent.items()} == {
        "Secret team/identity": "HarvesterCluster team/shop-x7k2p"
    }


def test_tokens_of_service_accounts_are_not_copied() -> None:
    label = {"cluster.x-k8s.io/cluster-name": "shop"}
    token = made("v1", "Secret", "token", labels=label, type="kubernetes.io/service-account-token")
    assert "Secret team/token" not in labels([*whole_cluster(), token])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"classRef": {}}, []),
        (
            {"updateCloudProviderConfig": {"manifestsConfigMapName": "m", "manifestsConfigMapNamespace": "n"}},
            [ObjectId("", "ConfigMap", "n", "m")],
        ),
        ({"files": [{"contentFrom": {"secret": {"name": "s", "key": "k"}}}]}, [ObjectId("", "Secret", "team", "s")]),
        ({"configRef": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1", "kind": "Config", "name": "c"}},
         [ObjectId("bootstrap.cluster.x-k8s.io", "Config", "team", "c")]),
        ({"poolRef": {"apiVersion": "ipam.cluster.x-k8s.io/v1", "kind": "Pool", "name": "p"}}, []),
        ({"targetRef": {"apiVersion": "v1", "kind": "Node", "name": "n"}}, []),
        ({"image": {"name": "sles"}}, []),
    ],
)  # fmt: skip
def test_references_in_specs(spec: Obj, expected: list[ObjectId]) -> None:
    assert list(references(made(INFRASTRUCTURE, "HarvesterCluster", "x", spec=spec))) == expected


def test_the_class_of_both_versions_of_a_cluster_is_found() -> None:
    new = {"topology": {"classRef": {"name": "c", "namespace": "n"}}}
    old = {"topology": {"class": "c", "classNamespace": "n"}}
    wanted = [ObjectId("cluster.x-k8s.io", "ClusterClass", "n", "c")]
    assert [list(references(made(CORE, "Cluster", "x", spec=spec))) for spec in (new, old)] == [wanted, wanted]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ({"key": "env", "operator": "In", "values": ["test", "stage"]}, True),
        ({"key": "env", "operator": "In", "values": ["stage"]}, False),
        ({"key": "env", "operator": "In"}, False),
        ({"key": "env", "operator": "NotIn", "values": ["test"]}, False),
        ({"key": "env", "operator": "NotIn", "values": ["stage"]}, True),
        ({"key": "tier", "operator": "NotIn", "values": ["stage"]}, True),
        ({"key": "env", "operator": "Exists"}, True),
        ({"key": "tier", "operator": "Exists"}, False),
        ({"key": "env", "operator": "DoesNotExist"}, False),
        ({"key": "tier", "operator": "DoesNotExist"}, True),
        ({"key": "env", "operator": "Another"}, False),
    ],
)
@pytest.mark.parametrize("env", ["", "test", "other"])
def test_resource_sets_are_found_by_their_expressions(expression: Obj, selected: bool, env: str) -> None:
    objs = whole_cluster()
    (addons,) = (obj for obj in objs if obj["kind"] == "ClusterResourceSet")
    addons["spec"]["clusterSelector"] = {"matchExpressions": [expression]}
    if env:
        addons["spec"]["clusterSelector"]["matchLabels"] = {"env": env}
    assert ("ClusterResourceSet team/shop-addons" in labels(objs)) is (selected and env != "other")


def test_a_resource_set_without_a_selector_is_of_no_cluster() -> None:
    objs = whole_cluster()
    (addons,) = (obj for obj in objs if obj["kind"] == "ClusterResourceSet")
    addons["spec"]["clusterSelector"] = {}
    assert "ClusterResourceSet team/shop-addons" not in labels(objs)


def test_examples_in_schemas_of_variables_are_no_references() -> None:
    schema = {"openAPIV3Schema": {"example": [{"credentialsSecretName": "etcd-s3"}]}}
    names = {"templateRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "K", "name": "k"}}
    spec = {"variables": [{"name": "registries", "schema": schema}], "infrastructure": names}
    metadata = {"name": "c", "namespace": "n"}
    obj: Obj = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass", "metadata": metadata, "spec": spec}
    assert [str(reference) for reference in references(obj)] == ["K n/k"]


def test_pools_of_ipam_providers_are_not_followed() -> None:
    objs = whole_cluster(machines=1)
    machine = next(obj for obj in objs if obj["kind"] == "HarvesterMachine")
    pool, claim, address = pool_with_claims(machine)
    for obj in (machine, claim, address):
        assert id_of(pool) not in set(references(obj))
    cluster = next(obj for obj in objs if obj["kind"] == "Cluster")
    variable = {"name": "networkInterfaces", "value": machine["spec"]["networkInterfaces"]}
    cluster["spec"]["topology"]["variables"] = [variable]
    assert id_of(pool) not in set(references(cluster))
    chosen = belongings(SHOP, [*objs, pool, claim, address])
    assert id_of(pool) not in chosen.objects
    assert {id_of(claim), id_of(address)} <= set(chosen.objects)
    assert chosen.absent == {}
