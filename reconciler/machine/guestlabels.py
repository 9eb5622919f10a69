"""Labels by which Harvester finds the VMs of a guest cluster when that asks for a load balancer.

The cloud provider in the guest creates a LoadBalancer on Harvester with the name of its cluster. Harvester's webhook
then looks for VMs with the labels of its node driver: 1.8.0 refuses the LoadBalancer without such VMs, and all releases
take the network of the IPPool from such instances. A pool without a network serves only guests whose instances lack
the labels.

docs/adr/0008-guest-labels.md says what else the labels do.
"""

from collections.abc import Iterable, Mapping

from caphv.api import names
from caphv.api.object import Key, Obj, labels_of
from reconciler.machine.placement import CLUSTER_LABEL, cluster_label, label_value


def guest_cluster_name(cluster: Key) -> str:
    """Return the name by which a guest's cloud provider calls its cluster: `clusterName` of its chart."""
    return label_value(cluster.name)


def vm_labels(cluster: Key, *, name_taken: bool) -> dict[str, str]:
    """Return the labels of a VM that is a node of a guest cluster.

    :param cluster: key of the Cluster
    :param name_taken: whether another cluster in the target namespace has the name
    """
    labels = {names.CREATOR_LABEL: names.GUEST_CREATOR}
    return labels if name_taken else {**labels, names.GUEST_CLUSTER_LABEL: guest_cluster_name(cluster)}


def template_labels(labels: Mapping[str, str], *, announces_network: bool) -> dict[str, str | None]:
    """Return the labels of the VM's template, with None for those to remove.

    :param labels: those of `vm_labels`
    :param announces_network: whether Harvester may take the network of IPPools from the instance
    """
    if announces_network:
        return {names.GUEST_CLUSTER_LABEL: None, **labels}
    return {names.CREATOR_LABEL: "harvester", names.GUEST_CLUSTER_LABEL: None}


def name_taken(vms: Iterable[Obj], cluster: Key) -> bool:
    """Return whether another cluster has the name of this one, which then stays without it.

    :param vms: VMs of the target namespace that have the name
    :param cluster: key of the Cluster
    """
    holders = {labels_of(vm).get(CLUSTER_LABEL, "") for vm in vms}
    # A race of two clusters has one outcome: the first of those that have the name keeps it.
    return bool(holders) and min(holders) != cluster_label(cluster)


def first_network(vm: Obj) -> str:
    """Return the name of the first multus network of a VM, as its spec has it; empty without one."""
    networks = ((vm["spec"].get("template") or {}).get("spec") or {}).get("networks") or ()
    return next((str(name) for network in networks if (name := (network.get("multus") or {}).get("networkName"))), "")
