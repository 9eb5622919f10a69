"""Whose managed cluster it is, and what the Fleet Cluster is reported."""

from typing import Any

import pytest

from caphv.api.object import Key
from reconciler.cluster.fleet import fleet_labels, managed_cluster_name

pytestmark = pytest.mark.unit

CLUSTER = Key("clusters", "demo")
OWNER, NAMESPACE = "cluster-api.cattle.io/capi-cluster-owner", "cluster-api.cattle.io/capi-cluster-owner-ns"


def managed(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("imported", "objects", "name"),
    [
        (None, [], ""),
        (None, [managed("c-1", **{OWNER: "demo", NAMESPACE: "clusters"})], "c-1"),
        (None, [managed("c-1", **{OWNER: "demo", NAMESPACE: "elsewhere"})], ""),
        (None, [managed("c-1", **{OWNER: "demo"}), managed("c-2")], ""),
        ({"status": {"clusterName": "c-3"}}, [managed("c-3")], "c-3"),
        ({"status": {}}, [managed("c-3")], ""),
        ({}, [], ""),
    ],
)
def test_managed_cluster_is_found_in_both_ways(imported: Any, objects: list[Any], name: str) -> None:
    assert managed_cluster_name(CLUSTER, imported, objects) == name


def test_labels_that_choose_bundles_are_copied_and_no_others() -> None:
    labels = {"cni": "calico", "csi": "harvester", "team": "a", "cluster.x-k8s.io/cluster-name": "wrong"}
    found = fleet_labels({"metadata": {"name": "demo", "namespace": "clusters", "labels": labels}})
    owner = {OWNER: "demo", NAMESPACE: "clusters"}
    assert found == {"cluster.x-k8s.io/cluster-name": "demo", "cni": "calico", "csi": "harvester", **owner}
