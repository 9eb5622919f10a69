"""What the sandbox writes and reads of a core that serves v1beta1 only."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from sandbox import clusterclass
from sandbox.capi import state, v1beta1
from sandbox.capi.distribution import RKE2, distributions_for
from sandbox.capi.resources import condition
from sandbox.cluster import ClusterSpec, manifest

pytestmark = pytest.mark.unit

SHIPPED = clusterclass.shipped_objects("v1beta1")


def versions(node: Any) -> set[str]:
    """All API versions of core and providers below a node."""
    if isinstance(node, list):
        return {found for entry in node for found in versions(entry)}
    if not isinstance(node, dict):
        return set()
    own = {f"{node['kind']} {node['apiVersion']}"} if "kind" in node and "apiVersion" in node else set()
    return own.union(*(versions(value) for value in node.values()))


def test_classes_name_only_what_is_served() -> None:
    assert {obj["metadata"]["name"] for obj in SHIPPED if obj["kind"] == "ClusterClass"} == {
        "harvester-rke2",
        "harvester-k3s",
    }
    kinds = {found.split()[0]: found.split()[1] for found in versions(SHIPPED)}
    assert kinds["ClusterClass"] == "cluster.x-k8s.io/v1beta1"
    assert kinds["RKE2ControlPlaneTemplate"] == "controlplane.cluster.x-k8s.io/v1beta1"
    assert kinds["RKE2ConfigTemplate"] == "bootstrap.cluster.x-k8s.io/v1beta1"
    assert kinds["KThreesControlPlaneTemplate"] == "controlplane.cluster.x-k8s.io/v1beta2"
    assert len(versions(SHIPPED)) == len(kinds)


def test_class_has_the_fields_of_v1beta1() -> None:
    (spec,) = [
        obj["spec"] for obj in SHIPPED if obj["metadata"]["name"] == "harvester-rke2" and "patches" in obj["spec"]
    ]
    assert spec["infrastructure"]["ref"]["kind"] == "HarvesterClusterTemplate"
    assert spec["controlPlane"]["ref"]["kind"] == "RKE2ControlPlaneTemplate"
    assert spec["controlPlane"]["machineInfrastructure"]["ref"]["name"] == "harvester-rke2-control-plane"
    worker = spec["workers"]["machineDeployments"][0]
    assert worker["template"]["bootstrap"]["ref"]["kind"] == "RKE2ConfigTemplate"
    check = worker["machineHealthCheck"]
    assert check["maxUnhealthy"] == 1
    assert check["nodeStartupTimeout"] == "1200s"
    assert check["unhealthyConditions"][0] == {"type": "Ready", "status": "False", "timeout": "300s"}


def test_cluster_has_the_fields_of_v1beta1() -> None:
    cluster = v1beta1.to_v1beta1(manifest(ClusterSpec()))
    topology = cluster["spec"]["topology"]
    assert cluster["apiVersion"] == "cluster.x-k8s.io/v1beta1"
    assert (topology["class"], topology["classNamespace"]) == ("harvester-rke2", "default")
    assert topology["controlPlane"]["replicas"] == 3
    assert topology["controlPlane"]["machineHealthCheck"]["maxUnhealthy"] == 1
    assert "classRef" not in topology


def test_status_is_read_as_that_of_v1beta2() -> None:
    old: Obj = {
        "status": {
            "infrastructureReady": True,
            "conditions": [{"type": "ControlPlaneInitialized", "status": "False"}],
            "v1beta2": {"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]},
        }
    }
    found = v1beta1.convert_status(old)
    assert found["status"]["initialization"] == {"infrastructureProvisioned": True}
    assert condition(found, "ControlPlaneInitialized") == "True"
    assert v1beta1.convert_status({})["status"]["initialization"] == {"infrastructureProvisioned": False}


def test_machine_refers_by_version_and_namespace() -> None:
    (older, _) = distributions_for("v1beta1")
    control_plane = {
        "apiVersion": older.control_planes.api_version,
        "kind": older.control_planes.kind,
        "metadata": {"name": "cp", "namespace": "clusters", "uid": "1"},
        "spec": {"version": "v1.36.2+rke2r1", "machineTemplate": {"infrastructureRef": {"name": "blue"}}},
    }
    infrastructure, config = ({"metadata": {"name": name, "namespace": "clusters"}} for name in ("blue-1", "cp-1"))
    parts = infrastructure, config
    machine = state.new_machine(control_plane, older, Key("clusters", "first"), parts, core="v1beta1")
    assert older.template_name(control_plane) == "blue"
    assert machine["apiVersion"] == "cluster.x-k8s.io/v1beta1"
    assert machine["spec"]["bootstrap"]["configRef"] == {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1",
        "kind": RKE2.configs.kind,
        "name": "cp-1",
        "namespace": "clusters",
    }
    reference = machine["spec"]["infrastructureRef"]
    assert (reference["apiVersion"], reference["name"]) == ("infrastructure.cluster.x-k8s.io/v1beta1", "blue-1")
