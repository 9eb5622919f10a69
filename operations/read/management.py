"""Read a management cluster with the user's rights, by a few LIST requests for all clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from caphv.api import resources
from caphv.api.counting import counted
from caphv.api.object import NAMESPACES, Obj, Resource, dict_at, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource, served_version
from caphv.runtime.errors import Forbidden, NotFound, RequestError
from caphv.runtime.listing import list_pages
from operations.read.objects import ManagementObjects, Unseen

Step = Callable[[str], None]
"""Called with a text before each step that takes time."""


class NoClusterApiError(Exception):
    """The server does not serve Cluster API, because it is another cluster or not set up."""


async def read_management(
    client: ApiClient, namespace: str, step: Step = lambda _text: None
) -> ManagementObjects:
    """Read the clusters of a namespace, or of all namespaces, with their objects.

    `unseen` of the answer names what may not be read. Raises `ApiError` and `Unreachable` when the
    Clusters themselves cannot be read, `NoClusterApiError` when there is no such kind.
    """
    step("reading clusters")
    kinds = await kinds_of(client)
    objects = ManagementObjects(server=client.server)
    objects.clusters = await list_all(client, kinds["clusters"], namespace)

    step(f"reading machines of {counted(len(objects.clusters), 'cluster')}")
    await asyncio.gather(
        _read_uid(client, objects),
        _read_control_planes(client, objects, namespace),
        *(
            _read(client, objects, name, resource, namespace)
            for name, resource in kinds.items()
            if name != "clusters"
        ),
    )
    return objects


async def kinds_of(client: ApiClient) -> dict[str, Resource]:
    """Return the kinds to read in their served versions, by field of `ManagementObjects`.

    Raises `NoClusterApiError`, `ApiError`, `Unreachable`.
    """
    try:
        version = await served_version(
            client, resources.CLUSTER_API_GROUP, resources.CLUSTER_API_VERSIONS
        )
    except NotFound:
        message = (
            f"{client.server} does not serve Cluster API: is it the management cluster? Choose it "
            "with --kubeconfig or --context"
        )
        raise NoClusterApiError(message) from None

    return {
        "clusters": resources.clusters(version),
        "machines": resources.machines(version),
        "machine_deployments": resources.machine_deployments(version),
        "harvester_clusters": resources.HARVESTER_CLUSTERS,
        "harvester_machines": resources.HARVESTER_MACHINES,
    }


def control_plane_kinds(clusters: Iterable[Obj]) -> set[tuple[str, str]]:
    """Return group and kind of the control planes that clusters refer to."""
    kinds = set()
    for cluster in clusters:
        ref = dict_at(cluster, "spec", "controlPlaneRef")
        # v1beta2 refers to an API group, v1beta1 to a version of it.
        group = str(ref.get("apiGroup") or str(ref.get("apiVersion") or "").rpartition("/")[0])
        if group and ref.get("kind"):
            kinds.add((group, str(ref["kind"])))
    return kinds


async def list_all(
    client: ApiClient,
    resource: Resource,
    namespace: str = "",
    *,
    label_selector: str = "",
    metadata_only: bool = False,
    exactly: str = "",
) -> list[Obj]:
    """Read a collection, page by page, with kind and version in each object.

    API servers leave both out of the items of a list. Raises `ApiError`, `Unreachable`.

    :param client: client of the server
    :param resource: the kind
    :param namespace: to read, all if empty
    :param label_selector: restricts the objects
    :param metadata_only: read nothing but their metadata
    :param exactly: resource version as of which to read
    """
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    pages = list_pages(
        client,
        resource,
        namespace,
        label_selector=label_selector,
        metadata_only=metadata_only,
        exactly=exactly,
    )
    # Objects without content have another kind, that of metadata.
    tail = head if metadata_only else {}
    return [{**head, **item, **tail} async for page in pages for item in page]


def unseen(what: str, error: RequestError) -> Unseen:
    """Return the reason why something could not be read."""
    return Unseen(what, str(error), isinstance(error, Forbidden), isinstance(error, NotFound))


def text_without_server(error: RequestError, server: str) -> str:
    """Return the text of an error without its server, where another text names the server."""
    return str(error).removeprefix(f"{server}: ")


async def _read(
    client: ApiClient, objects: ManagementObjects, name: str, resource: Resource, namespace: str
) -> None:
    """Read a kind into a field of the objects, and record why it cannot be read.

    :param client: client of the management cluster
    :param objects: gets the objects
    :param name: the name of the field
    :param resource: the kind
    :param namespace: the namespace to read; empty for all namespaces
    """
    try:
        setattr(objects, name, await list_all(client, resource, namespace))
    except RequestError as error:
        objects.unseen.append(unseen(str(resource), error))


async def _read_uid(client: ApiClient, objects: ManagementObjects) -> None:
    """Read the uid by which objects on Harvester name this management cluster."""
    try:
        objects.uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except RequestError as error:
        objects.unseen.append(unseen("namespace kube-system", error))


async def _read_control_planes(
    client: ApiClient, objects: ManagementObjects, namespace: str
) -> None:
    """Read the control planes of all kinds that clusters refer to."""

    async def read_kind(group: str, kind: str) -> None:
        try:
            resource = await find_resource(client, group, kind)
            objects.control_planes += await list_all(client, resource, namespace)
        except RequestError as error:
            objects.unseen.append(unseen(f"{kind}.{group}", error))

    kinds = sorted(control_plane_kinds(objects.clusters))
    await asyncio.gather(*(read_kind(group, kind) for group, kind in kinds))
