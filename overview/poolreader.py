"""Reads all that may hold an address of a pool, and writes what `overview.pools` decides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, SERVICES, Key, Obj, Resource, key_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from overview.objects import Unseen, by_key
from overview.pools import Owners, PoolReport, audit, repair
from overview.reader import list_all, unseen

_ATTEMPTS = 5


@dataclass(slots=True)
class PoolObjects:
    """Pools of one Harvester and their possible owners."""

    harvester: str
    pools: list[Obj] = field(default_factory=list)
    owners: Owners = field(default_factory=lambda: Owners(""))
    unseen: list[Unseen] = field(default_factory=list)

    def reports(self) -> tuple[PoolReport, ...]:
        """What is known of each pool."""
        return audit(self.pools, self.owners, self.harvester)


@dataclass(frozen=True, slots=True)
class Machines:
    """Owners of addresses on a management cluster: of all namespaces (`namespaces` is None), or of some.

    `balancers` names the HarvesterCluster of each load balancer.
    """

    management_cluster: str
    objects: dict[Key, Obj]
    namespaces: frozenset[str] | None
    unseen: tuple[Unseen, ...] = ()
    balancers: dict[Key, Key] = field(default_factory=dict)


async def read_machines(client: ApiClient, namespace: str) -> Machines:
    """Read all HarvesterMachines and HarvesterClusters; where only those of a namespace may be read, these."""
    hidden: list[Unseen] = []
    uid = ""
    try:
        uid = uid_of(await client.get(NAMESPACES, "kube-system"))
    except ApiError as error:
        hidden.append(unseen("namespace kube-system of the management cluster", error))
    try:
        found = await list_all(client, resources.HARVESTER_MACHINES)
        return Machines(uid, by_key(found), None, tuple(hidden), await _balancers(client, None))
    except Forbidden as error:
        if not namespace:
            raise
        hidden.append(unseen("HarvesterMachines or HarvesterClusters of other namespaces", error))
    found = await list_all(client, resources.HARVESTER_MACHINES, namespace)
    namespaces = frozenset({namespace})
    return Machines(uid, by_key(found), namespaces, tuple(hidden), await _balancers(client, namespaces))


async def read_pools(client: ApiClient, machines: Machines, namespaces: frozenset[str]) -> PoolObjects:
    """Read pools and owners on one Harvester. Raises `ApiError`, `Unreachable` when the pools cannot be read."""
    found = PoolObjects(client.server)
    found.pools = await list_all(client, resources.IP_POOLS)
    owners = found.owners
    owners.management_cluster, owners.machines = machines.management_cluster, machines.objects
    owners.namespaces, owners.balancers = machines.namespaces, machines.balancers
    complete = await asyncio.gather(
        _everywhere(client, found, resources.VIRTUAL_MACHINES, namespaces, objs=owners.vms),
        _everywhere(client, found, resources.VIRTUAL_MACHINE_INSTANCES, namespaces, objs=owners.instances),
        _everywhere(client, found, resources.LOAD_BALANCERS, namespaces, objs=owners.load_balancers),
        _everywhere(
            client, found, SERVICES, namespaces, objs=owners.services, label_selector=f"{names.SERVICE_LB_LABEL}=true"
        ),
    )
    owners.vms_complete = all(complete)
    return found


async def apply_repair(
    management: ApiClient, harvester: ApiClient, name: str, machines: Machines, namespaces: frozenset[str]
) -> PoolReport | None:
    """Release what leaked from one pool, by what is there now; answers what was repaired, None when nothing had to be.

    Everything is read again right before the write, so that a machine of the same name that was created meanwhile keeps
    its address. Raises `Conflict` when others write the pool all the time, `ApiError`, `Unreachable`.
    """
    for _ in range(_ATTEMPTS):
        found = await read_pools(harvester, machines, namespaces)
        report = next((each for each in found.reports() if each.name == name), None)
        pool = next((obj for obj in found.pools if obj["metadata"]["name"] == name), None)
        if report is None or pool is None or not report.wrong:
            return None
        balancers = await _balancers(management, machines.namespaces) if report.leaked else {}
        for entry in report.leaked:
            namespace, _, machine = entry.id.partition("/")
            if Key(namespace, machine) in balancers or await _exists(management, namespace, machine):
                raise Conflict(409, "Conflict", f"the owner of {entry.id} was created meanwhile: run the audit again")
        patch = repair(pool, report)
        if patch is None:
            return None
        try:
            await harvester.patch(resources.IP_POOLS, name, "", patch)
        except Conflict:
            continue
        return report
    raise Conflict(409, "Conflict", f"IPPool {name} is being modified concurrently: try again")


async def _balancers(client: ApiClient, namespaces: frozenset[str] | None) -> dict[Key, Key]:
    """Return the HarvesterCluster of each load balancer, by namespace and name of the latter on Harvester."""
    return {
        Key(str((obj.get("spec") or {}).get("targetNamespace") or ""), name): key_of(obj)
        for namespace in (sorted(namespaces) if namespaces is not None else [""])
        for obj in await list_all(client, resources.HARVESTER_CLUSTERS, namespace)
        for name in names.generated_names(obj, names.LOAD_BALANCER_SUFFIX)
    }


async def _exists(client: ApiClient, namespace: str, name: str) -> bool:
    try:
        await client.get(resources.HARVESTER_MACHINES, name, namespace)
    except NotFound:
        return False
    return True


async def _everywhere(
    client: ApiClient,
    found: PoolObjects,
    resource: Resource,
    namespaces: frozenset[str],
    *,
    objs: list[Obj],
    label_selector: str = "",
) -> bool:
    """Read a kind in all namespaces, else in those that are known; answers whether it was all."""
    try:
        objs += await list_all(client, resource, label_selector=label_selector)
    except (ApiError, Unreachable) as error:
        found.unseen.append(unseen(f"{resource} of all namespaces on Harvester", error))
    else:
        return True
    for namespace in sorted(namespaces):
        try:
            objs += await list_all(client, resource, namespace, label_selector=label_selector)
        except (ApiError, Unreachable) as error:
            found.unseen.append(unseen(f"{resource} of namespace {namespace} on Harvester", error))
    return False
