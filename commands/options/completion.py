"""Names that a shell completes: of clusters and of namespaces, as the management cluster has them now."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from caphv.api.object import Key

_SECONDS = 3.0


def complete_clusters(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return clusters: by name in the namespace that the command line or the context says, others with theirs."""
    clusters = _clusters(ctx.params)
    namespace = _namespace(ctx.params)
    names = [key.name for key in clusters if key.namespace == namespace]
    return [name for name in (*names, *map(str, clusters)) if name.startswith(begun)]


def complete_namespaces(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the namespaces that have clusters."""
    spaces = sorted({key.namespace for key in _clusters({**ctx.params, "namespace": ""})})
    return [space for space in spaces if space.startswith(begun)]


def _namespace(params: dict[str, Any]) -> str:
    from commands.options.management import context_namespace

    return str(
        params.get("namespace") or context_namespace(params.get("kubeconfig") or "", params.get("context") or "")
    )


def _clusters(params: dict[str, Any]) -> list[Key]:
    """Return the clusters that the user may list. Nothing is completed, and nothing printed, where that fails."""
    from caphv.api.object import key_of
    from caphv.runtime.errors import Forbidden
    from commands.options.management import management_client
    from overview.reader import kinds_of, list_all

    flags = {name: params.get(name) or "" for name in ("kubeconfig", "context")}

    async def read() -> list[Key]:
        async with asyncio.timeout(_SECONDS), management_client(flags) as client:
            resource = (await kinds_of(client))["clusters"]
            try:
                found = await list_all(client, resource, params.get("namespace") or "")
            except Forbidden:
                found = await list_all(client, resource, _namespace(params))
        return sorted(map(key_of, found))

    try:
        return asyncio.run(read())
    except Exception:
        return []
