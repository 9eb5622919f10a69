"""Which objects on a Harvester the provider caches: one collection for each cache.

Cluster-wide collections exist once for each Harvester, the others once for each target namespace.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from caphv.api import names, resources
from caphv.api.guestparts import guest_name
from caphv.api.object import DEPLOYMENTS, NODES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Obj, labels_of
from reconciler.harvester import addressuse, slim
from reconciler.harvester.sharedcache import Collection

HARVESTER_NAMESPACE = "harvester-system"
HARVESTER_DEPLOYMENT = "harvester"
PROBE_BACKOFF_SECONDS = 4.0

DEPLOYMENT = Collection(
    DEPLOYMENTS,
    HARVESTER_NAMESPACE,
    {
        "field_selector": f"metadata.name={HARVESTER_DEPLOYMENT}",
        "transform": slim.deployment,
        "max_backoff": PROBE_BACKOFF_SECONDS,
        "probe": None,
    },
)
# Reconciles delete nothing because an object is absent here, so the first list may come from the
# server's cache.
HOSTS = Collection(NODES, "", {"transform": slim.host, "first_from_cache": True})
IMAGES = Collection(resources.IMAGES, "", {"transform": slim.image, "first_from_cache": True})
KEY_PAIRS = Collection(
    resources.KEY_PAIRS, "", {"transform": slim.key_pair, "first_from_cache": True}
)
POOLS = Collection(resources.IP_POOLS)
# Services are watched in all namespaces, because an address that any load balancer announces must
# not be allocated.
LOAD_BALANCER_SERVICES = Collection(
    SERVICES,
    "",
    {
        "label_selector": f"{names.SERVICE_LB_LABEL}=true",
        "indexes": {"address": addressuse.balancer_addresses},
    },
)
CLUSTER_WIDE = (DEPLOYMENT, HOSTS, IMAGES, KEY_PAIRS, POOLS, LOAD_BALANCER_SERVICES)


class NamespaceCollections(NamedTuple):
    """The collections of one target namespace."""

    vms: Collection
    instances: Collection
    claims: Collection
    load_balancers: Collection


def collections_of(namespace: str, management_cluster: str) -> NamespaceCollections:
    """Return the collections of a target namespace, with the indexes of their caches.

    - VMs: `machinetype` by label `harvestercluster/machinetype`, and `guest` by the name of their
      guest cluster and by `guest_of_cluster`
    - instances: `address` by their addresses
    - load balancers: `address` by their addresses, and `guest` by the guest that created them

    :param management_cluster: uid of the management cluster whose VMs are cached in full
    """
    transform = functools.partial(slim.virtual_machine, management_cluster=management_cluster)
    vms = {
        "transform": transform,
        "indexes": {"machinetype": _machine_type, "guest": _guest_cluster},
    }
    instances = {"transform": slim.instance, "indexes": {"address": addressuse.instance_addresses}}
    balancers = {"indexes": {"address": addressuse.balancer_addresses, "guest": _guest_of_balancer}}
    return NamespaceCollections(
        vms=Collection(resources.VIRTUAL_MACHINES, namespace, vms),
        instances=Collection(resources.VIRTUAL_MACHINE_INSTANCES, namespace, instances),
        claims=Collection(PERSISTENT_VOLUME_CLAIMS, namespace, {"transform": slim.claim}),
        load_balancers=Collection(resources.LOAD_BALANCERS, namespace, balancers),
    )


def guest_of_cluster(guest: str, cluster: str) -> str:
    """Return the value by which index `guest` has the VMs of one cluster with a guest's name.

    :param cluster: the label of the Cluster, empty for VMs without one
    """
    return f"{guest}/{cluster}"


def _machine_type(vm: Obj) -> list[str]:
    machine_type = labels_of(vm).get(names.MACHINE_TYPE_LABEL)
    return [machine_type] if machine_type else []


def _guest_cluster(vm: Obj) -> list[str]:
    labels = labels_of(vm)
    guest = labels.get(names.GUEST_CLUSTER_LABEL)
    return [guest, guest_of_cluster(guest, labels.get(names.CLUSTER_LABEL, ""))] if guest else []


def _guest_of_balancer(balancer: Obj) -> list[str]:
    guest = guest_name(balancer)
    return [guest] if guest else []
