"""Checks that Harvester has exactly what the management cluster's objects ask for.

For each HarvesterMachine one VM with its own disks, one cloud-init Secret and at most one address; nothing else in the
target namespaces, and no address in a pool without a holder.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Obj, Resource, key_of
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from sandbox.harvester import kinds
from sandbox.harvester.informers import claims_of


async def problems(management: ApiClient, harvester: ApiClient, namespaces: Iterable[str]) -> list[str]:
    """Differences between the machines in the management cluster's and the VMs in Harvester's `namespaces`.

    Each namespace of the management cluster has a target namespace of the same name.
    """
    found: list[str] = []
    pools = (await harvester.list(kinds.IP_POOLS))["items"]
    for namespace in namespaces:
        machines = (await management.list(HARVESTER_MACHINES, namespace))["items"]
        clusters = (await management.list(HARVESTER_CLUSTERS, namespace))["items"]
        there = {resource: await _list(harvester, resource, namespace) for resource in _RESOURCES}
        found += _machines(machines, there)
        found += _load_balancers(clusters, there)
        found += _addresses(namespace, machines, there, pools)
    return found


async def wait_consistent(
    management: ApiClient, harvester: ApiClient, namespaces: Iterable[str], *, timeout: float
) -> list[str]:
    """Wait until there are no problems; returns those that are left after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = await problems(management, harvester, namespaces)
        except (ApiError, Unreachable) as error:
            found = [str(error)]
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.5)


_RESOURCES = (
    kinds.VIRTUAL_MACHINES,
    kinds.INSTANCES,
    kinds.LOAD_BALANCERS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICES,
)
# The end of the names of Secrets with a VM's cloud-init data.
_CLOUD_INIT = "-cloud-init"


async def _list(client: ApiClient, resource: Resource, namespace: str) -> list[Obj]:
    return list((await client.list(resource, namespace))["items"])


def _machines(machines: list[Obj], there: dict[Resource, list[Obj]]) -> list[str]:
    names = {machine["metadata"]["name"] for machine in machines}
    vms = {vm["metadata"]["name"]: vm for vm in there[kinds.VIRTUAL_MACHINES]}
    found = [f"machine {name} has no VM" for name in sorted(names - vms.keys())]
    found += [f"VM {name} has no machine" for name in sorted(vms.keys() - names)]
    for machine in machines:
        name = machine["metadata"]["name"]
        wanted, disks = len(machine["spec"].get("volumes") or ()), claims_of(vms[name]) if name in vms else []
        if name in vms and len(disks) != wanted:
            found.append(f"VM {name} has {len(disks)} disks instead of {wanted}")
    used = {name for vm in vms.values() for name in claims_of(vm)}
    claims = {claim["metadata"]["name"] for claim in there[PERSISTENT_VOLUME_CLAIMS]}
    found += [f"disk {name} belongs to no VM" for name in sorted(claims - used)]
    found += [f"disk {name} does not exist" for name in sorted(used - claims)]
    secrets = {name for vm in vms.values() for name in _secrets_of(vm)}
    # Accounts have Secrets of their own.
    written = sorted(key_of(secret).name for secret in there[SECRETS])
    unused = [name for name in written if name.endswith(_CLOUD_INIT) and name not in secrets]
    return found + [f"Secret {name} belongs to no VM" for name in unused]


def _secrets_of(vm: Obj) -> list[str]:
    volumes = vm["spec"]["template"]["spec"].get("volumes") or ()
    sources = [volume["cloudInitNoCloud"] for volume in volumes if "cloudInitNoCloud" in volume]
    return [
        source[field]["name"]
        for source in sources
        for field in ("secretRef", "networkDataSecretRef")
        if field in source
    ]


def _load_balancers(clusters: list[Obj], there: dict[Resource, list[Obj]]) -> list[str]:
    found = []
    for resource in (kinds.LOAD_BALANCERS, SERVICES):
        count = len(there[resource])
        if count > len(clusters):
            found.append(f"{count} objects of kind {resource.kind} for {len(clusters)} clusters")
    return found


def _addresses(namespace: str, machines: list[Obj], there: dict[Resource, list[Obj]], pools: list[Obj]) -> list[str]:
    names = {machine["metadata"]["name"] for machine in machines}
    balancers = {balancer["metadata"]["name"] for balancer in there[kinds.LOAD_BALANCERS]}
    found, held = [], Counter[str]()
    for pool in pools:
        for address, holder in ((pool.get("status") or {}).get("allocated") or {}).items():
            space, _, name = holder.partition("/")
            if space != namespace:
                continue
            held[name] += 1
            if name not in names | balancers:
                found.append(f"address {address} of IPPool {pool['metadata']['name']} is held by {holder}")
    return found + [f"{name} holds {count} addresses" for name, count in sorted(held.items()) if count > 1]
