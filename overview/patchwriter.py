"""Writes what a plan says, with the user's rights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from caphv.api.object import Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import Conflict
from overview.changes import Patch

_ATTEMPTS = 5


async def apply(client: ApiClient, patches: Iterable[Patch]) -> None:
    """Make patches in order. Raises `Conflict` when a field of theirs was changed since it was read, `ApiError`."""
    resources: dict[tuple[str, str], Resource] = {}
    for patch in patches:
        group, _, version = patch.api_version.rpartition("/")
        if (group, patch.kind) not in resources:
            resources[group, patch.kind] = await find_resource(client, group, patch.kind)
        # The patch names fields of the version that was read, which may not be the preferred one.
        resource = replace(resources[group, patch.kind], version=version)
        await _write(client, resource, patch)


async def _write(client: ApiClient, resource: Resource, patch: Patch) -> None:
    """Patch an object, again when only other fields were changed: controllers write its status all the time."""
    now = patch.before
    for attempt in range(_ATTEMPTS):
        version = {"metadata": {"resourceVersion": now["metadata"]["resourceVersion"]}}
        try:
            await client.patch(resource, patch.key.name, patch.key.namespace, {**patch.body, **version})
        except Conflict:
            now = await client.get(resource, patch.key.name, patch.key.namespace)
            if attempt == _ATTEMPTS - 1 or not patch.holds(now):
                raise
        else:
            return
