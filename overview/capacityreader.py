"""Reads how much is free on a Harvester."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from caphv.api import resources
from caphv.api.object import NAMESPACES, RESOURCE_QUOTAS, STORAGE_CLASSES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from overview.capacity import CapacityObjects
from overview.harvester import read_harvester
from overview.hostcapacity import hosts_of
from overview.reader import list_all, unseen
from overview.surroundings import Surroundings

OTHER_VMS = "VMs of other namespaces"
_LONGHORN = "longhorn-system"
_OVER_PROVISIONING = "storage-over-provisioning-percentage"


class NotAHarvesterError(Exception):
    """An API server that does not serve Harvester's kinds."""


async def read_capacity(client: ApiClient, namespaces: Iterable[str], *, surroundings: bool = False) -> CapacityObjects:
    """Read one Harvester, with the quotas of some namespaces. Raises `ApiError`, `Unreachable` if it does not answer.

    What the account may not see is in `harvester.unseen` of the answer. `surroundings` as in `read_harvester`.
    """
    found = CapacityObjects(await read_harvester(client, namespaces, surroundings=surroundings))
    await asyncio.gather(
        _all_vms(client, found), *(_quotas(client, found, each) for each in sorted(found.harvester.namespaces))
    )
    await _storage(client, found)
    return found


async def read_surroundings(client: ApiClient, namespaces: Iterable[str]) -> Surroundings:
    """Read what a new cluster may use. Raises `ApiError`, `Unreachable`, for another server `NotAHarvesterError`."""
    capacity, spaces, classes = await asyncio.gather(
        read_capacity(client, namespaces, surroundings=True),
        _names(client, NAMESPACES),
        _names(client, STORAGE_CLASSES),
    )
    if str(resources.IMAGES) in capacity.harvester.unserved:
        msg = f"{client.server} is not a Harvester: it does not serve {resources.IMAGES}"
        raise NotAHarvesterError(msg)
    return Surroundings(capacity, spaces, classes)


async def _names(client: ApiClient, resource: Resource) -> list[str] | None:
    """Names of all objects of a kind; None where they may not be listed."""
    try:
        return sorted(str(obj["metadata"]["name"]) for obj in await list_all(client, resource))
    except ApiError:
        return None


async def _all_vms(client: ApiClient, found: CapacityObjects) -> None:
    try:
        found.harvester.instances = await list_all(client, resources.VIRTUAL_MACHINE_INSTANCES)
        found.all_vms = True
    except (ApiError, Unreachable) as error:
        if not all(host.all_pods for host in hosts_of(found.harvester)):
            found.harvester.unseen.append(unseen(OTHER_VMS, error))


async def _quotas(client: ApiClient, found: CapacityObjects, namespace: str) -> None:
    try:
        found.quotas += await list_all(client, RESOURCE_QUOTAS, namespace)
    except (ApiError, Unreachable) as error:
        found.harvester.unseen.append(unseen(f"quotas of namespace {namespace}", error))


async def _storage(client: ApiClient, found: CapacityObjects) -> None:
    try:
        found.disks = await list_all(client, resources.LONGHORN_NODES, _LONGHORN)
        setting: Obj = await client.get(resources.LONGHORN_SETTINGS, _OVER_PROVISIONING, _LONGHORN)
    except NotFound:
        return  # without Longhorn, or with its default
    except (ApiError, Unreachable) as error:
        found.harvester.unseen.append(unseen("storage of Longhorn", error))
        return
    value = str(setting.get("value") or "")
    if value.isdecimal() and len(value) < 6:
        found.over_provisioning = int(value)
