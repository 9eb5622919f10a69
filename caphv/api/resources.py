"""Kinds that this project reads and writes. Kinds of Kubernetes itself are in `object.py`."""

from __future__ import annotations

from caphv.api.names import GROUP, STORED_VERSION
from caphv.api.object import Resource

CLUSTER_API_GROUP = "cluster.x-k8s.io"
IPAM_GROUP = "ipam.cluster.x-k8s.io"
FLEET_GROUP = "fleet.cattle.io"
# Newest first. The first version that the management cluster serves is used.
CLUSTER_API_VERSIONS = ("v1beta2", "v1beta1")
IPAM_VERSIONS = ("v1beta2", "v1beta1")

HARVESTER_CLUSTERS = Resource(GROUP, STORED_VERSION, "harvesterclusters", "HarvesterCluster")
HARVESTER_CLUSTER_IDENTITIES = Resource(
    GROUP,
    STORED_VERSION,
    "harvesterclusteridentities",
    "HarvesterClusterIdentity",
    namespaced=False,
)
HARVESTER_MACHINES = Resource(GROUP, STORED_VERSION, "harvestermachines", "HarvesterMachine")
HARVESTER_MACHINE_TEMPLATES = Resource(
    GROUP, STORED_VERSION, "harvestermachinetemplates", "HarvesterMachineTemplate"
)

VIRTUAL_MACHINES = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine")
VIRTUAL_MACHINE_INSTANCES = Resource(
    "kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance"
)
DATA_VOLUMES = Resource("cdi.kubevirt.io", "v1beta1", "datavolumes", "DataVolume")
STORAGE_PROFILES = Resource(
    "cdi.kubevirt.io", "v1beta1", "storageprofiles", "StorageProfile", namespaced=False
)
IMAGES = Resource("harvesterhci.io", "v1beta1", "virtualmachineimages", "VirtualMachineImage")
VM_BACKUPS = Resource("harvesterhci.io", "v1beta1", "virtualmachinebackups", "VirtualMachineBackup")
KEY_PAIRS = Resource("harvesterhci.io", "v1beta1", "keypairs", "KeyPair")
IP_POOLS = Resource(
    "loadbalancer.harvesterhci.io", "v1beta1", "ippools", "IPPool", namespaced=False
)
LOAD_BALANCERS = Resource(
    "loadbalancer.harvesterhci.io", "v1beta1", "loadbalancers", "LoadBalancer"
)
NETWORKS = Resource(
    "k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition"
)
HARVESTER_SETTINGS = Resource("harvesterhci.io", "v1beta1", "settings", "Setting", namespaced=False)

RANCHER_CLUSTERS = Resource("provisioning.cattle.io", "v1", "clusters", "Cluster")
MANAGED_CLUSTERS = Resource("management.cattle.io", "v3", "clusters", "Cluster", namespaced=False)
RANCHER_SETTINGS = Resource("management.cattle.io", "v3", "settings", "Setting", namespaced=False)
FLEET_CLUSTERS = Resource(FLEET_GROUP, "v1alpha1", "clusters", "Cluster")
ETCD_SNAPSHOT_FILES = Resource(
    "k3s.cattle.io", "v1", "etcdsnapshotfiles", "ETCDSnapshotFile", namespaced=False
)
EXTENSION_CONFIGS = Resource(
    "runtime.cluster.x-k8s.io", "v1beta2", "extensionconfigs", "ExtensionConfig", namespaced=False
)
CERTIFICATES = Resource("cert-manager.io", "v1", "certificates", "Certificate")

LONGHORN_NODES = Resource("longhorn.io", "v1beta2", "nodes", "Node")
LONGHORN_RECURRING_JOBS = Resource("longhorn.io", "v1beta2", "recurringjobs", "RecurringJob")
LONGHORN_SETTINGS = Resource("longhorn.io", "v1beta2", "settings", "Setting")


def clusters(version: str) -> Resource:
    """Return Cluster API's Cluster in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "clusters", "Cluster")


def machines(version: str) -> Resource:
    """Return Cluster API's Machine in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "machines", "Machine")


def machine_deployments(version: str) -> Resource:
    """Return Cluster API's MachineDeployment in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "machinedeployments", "MachineDeployment")


def machine_health_checks(version: str) -> Resource:
    """Return Cluster API's MachineHealthCheck in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "machinehealthchecks", "MachineHealthCheck")


def cluster_classes(version: str) -> Resource:
    """Return Cluster API's ClusterClass in one of its versions."""
    return Resource(CLUSTER_API_GROUP, version, "clusterclasses", "ClusterClass")


def ip_address_claims(version: str) -> Resource:
    """Return Cluster API's IPAddressClaim in one of its versions."""
    return Resource(IPAM_GROUP, version, "ipaddressclaims", "IPAddressClaim")


def ip_addresses(version: str) -> Resource:
    """Return Cluster API's IPAddress in one of its versions."""
    return Resource(IPAM_GROUP, version, "ipaddresses", "IPAddress")
