"""What the specs of Harvester objects name on Harvester."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from operations.capacity.requirements import Value, cluster_requirements, machine_requirements

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("spec", [{}, {"targetNamespace": None}, {"targetNamespace": ""}])
def test_a_cluster_without_a_namespace_names_none(spec: Obj) -> None:
    found = cluster_requirements(spec, [], ())
    assert (found.target_namespace, found.namespace) == ("", None)


def test_the_namespace_of_a_cluster_has_its_place() -> None:
    found = cluster_requirements({"targetNamespace": "vms"}, ["b", "a"], ("spec",))
    assert (found.target_namespace, found.namespace) == ("vms", Value(("spec", "targetNamespace"), "vms"))
    assert list(found.networks_of_machines) == ["a", "b"]


def test_pools_of_interfaces_are_named_with_their_networks() -> None:
    pools = [
        {"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": "storage"},
        {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v6"},
    ]
    spec = {"networkInterfaces": [{"network": "default/storage", "addressesFromPools": pools}, 1]}
    path = ("networkInterfaces", 0, "addressesFromPools", 0, "name")
    assert machine_requirements(spec, "vms", imported=()).interface_pools == [
        (Value(path, "storage"), "default/storage")
    ]
