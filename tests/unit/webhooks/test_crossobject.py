"""What several objects have to do with each other: each check with a wrong case, and a right one next to it."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from tests.support.crossobject import changed, cluster_objects, findings
from webhooks.crossobject import CROSS_OBJECT_RULES, check_together

pytestmark = pytest.mark.unit

REF = "infrastructureRef"
DISK = {"name": "disk", "value": {"size": "40Gi"}}
TEMPLATE = "spec.template.spec"
# Name of the check, which object is changed where (values by path, None removes), and where it is reported.
WRONG: list[tuple[str, str, Obj, str]] = [
    ("metadata", "template", {"metadata.name": None}, "metadata.name"),
    ("metadata", "template", {"metadata.name": "Upper"}, "metadata.name"),
    ("metadata", "cluster", {"metadata.namespace": "a.b"}, "metadata.namespace"),
    ("metadata", "machine", {"metadata.labels": {"a": 1}}, "metadata.labels.a"),
    ("metadata", "machine", {"metadata.labels": {"a": "b c"}}, "metadata.labels.a"),
    ("metadata", "machine", {"metadata.annotations": ["a"]}, "metadata.annotations"),
    ("api-group", "machine", {"apiVersion": "infrastructure.cluster.x-k8s.oi/v1beta1"}, "apiVersion"),
    ("defined-twice", "others", {"metadata.name": "workers"}, "metadata.name"),
    (
        "cluster-endpoint",
        "cluster",
        {"spec.controlPlaneEndpoint": {"host": "1.2.3.400"}},
        "spec.controlPlaneEndpoint.host",
    ),
    (
        "cluster-endpoint",
        "cluster",
        {"spec.controlPlaneEndpoint": {"host": "fd00::1%x;reboot"}},
        "spec.controlPlaneEndpoint.host",
    ),
    ("cluster-endpoint", "cluster", {"spec.controlPlaneEndpoint": {"port": 70000}}, "spec.controlPlaneEndpoint.port"),
    (
        "cluster-endpoint-given",
        "cluster",
        {"spec.controlPlaneEndpoint": {"port": 443}},
        "spec.controlPlaneEndpoint.port",
    ),
    (
        "park-schedule",
        "cluster",
        {"metadata.annotations": {"caphv.io/park-schedule": "Mon-Fri 8pm-6am"}},
        "metadata.annotations[caphv.io/park-schedule]",
    ),
    (
        "park-schedule",
        "cluster",
        {"metadata.annotations": {"caphv.io/park-schedule": "Sat-Sun Europe/Brelin"}},
        "metadata.annotations[caphv.io/park-schedule]",
    ),
    ("reference-kind", "cluster", {f"spec.{REF}.kind": "HarvesterMachine"}, f"spec.{REF}.kind"),
    ("reference-kind", "workers", {f"{TEMPLATE}.{REF}.kind": "HarvesterMachine"}, f"{TEMPLATE}.{REF}.kind"),
    ("reference-kind", "workers", {"kind": "MachinePool"}, f"{TEMPLATE}.{REF}.kind"),
    ("reference-api", "cluster", {f"spec.{REF}.apiVersion": "x/v1"}, f"spec.{REF}.apiVersion"),
    ("reference-api", "control_plane", {f"spec.{REF}.apiVersion": None}, f"spec.{REF}.apiVersion"),
    (
        "reference-api",
        "control_plane",
        {f"spec.{REF}.apiVersion": "infrastructure.cluster.x-k8s.io/v1"},
        f"spec.{REF}.apiVersion",
    ),
    ("reference-namespace", "control_plane", {f"spec.{REF}.namespace": "default"}, f"spec.{REF}.namespace"),
    ("reference-absent", "cluster", {f"spec.{REF}.name": "demmo"}, f"spec.{REF}.name"),
    ("identity-absent", "secret", {"metadata.name": "identit"}, "spec.identitySecret.name"),
    ("identity-key", "secret", {"data": {"config": "eA=="}}, "spec.identitySecret.name"),
    (
        "pool-name",
        "infrastructure",
        {"spec.vmNetworkConfig.ipPoolRefs": ["vm-pol"]},
        "spec.vmNetworkConfig.ipPoolRefs[0]",
    ),
    (
        "cluster-network",
        "cluster",
        {"spec.clusterNetwork.pods.cidrBlocks": ["10.42.0.0/33"]},
        "spec.clusterNetwork.pods.cidrBlocks[0]",
    ),
    (
        "cluster-network",
        "cluster",
        {"spec.clusterNetwork.pods.cidrBlocks": ["10.42.0.0/15"]},
        "spec.clusterNetwork.services.cidrBlocks[0]",
    ),
    (
        "cluster-network-overlap",
        "cluster",
        {"spec.clusterNetwork.pods.cidrBlocks": ["172.17.0.0/16"]},
        "spec.clusterNetwork.pods.cidrBlocks[0]",
    ),
    (
        "cluster-network-overlap",
        "template",
        {f"{TEMPLATE}.vmNetworkConfig": {"gateway": "10.42.1.1", "subnetMask": "255.255.255.0"}},
        "spec.clusterNetwork.pods.cidrBlocks[0]",
    ),
    (
        "pool-overlap",
        "pool",
        {"spec.ranges": [{"subnet": "172.17.1.0/24", "rangeStart": "172.17.1.60"}]},
        "spec.ranges[0]",
    ),
    (
        "pool-subnet",
        "infrastructure",
        {"spec.vmNetworkConfig.subnetMask": "255.255.0.0"},
        "spec.vmNetworkConfig.subnetMask",
    ),
    (
        "pool-subnet",
        "template",
        {f"{TEMPLATE}.vmNetworkConfig": {"ipPoolRef": "vm-pool", "gateway": "172.18.0.1"}},
        f"{TEMPLATE}.vmNetworkConfig.gateway",
    ),
    (
        "static-address-in-pool",
        "machine",
        {"spec.networkConfig.address": "172.17.1.50"},
        "spec.networkConfig.address",
    ),
    (
        "static-address-network",
        "machine",
        {"spec.networkConfig.gateway": "172.17.2.1"},
        "spec.networkConfig.gateway",
    ),
    (
        "static-address-network",
        "template",
        {f"{TEMPLATE}.networkConfig": {"address": "172.17.1.11", "gateway": "172.17.2.1"}},
        f"{TEMPLATE}.networkConfig.gateway",
    ),
    (
        "static-address-template",
        "template",
        {f"{TEMPLATE}.networkConfig": {"address": "172.17.1.11"}},
        f"{TEMPLATE}.networkConfig.address",
    ),
    ("control-plane-count", "control_plane", {"spec.replicas": 2}, "spec.replicas"),
    (
        "control-plane-count",
        "topology",
        {"spec.topology.controlPlane.replicas": 4},
        "spec.topology.controlPlane.replicas",
    ),
    (
        "rke2-bootstrap-unusable",
        "control_plane",
        {"spec.privateRegistriesConfig": {"configs": {"r": {"tls": {"insecureSkipVerify": True}}}}},
        "spec.privateRegistriesConfig.configs.r.tls.tlsConfigSecret",
    ),
    (
        "rke2-bootstrap-unusable",
        "control_plane",
        {"spec.version": "v1.36.2+rke2r1", "spec.agentConfig": {"cisProfile": "cis-1.6"}},
        "spec.agentConfig.cisProfile",
    ),
    (
        "rke2-registries-lost",
        "control_plane",
        {"spec.privateRegistriesConfig": {"configs": {"r": {}, "s": {}}}},
        "spec.privateRegistriesConfig.configs",
    ),
    (
        "rke2-etcd-store-unverified",
        "control_plane",
        {"spec.serverConfig": {"etcd": {"backupConfig": {"s3": {"endpoint": "s3.example.com"}}}}},
        "spec.serverConfig.etcd.backupConfig.s3.enforceSslVerify",
    ),
    ("one-zone", "template", {f"{TEMPLATE}.failureDomain": "zone-a"}, f"{TEMPLATE}.failureDomain"),
    ("one-zone", "others", {f"{TEMPLATE}.failureDomain": "zone-a"}, f"{TEMPLATE}.failureDomain"),
    ("storage-class-migration", "storage", {"parameters": {}}, f"{TEMPLATE}.volumes[0].storageClass"),
    ("storage-class-absent", "storage", {"metadata.name": "fasts"}, f"{TEMPLATE}.volumes[0].storageClass"),
    (
        "topology-class",
        "topology",
        {"spec.topology.workers.machineDeployments": [{"class": "worker"}]},
        "spec.topology.workers.machineDeployments[0].class",
    ),
    ("topology-variable", "topology", {"spec.topology.variables": []}, "spec.topology.variables"),
    (
        "topology-objects",
        "topology",
        {
            "spec.topology.classRef.name": "harvester-k3s",
            "spec.topology.variables": [
                {"name": "vmNetworks", "value": ["default/net"]},
                {"name": "sshKeyPair", "value": "default/admin"},
                {"name": "image", "value": "default/image"},
                {"name": "cpuCount", "value": 4000},
            ],
        },
        "spec.topology.variables[3].value",
    ),
    *[
        ("topology-variable", "topology", {"spec.topology.variables": [{"name": "cpu", "value": 4}, variable]}, where)
        for variable, where in [
            ({"name": "cpuu", "value": 4}, "spec.topology.variables[1].name"),
            ({"name": "cpu", "value": "four"}, "spec.topology.variables[1].value"),
            ({"name": "disk", "value": {"class": "a"}}, "spec.topology.variables[1].value.size"),
            ({"name": "disk", "value": {"size": "1", "sise": "1"}}, "spec.topology.variables[1].value.sise"),
        ]
    ],
]


@pytest.fixture
def objects() -> dict[str, Obj]:
    return cluster_objects()


def test_nothing_is_wrong_to_begin_with(objects: dict[str, Obj]) -> None:
    assert findings(objects) == set()


@pytest.mark.parametrize(("rule", "name", "changes", "field"), WRONG)
def test_wrong_is_reported(objects: dict[str, Obj], rule: str, name: str, changes: Obj, field: str) -> None:
    changed(objects[name], changes)
    found = findings(objects)
    assert any(one == rule and where.startswith(field) for one, where in found), found


@pytest.mark.parametrize("value", ["five", 5, None])
def test_a_value_that_is_none_of_those_allowed_has_one_finding(objects: dict[str, Obj], value: object) -> None:
    objects["class"]["spec"]["variables"][0]["schema"]["openAPIV3Schema"]["enum"] = [2, 4]
    changed(objects["topology"], {"spec.topology.variables": [{"name": "cpu", "value": value}, DISK]})
    found = [str(located.finding) for located in check_together(list(objects.values()))]
    assert [text for text in found if "requires that it be" in text] == found
    (text,) = found
    assert "requires that it be one of 2, 4" in text


def test_every_check_is_tested() -> None:
    others = {"machine-name-taken", "cluster-name-taken", "static-address-duplicate", "identity-namespace"}
    others |= {"identity-account", "identity-renewed-secret", "interface-route-dhcp"}
    assert {check.name for check in CROSS_OBJECT_RULES} == {row[0] for row in WRONG} | others
