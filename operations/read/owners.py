"""Read the owners of what is on Harvester: HarvesterMachines and HarvesterClusters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, Key, Obj, Resource, key_of, text_at, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen, by_key


@dataclass(frozen=True, slots=True)
class OwnerObjects:
    """Owners of objects and addresses, on a management cluster.

    `management_cluster` is the uid of its namespace kube-system, empty when that may not be read.
    `namespaces` are those that were read, None for all.
    """

    management_cluster: str
    machines: dict[Key, Obj]
    namespaces: frozenset[str] | None
    unseen: tuple[Unseen, ...] = ()
    clusters: dict[Key, Obj] = field(default_factory=dict)

    def sees(self, namespace: str) -> bool:
        """Whether the owners of a namespace were read, so that an absent one does not exist."""
        return self.namespaces is None or namespace in self.namespaces

    @property
    def balancers(self) -> dict[Key, Key]:
        """The HarvesterCluster of each load balancer, by the latter's key on Harvester."""
        return balancers_of(self.clusters.values())


async def read_owners(client: ApiClient, namespace: str) -> OwnerObjects:
    """Read all HarvesterMachines and HarvesterClusters, or those of a namespace as allowed.

    Raises `Forbidden` if `namespace` is empty and only some namespaces may be read.
    """
    hidden: list[Unseen] = []
    uid = ""
    try:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except ApiError as error:
        hidden.append(unseen("namespace kube-system of the management cluster", error))

    try:
        machines, clusters = await _read(client)
        return OwnerObjects(
            management_cluster=uid,
            machines=machines,
            namespaces=None,
            unseen=tuple(hidden),
            clusters=clusters,
        )
    except Forbidden as error:
        if not namespace:
            raise
        hidden.append(unseen("HarvesterMachines or HarvesterClusters of other namespaces", error))

    machines, clusters = await _read(client, namespace)
    return OwnerObjects(
        management_cluster=uid,
        machines=machines,
        namespaces=frozenset({namespace}),
        unseen=tuple(hidden),
        clusters=clusters,
    )


async def read_balancers(client: ApiClient, namespaces: frozenset[str] | None) -> dict[Key, Key]:
    """Return the HarvesterCluster of each load balancer, as the management cluster has them now."""
    clusters: list[Obj] = []
    for namespace in sorted(namespaces) if namespaces is not None else [""]:
        clusters += await list_all(client, resources.HARVESTER_CLUSTERS, namespace)
    return balancers_of(clusters)


async def exists(client: ApiClient, resource: Resource, name: str, namespace: str) -> bool:
    """Return whether the management cluster has an object now."""
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return False
    return True


def balancers_of(clusters: Iterable[Obj]) -> dict[Key, Key]:
    """Return the HarvesterCluster of each load balancer, by the latter's key on Harvester."""
    balancers = {}
    for obj in clusters:
        target = text_at(obj, "spec", "targetNamespace")
        for name in names.generated_names(obj, names.LOAD_BALANCER_SUFFIX):
            balancers[Key(target, name)] = key_of(obj)
    return balancers


async def _read(client: ApiClient, namespace: str = "") -> tuple[dict[Key, Obj], dict[Key, Obj]]:
    machines = await list_all(client, resources.HARVESTER_MACHINES, namespace)
    clusters = await list_all(client, resources.HARVESTER_CLUSTERS, namespace)
    return by_key(machines), by_key(clusters)
