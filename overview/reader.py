"""Reads a management cluster with the user's rights: a few LIST requests, whatever the number of clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from caphv.api import resources
from caphv.api.counting import counted
from caphv.api.object import NAMESPACES, Obj, Resource, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource, served_version
from caphv.runtime.errors import ApiError, Forbidden, NotFound, Unreachable
from caphv.runtime.listing import list_pages
from overview.objects import ManagementObjects, Unseen

Step = Callable[[str], None]
"""Hears what is being read now."""


class NoClusterApiError(Exception):
    """The management cluster does not serve Cluster API: it is another cluster, or not set up."""


async def read_management(client: ApiClient, namespace: str = "", step: Step = lambda _text: None) -> ManagementObjects:
    """Read the clusters of a namespace, or of all, and what belongs to them on the management cluster.

    What may not be read is listed in the answer. Only Clusters themselves are needed: raises `ApiError` and
    `Unreachable` when they cannot be read, `NoClusterApiError` when there is no such kind.
    """
    step("reading clusters")
    kinds = await kinds_of(client)
    found = ManagementObjects(server=client.server)
    found.clusters = await list_all(client, kinds["clusters"], namespace)
    lists = {name: kinds[name] for name in ("machines", "machine_deployments", "harvester_clusters")}
    lists["harvester_machines"] = kinds["harvester_machines"]
    step(f"reading machines of {counted(len(found.clusters), 'cluster')}")
    reads = [_read(client, found, name, resource, namespace) for name, resource in lists.items()]
    await asyncio.gather(_read_uid(client, found), _read_control_planes(client, found, namespace), *reads)
    return found


async def kinds_of(client: ApiClient) -> dict[str, Resource]:
    """Return the kinds that are read, by field of `ManagementObjects`, in the versions that the server has.

    Raises `NoClusterApiError`, `ApiError`, `Unreachable`.
    """
    try:
        version = await served_version(client, resources.CLUSTER_API_GROUP, resources.CLUSTER_API_VERSIONS)
    except NotFound:
        msg = f"{client.server} does not serve Cluster API: is it the management cluster? Choose it with --kubeconfig"
        raise NoClusterApiError(f"{msg} or --context") from None
    return {
        "clusters": resources.clusters(version),
        "machines": resources.machines(version),
        "machine_deployments": resources.machine_deployments(version),
        "harvester_clusters": resources.HARVESTER_CLUSTERS,
        "harvester_machines": resources.HARVESTER_MACHINES,
    }


def control_plane_kinds(clusters: Iterable[Obj]) -> set[tuple[str, str]]:
    """Return group and kind of the control planes that clusters refer to."""
    found = set()
    for cluster in clusters:
        ref = (cluster.get("spec") or {}).get("controlPlaneRef") or {}
        group = str(ref.get("apiGroup") or str(ref.get("apiVersion") or "").rpartition("/")[0])
        if group and ref.get("kind"):
            found.add((group, str(ref["kind"])))
    return found


async def list_all(
    client: ApiClient, resource: Resource, namespace: str = "", *, label_selector: str = "", exactly: str = ""
) -> list[Obj]:
    """Read a collection, page by page, with kind and version in each object; `exactly` as of a resource version.

    Raises `ApiError`, `Unreachable`.
    """
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    pages = list_pages(client, resource, namespace, label_selector=label_selector, exactly=exactly)
    return [{**head, **item} async for page in pages for item in page]


def unseen(what: str, error: ApiError | Unreachable) -> Unseen:
    """Say why something could not be read."""
    return Unseen(what, str(error), isinstance(error, Forbidden))


async def _read(client: ApiClient, found: ManagementObjects, name: str, resource: Resource, namespace: str) -> None:
    try:
        setattr(found, name, await list_all(client, resource, namespace))
    except (ApiError, Unreachable) as error:
        found.unseen.append(unseen(str(resource), error))


async def _read_uid(client: ApiClient, found: ManagementObjects) -> None:
    try:
        found.uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except (ApiError, Unreachable) as error:
        found.unseen.append(unseen("namespace kube-system", error))


async def _read_control_planes(client: ApiClient, found: ManagementObjects, namespace: str) -> None:
    async def read(group: str, kind: str) -> None:
        try:
            resource = await find_resource(client, group, kind)
            found.control_planes += await list_all(client, resource, namespace)
        except (ApiError, Unreachable) as error:
            found.unseen.append(unseen(f"{kind}.{group}", error))

    await asyncio.gather(*(read(*kind) for kind in sorted(control_plane_kinds(found.clusters))))
