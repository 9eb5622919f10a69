"""Read what is the same for all identities of one Harvester: its settings, and its storage.

Hundreds of clusters may each have an identity for the same Harvester. It is asked by a few of them,
because most accounts have the same rights.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from caphv.api import resources
from caphv.api.object import STORAGE_CLASSES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, RequestError
from caphv.runtime.kubeconfig import KubeconfigError
from operations.doctor import settings
from operations.doctor.harvesterfacts import MALFORMED, HarvesterFacts
from operations.doctor.storage import Storage, selectors_of, used_classes
from operations.read.management import list_all
from operations.read.servers import HARVESTER_SECONDS, SERVERS_AT_ONCE, answering_client, server_of

STORAGE_KINDS = (STORAGE_CLASSES, resources.LONGHORN_NODES, resources.LONGHORN_RECURRING_JOBS)
"""What the checks of storage list."""

_LONGHORN_NAMESPACE = "longhorn-system"
_ACCOUNTS_ASKED = 3


async def read_shared(harvesters: Iterable[HarvesterFacts]) -> None:
    """Fill in settings, storage and what no account may read, each Harvester once. Never raises.

    :param harvesters: what was read by each identity; those without an answer stay as they are
    """
    groups: dict[tuple[str, str], list[HarvesterFacts]] = defaultdict(list)
    for facts in harvesters:
        if facts.kubeconfig and facts.objects is not None:
            groups[server_of(facts.kubeconfig)].append(facts)

    servers = asyncio.Semaphore(SERVERS_AT_ONCE)
    await asyncio.gather(*(_read_group(group, servers) for group in groups.values()))


async def _read_group(group: Sequence[HarvesterFacts], servers: asyncio.Semaphore) -> None:
    """Read one Harvester by some of its identities, until nothing is left to read.

    :param group: what was read by the identities of the Harvester
    :param servers: limits how many Harvesters are asked at once
    """
    known = _listed_settings(group)
    storage = Storage()
    unread = [] if known else list(settings.READ)
    unlisted = [f"list {STORAGE_CLASSES}"]
    for facts in group[:_ACCOUNTS_ASKED]:
        if not unread and not unlisted:
            break
        assert facts.kubeconfig  # noqa: S101 - groups have no others
        try:
            async with (
                servers,
                answering_client(
                    facts.kubeconfig, "harvester", HARVESTER_SECONDS, max_in_flight=16
                ) as harvester,
            ):
                read, unread = await read_settings(harvester, unread)
                known += read
                if unlisted:
                    answers = (storage, unlisted), await read_storage(harvester, group)
                    storage, unlisted = min(answers, key=_missing_part)
        except (RequestError, KubeconfigError, TimeoutError, *MALFORMED):
            continue

    missing = [f"get settings {', '.join(unread)}"] if unread else []
    for facts in group:
        assert facts.objects is not None  # noqa: S101 - groups have no others
        facts.objects.settings = known
        facts.storage = storage
        facts.unread = [*missing, *unlisted]


def _missing_part(answer: tuple[Storage, list[str]]) -> tuple[bool, int]:
    """Return a sort key: the less of the storage an account may read, the larger."""
    storage, unlisted = answer
    return not storage.classes, len(unlisted)


def _listed_settings(group: Iterable[HarvesterFacts]) -> list[Obj]:
    """Return the settings of the first identity that may list all of them."""
    for facts in group:
        if facts.objects and facts.objects.sees(str(resources.HARVESTER_SETTINGS)):
            return list(facts.objects.settings)
    return []


async def read_settings(harvester: ApiClient, wanted: Iterable[str]) -> tuple[list[Obj], list[str]]:
    """Read settings one by one, because accounts that may not list all of them may get some.

    The second part of the answer has the names of those that the account may not read.

    :param harvester: client of the Harvester
    :param wanted: names of settings
    """

    async def read(name: str) -> Obj | str | None:
        try:
            return await harvester.get(resources.HARVESTER_SETTINGS, name)
        except NotFound:
            return None
        except ApiError:
            return name

    answers = await asyncio.gather(*map(read, wanted))
    return (
        [answer for answer in answers if isinstance(answer, dict)],
        [answer for answer in answers if isinstance(answer, str)],
    )


async def read_storage(
    harvester: ApiClient, group: Iterable[HarvesterFacts]
) -> tuple[Storage, list[str]]:
    """Read StorageClasses, and of Longhorn what those in use need.

    The second part of the answer names the lists that the account may not read.

    :param harvester: client of the Harvester
    :param group: what was read by the identities of the Harvester
    """
    storage = Storage()
    unread = []

    async def read(resource: Resource, namespace: str = "") -> list[Obj] | None:
        try:
            return await list_all(harvester, resource, namespace)
        except NotFound:
            return None
        except ApiError:
            unread.append(f"list {resource}")
            return None

    storage.classes = await read(STORAGE_CLASSES) or []
    claims = [claim for facts in group if facts.objects for claim in facts.objects.claims]
    machines = [machine for facts in group for machine in facts.machines]
    used = used_classes(storage.classes, claims, machines)
    if used:
        storage.jobs = await read(resources.LONGHORN_RECURRING_JOBS, _LONGHORN_NAMESPACE)
    if any(any(selectors_of(storage_class)) for storage_class in used):
        storage.nodes = await read(resources.LONGHORN_NODES, _LONGHORN_NAMESPACE)
    return storage, unread
