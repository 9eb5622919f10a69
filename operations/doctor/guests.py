"""Check whether Services of type LoadBalancer in guests get addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from caphv.api import clusterapi, ippool
from caphv.api.bootimage import qualified
from caphv.api.counting import name_some
from caphv.api.guestpools import (
    NETWORK_ANNOTATION,
    PRIMARY_ANNOTATION,
    announces_network,
    managed_dhcp,
    pool_of_guest,
    pool_of_network,
)
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
            yield Check(_NAME, f"Guest {name}", Result.WARNING, message=message, remedy=remedy)
        for key in sorted(keys):
            yield _check(objects, key, namespace, machines_by_cluster[key], version)


def services(
    objects: HarvesterObjects,
    machines: Iterable[Obj],
    namespace: str,
    cluster: str,
    version: tuple[int, int] | None,
) -> str:
    """Say where Services of a guest get addresses from.

    :param objects: the objects of the Harvester
    :param machines: HarvesterMachines of the cluster, or their templates
    :param namespace: the target namespace
    :param cluster: the name of the Cluster
    :param version: the release of Harvester, None if it is unknown
    """
    networks, partial = _networks(machines, namespace)
    first = next(iter(networks), "")
    pool = pool_of_guest(objects.pools, first, namespace, cluster)
    managed = _managed_dhcp(objects)
    if pool:
        by_dhcp = "" if first in managed else ", or by DHCP if they ask for it"
        text = f"Services get addresses from IPPool {pool}{_only(objects, pool)}{by_dhcp}"
    else:
        text = (
            "Services get addresses only if they ask for DHCP: no IPPool serves the guest; one "
            f"with spec.selector.network {first or 'empty'} and a scope for namespace {namespace} "
            "does"
        )

    announces = announces_network(objects.pools, first, namespace, cluster)
    chosen = _chosen(objects, networks[1:], namespace, cluster, announces=announces)
    parts = [text]
    if version is not None and version < _BY_LABEL:
        if networks[1:] or partial:
            parts.append(f"annotation {NETWORK_ANNOTATION} has no effect before Harvester 1.9")
    else:
        parts += chosen
        parts += [
            f"none on network {network}, which not all machines have at the same place"
            for network in partial
        ]
    parts += [
        f"none by DHCP on network {network}, because its managed DHCP (IPPool {managed[network]}) "
        "answers VMs only"
        for network in networks
        if network in managed
    ]
    return "; ".join(parts)


def _chosen(
    objects: HarvesterObjects,
    networks: Iterable[str],
    namespace: str,
    cluster: str,
    *,
    announces: bool,
) -> Iterator[str]:
    """Yield where Services that name a network get addresses from.

    :param objects: the objects of the Harvester
    :param networks: the networks that all machines have, without the first
    :param namespace: the target namespace
    :param cluster: the name of the Cluster
    :param announces: whether VMs show their networks, by which the cloud provider names kube-vip
        the interface of an address
    """
    for network in networks:
        pool = pool_of_network(objects.pools, network, namespace, cluster)
        source = f"from IPPool {pool}{_only(objects, pool)}" if pool else "from no IPPool"
        hidden = (
            ", but announced on another network, because only IPPools without "
            "spec.selector.network serve the guest otherwise: give them one"
        )
        text = f"with annotation {NETWORK_ANNOTATION}: {network} {source}"
        yield text + (hidden if pool and not announces else "")


def _only(objects: HarvesterObjects, name: str) -> str:
    """Say that a pool has one address, which is that of the first Service."""
    pools = [pool for pool in objects.pools if pool["metadata"]["name"] == name]
    address = next(filter(None, map(ippool.only_address, pools)), "")
    if not address:
        return ""
    return f" (always {address}, which others share by annotation {PRIMARY_ANNOTATION})"


def _managed_dhcp(objects: HarvesterObjects) -> dict[str, str]:
    """Return the networks whose DHCP Harvester manages, with their pools."""
    pools = {str(key_of(network)): managed_dhcp(network) for network in objects.networks}
    return {network: pool for network, pool in pools.items() if pool}


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
    networks = _networks(machines, namespace).common
    first = next(iter(networks), "")
    pool = pool_of_guest(objects.pools, first, namespace, key.name)

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
        return Check(_NAME, subject, Result.WARNING, message=message, remedy=remedy)
    text = services(objects, machines, namespace, key.name, version)
    if not pool and first in _managed_dhcp(objects):
        message = (
            f"Services get no addresses: no IPPool serves the guest, and the DHCP of network "
            f"{first} is managed by Harvester, which answers VMs only"
        )
        remedy = (
            f"Create an IPPool with spec.selector.network {first} and a scope for namespace "
            f"{namespace}"
        )
        return Check(_NAME, subject, Result.WARNING, message=message, remedy=remedy)
    return ok(_NAME, subject, text)


def _selects_network(objects: HarvesterObjects, name: str) -> bool:
    """Whether an IPPool serves one VM network only."""
    pools = [pool for pool in objects.pools if pool["metadata"]["name"] == name]
    return any(at(pool, "spec", "selector", "network") for pool in pools)


class _Networks(NamedTuple):
    """The VM networks that all machines have, in their order, and those that only some have."""

    common: list[str]
    partial: list[str]


def _networks(machines: Iterable[Obj], namespace: str) -> _Networks:
    """Return the VM networks of machines.

    The cloud provider accepts those that are the same interface of all VMs of a guest
    (harvester/cloud-provider-harvester 38cd463, pkg/utils/vmi.go, `GetCommonVMINADs`).
    """
    listed = [
        [qualified(str(name), namespace) for name in list_at(machine, "spec", "networks")]
        for machine in machines
    ]
    every = list(dict.fromkeys(network for networks in listed for network in networks))
    common = [
        networks[0]
        for networks in zip(*listed, strict=False)
        if all(network == networks[0] for network in networks)
    ]
    # Harvester takes the first network of any VM if a Service names none.
    if every and every[0] not in common:
        common = [every[0], *common]
    return _Networks(common, [network for network in every if network not in common])
