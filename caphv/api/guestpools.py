"""Find the IPPool for a guest's Services of type LoadBalancer that name no pool.

Harvester compares the network of the guest's VMs with the network of each pool, and the scope of
the pool with namespace and cluster; of several pools, the one with the highest priority wins
(harvester/load-balancer-harvester e861dc9, pkg/ipam/selector.go, `Select`). VMs hide their network
from Harvester if only pools without a network serve the guest, see docs/adr/0008-guest-labels.md.

A Service that names a network asks for that one instead. No Service can ask for a certain address:
the cloud provider overwrites `kube-vip.io/loadbalancerIPs` with what Harvester has given it, and
never reads `spec.loadBalancerIP` (harvester/cloud-provider-harvester 38cd463,
pkg/cloud-controller-manager/loadbalancer.go).
"""

from collections.abc import Iterable

from caphv.api.object import Obj, dict_at, labels_of

NETWORK_ANNOTATION = "cloudprovider.harvesterhci.io/network"
"""Annotation of a Service with the network that its address is on, `<namespace>/<name>`."""

PRIMARY_ANNOTATION = "cloudprovider.harvesterhci.io/primary-service"
"""Annotation of a Service with the Service whose address it shares, `<namespace>/<name>`."""

_ANY = ("", "*")
# Labels of a network whose DHCP Harvester manages, with the IPPool of network.harvesterhci.io
# (harvester/vm-dhcp-controller c3042d6, pkg/controller/ippool/controller.go).
_DHCP_LABELS = ("network.harvesterhci.io/ippool-namespace", "network.harvesterhci.io/ippool-name")


def announces_network(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> bool:
    """Return whether guests get addresses by the network of their VMs.

    Otherwise they get them from pools without a network.

    :param pools: all IPPools
    :param network: the first network of the VM, as written in its spec
    :param namespace: target namespace
    :param cluster: the name of the guest cluster
    """
    networks = {_network(pool) for pool in pools if _serves(pool, namespace, cluster)}
    has_pool_without_network = "" in networks
    return network in networks or not has_pool_without_network


def pool_of_guest(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> str:
    """Return the name of a pool that serves a guest, empty if none does.

    `announces_network` explains the parameters.
    """
    serving = [pool for pool in pools if _serves(pool, namespace, cluster)]
    is_announced = announces_network(serving, network, namespace, cluster)
    pool_network = network if is_announced else ""
    return pool_of_network(serving, pool_network, namespace, cluster)


def pool_of_network(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> str:
    """Return the name of the pool for a Service that names a network, empty if there is none.

    `announces_network` explains the parameters.
    """
    serving = [
        pool for pool in pools if _network(pool) == network and _serves(pool, namespace, cluster)
    ]
    best = max(serving, key=_priority, default=None)
    return str(best["metadata"]["name"]) if best else ""


def managed_dhcp(network: Obj) -> str:
    """Return the IPPool of Harvester's managed DHCP on a network; empty if it has none.

    It answers the MAC addresses of VMs alone, and not those by which kube-vip asks for the address
    of a Service (harvester/vm-dhcp-controller c3042d6, pkg/dhcp/dhcp.go, `dhcpHandler`).

    :param network: the NetworkAttachmentDefinition
    """
    namespace, name = (str(labels_of(network).get(label) or "") for label in _DHCP_LABELS)
    return f"{namespace}/{name}" if name else ""


def _network(pool: Obj) -> str:
    return str(_selector(pool).get("network") or "")


def _serves(pool: Obj, namespace: str, cluster: str) -> bool:
    # The project of a scope does not count, because the account may not read projects.
    for scope in _selector(pool).get("scope") or ():
        is_namespace = scope.get("namespace") in ("*", namespace)
        if is_namespace and (scope.get("guestCluster") or "") in (*_ANY, cluster):
            return True
    return False


def _priority(pool: Obj) -> int:
    priority = _selector(pool).get("priority")
    return priority if isinstance(priority, int) else 0


def _selector(pool: Obj) -> Obj:
    selector: Obj = dict_at(pool, "spec", "selector")
    return selector
