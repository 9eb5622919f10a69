"""Save the IPPools on Harvester that clusters use, and show them as manifests.

A restore creates nothing on Harvester. Where a pool was lost together with the management cluster,
its manifest creates it again with the addresses that were in use.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

import yaml

from caphv.api import names, resources
from caphv.api.ippool import referenced_pools
from caphv.api.object import Obj, at, key_of
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, RequestError, Unauthorized
from operations.read.accounts import Account, identity_of, read_accounts
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen
from operations.read.servers import HARVESTER_SECONDS, answering_client

Pools = dict[str, list[Obj]]
"""IPPools by the URL of their Harvester."""

_CONFIGS = ("vmNetworkConfig", "loadBalancerConfig")
_KEPT = ("labels", "annotations")


async def read_pools(client: ApiClient, objects: Mapping[ObjectId, Obj]) -> tuple[Pools, list[str]]:
    """Read the IPPools that clusters use, by the identities of their HarvesterClusters.

    Never raises. The second part of the answer names what could not be read.

    :param client: client of the management cluster
    :param objects: the objects of the clusters, with their identities
    """
    clusters = _of_kind(objects, resources.HARVESTER_CLUSTERS.kind)
    machines = _of_kind(objects, resources.HARVESTER_MACHINES.kind)
    secrets = {key_of(obj): obj for obj in _of_kind(objects, "Secret")}
    accounts, hidden = await read_accounts(client, clusters, secrets)

    # With another CA, another server may answer at the same address.
    groups: dict[tuple[str, str], list[Account]] = defaultdict(list)
    for account in accounts:
        groups[account.kubeconfig.server, account.kubeconfig.ca].append(account)

    pools: Pools = {}
    for (server, _), group in sorted(groups.items()):
        identities = {account.identity for account in group}
        on_it = [obj for obj in clusters if identity_of(obj) in identities]
        used = used_pools(on_it, machines)
        existing = await _list_pools(group)
        if isinstance(existing, Unseen):
            hidden.append(existing)
        elif chosen := [pool for pool in existing if pool["metadata"]["name"] in used]:
            pools.setdefault(server, []).extend(map(_typed, chosen))
    return pools, list(map(str, hidden))


def used_pools(clusters: Sequence[Obj], machines: Sequence[Obj]) -> set[str]:
    """Return the names of IPPools that clusters name or create, or that machines have addresses of.

    :param clusters: HarvesterClusters of one Harvester
    :param machines: HarvesterMachines of these and of other clusters
    """
    used: set[str] = set()
    for obj in (*clusters, *machines):
        for config in _CONFIGS:
            used.update(referenced_pools(at(obj, "spec", config) or {}))
        # A machine keeps its address when its cluster names other pools.
        used.update(referenced_pools({"ipPoolRef": at(obj, "status", "allocatedPoolRef")}))

    suffixes = {"vmNetworkConfig": names.VM_POOL_SUFFIX, "loadBalancerConfig": names.POOL_SUFFIX}
    for cluster in clusters:
        for config, suffix in suffixes.items():
            if at(cluster, "spec", config, "ipPool"):
                used.update(names.generated_names(cluster, suffix))
    return used


def manifests_of(pools: Mapping[str, Sequence[Obj]]) -> str:
    """Return IPPools as YAML for `kubectl create`, below a comment that names their Harvester."""
    parts = []
    for server, objs in sorted(pools.items()):
        documents = yaml.safe_dump_all(map(_manifest, objs), sort_keys=False, explicit_start=True)
        # Quotes keep what a backup of others says within the comment.
        parts.append(f"# IPPools of Harvester {json.dumps(server)}\n{documents}")
    return "".join(parts)


def _manifest(pool: Obj) -> Obj:
    """Return what another API server needs to create a pool, with the addresses in use."""
    metadata = {name: pool["metadata"][name] for name in _KEPT if pool["metadata"].get(name)}
    manifest: Obj = {"metadata": {"name": pool["metadata"]["name"], **metadata}}
    return _typed(manifest | {name: pool[name] for name in ("spec", "status") if name in pool})


def _typed(pool: Obj) -> Obj:
    kind = resources.IP_POOLS
    return {"apiVersion": kind.api_version, "kind": kind.kind, **pool}


async def _list_pools(accounts: list[Account]) -> list[Obj] | Unseen:
    """Return all IPPools of a Harvester as the first account sees them that may."""
    server = accounts[0].kubeconfig.server
    refusal = Unseen(f"IPPools of Harvester {server}", "no account")
    for account in accounts:
        try:
            async with answering_client(
                account.kubeconfig, "harvester", HARVESTER_SECONDS
            ) as harvester:
                return await list_all(harvester, resources.IP_POOLS)
        except (Forbidden, Unauthorized) as error:
            refusal = unseen(refusal.what, error)
        except RequestError as error:
            return unseen(refusal.what, error)
        except TimeoutError:
            return Unseen(refusal.what, f"no answer within {HARVESTER_SECONDS:.0f} s")
    return refusal


def _of_kind(objects: Mapping[ObjectId, Obj], kind: str) -> list[Obj]:
    return [obj for identity, obj in objects.items() if identity.kind == kind]
