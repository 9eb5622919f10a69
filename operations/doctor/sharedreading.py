"""Read what is the same for all identities of one Harvester: its settings, and its storage.

Hundreds of clusters may each have an identity for the same Harvester. It is asked by a few of them,
because most accounts have the same rights.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from caphv.api import resources
from caphv.api.object import STORAGE_CLASSES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, RequestError
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError
from operations.doctor import settings
from operations.doctor.harvesterfacts import MALFORMED, HarvesterFacts
from operations.doctor.storage import Storage, selectors_of, used_classes
from operations.read.management import list_all
from operations.read.objects import HarvesterObjects
from operations.read.servers import (
    HARVESTER_SECONDS,
    SERVERS_AT_ONCE,
    Server,
    answering_client,
    server_of,
)

_LONGHORN_NAMESPACE = "longhorn-system"
_ACCOUNTS_ASKED = 3


class StorageAnswer(NamedTuple):
    """The storage of a Harvester, and the lists that an account may not read."""

    storage: Storage
    unlisted: list[str]


class SettingsAnswer(NamedTuple):
    """Settings of a Harvester, and the names of those that an account may not read."""

    settings: list[Obj]
    unread: list[str]


class _Identity(NamedTuple):
    """An identity to which its Harvester has answered."""

    facts: HarvesterFacts
    kubeconfig: Kubeconfig
    objects: HarvesterObjects


async def read_shared(harvesters: Iterable[HarvesterFacts]) -> None:
    """Fill in settings, storage and what no account may read, each Harvester once. Never raises.

    :param harvesters: what was read by each identity; those without an answer stay as they are
    """
    groups: dict[Server, list[_Identity]] = defaultdict(list)
    for facts in harvesters:
        if facts.kubeconfig and facts.objects is not None:
            identity = _Identity(facts, facts.kubeconfig, facts.objects)
            groups[server_of(facts.kubeconfig)].append(identity)

    servers = asyncio.Semaphore(SERVERS_AT_ONCE)
    await asyncio.gather(*(_read_group(group, servers) for group in groups.values()))


async def _read_group(group: Sequence[_Identity], servers: asyncio.Semaphore) -> None:
    """Read one Harvester by some of its identities, until nothing is left to read.

    :param group: the identities of the Harvester
    :param servers: limits how many Harvesters are asked at once
    """
    all_facts = [identity.facts for identity in group]
    setting_objects = _listed_settings(group)
    unread = [] if setting_objects else list(settings.READ)
    best = StorageAnswer(Storage(), [f"list {STORAGE_CLASSES}"])
    for identity in group[:_ACCOUNTS_ASKED]:
        if not unread and not best.unlisted:
            break
        try:
            async with (
                servers,
                answering_client(
                    identity.kubeconfig, "harvester", HARVESTER_SECONDS, max_in_flight=16
                ) as harvester,
            ):
                answer = await read_settings(harvester, unread)
                unread = answer.unread
                setting_objects += answer.settings
                if best.unlisted:
                    storage = await read_storage(harvester, all_facts)
                    best = min(best, storage, key=_missing_part)
        except (RequestError, KubeconfigError, TimeoutError, *MALFORMED):
            continue

    missing = [f"get settings {', '.join(unread)}"] if unread else []
    for identity in group:
        identity.objects.settings = setting_objects
        identity.facts.storage = best.storage
        identity.facts.unread = [*missing, *best.unlisted]


def _missing_part(answer: StorageAnswer) -> tuple[bool, int]:
    """Return a sort key: the less of the storage an account may read, the larger."""
    return not answer.storage.classes, len(answer.unlisted)


def _listed_settings(group: Iterable[_Identity]) -> list[Obj]:
    """Return the settings of the first identity that may list all of them; none without one."""
    for identity in group:
        if identity.objects.sees(str(resources.HARVESTER_SETTINGS)):
            return list(identity.objects.settings)
    return []


async def read_settings(harvester: ApiClient, setting_names: Sequence[str]) -> SettingsAnswer:
    """Read settings one by one, because accounts that may not list all of them may get some.

    A Harvester of another release may lack a setting, which then is neither read nor unread.
    """
    settings_read = []
    refused = set()

    async def read(name: str) -> None:
        try:
            settings_read.append(await harvester.get(resources.HARVESTER_SETTINGS, name))
        except NotFound:
            pass
        except ApiError:
            refused.add(name)

    await asyncio.gather(*map(read, setting_names))
    return SettingsAnswer(settings_read, [name for name in setting_names if name in refused])


async def read_storage(harvester: ApiClient, group: Iterable[HarvesterFacts]) -> StorageAnswer:
    """Read StorageClasses, and of Longhorn what those in use need.

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
    return StorageAnswer(storage, unread)
