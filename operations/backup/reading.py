"""Read all objects of clusters from a management cluster, as they were at one moment."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from caphv.api import resources
from caphv.api.clusterapi import is_of_rancher
from caphv.api.counting import counted
from caphv.api.object import (
    CONFIG_MAPS,
    NAMESPACES,
    SECRETS,
    Key,
    Obj,
    Resource,
    at,
    key_of,
    uid_of,
)
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import kinds_of
from caphv.runtime.errors import ApiError, Forbidden, NotFound, RequestError
from operations.backup.files import Backup, Origin
from operations.backup.order import missing_of
from operations.backup.pools import read_pools
from operations.capacity.machinepools import desired_state
from operations.read.graph import Belongings, belongings, is_cluster_api, references
from operations.read.management import NoClusterApiError, Step, list_all, unseen
from operations.status.query import Query

_REQUESTS_AT_ONCE = 16
_NONE: Mapping[tuple[str, str], str] = {}


async def read_backup(
    client: ApiClient,
    query: Query,
    step: Step = lambda _text: None,
    *,
    with_pools: bool = False,
) -> Backup:
    """Read the clusters of a query with all objects that they need.

    `unseen` of the answer names what may not be read. Raises `ApiError` and `Unreachable` when the
    Clusters themselves cannot be read.

    :param client: client of the management cluster
    :param query: which clusters to read
    :param step: called with a description of each step
    :param with_pools: whether to read also the IPPools on their Harvesters
    """
    step("reading which kinds there are")
    kinds = await kinds_to_copy(client)
    resource = kinds[resources.CLUSTER_API_GROUP, "Cluster"]
    clusters = {key_of(obj): obj for obj in await list_all(client, resource, query.namespace)}
    # What Rancher has of its clusters is no part of a backup, which one of them would spoil.
    left_out = {
        key for key, obj in clusters.items() if is_of_rancher(obj) and key not in query.keys
    }
    keys = [key for key in clusters if query.takes(key) and key not in left_out]

    step(f"reading the objects of {counted(len(keys), 'cluster')}")
    collection = _Collection(client, kinds)
    await collection.read({key.namespace for key in keys})
    chosen = await _choose(collection, keys)
    chosen.objects |= await _read_namespaces(client, chosen)

    backup = Backup(await _read_origin(client), tuple(map(str, keys)), chosen.objects)
    backup.unseen = tuple(collection.unseen)
    backup.left_out = tuple(str(key) for key in clusters if query.takes(key) and key in left_out)
    if with_pools:
        step("reading Harvesters for IPPools")
        backup.pools, hidden = await read_pools(client, chosen.objects)
        backup.unseen += tuple(hidden)
    backup.absent = frozenset(missing_of(backup))
    return backup


async def kinds_to_copy(
    client: ApiClient, versions: Mapping[tuple[str, str], str] = _NONE
) -> dict[tuple[str, str], Resource]:
    """Return the kinds of backups, by group and kind: Cluster API's, Secret, ConfigMap, Namespace.

    Raises `ApiError`, `Unreachable`; `NoClusterApiError` when the server has no Cluster API.

    :param client: client of a management cluster
    :param versions: by group and kind, versions to use instead of the server's preferred ones
    """
    answer = await client.request("GET", "/apis")
    groups = {
        str(group["name"]): group
        for group in answer["groups"]
        if is_cluster_api(str(group["name"]))
    }
    if resources.CLUSTER_API_GROUP not in groups:
        message = f"{client.server} does not serve Cluster API: is it the management cluster?"
        raise NoClusterApiError(message)

    # A kind that cannot be both listed and created, such as a review, has no objects to copy.
    served = await asyncio.gather(
        *(kinds_of(client, group, ("create", "list")) for group in groups.values())
    )

    resource_of = {
        ("", "Secret"): SECRETS,
        ("", "ConfigMap"): CONFIG_MAPS,
        ("", "Namespace"): NAMESPACES,
    }
    for group, kinds in zip(groups, served, strict=True):
        for kind, choices in kinds.items():
            by_version = {choice.version: choice for choice in reversed(choices)}
            version = versions.get((group, kind), "")
            resource_of[group, kind] = by_version.get(version, choices[0])
    return resource_of


class ReadObjects(NamedTuple):
    """The objects that were read, and what could not be read."""

    objects: dict[ObjectId, Obj]
    unseen: list[str]


async def read_objects(
    client: ApiClient, namespaces: Iterable[str], others: Collection[Obj] = ()
) -> ReadObjects:
    """Read all objects of Cluster API in some namespaces.

    Also reads objects to which these and `others` refer. Raises `ApiError`, `Unreachable`,
    `NoClusterApiError`.
    """
    kinds = await kinds_to_copy(client)
    collection = _Collection(client, {key: kind for key, kind in kinds.items() if key[0]})
    await collection.read(namespaces)

    more = True
    while more:
        # Each object may refer to further objects.
        named = {ref for obj in (*collection.objects.values(), *others) for ref in references(obj)}
        more = await collection.read_single(named - collection.objects.keys())
    return ReadObjects(collection.objects, collection.unseen)


@dataclass(slots=True)
class _Collection:
    """Objects that were read, and why others could not be."""

    client: ApiClient
    kinds: dict[tuple[str, str], Resource]
    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    asked: set[ObjectId] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)

    async def read(self, namespaces: Iterable[str]) -> None:
        """Read all kinds in these namespaces, as they were at one moment.

        At one moment no machine lacks its owner.
        """
        limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        moment = await self._read_moment()

        async def read_kind(resource: Resource, namespace: str) -> None:
            async with limit:
                try:
                    objs = await _list(self.client, resource, namespace, moment)
                except RequestError as error:
                    self.unseen.append(str(unseen(f"{resource} of namespace {namespace}", error)))
                    return
            self.objects |= {id_of(obj): obj for obj in objs}

        lists = [resource for resource in self.kinds.values() if resource.namespaced]
        await asyncio.gather(
            *(read_kind(resource, space) for space in sorted(namespaces) for resource in lists)
        )

    async def read_single(self, identities: Iterable[ObjectId]) -> bool:
        """Read single objects that were not read before; return whether any exists."""
        new = [
            identity
            for identity in identities
            if identity not in self.asked and identity[:2] in self.kinds
        ]
        # Remember absent objects as well; otherwise the caller would ask for them forever.
        self.asked |= set(new)
        objs = await asyncio.gather(*map(self._read_one, new))
        self.objects |= {id_of(obj): obj for obj in objs if obj is not None}
        return any(objs)

    async def _read_one(self, identity: ObjectId) -> Obj | None:
        """Read an object; None if it does not exist, or may not be read."""
        resource = self.kinds[identity.group, identity.kind]
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        try:
            return {**head, **await self.client.get(resource, identity.name, identity.namespace)}
        except NotFound:
            return None
        except RequestError as error:
            self.unseen.append(str(unseen(str(identity), error)))
            return None

    async def _read_moment(self) -> str:
        """Return the resource version to read at; empty where Clusters may not be listed."""
        clusters = self.kinds[resources.CLUSTER_API_GROUP, "Cluster"]
        try:
            answer = await self.client.list(clusters, limit=1)
        except Forbidden:
            return ""
        return str(answer["metadata"].get("resourceVersion") or "")


async def _choose(collection: _Collection, clusters: list[Key]) -> Belongings:
    """Choose the objects of the clusters, and read their references until nothing is new."""
    while True:
        chosen = belongings(clusters, collection.objects.values())
        _add_named_by_classes(chosen, clusters, collection.objects)
        if not await collection.read_single(chosen.absent):
            return chosen


def _add_named_by_classes(
    chosen: Belongings, clusters: Iterable[Key], objects: Mapping[ObjectId, Obj]
) -> None:
    """Add objects that ClusterClasses name, such as the identity.

    This matters for clusters that have no HarvesterCluster yet.

    :param chosen: gets the objects
    :param clusters: keys of the clusters
    :param objects: all objects that were read
    """
    kind = resources.HARVESTER_CLUSTERS
    for key in clusters:
        cluster = ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key)
        if at(chosen.objects.get(cluster), "spec", "infrastructureRef"):
            continue

        # The core would create this object from the class once it reconciles the cluster.
        harvester_cluster = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": dict(key._asdict()),
            "spec": dict(desired_state(key, chosen.objects).infrastructure),
        }

        for reference in references(harvester_cluster):
            if reference in objects:
                chosen.objects.setdefault(reference, objects[reference])
            else:
                chosen.absent.setdefault(reference, cluster)


async def _list(client: ApiClient, resource: Resource, namespace: str, moment: str) -> list[Obj]:
    """Read a collection as it was at a moment, else as it is now.

    Raises `ApiError`, `Unreachable`.
    """
    if moment:
        try:
            return await list_all(client, resource, namespace, exactly=moment)
        except Forbidden:
            raise
        except ApiError:
            # etcd has compacted this revision meanwhile, or another etcd stores this kind.
            pass
    return await list_all(client, resource, namespace)


async def _read_namespaces(client: ApiClient, chosen: Belongings) -> dict[ObjectId, Obj]:
    """Return the namespaces of the objects, with labels and annotations if these may be read."""
    namespaces: dict[ObjectId, Obj] = {}
    for name in {identity.namespace for identity in chosen.objects if identity.namespace}:
        metadata = {"name": name}
        # The name is enough to create a namespace.
        with suppress(ApiError):
            live = (await client.get(NAMESPACES, name))["metadata"]
            metadata |= {key: live[key] for key in ("labels", "annotations") if key in live}
        identity = ObjectId("", "Namespace", "", name)
        namespaces[identity] = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    return namespaces


async def _read_origin(client: ApiClient) -> Origin:
    """Return where and when a backup is made, under a new identity."""
    try:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except ApiError:
        uid = ""

    created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Origin(secrets.token_hex(8), created, client.server, uid)
