"""Which IPPool gives addresses to Services of type LoadBalancer in a guest, without their asking for one by name.

Harvester compares the network of the guest's VMs with that of each pool, and the scope of the pool with namespace and
cluster. VMs hide their network from Harvester where only pools without a network serve the guest: see
docs/adr/0008-guest-labels.md.
"""

from collections.abc import Iterable

from caphv.api.object import Obj

_ANY = ("", "*")


def announces_network(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> bool:
    """Return whether guests get addresses by the network of their VMs, not from pools without a network.

    :param pools: all IPPools
    :param network: the first network of the VM, as its spec names it
    :param namespace: target namespace
    :param cluster: the name of the guest cluster
    """
    networks = {_network(pool) for pool in pools if _serves(pool, namespace, cluster)}
    return network in networks or "" not in networks


def pool_of_guest(pools: Iterable[Obj], network: str, namespace: str, cluster: str) -> str:
    """Return the name of a pool that serves a guest, empty if none does.

    The parameters are those of `announces_network`.
    """
    serving = [pool for pool in pools if _serves(pool, namespace, cluster)]
    wanted = network if announces_network(serving, network, namespace, cluster) else ""
    return next((str(pool["metadata"]["name"]) for pool in serving if _network(pool) == wanted), "")


def _network(pool: Obj) -> str:
    return str(_selector(pool).get("network") or "")


def _serves(pool: Obj, namespace: str, cluster: str) -> bool:
    # The account may not read the project of the namespace, so the project of a scope does not count.
    return any(
        scope.get("namespace") in ("*", namespace) and (scope.get("guestCluster") or "") in (*_ANY, cluster)
        for scope in _selector(pool).get("scope") or ()
    )


def _selector(pool: Obj) -> Obj:
    selector: Obj = (pool.get("spec") or {}).get("selector") or {}
    return selector
