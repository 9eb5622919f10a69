"""Read the free capacity of a Harvester, and the objects to which clusters may refer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable

from caphv.api import resources
from caphv.api.object import NAMESPACES, RESOURCE_QUOTAS, STORAGE_CLASSES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, RequestError
from operations.capacity.free import CapacityObjects
from operations.capacity.hosts import hosts_of
from operations.capacity.surroundings import Surroundings
from operations.read.chartlimits import read_chart_limits
from operations.read.harvester import join, read_harvester
from operations.read.harvesterclient import HarvesterClient
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen

OTHER_VMS = "VMs of other namespaces"
_LONGHORN = "longhorn-system"
_OVER_PROVISIONING = "storage-over-provisioning-percentage"


class NotAHarvesterError(Exception):
    """The API server does not serve Harvester's kinds."""


async def read_capacity(
    client: ApiClient, namespaces: Iterable[str], *, surroundings: bool = False
) -> CapacityObjects:
    """Read one Harvester, with the quotas of some namespaces.

    `harvester.unseen` of the result lists what the account may not read. Raises `ApiError`,
    `Unreachable` if the Harvester does not answer.

    :param client: client of the Harvester
    :param namespaces: the namespaces whose VMs and quotas are read
    :param surroundings: as in `read_harvester`
    """
    objects = CapacityObjects(await read_harvester(client, namespaces, surroundings=surroundings))
    await asyncio.gather(
        _read_instances(client, objects),
        *(
            _read_quotas(client, objects, namespace)
            for namespace in sorted(objects.harvester.namespaces)
        ),
    )
    await _read_storage(client, objects)
    return objects


async def read_by_accounts(harvester: HarvesterClient) -> CapacityObjects:
    """Read one Harvester with all accounts for it, because each may read other objects.

    Raises the last error if the requests of all accounts failed.
    """
    parts: list[CapacityObjects] = []
    hidden: list[Unseen] = []
    failures: list[RequestError] = []
    for client, namespaces in harvester.shares():
        try:
            parts.append(await read_capacity(client, namespaces))
        except RequestError as error:
            failures.append(error)
            where = f" for namespaces {', '.join(sorted(namespaces))}" if namespaces else ""
            hidden.append(unseen(f"Harvester {harvester.server} by an identity{where}", error))

    if not parts:
        raise failures[-1]
    objects = functools.reduce(_join, parts)
    objects.harvester.unseen += hidden
    return objects


def _join(first: CapacityObjects, second: CapacityObjects) -> CapacityObjects:
    """Return the objects of one Harvester that at least one of two accounts can read."""
    harvester = join(first.harvester, second.harvester)
    all_vms = first.all_vms or second.all_vms
    if all_vms:
        harvester.unseen = [item for item in harvester.unseen if item.what != OTHER_VMS]
    # Take disks and setting of Longhorn from the same account.
    storage = first if first.disks else second
    return CapacityObjects(
        harvester=harvester,
        quotas=[*first.quotas, *second.quotas],
        disks=storage.disks,
        over_provisioning=storage.over_provisioning,
        all_vms=all_vms,
    )


async def read_surroundings(client: ApiClient, namespaces: Iterable[str]) -> Surroundings:
    """Read the objects that a new cluster may use.

    Raises `ApiError`, `Unreachable`; `NotAHarvesterError` if the server is no Harvester.
    """
    capacity, existing_namespaces, classes, limits = await asyncio.gather(
        read_capacity(client, namespaces, surroundings=True),
        _read_names(client, NAMESPACES),
        _read_names(client, STORAGE_CLASSES),
        read_chart_limits(client),
    )
    # Any API server answers these requests, at least with an error that the kinds do not exist.
    if str(resources.IMAGES) in capacity.harvester.unserved:
        msg = f"{client.server} is not a Harvester: it does not serve {resources.IMAGES}"
        raise NotAHarvesterError(msg)
    return Surroundings(capacity, existing_namespaces, classes, limits)


async def _read_names(client: ApiClient, resource: Resource) -> list[str] | None:
    """Return the names of all objects of a kind; None if they cannot be listed."""
    try:
        return sorted(str(obj["metadata"]["name"]) for obj in await list_all(client, resource))
    except ApiError:
        return None


async def _read_instances(client: ApiClient, objects: CapacityObjects) -> None:
    """Read the instances of all namespaces instead of some, if the account may list them."""
    try:
        objects.harvester.instances = await list_all(client, resources.VIRTUAL_MACHINE_INSTANCES)
        objects.all_vms = True
    except RequestError as error:
        # Harvester's annotations of hosts also count the VMs of other namespaces.
        if not all(host.all_pods for host in hosts_of(objects.harvester)):
            objects.harvester.unseen.append(unseen(OTHER_VMS, error))


async def _read_quotas(client: ApiClient, objects: CapacityObjects, namespace: str) -> None:
    try:
        objects.quotas += await list_all(client, RESOURCE_QUOTAS, namespace)
    except RequestError as error:
        objects.harvester.unseen.append(unseen(f"quotas of namespace {namespace}", error))


async def _read_storage(client: ApiClient, objects: CapacityObjects) -> None:
    """Read Longhorn's disks, and the percentage of a disk that Longhorn schedules."""
    try:
        objects.disks = await list_all(client, resources.LONGHORN_NODES, _LONGHORN)
        setting: Obj = await client.get(resources.LONGHORN_SETTINGS, _OVER_PROVISIONING, _LONGHORN)
    except NotFound:
        return  # without Longhorn, or with its default
    except RequestError as error:
        objects.harvester.unseen.append(unseen("storage of Longhorn", error))
        return

    value = str(setting.get("value") or "")
    if value.isdecimal() and len(value) < 6:
        objects.over_provisioning = int(value)
