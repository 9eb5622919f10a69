"""Labels by which Harvester finds the VMs of a guest cluster that requests a load balancer.

The cloud provider in the guest creates a LoadBalancer on Harvester with the name of its cluster.
Harvester's webhook then looks for VMs with the labels of its node driver. Harvester 1.8.0 refuses
the LoadBalancer without such VMs, and all releases take the network of the IPPool from such
instances. A pool without a network serves only guests whose instances lack the labels.

docs/adr/0008-guest-labels.md describes the other effects of the labels.
"""

from collections.abc import Iterable, Mapping

from caphv.api import names
from caphv.api.labels import cluster_label, label_value
from caphv.api.object import Key, Obj, at, labels_of, list_at
from reconciler.machine.placement import CLUSTER_LABEL

VM_LABELS = (names.CREATOR_LABEL, names.GUEST_CLUSTER_LABEL, CLUSTER_LABEL)
"""Labels of a VM that its machine restores."""


def guest_cluster_name(cluster: Key) -> str:
    """Return the name that a guest's cloud provider uses for its cluster.

    Value `clusterName` of the cloud provider's chart sets it.
    """
    return label_value(cluster.name)


def vm_labels(cluster: Key, *, name_taken: bool) -> dict[str, str]:
    """Return the labels of a VM that is a node of a guest cluster.

    :param cluster: key of the Cluster
    :param name_taken: whether another cluster in the target namespace has the name
    """
    labels = {names.CREATOR_LABEL: names.GUEST_CREATOR}
    if not name_taken:
        labels[names.GUEST_CLUSTER_LABEL] = guest_cluster_name(cluster)
    return labels


def template_labels(labels: Mapping[str, str], *, announces_network: bool) -> dict[str, str | None]:
    """Return the labels of the VM's template, with None for labels to remove.

    :param labels: the result of `vm_labels`
    :param announces_network: whether Harvester may take the network of IPPools from the instance
    """
    if announces_network:
        return {names.GUEST_CLUSTER_LABEL: None, **labels}
    return {names.CREATOR_LABEL: "harvester", names.GUEST_CLUSTER_LABEL: None}


def name_taken(vms: Iterable[Obj], cluster: Key) -> bool:
    """Return whether another cluster uses this cluster's name, so that this one must not.

    :param vms: VMs of the target namespace that have the name
    :param cluster: key of the Cluster
    """
    holders = {labels_of(vm).get(CLUSTER_LABEL, "") for vm in vms}
    # After a race of two clusters both have the name. The first one in alphabetical order keeps it.
    return bool(holders) and min(holders) != cluster_label(cluster)


def first_network(vm: Obj) -> str:
    """Return the first multus network of a VM, as written in its spec; empty without one."""
    for network in list_at(vm, "spec", "template", "spec", "networks"):
        if name := at(network, "multus", "networkName"):
            return str(name)
    return ""
