"""Read IPPools and all possible holders of their addresses, and repair the pools."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from caphv.api import names, resources
from caphv.api.ippool import machine_holder
from caphv.api.object import SERVICES, Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict
from operations.capacity.addresspools import Owners, PoolReport, audit, repair
from operations.read.harvesterclient import HarvesterClient, ask_accounts, list_everywhere
from operations.read.management import list_all
from operations.read.objects import Unseen
from operations.read.owners import OwnerObjects, exists, read_balancers

# Harvester writes a pool whenever it assigns an address, so conflicts are likely.
_MAX_ATTEMPTS = 5


@dataclass(slots=True)
class PoolObjects:
    """IPPools of one Harvester, and the possible owners of their addresses.

    :param unseen: what could not be read
    :param vm_namespaces: namespaces whose VMs were read; None for all
    """

    harvester: str
    pools: list[Obj] = field(default_factory=list)
    owners: Owners = field(default_factory=lambda: Owners(""))
    unseen: list[Unseen] = field(default_factory=list)
    vm_namespaces: frozenset[str] | None = None

    def reports(self) -> tuple[PoolReport, ...]:
        """Return the report on each pool."""
        return audit(self.pools, self.owners, self.harvester)


async def read_pools(harvester: HarvesterClient, owners: OwnerObjects) -> PoolObjects:
    """Read the IPPools of one Harvester, and what may hold their addresses.

    Raises `ApiError`, `Unreachable` if the pools cannot be read.

    :param harvester: the Harvester
    :param owners: owners of addresses on the management cluster
    """
    objects = PoolObjects(harvester.server)
    objects.pools = await ask_accounts(
        harvester, lambda client: list_all(client, resources.IP_POOLS)
    )

    holders = objects.owners
    holders.management_cluster = owners.management_cluster
    holders.machines = owners.machines
    holders.namespaces = owners.namespaces
    holders.balancers = owners.balancers

    kinds = (
        (resources.VIRTUAL_MACHINES, holders.vms, ""),
        (resources.VIRTUAL_MACHINE_INSTANCES, holders.instances, ""),
        (resources.LOAD_BALANCERS, holders.load_balancers, ""),
        (SERVICES, holders.services, f"{names.SERVICE_LB_LABEL}=true"),
    )
    answers = await asyncio.gather(
        *(
            list_everywhere(harvester, kind, objects.unseen, label_selector=selector)
            for kind, _, selector in kinds
        )
    )
    for (_, holding, _), (objs, _) in zip(kinds, answers, strict=True):
        holding.extend(objs)
    objects.vm_namespaces = answers[0][1]
    holders.vms_complete = all(namespaces is None for _, namespaces in answers)
    return objects


async def apply_repair(
    management: ApiClient, harvester: HarvesterClient, name: str, owners: OwnerObjects
) -> PoolReport | None:
    """Release the leaked entries of a pool, and correct its counts.

    Return the report from before the repair; None if there was nothing to repair. Raises `Conflict`
    if the pool keeps being modified, `ApiError`, `Unreachable`.

    :param management: client of the management cluster
    :param harvester: the Harvester
    :param name: name of the IPPool
    :param owners: owners of addresses on the management cluster
    """
    # Read everything right before the write, so that a machine of the same name that was created
    # meanwhile keeps its address.
    for _ in range(_MAX_ATTEMPTS):
        objects = await read_pools(harvester, owners)
        pools = {str(pool["metadata"]["name"]): pool for pool in objects.pools}
        reports = {report.name: report for report in objects.reports()}
        if name not in pools or not reports[name].wrong:
            return None

        report = reports[name]
        await _check_owners(management, report, owners.namespaces)
        patch = repair(pools[name], report)
        if patch is None:
            return None

        try:
            await _write(harvester, name, patch)
        except Conflict:
            continue
        return report
    raise Conflict(409, "Conflict", f"IPPool {name} is being modified concurrently: try again")


async def _write(harvester: HarvesterClient, name: str, patch: Obj) -> None:
    async def write(client: ApiClient) -> Obj:
        return await client.patch(resources.IP_POOLS, name, "", patch)

    await ask_accounts(harvester, write)


async def _check_owners(
    management: ApiClient, report: PoolReport, namespaces: frozenset[str] | None
) -> None:
    """Raise `Conflict` if the owner of a leaked address was created after owners were listed."""
    if not report.leaked:
        return

    # An address may be reserved for a load balancer that does not exist yet.
    balancers = await read_balancers(management, namespaces)
    for entry in report.leaked:
        namespace, _, name = entry.id.partition("/")
        is_owned = Key(namespace, name) in balancers
        # The name of a machine of the Go provider may look like the id of an interface.
        for machine in dict.fromkeys((name, machine_holder(name))):
            is_owned = is_owned or await exists(
                management, resources.HARVESTER_MACHINES, machine, namespace
            )
        if is_owned:
            message = f"the owner of {entry.id} was created meanwhile: run the audit again"
            raise Conflict(409, "Conflict", message)
