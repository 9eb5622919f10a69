"""Checks of whether Services of type LoadBalancer in guests get addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from caphv.api import clusterapi
from caphv.api.guestpools import pool_of_guest
from caphv.api.object import Key, Obj, key_of
from overview.doctor.model import Check, Result, ok
from overview.objects import HarvesterObjects

_NAME = "guest-services"
# Harvester finds instances by a label from this release on, before by the beginning of their names.
_BY_LABEL = (1, 9)
_SHOWN = 3


def checks(
    objects: HarvesterObjects, clusters: Iterable[Obj], machines: Iterable[Obj], version: tuple[int, int] | None
) -> Iterator[Check]:
    """Yield a check for each cluster on a Harvester.

    :param objects: what the Harvester holds
    :param clusters: HarvesterClusters on it
    :param machines: their HarvesterMachines
    :param version: release of Harvester, None if that is not known
    """
    by_cluster: dict[Key, list[Obj]] = defaultdict(list)
    for machine in machines:
        by_cluster[Key(key_of(machine).namespace, clusterapi.cluster_name(machine))].append(machine)
    places: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for cluster in clusters:
        key = Key(key_of(cluster).namespace, clusterapi.cluster_name(cluster) or key_of(cluster).name)
        places[str((cluster.get("spec") or {}).get("targetNamespace") or ""), key.name].append(key)

    for (namespace, name), keys in sorted(places.items()):
        if len(keys) > 1:
            message = f"clusters {', '.join(sorted(map(str, keys)))} share name and target namespace {namespace}"
            remedy = "Use another name or targetNamespace: LoadBalancers of all but one of them may be refused"
            yield Check(_NAME, f"Guest {name}", Result.WARNING, message, remedy)
        for key in sorted(keys):
            yield _check(objects, key, namespace, by_cluster[key], version)


def services(objects: HarvesterObjects, machines: Iterable[Obj], namespace: str, cluster: str) -> str:
    """Say from where Services of a guest get addresses.

    :param objects: what the Harvester holds
    :param machines: HarvesterMachines of the cluster, or templates of them
    :param namespace: target namespace
    :param cluster: name of the Cluster
    """
    network = _network(machines, namespace)
    pool = pool_of_guest(objects.pools, network, namespace, cluster)
    if pool:
        return f"Services get addresses from IPPool {pool}, or by DHCP if they ask for it"
    return (
        "Services get addresses only if they ask for DHCP: no IPPool serves the guest; one with "
        f"spec.selector.network {network or 'empty'} and a scope for namespace {namespace} does"
    )


def _check(
    objects: HarvesterObjects, key: Key, namespace: str, machines: list[Obj], version: tuple[int, int] | None
) -> Check:
    subject = f"Guest {key}"
    names = sorted(key_of(machine).name for machine in machines)
    pool = pool_of_guest(objects.pools, _network(machines, namespace), namespace, key.name)
    by_name = version is None or version < _BY_LABEL
    if by_name and _selects_network(objects, pool) and not any(name.startswith(key.name) for name in names):
        message = (
            f"IPPool {pool} does not serve it: Harvester before 1.9 looks for VMs whose names begin with {key.name}, "
            f"and there are {', '.join(names[:_SHOWN]) or 'none'}"
        )
        remedy = "Name machines after their cluster, or use DHCP or a pool without spec.selector.network"
        return Check(_NAME, subject, Result.WARNING, message, remedy)
    return ok(_NAME, subject, services(objects, machines, namespace, key.name))


def _selects_network(objects: HarvesterObjects, name: str) -> bool:
    pools = (pool for pool in objects.pools if pool["metadata"]["name"] == name)
    return any(((pool.get("spec") or {}).get("selector") or {}).get("network") for pool in pools)


def _network(machines: Iterable[Obj], namespace: str) -> str:
    networks = [name for machine in machines for name in (machine.get("spec") or {}).get("networks") or ()]
    if not networks:
        return ""
    return networks[0] if "/" in networks[0] else f"{namespace}/{networks[0]}"
