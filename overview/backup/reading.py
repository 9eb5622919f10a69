"""Reads everything that belongs to clusters from a management cluster, as of one moment."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from caphv.api import resources
from caphv.api.counting import counted
from caphv.api.object import CONFIG_MAPS, NAMESPACES, SECRETS, Key, Obj, Resource, key_of, uid_of
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import kinds_of
from caphv.runtime.errors import ApiError, Forbidden, NotFound, Unreachable
from overview.backup.files import Backup, Origin
from overview.backup.graph import Belongings, belongings, is_cluster_api, references
from overview.backup.order import missing_of
from overview.plan.pools import wanted_of
from overview.query import Query
from overview.reader import NoClusterApiError, Step, list_all, unseen

_REQUESTS_AT_ONCE = 16
_NONE: Mapping[tuple[str, str], str] = {}


async def read_backup(client: ApiClient, query: Query, step: Step = lambda _text: None) -> Backup:
    """Read the clusters of a query with all that they need. What may not be read is in `unseen` of the answer.

    Raises `ApiError` and `Unreachable` when the clusters themselves cannot be read.
    """
    step("reading which kinds there are")
    kinds = await kinds_to_copy(client)
    clusters = kinds[resources.CLUSTER_API_GROUP, "Cluster"]
    found = [obj for obj in await list_all(client, clusters, query.namespace) if query.takes(key_of(obj))]
    collection = _Collection(client, kinds)
    step(f"reading the objects of {counted(len(found), 'cluster')}")
    await collection.read({key_of(obj).namespace for obj in found})
    chosen = await _complete(collection, [key_of(obj) for obj in found])
    chosen.objects |= await _namespaces(client, chosen)
    backup = Backup(await _origin(client), tuple(str(key_of(obj)) for obj in found), chosen.objects)
    backup.unseen = tuple(collection.unseen)
    backup.absent = frozenset(missing_of(backup))
    return backup


async def kinds_to_copy(
    client: ApiClient, versions: Mapping[tuple[str, str], str] = _NONE
) -> dict[tuple[str, str], Resource]:
    """Return all kinds of Cluster API and its providers, with Secret, ConfigMap and Namespace, by group and kind.

    Their versions are those of `versions`, where the server has them, else those that it prefers.

    Raises `ApiError`, `Unreachable`; `NoClusterApiError` when the server has no Cluster API.
    """
    answer = await client.request("GET", "/apis")
    groups = {str(group["name"]): group for group in answer["groups"] if is_cluster_api(str(group["name"]))}
    if resources.CLUSTER_API_GROUP not in groups:
        raise NoClusterApiError(f"{client.server} does not serve Cluster API: is it the management cluster?")
    served = await asyncio.gather(*(kinds_of(client, group, ("create", "list")) for group in groups.values()))
    found = {("", "Secret"): SECRETS, ("", "ConfigMap"): CONFIG_MAPS, ("", "Namespace"): NAMESPACES}
    for group, kinds in zip(groups, served, strict=True):
        for kind, choices in kinds.items():
            wanted = versions.get((group, kind), "")
            found[group, kind] = next((each for each in choices if each.version == wanted), choices[0])
    return found


async def read_objects(
    client: ApiClient, namespaces: Iterable[str], known: Iterable[Obj] = ()
) -> tuple[dict[ObjectId, Obj], list[str]]:
    """Read all objects of Cluster API in some namespaces, and what they and `known` refer to; and what is unseen.

    Raises `ApiError`, `Unreachable`, `NoClusterApiError`.
    """
    kinds = await kinds_to_copy(client)
    collection = _Collection(client, {key: each for key, each in kinds.items() if key[0]})
    await collection.read(namespaces)
    live = collection.objects
    while await collection.read_single(
        each for obj in (*live.values(), *known) for each in references(obj) if each not in live
    ):
        pass
    return live, collection.unseen


@dataclass(slots=True)
class _Collection:
    """Objects that were read, and why others could not be."""

    client: ApiClient
    kinds: dict[tuple[str, str], Resource]
    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    asked: set[ObjectId] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)

    async def read(self, namespaces: Iterable[str]) -> None:
        """Read all kinds in these namespaces, as they were at one moment: no machine is seen without its owner."""
        limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        moment = await self._moment()

        async def read(resource: Resource, namespace: str) -> None:
            async with limit:
                try:
                    objs = await _list(self.client, resource, namespace, moment)
                except (ApiError, Unreachable) as error:
                    self.unseen.append(str(unseen(f"{resource} of namespace {namespace}", error)))
                    return
            self.objects |= {id_of(obj): obj for obj in objs}

        lists = [resource for resource in self.kinds.values() if resource.namespaced]
        await asyncio.gather(*(read(resource, space) for space in sorted(namespaces) for resource in lists))

    async def read_single(self, wanted: Iterable[ObjectId]) -> bool:
        """Read single objects, of other namespaces; answers whether any was found."""
        new = [each for each in wanted if each not in self.asked and each[:2] in self.kinds]
        self.asked |= set(new)
        found = await asyncio.gather(*map(self._single, new))
        self.objects |= {id_of(obj): obj for obj in found if obj is not None}
        return any(found)

    async def _single(self, identity: ObjectId) -> Obj | None:
        resource = self.kinds[identity.group, identity.kind]
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        try:
            return {**head, **await self.client.get(resource, identity.name, identity.namespace)}
        except NotFound:
            return None
        except (ApiError, Unreachable) as error:
            self.unseen.append(str(unseen(str(identity), error)))
            return None

    async def _moment(self) -> str:
        clusters = self.kinds[resources.CLUSTER_API_GROUP, "Cluster"]
        try:
            answer = await self.client.list(clusters, limit=1)
        except Forbidden:
            return ""
        return str(answer["metadata"].get("resourceVersion") or "")


async def _complete(collection: _Collection, clusters: list[Key]) -> Belongings:
    """Choose what belongs to the clusters, and read what they refer to in other namespaces until nothing is new."""
    while True:
        chosen = belongings(clusters, collection.objects.values())
        _add_named_by_classes(chosen, clusters, collection.objects)
        if not await collection.read_single(chosen.absent):
            return chosen


def _add_named_by_classes(chosen: Belongings, clusters: Iterable[Key], known: Mapping[ObjectId, Obj]) -> None:
    """Add what ClusterClasses name for clusters whose HarvesterCluster does not exist yet, such as the identity."""
    for key in clusters:
        cluster = ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key)
        if (chosen.objects.get(cluster, {}).get("spec") or {}).get("infrastructureRef"):
            continue
        kind = resources.HARVESTER_CLUSTERS
        spec = dict(wanted_of(key, chosen.objects).infrastructure)
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": dict(key._asdict()), "spec": spec}
        for reference in references(obj):
            if reference in known:
                chosen.objects.setdefault(reference, known[reference])
            else:
                chosen.absent.setdefault(reference, cluster)


async def _list(client: ApiClient, resource: Resource, namespace: str, moment: str) -> list[Obj]:
    if moment:
        try:
            return await list_all(client, resource, namespace, exactly=moment)
        except Forbidden:
            raise
        except ApiError:
            pass  # compacted meanwhile, or kept in another etcd: then as of now
    return await list_all(client, resource, namespace)


async def _namespaces(client: ApiClient, chosen: Belongings) -> dict[ObjectId, Obj]:
    """The namespaces of the objects, for their labels; those that may not be read are made without them."""
    found: dict[ObjectId, Obj] = {}
    for name in {identity.namespace for identity in chosen.objects if identity.namespace}:
        obj: Obj = {"metadata": {"name": name}}
        try:
            metadata = (await client.get(NAMESPACES, name))["metadata"]
            obj["metadata"] |= {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
        except ApiError:
            pass
        found[ObjectId("", "Namespace", "", name)] = {"apiVersion": "v1", "kind": "Namespace", **obj}
    return found


async def _origin(client: ApiClient) -> Origin:
    try:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except ApiError:
        uid = ""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Origin(secrets.token_hex(8), now, client.server, uid)
