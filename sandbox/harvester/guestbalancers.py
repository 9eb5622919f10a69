"""LoadBalancers of guests: whether the webhook admits them, and their network.

The cloud provider in a guest creates them with workload type `cluster`. Harvester allocates an
address, and the guest does the rest. docs/simulators.md has the sources and the differences between
releases.
"""

from collections.abc import Iterable, Sequence

from caphv.api.object import Obj, annotations_of, labels_of
from sandbox.harvester.releases import Release

GROUP = "loadbalancer.harvesterhci.io"

# Annotations of LoadBalancers.
NETWORK, PROJECT, NAMESPACE, CLUSTER = (
    f"{GROUP}/{name}" for name in ("network", "project", "namespace", "cluster")
)
MANAGEMENT_NETWORK = "cloudprovider.harvesterhci.io/managementNetwork"

# The label of a LoadBalancer with the cluster of its guest.
CLUSTER_OF_BALANCER = "cloudprovider.harvesterhci.io/cluster"

# The labels of a VM and its instance with the cluster of the guest, and with their creator.
CLUSTER_OF_VM = "guestcluster.harvesterhci.io/name"
CREATOR = "harvesterhci.io/creator"
NODE_DRIVER = "docker-machine-driver-harvester"

# The annotation of a VM that is being removed with its disks.
ON_REMOVAL = "harvesterhci.io/removeAllPersistentVolumeClaims"


def is_guest(load_balancer: Obj) -> bool:
    """Return whether a guest does the load balancing."""
    return load_balancer["spec"].get("workloadType") == "cluster"


def denial_reason(load_balancer: Obj, vms: Iterable[Obj], release: Release) -> str:
    """Return the reason for which the webhook denies a guest's new LoadBalancer; empty if none.

    `vms` are the VMs in the namespace of the LoadBalancer.
    """
    name = labels_of(load_balancer).get(CLUSTER_OF_BALANCER)
    if not is_guest(load_balancer) or name is None or not release.watches_guest_removal:
        return ""
    # `kubernetes` is the cloud provider's default for a cluster without a name.
    if name in ("", "kubernetes") and not release.guests_need_vms:
        return ""

    nodes = [
        vm
        for vm in vms
        if labels_of(vm).get(CREATOR) == NODE_DRIVER and labels_of(vm).get(CLUSTER_OF_VM) == name
    ]
    if not nodes and release.guests_need_vms:
        return "it has no running vm"

    for vm in nodes:
        if annotations_of(vm).get(ON_REMOVAL) == "true":
            vm_name = f"{load_balancer['metadata']['namespace']}/{vm['metadata']['name']}"
            return f"the vm {vm_name} shows guest cluster {name} is being removed"
    return ""


def mutated_annotations(
    load_balancer: Obj, vmis: Sequence[Obj], release: Release
) -> dict[str, str]:
    """Return the annotations of a LoadBalancer as the mutator sets them.

    `vmis` are the instances in the namespace of the LoadBalancer.
    """
    current = annotations_of(load_balancer)
    namespace = load_balancer["metadata"]["namespace"]
    if load_balancer["spec"].get("workloadType") == "vm" and release.vm_balancers_lack_network:
        return {**current, NAMESPACE: namespace}

    network = _network(current, vmis, release) if is_guest(load_balancer) else ""
    # Namespaces of the sandbox are in no project of Rancher.
    return {**current, NAMESPACE: namespace, PROJECT: "", NETWORK: network}


def _network(annotations: dict[str, str], vmis: Sequence[Obj], release: Release) -> str:
    """Return the network of the first instance of a guest that has one."""
    cluster = annotations.get(CLUSTER, "")
    if release.guest_network_by_label:
        if network := annotations.get(NETWORK) or annotations.get(MANAGEMENT_NETWORK):
            return network
        labelled = (vmi for vmi in vmis if cluster and labels_of(vmi).get(CLUSTER_OF_VM) == cluster)
        if network := _first_network(labelled):
            return network

    if not cluster:
        return ""
    nodes = (vmi for vmi in vmis if labels_of(vmi).get(CREATOR) == NODE_DRIVER)
    return _first_network(vmi for vmi in nodes if vmi["metadata"]["name"].startswith(cluster))


def _first_network(vmis: Iterable[Obj]) -> str:
    for vmi in vmis:
        for network in vmi["spec"].get("networks") or ():
            if network.get("multus"):
                return str(network["multus"]["networkName"])
    return ""
