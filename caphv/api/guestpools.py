"""Find the IPPool for a guest's Services of type LoadBalancer that name no pool.

Harvester compares the network of the guest's VMs with the network of each pool, and the scope of
the pool with namespace and cluster. VMs hide their network from Harvester if only pools without a
network serve the guest, see docs/adr/0008-guest-labels.md.
"""

from collections.abc import Iterable

from caphv.api.object import Obj, dict_at

_ANY = ("", "*")


def announces_network(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> bool:
    """Return whether guests get addresses by the network of their VMs.

    Otherwise they get them from pools without a network.

    :param pools: all IPPools
    :param network: the first network of the VM, as written in its spec
    :param namespace: target namespace
    :param cluster: the name of the guest cluster
    """
    networks = {_network(pool) for pool in pools if _serves(pool, namespace, cluster)}
    return network in networks or "" not in networks


def pool_of_guest(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> str:
    """Return the name of a pool that serves a guest, empty if none does.

    `announces_network` explains the parameters.
    """
    serving = [pool for pool in pools if _serves(pool, namespace, cluster)]
    is_announced = announces_network(serving, network, namespace, cluster)
    pool_network = network if is_announced else ""
    for pool in serving:
        if _network(pool) == pool_network:
            return str(pool["metadata"]["name"])
    return ""


def _network(pool: Obj) -> str:
    return str(_selector(pool).get("network") or "")


def _serves(pool: Obj, namespace: str, cluster: str) -> bool:
    # The project of a scope does not count, because the account may not read projects.
    for scope in _selector(pool).get("scope") or ():
        is_namespace = scope.get("namespace") in ("*", namespace)
        if is_namespace and (scope.get("guestCluster") or "") in (*_ANY, cluster):
            return True
    return False


def _selector(pool: Obj) -> Obj:
    selector: Obj = dict_at(pool, "spec", "selector")
    return selector
