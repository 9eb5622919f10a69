"""Facts of clusters are found among objects, however they refer to one another."""

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from packager.addons.cluster_objects import facts_of, fleet_clusters, is_suspended
from packager.addons.facts import FleetCluster
from packager.addons.settings import AddonSettings, settings_of
from tests.support.caapf import Naming, fleet_cluster
from tests.support.packager.objects import CLASS, CONTROL_PLANE, INFRASTRUCTURE, TEMPLATE, cluster, obj, reference

pytestmark = pytest.mark.unit


def only(*objs: Obj) -> AddonSettings:
    (facts,) = facts_of(objs)
    settings, findings = settings_of(facts)
    assert settings, findings
    return settings


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("namespace", ["team", ""])
def test_a_cluster_comes_with_what_it_refers_to(version: str, namespace: str) -> None:
    settings = only(
        cluster(
            namespace=namespace,
            infrastructureRef=reference(INFRASTRUCTURE, "HarvesterCluster", version),
            controlPlaneRef=reference(CONTROL_PLANE, "RKE2ControlPlane", version),
        ),
        obj(CONTROL_PLANE, "RKE2ControlPlane", "demo", {"serverConfig": {"cni": "cilium"}, "replicas": 1}, ""),
        obj(INFRASTRUCTURE, "HarvesterCluster", "demo", {"cloudConfig": {"delivery": "File"}}, ""),
        obj(INFRASTRUCTURE, "HarvesterCluster", "another", {}, ""),
    )
    assert (settings.cni.name, settings.single_node) == ("cilium", True)
    assert settings.cloud_config.host_path == "/etc/kubernetes/cloud-config"


def test_an_object_of_another_namespace_is_not_meant() -> None:
    settings = only(
        cluster(
            infrastructureRef={"apiGroup": INFRASTRUCTURE, "kind": "HarvesterCluster", "name": "demo"},
            controlPlaneRef={"apiGroup": CONTROL_PLANE, "kind": "RKE2ControlPlane", "name": "demo"},
        ),
        obj(CONTROL_PLANE, "RKE2ControlPlane", "demo", {"serverConfig": {"cni": "cilium"}}, "elsewhere"),
    )
    assert settings.cni.name == "calico"


@pytest.mark.parametrize("topology", [{"class": "rke2"}, {"classRef": {"name": "rke2"}}])
def test_a_class_says_what_its_clusters_will_have(topology: Obj) -> None:
    settings = only(cluster(topology=topology), CLASS, TEMPLATE)
    assert (settings.packaging.value, settings.cni.name) == ("HelmChartConfig", "canal")


def test_variables_of_the_shipped_classes_count_without_the_class() -> None:
    variables = [{"name": "cni", "value": "cilium"}, {"name": "cloudConfigDelivery", "value": "File"}, "nonsense"]
    settings = only(cluster(topology={"class": "rke2", "variables": variables}))
    assert settings.cni.name == "cilium"
    assert settings.cloud_config.host_path == "/etc/kubernetes/cloud-config"


def test_a_class_may_deliver_the_kubeconfig_as_that_of_the_go_provider_does() -> None:
    variables = [{"name": "cloudConfigDelivery", "value": "Manifest"}]
    settings = only(cluster(topology={"class": "rke2", "variables": variables}))
    assert (settings.cloud_config.secret_name, settings.cloud_config.secret_key) == ("cloud-config", "cloud-config")


@pytest.mark.parametrize(
    ("kind", "cni"), [("RKE2ControlPlane", "calico"), ("KThreesControlPlane", "none"), ("KubeadmControlPlane", "none")]
)
def test_a_cni_is_only_assumed_where_a_user_installs_it(kind: str, cni: str) -> None:
    ref = {"kind": "HarvesterCluster", "apiGroup": INFRASTRUCTURE, "name": "demo"}
    settings = only(
        cluster(infrastructureRef=ref, controlPlaneRef={"kind": kind, "apiGroup": CONTROL_PLANE, "name": "x"})
    )
    assert settings.cni.name == cni


