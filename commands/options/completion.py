"""Complete names of objects of the management cluster and of Harvester in a shell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from caphv.api.object import Key, Resource

if TYPE_CHECKING:
    from commands.options.management import ManagementOptions
    from operations.read.harvesterclient import HarvesterClient

Completion = Callable[[click.Context, click.Parameter, str], list[str]]

_TIMEOUT_SECONDS = 2.0


def complete_clusters(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return clusters, by name in the namespace of the command line or the context.

    Clusters of other namespaces are completed as NAMESPACE/NAME.
    """
    clusters = _clusters(ctx.params)
    namespace = _namespace(ctx.params)
    names = [key.name for key in clusters if key.namespace == namespace]
    return [name for name in (*names, *map(str, clusters)) if name.startswith(begun)]


def complete_namespaces(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the namespaces that have clusters."""
    spaces = sorted({key.namespace for key in _clusters({**ctx.params, "namespace": ""})})
    return [space for space in spaces if space.startswith(begun)]


def complete_harvesters(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the hosts of the URLs of the Harvesters that clusters use."""
    from urllib.parse import urlsplit

    hosts: set[str] = set()

    async def read() -> None:
        async with _harvesters(ctx.params) as harvesters:
            hosts.update(str(urlsplit(harvester.server).hostname) for harvester in harvesters)

    _run_quietly(read())
    return sorted(host for host in hosts if host.startswith(begun))


def complete_on_harvester(resource: Resource) -> Completion:
    """Complete objects of a kind on Harvester: NAMESPACE/NAME, or NAME of what is in no namespace.

    Harvester is asked with its kubeconfig on the command line, else with the identities of
    clusters. Of a comma-separated list, the last name is completed.
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        before, comma, name = begun.rpartition(",")
        names = sorted(_names_on_harvester(ctx.params, resource))
        return [f"{before}{comma}{found}" for found in names if found.startswith(name)]

    return complete


def _namespace(params: Mapping[str, Any]) -> str:
    from commands.options.management import context_namespace

    return str(params.get("namespace") or context_namespace(_management(params)))


def _management(params: Mapping[str, Any]) -> ManagementOptions:
    from commands.options.management import ManagementOptions

    return ManagementOptions(
        kubeconfig=params.get("kubeconfig") or "", context=params.get("context") or ""
    )


def _clusters(params: Mapping[str, Any]) -> list[Key]:
    """Return the clusters that the user may list, or an empty list after any failure."""
    from caphv.api.object import key_of
    from caphv.runtime.errors import Forbidden
    from commands.access.management import management_client
    from operations.read.management import kinds_of, list_all

    keys: list[Key] = []

    async def read() -> None:
        async with management_client(_management(params)) as client:
            resource = (await kinds_of(client))["clusters"]
            try:
                clusters = await list_all(client, resource, params.get("namespace") or "")
            except Forbidden:
                clusters = await list_all(client, resource, _namespace(params))
        keys.extend(sorted(map(key_of, clusters)))

    _run_quietly(read())
    return keys


def _names_on_harvester(params: Mapping[str, Any], resource: Resource) -> set[str]:
    """Return the names of a kind on all Harvesters that answer in time."""
    from caphv.api.object import key_of
    from operations.read.harvesterclient import list_everywhere

    names: set[str] = set()

    async def add(harvester: HarvesterClient) -> None:
        objects, _ = await list_everywhere(harvester, resource, [], metadata_only=True)
        keys = map(key_of, objects)
        names.update(str(key) if resource.namespaced else key.name for key in keys)

    async def read() -> None:
        async with _harvesters(params) as harvesters:
            await asyncio.gather(*map(add, harvesters), return_exceptions=True)

    _run_quietly(read())
    return names


@asynccontextmanager
async def _harvesters(params: Mapping[str, Any]) -> AsyncIterator[list[HarvesterClient]]:
    """Lend clients for the Harvesters that options choose, none if they choose none."""
    from commands.access.harvesters import harvester_clients, kubeconfig_client
    from commands.access.management import management_client
    from commands.options.harvesters import HarvesterOptions

    if kubeconfig := params.get("harvester_kubeconfig") or params.get("check_kubeconfig"):
        async with kubeconfig_client(str(kubeconfig), frozenset()) as harvester:
            yield [harvester]
    elif "kubeconfig" in params:
        management = _management(params)
        options = HarvesterOptions(
            kubeconfig=management.kubeconfig,
            context=management.context,
            namespace=params.get("namespace") or "",
            harvester_kubeconfig="",
        )
        async with (
            management_client(management) as client,
            harvester_clients(client, options) as (harvesters, _),
        ):
            yield harvesters
    else:
        yield []


def _run_quietly(reading: Coroutine[Any, Any, None]) -> None:
    """Read for a short time; an error message would disturb the command line that is written."""

    async def read_in_time() -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await reading

    try:
        asyncio.run(read_in_time())
    except Exception:
        return
