"""Write the patches of a plan, with the user's rights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from caphv.api.object import Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import Conflict
from operations.change.changes import Patch

_ATTEMPTS = 5


async def write_patches(client: ApiClient, patches: Iterable[Patch]) -> None:
    """Write patches in order.

    Raises `ApiError`; `Conflict` if another client has changed a patched field since it was read.
    """
    resources: dict[tuple[str, str], Resource] = {}
    for patch in patches:
        group, _, version = patch.api_version.rpartition("/")
        if (group, patch.kind) not in resources:
            resources[group, patch.kind] = await find_resource(client, group, patch.kind)
        # The patch names fields of the version that was read, which may not be the preferred one.
        resource = replace(resources[group, patch.kind], version=version)
        await _write(client, resource, patch)


async def _write(client: ApiClient, resource: Resource, patch: Patch) -> None:
    """Patch an object, and try again when only other fields were changed.

    Controllers write the status all the time.
    """
    live = patch.before
    key = patch.key
    for attempt in range(_ATTEMPTS):
        # With a resourceVersion the server refuses the patch if the object was changed since.
        version = {"resourceVersion": live["metadata"]["resourceVersion"]}
        metadata = {**(patch.body.get("metadata") or {}), **version}
        try:
            await client.patch(
                resource, key.name, key.namespace, {**patch.body, "metadata": metadata}
            )
        except Conflict:
            live = await client.get(resource, key.name, key.namespace)
            if attempt == _ATTEMPTS - 1 or not patch.holds(live):
                raise
        else:
            return