def test_clusters_elsewhere_are_passed_over() -> None:
    other_class = obj(
        "cluster.x-k8s.io", "ClusterClass", "elsewhere", {"infrastructure": {"ref": {"kind": "VSphereClusterTemplate"}}}
    )
    found = facts_of(
        [
            cluster("one", infrastructureRef=reference("other", "VSphereCluster", "v1beta2")),
            cluster("two", topology={"class": "elsewhere"}),
            cluster("three"),
            obj("provisioning.cattle.io", "Cluster", "four"),
            cluster("", topology={"class": "x"}),
            cluster("five", topology={"class": "unknown"}),
            other_class,
        ]
    )
    assert [facts.key.name for facts in found] == ["five"]


def test_clusters_come_in_order_and_twins_stay_twins() -> None:
    topology = {"class": "x"}
    found = facts_of(
        [cluster("b", topology=topology), cluster("a", topology=topology), cluster("b", topology=topology)]
    )
    assert [facts.key.name for facts in found] == ["a", "b", "b"]


def test_each_world_of_fleet_is_reported_by_labels() -> None:
    owner = {
        "cluster-api.cattle.io/capi-cluster-owner": "demo",
        "cluster-api.cattle.io/capi-cluster-owner-ns": "team",
    }
    fleet = "fleet.cattle.io"
    caapf, rancher = (
        obj(fleet, "Cluster", "demo"),
        obj(fleet, "Cluster", "c-x", namespace="fleet-default", labels=owner),
    )
    expected = {FleetCluster("caapf", "team", "demo"), FleetCluster("rancher", "fleet-default", "c-x")}
    assert fleet_clusters([caapf, rancher]) == {Key("team", "demo"): expected}
    (facts,) = facts_of([cluster(topology={"class": "x"}), caapf, rancher])
    assert {finding.rule for finding in settings_of(facts)[1]} == {"fleet-twice"}


def test_fleet_cluster_of_caapf_is_found_by_its_owner_whatever_its_name() -> None:
    stored = cluster(topology={"class": "x"}) | {"status": {"initialization": {"controlPlaneInitialized": True}}}
    stored["metadata"]["uid"] = "1"
    found = fleet_cluster(stored, Naming("prod-", "-eu"))
    assert found
    assert fleet_clusters([found]) == {Key("team", "demo"): {FleetCluster("caapf", "team", "prod-demo-eu")}}
    (facts,) = facts_of([stored, found])
    assert {finding.rule for finding in settings_of(facts)[1]} == {"fleet-cluster-name"}


@pytest.mark.parametrize(("value", "suspended"), [("true", True), ("false", False), (None, False)])
def test_an_annotation_suspends(value: str | None, suspended: bool) -> None:
    notes = {} if value is None else {"addons.caphv.io/suspend": value}
    assert is_suspended(obj("cluster.x-k8s.io", "Cluster", "demo", annotations=notes)) == suspended


@pytest.mark.parametrize("spec", [None, 1, [], "x", {"topology": 1}, {"topology": {"variables": 1}}])
@pytest.mark.parametrize("field", ["spec", "controlPlaneRef"])
def test_files_may_hold_anything(spec: Any, field: str) -> None:
    ref = reference(INFRASTRUCTURE, "HarvesterCluster", "v1beta2")
    odd = cluster(infrastructureRef=ref, controlPlaneRef=spec, clusterNetwork=spec)
    harvester = obj(INFRASTRUCTURE, "HarvesterCluster", "demo") | {"spec": spec}
    for facts in facts_of([odd, harvester, {"kind": "Cluster"}, {"apiVersion": 1, "kind": 2, "metadata": spec}]):
        assert settings_of(facts)


def test_a_cluster_that_rancher_provisions_gets_no_bundles() -> None:
    infrastructure = {"apiGroup": INFRASTRUCTURE, "kind": "HarvesterCluster", "name": "demo"}
    control_plane = {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "demo"}
    objs = [
        cluster(infrastructureRef=infrastructure, controlPlaneRef=control_plane),
        obj(INFRASTRUCTURE, "HarvesterCluster", "demo"),
    ]
    assert facts_of(objs) == []
