"""Writes what a plan says, with the user's rights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from caphv.api.object import Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from overview.changes import Patch


async def apply(client: ApiClient, patches: Iterable[Patch]) -> None:
    """Make patches in their order. Raises `Conflict` when an object was changed since it was read, `ApiError`."""
    resources: dict[tuple[str, str], Resource] = {}
    for patch in patches:
        group, _, version = patch.api_version.rpartition("/")
        if (group, patch.kind) not in resources:
            resources[group, patch.kind] = await find_resource(client, group, patch.kind)
        # The patch names fields of the version that was read, which may not be the preferred one.
        resource = replace(resources[group, patch.kind], version=version)
        await client.patch(resource, patch.key.name, patch.key.namespace, patch.body)
