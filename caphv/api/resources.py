"""All kinds that this project reads and writes, except those of Kubernetes itself (see `object.py`)."""

from __future__ import annotations

from caphv.api.object import Resource

INFRASTRUCTURE_GROUP = "infrastructure.cluster.x-k8s.io"
CLUSTER_API_GROUP = "cluster.x-k8s.io"
# Newest first; the management cluster decides which one is used.
CLUSTER_API_VERSIONS = ("v1beta2", "v1beta1")

HARVESTER_CLUSTERS = Resource(INFRASTRUCTURE_GROUP, "v1beta1", "harvesterclusters", "HarvesterCluster")
HARVESTER_MACHINES = Resource(INFRASTRUCTURE_GROUP, "v1beta1", "harvestermachines", "HarvesterMachine")
HARVESTER_MACHINE_TEMPLATES = Resource(
    INFRASTRUCTURE_GROUP, "v1beta1", "harvestermachinetemplates", "HarvesterMachineTemplate"
)

VIRTUAL_MACHINES = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine")
VIRTUAL_MACHINE_INSTANCES = Resource("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance")
IMAGES = Resource("harvesterhci.io", "v1beta1", "virtualmachineimages", "VirtualMachineImage")
KEY_PAIRS = Resource("harvesterhci.io", "v1beta1", "keypairs", "KeyPair")
IP_POOLS = Resource("loadbalancer.harvesterhci.io", "v1beta1", "ippools", "IPPool", namespaced=False)
LOAD_BALANCERS = Resource("loadbalancer.harvesterhci.io", "v1beta1", "loadbalancers", "LoadBalancer")

RANCHER_CLUSTERS = Resource("provisioning.cattle.io", "v1", "clusters", "Cluster")
MANAGED_CLUSTERS = Resource("management.cattle.io", "v3", "clusters", "Cluster", namespaced=False)
FLEET_CLUSTERS = Resource("fleet.cattle.io", "v1alpha1", "clusters", "Cluster")


def clusters(version: str) -> Resource:
    """Cluster API's Cluster in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "clusters", "Cluster")


def machines(version: str) -> Resource:
    """Cluster API's Machine in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "machines", "Machine")
