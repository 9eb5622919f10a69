"""Read everything on a Harvester that may have the record of an owner.

The account of an identity may not list Secrets and accounts, so that its token, if leaked, does not
reveal others. With such an account, Secrets and accounts are read by name. The names are derived
from the objects that can be listed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from caphv.api import resources
from caphv.api.ippool import allocated, allocated_before, machine_holder
from caphv.api.names import CLOUD_PROVIDER_ROLE, GUESTS_PREFIX
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    at,
    key_of,
)
from caphv.api.ownership import recorded_owner
from caphv.api.virtualmachine import cloud_init_secret_name
from caphv.runtime.errors import Forbidden, NotFound, RequestError
from operations.capacity.poolreader import PoolObjects, read_pools
from operations.leftovers.decision import HarvesterState
from operations.read.harvesterclient import HarvesterClient, list_everywhere
from operations.read.management import unseen
from operations.read.objects import Unseen
from operations.read.owners import OwnerObjects

_MAX_CONCURRENT = 16


class ReadState(NamedTuple):
    """The objects on a Harvester, and what could not be read."""

    state: HarvesterState
    unseen: list[Unseen]


async def read_state(
    harvester: HarvesterClient, owners: OwnerObjects, *, include_running: bool
) -> ReadState:
    """Read the objects on a Harvester.

    Raises `ApiError`, `Unreachable` if the Harvester does not answer or IPPools cannot be read.

    :param harvester: the Harvester
    :param owners: possible owners on the management cluster
    :param include_running: whether VMs that are not stopped may be leftovers
    """
    pools = await read_pools(harvester, owners)
    hidden = pools.unseen
    claims, _ = await list_everywhere(harvester, PERSISTENT_VOLUME_CLAIMS, hidden)
    objects: dict[Resource, list[Obj]] = {
        resources.VIRTUAL_MACHINES: pools.owners.vms,
        PERSISTENT_VOLUME_CLAIMS: claims,
        resources.LOAD_BALANCERS: pools.owners.load_balancers,
        SERVICES: pools.owners.services,
        resources.VM_BACKUPS: await _read_backups(harvester, hidden),
        resources.IP_POOLS: pools.pools,
    }

    guests = await _read_guests(harvester, hidden)
    machines = _machine_names(pools, objects)
    clusters = _cluster_names(objects, guests)
    tokens = {Key(key.namespace, f"{key.name}-token") for key in clusters}
    secrets = {Key(key.namespace, cloud_init_secret_name(key.name)) for key in machines} | tokens
    bindings = {Key("", key.name) for key in clusters}
    objects |= {
        SECRETS: await _list_or_get(harvester, SECRETS, secrets, hidden),
        SERVICE_ACCOUNTS: await _list_or_get(harvester, SERVICE_ACCOUNTS, clusters, hidden),
        CLUSTER_ROLE_BINDINGS: [
            binding
            for binding in await _list_or_get(harvester, CLUSTER_ROLE_BINDINGS, bindings, hidden)
            if not key_of(binding).name.startswith(GUESTS_PREFIX)
        ],
    }
    state = HarvesterState(
        harvester=harvester.server,
        owners=owners,
        objects=objects,
        pools=pools.reports(),
        vm_namespaces=pools.vm_namespaces,
        include_running=include_running,
    )
    return ReadState(state, hidden)


def _machine_names(pools: PoolObjects, objects: Mapping[Resource, list[Obj]]) -> set[Key]:
    """Return the namespaces on Harvester and names of machines that have left something there."""
    target_namespaces: dict[str, set[str]] = defaultdict(set)
    machines: set[Key] = set()
    for resource in (resources.VIRTUAL_MACHINES, PERSISTENT_VOLUME_CLAIMS):
        for obj in objects[resource]:
            owner = recorded_owner(obj)
            if owner is not None:
                machines.add(Key(key_of(obj).namespace, owner.name))
                target_namespaces[owner.namespace].add(key_of(obj).namespace)

    # Some machines have left only an address, with their namespace on the management cluster.
    for pool in pools.pools:
        for holder in (*allocated(pool).values(), *allocated_before(pool).values()):
            # The name of a machine of the Go provider may look like the id of an interface.
            for identity in (holder, machine_holder(holder)):
                namespace, _, name = identity.partition("/")
                machines |= {Key(target, name) for target in target_namespaces[namespace] if name}
    return machines


def _cluster_names(objects: Mapping[Resource, list[Obj]], guests: Iterable[Key]) -> set[Key]:
    """Return the namespaces on Harvester and names of clusters that may have an account there."""
    clusters = set(guests)
    for resource in (resources.LOAD_BALANCERS, SERVICES):
        for obj in objects[resource]:
            owner = recorded_owner(obj)
            if owner is not None and owner.kind == resources.HARVESTER_CLUSTERS.kind:
                clusters.add(Key(key_of(obj).namespace, owner.name))
    return clusters


async def _read_guests(harvester: HarvesterClient, hidden: list[Unseen]) -> list[Key]:
    """Return the accounts in the ClusterRoleBindings for all guests of a namespace."""
    keys = {Key("", f"{GUESTS_PREFIX}{namespace}") for namespace in harvester.namespaces}
    bindings = await _get(harvester, CLUSTER_ROLE_BINDINGS, keys, hidden)
    return [
        Key(str(subject.get("namespace") or ""), str(subject.get("name") or ""))
        for binding in bindings
        if at(binding, "roleRef", "name") == CLOUD_PROVIDER_ROLE
        for subject in binding.get("subjects") or ()
    ]


async def _read_backups(harvester: HarvesterClient, hidden: list[Unseen]) -> list[Obj]:
    """Return the backups of VMs, without their content, which includes Secrets.

    An account that may not read backups has created none, and a Harvester without the kind has
    none, so neither refusal hides anything.
    """
    refused: list[Unseen] = []
    backups, _ = await list_everywhere(harvester, resources.VM_BACKUPS, refused, metadata_only=True)
    hidden.extend(item for item in refused if not item.forbidden and not item.not_found)
    return backups


async def _list_or_get(
    harvester: HarvesterClient, resource: Resource, keys: Iterable[Key], hidden: list[Unseen]
) -> list[Obj]:
    """Read all objects of a kind, or only those with the given names if they cannot be listed.

    :param keys: namespaces and names of objects that may exist
    :param hidden: what could not be read is added to it
    """
    # The role and subjects of a binding are needed as well.
    metadata_only = resource is not CLUSTER_ROLE_BINDINGS
    refused: list[Unseen] = []
    objs, namespaces = await list_everywhere(
        harvester, resource, refused, metadata_only=metadata_only
    )
    if namespaces is None:
        return objs

    if all(item.forbidden for item in refused):
        why = "the account may list none: give --harvester-kubeconfig to see all"
        refused = [Unseen(f"{resource} of other names on Harvester", why, forbidden=True)]
    hidden.extend(refused)
    listed = set(map(key_of, objs))
    return [*objs, *await _get(harvester, resource, set(keys) - listed, hidden)]


async def _get(
    harvester: HarvesterClient, resource: Resource, keys: Iterable[Key], hidden: list[Unseen]
) -> list[Obj]:
    """Read those of the named objects that exist and may be read.

    :param keys: namespaces and names
    :param hidden: what could not be read is added to it
    """
    limit = asyncio.Semaphore(_MAX_CONCURRENT)
    head = {"apiVersion": resource.api_version, "kind": resource.kind}

    async def read(key: Key) -> Obj | None:
        """Read an object; None if it does not exist, or may not be read."""
        try:
            async with limit:
                obj = await harvester.of(key.namespace).get(resource, key.name, key.namespace)
        except NotFound:
            return None
        except Forbidden:
            # The account may not list this namespace either, which `hidden` already says.
            return None
        except RequestError as error:
            hidden.append(unseen(f"{resource.kind} {key} on Harvester", error))
            return None
        # Drop the content of Secrets, which nothing here needs.
        return {**head, "metadata": obj["metadata"]} if resource is SECRETS else {**head, **obj}

    objs = await asyncio.gather(*(read(key) for key in sorted(keys) if key.name))
    return [obj for obj in objs if obj is not None]
