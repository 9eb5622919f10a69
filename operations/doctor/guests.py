"""Check whether Services of type LoadBalancer in guests get addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from caphv.api import clusterapi
from caphv.api.bootimage import qualified
from caphv.api.counting import name_some
from caphv.api.guestpools import pool_of_guest
from caphv.api.object import Key, Obj, at, key_of, list_at, text_at
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result, ok

_NAME = "guest-services"
# From this release on, Harvester finds the VMs of a guest by a label. Earlier releases find them by
# a prefix of their names.
_BY_LABEL = (1, 9)


def checks(
    objects: HarvesterObjects,
    clusters: Iterable[Obj],
    machines: Iterable[Obj],
    version: tuple[int, int] | None,
) -> Iterator[Check]:
    """Yield a check for each cluster on a Harvester.

    :param objects: the objects of the Harvester
    :param clusters: HarvesterClusters on it
    :param machines: their HarvesterMachines
    :param version: the release of Harvester, None if it is unknown
    """
    machines_by_cluster: dict[Key, list[Obj]] = defaultdict(list)
    for machine in machines:
        key = Key(key_of(machine).namespace, clusterapi.cluster_name(machine))
        machines_by_cluster[key].append(machine)

    # Harvester distinguishes guests only by target namespace and name.
    guests: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for cluster in clusters:
        name = clusterapi.cluster_name(cluster) or key_of(cluster).name
        namespace = text_at(cluster, "spec", "targetNamespace")
        guests[namespace, name].append(Key(key_of(cluster).namespace, name))

    for (namespace, name), keys in sorted(guests.items()):
        if len(keys) > 1:
            message = (
                f"clusters {', '.join(sorted(map(str, keys)))} share name and target namespace "
                f"{namespace}"
            )
            remedy = (
                "Use another name or targetNamespace: LoadBalancers of all but one of them may be "
                "refused"
            )
            yield Check(_NAME, f"Guest {name}", Result.WARNING, message, remedy)
        for key in sorted(keys):
            yield _check(objects, key, namespace, machines_by_cluster[key], version)


def services(
    objects: HarvesterObjects, machines: Iterable[Obj], namespace: str, cluster: str
) -> str:
    """Say where Services of a guest get addresses from.

    :param objects: the objects of the Harvester
    :param machines: HarvesterMachines of the cluster, or their templates
    :param namespace: the target namespace
    :param cluster: the name of the Cluster
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
    objects: HarvesterObjects,
    key: Key,
    namespace: str,
    machines: list[Obj],
    version: tuple[int, int] | None,
) -> Check:
    """Check that Harvester finds the VMs of a guest that a pool serves.

    :param objects: the objects of the Harvester
    :param key: namespace and name of the Cluster
    :param namespace: the target namespace
    :param machines: HarvesterMachines of the cluster
    :param version: the release of Harvester, None if it is not known
    """
    subject = f"Guest {key}"
    names = sorted(key_of(machine).name for machine in machines)
    pool = pool_of_guest(objects.pools, _network(machines, namespace), namespace, key.name)

    # Harvester needs a VM only to learn the network of the guest. A pool that serves all networks
    # needs no VM.
    finds_by_name = version is None or version < _BY_LABEL
    has_name = any(name.startswith(key.name) for name in names)
    if finds_by_name and not has_name and _selects_network(objects, pool):
        message = (
            f"IPPool {pool} does not serve it: Harvester before 1.9 looks for VMs whose names "
            f"begin with {key.name}, and there are {name_some(names) or 'none'}"
        )
        remedy = (
            "Name machines after their cluster, or use DHCP or a pool without spec.selector.network"
        )
        return Check(_NAME, subject, Result.WARNING, message, remedy)
    return ok(_NAME, subject, services(objects, machines, namespace, key.name))


def _selects_network(objects: HarvesterObjects, name: str) -> bool:
    """Whether an IPPool serves one VM network only."""
    pools = [pool for pool in objects.pools if pool["metadata"]["name"] == name]
    return any(at(pool, "spec", "selector", "network") for pool in pools)


def _network(machines: Iterable[Obj], namespace: str) -> str:
    """Return the first VM network of the machines; empty if they name none."""
    for machine in machines:
        for name in list_at(machine, "spec", "networks"):
            return qualified(str(name), namespace)
    return ""
