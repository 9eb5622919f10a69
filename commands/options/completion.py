"""Complete names of clusters and namespaces of the management cluster in a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from caphv.api.object import Key

if TYPE_CHECKING:
    from commands.options.management import ManagementOptions

_TIMEOUT_SECONDS = 3.0


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

    async def read() -> list[Key]:
        timeout = asyncio.timeout(_TIMEOUT_SECONDS)
        async with timeout, management_client(_management(params)) as client:
            resource = (await kinds_of(client))["clusters"]
            try:
                clusters = await list_all(client, resource, params.get("namespace") or "")
            except Forbidden:
                clusters = await list_all(client, resource, _namespace(params))
        return sorted(map(key_of, clusters))

    # An error message would disturb the command line that the user is writing.
    try:
        return asyncio.run(read())
    except Exception:
        return []
