"""Settings of clusters are validated where a user wrote them, and so are annotations of Services."""

from typing import Any

import pytest

from caphv.api.object import Obj
from packager.addons.validation import check_together, concerns, rules
from tests.support.edits import edited_objects
from tests.support.packager.objects import CLASS, CONTROL_PLANE, INFRASTRUCTURE, TEMPLATE, cluster, obj, reference

pytestmark = pytest.mark.unit


def located(*objs: Obj) -> list[tuple[int, str, str]]:
    found = [(finding.place, finding.finding.field, finding.finding.rule) for finding in check_together(objs)]
    assert {rule for *_, rule in found if not rule.startswith("schema-")} <= {rule.name for rule in rules()}
    return found


def on_harvester(name: str = "demo", annotations: Obj | None = None, **spec: Any) -> Obj:
    found = cluster(name, infrastructureRef=reference(INFRASTRUCTURE, "HarvesterCluster", "v1beta2"), **spec)
    found["metadata"]["annotations"] = annotations or {}
    return found


def service(name: str, port: int = 80, **notes: str) -> Obj:
    annotations = {f"cloudprovider.harvesterhci.io/{key.replace('_', '-')}": value for key, value in notes.items()}
    metadata = {"name": name, "namespace": "web", "annotations": annotations}
    spec = {"type": "LoadBalancer", "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


VALUES = "addons.caphv.io/values"


@pytest.mark.parametrize(
    ("made", "field", "rule"),
    [
        (on_harvester(annotations={VALUES: "cni: {mtu: 1}"}),
         f"metadata.annotations[{VALUES}].cni.mtu", "schema-minimum"),
        (on_harvester(annotations={VALUES: {"cni": {}}}), f"metadata.annotations[{VALUES}]", "addons-metadata"),
        (on_harvester(annotations={VALUES: "ccm: {values: {password: hunter2}}"}),
         f"metadata.annotations[{VALUES}].ccm.values.password", "no-secrets-in-git"),
        (on_harvester(annotations={"caphv.io/cni-mtu": "x"}), "metadata.annotations[caphv.io/cni-mtu]", "schema-type"),
        (on_harvester(topology={"class": "x", "variables": [{"name": "addons", "value": {"cni": {"bgp": "On"}}}]}),
         "spec.topology.variables[0].value.cni.bgp", "schema-enum"),
        (on_harvester(clusterNetwork={"pods": {"cidrBlocks": ["10.43.0.0/16"]}}),
         "spec.clusterNetwork.pods.cidrBlocks", "cidr-overlap"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_reported_of_the_cluster(made: Obj, field: str, rule: str) -> None:
    assert located(on_harvester("right"), made) == [(1, field, rule)]


def test_what_other_objects_say_is_reported_of_them() -> None:
    control_plane = obj(CONTROL_PLANE, "RKE2ControlPlane", "demo", {"serverConfig": {"cni": "weave"}})
    ref = reference(CONTROL_PLANE, "RKE2ControlPlane", "v1beta2")
    assert located(on_harvester(controlPlaneRef=ref), control_plane) == [(1, "spec.serverConfig.cni", "schema-enum")]


def test_what_a_class_would_make_is_reported_of_the_cluster() -> None:
    made = on_harvester(topology={"class": "rke2", "variables": [{"name": "cni", "value": "weave"}]})
    assert [(index, rule) for index, _, rule in located(CLASS, TEMPLATE, made)] == [(2, "schema-enum")]


def test_clusters_elsewhere_and_other_objects_are_none_of_ours() -> None:
    elsewhere = cluster(infrastructureRef=reference("other", "VSphereCluster", "v1beta2"))
    elsewhere["metadata"]["annotations"] = {VALUES: "cni: {mtu: 1}"}
    assert located(elsewhere, {"kind": "Service", "apiVersion": "v1", "metadata": 1, "spec": 2}, {}) == []
    assert not concerns({"kind": "Cluster", "apiVersion": "provisioning.cattle.io/v1"})
    assert not concerns(service("a"))
    assert concerns(service("a", ipam="pool"))
    assert concerns(elsewhere)


def test_services_that_share_an_address() -> None:
    ipam, ports = "metadata.annotations[cloudprovider.harvesterhci.io/ipam]", "spec.ports[0].port"
    assert located(service("a", ipam="static")) == [(0, ipam, "service-ipam")]
    first, second = service("a", ipam="pool"), service("b", primary_service="a")
    assert located(first, second) == [(1, ports, "service-shared-port")]
    assert located(first, service("b", 81, primary_service="a")) == []
    # Two clusters have such Services: who knows whose is whose.
    assert located(first, second, first, second) == []


def test_any_field_of_a_service_may_hold_anything() -> None:
    primary = service("a", ipam="dhcp")
    secondary = service("b", 81, primary_service="a")
    for first in edited_objects(primary):
        check_together([obj for obj in (first, secondary) if concerns(obj)])
    for second in edited_objects(secondary):
        check_together([obj for obj in (primary, second) if concerns(obj)])


@pytest.mark.parametrize("distribution", ["RKE2ControlPlane", "KThreesControlPlane", "KubeadmControlPlane"])
def test_any_field_of_a_cluster_may_hold_anything(distribution: str) -> None:
    topology = {
        "class": "x",
        "controlPlane": {"replicas": 1},
        "workers": {"machineDeployments": [{"name": "a", "replicas": 1}]},
        "variables": [{"name": "addons", "value": {"cni": {"name": "cilium"}}}],
    }
    networks = {"pods": {"cidrBlocks": ["10.1.0.0/16"]}, "services": {"cidrBlocks": ["10.2.0.0/16"]}}
    made = on_harvester(topology=topology, clusterNetwork=networks, controlPlaneRef={"kind": distribution})
    for changed in edited_objects(made):
        check_together([changed])
