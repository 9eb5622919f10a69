"""What `caphv packager sync --apply` does on the management cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from commands.options.clusters import InputError

if TYPE_CHECKING:
    from packager.apply import Applier, ApplyFailure
    from packager.definitions.builder import BuildResult


def on_cluster(flags: dict[str, Any], work: Callable[[Applier], Awaitable[list[ApplyFailure]]]) -> list[ApplyFailure]:
    """Return what work on the management cluster returns. Raises InputError when that cannot be reached."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from packager.apply import Applier

    async def run() -> list[ApplyFailure]:
        client = ApiClient(await own_configuration(flags["kubeconfig"], flags["context"]), name="management")
        try:
            return await work(Applier(client))
        finally:
            await client.close()

    try:
        return asyncio.run(run())
    except (KubeconfigError, ApiError, Unreachable) as error:
        raise InputError(f"the management cluster cannot be reached: {error}") from None


async def apply(applier: Applier, built: BuildResult) -> list[ApplyFailure]:
    """Apply the objects of all clusters, and those that they share and lack; return those that were refused."""
    failures = await applier.apply(await applier.missing(built.groups.values()))
    for key, objects in sorted(built.objects.items()):
        failures += await applier.apply(objects, namespace=key.namespace)
    return failures


def delete(flags: dict[str, Any], names: Sequence[str], *, dry_run: bool = False) -> list[ApplyFailure]:
    """Delete Clusters, `<namespace>/<name>`, that exist; return those whose deletion is refused.

    With `dry_run` nothing is deleted. Raises InputError when the management cluster cannot be reached.
    """

    async def work(applier: Applier) -> list[ApplyFailure]:
        return [failure for name in names for failure in await applier.delete_cluster(name, dry_run=dry_run)]

    return on_cluster(flags, work) if names else []
