"""Save the IPPools on Harvester that clusters use, and show them as manifests.

A restore creates nothing on Harvester. Where a pool was lost together with the management cluster,
its manifest creates it again with the addresses that were in use.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import yaml

from caphv.api import resources
from caphv.api.object import Obj, key_of
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, RequestError, Unauthorized
from caphv.runtime.kubeconfig import KubeconfigError
from operations.backup.forms import problem_of
from operations.capacity.addresspools import used_pools
from operations.read.accounts import Account, read_accounts
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen
from operations.read.servers import (
    HARVESTER_SECONDS,
    SERVERS_AT_ONCE,
    Server,
    answering_client,
    server_of,
)

Pools = dict[str, list[Obj]]
"""IPPools by the URL of their Harvester."""

_KEPT = ("labels", "annotations")
# How entries about identities begin, as `caphv.api.identities.describe` names them.
_IDENTITIES = ("identity Secret ", f"{resources.HARVESTER_CLUSTER_IDENTITIES.kind} ")


class ReadPools(NamedTuple):
    """The IPPools that were read, and what could not be read."""

    pools: Pools
    unseen: list[str]


async def read_pools(client: ApiClient, objects: Mapping[ObjectId, Obj]) -> ReadPools:
    """Read the IPPools that clusters use, by the identities of their HarvesterClusters.

    Never raises.

    :param client: client of the management cluster
    :param objects: the objects of the clusters, with their identities
    """
    clusters = _of_kind(objects, resources.HARVESTER_CLUSTERS.kind)
    machines = _of_kind(objects, resources.HARVESTER_MACHINES.kind)
    secrets = {key_of(obj): obj for obj in _of_kind(objects, "Secret")}
    accounts, hidden = await read_accounts(client, clusters, secrets)

    groups: dict[Server, list[Account]] = defaultdict(list)
    for account in accounts:
        groups[server_of(account.kubeconfig)].append(account)

    servers = asyncio.Semaphore(SERVERS_AT_ONCE)
    answers = await asyncio.gather(*(_list_pools(group, servers) for group in groups.values()))

    pools: dict[str, dict[str, Obj]] = {}
    for server, existing in sorted(zip(groups, answers, strict=True), key=itemgetter(0)):
        if isinstance(existing, Unseen):
            hidden.append(existing)
            continue
        served = [obj for obj in clusters if any(account.serves(obj) for account in groups[server])]
        used = used_pools(served, machines)
        for pool in map(_manifest, existing):
            name = pool["metadata"]["name"]
            if name not in used:
                continue
            if problem := problem_of(pool):
                hidden.append(Unseen(f"IPPool {name} of Harvester {server.url}", problem))
            else:
                # Bundles of CAs may differ, and lead to the same server.
                pools.setdefault(server.url, {}).setdefault(name, pool)
    by_server = {url: list(objs.values()) for url, objs in pools.items()}
    return ReadPools(by_server, list(map(str, hidden)))


def absence_of(unseen: Sequence[str], server: str = "") -> list[str]:
    """Return the entries of a backup's `unseen` that may concern IPPools.

    :param unseen: what could not be read
    :param server: the URL of a Harvester, if only its pools matter
    """
    of_server = (f"IPPools of Harvester {server}: ", f"of Harvester {server}: ")
    return [
        text
        for text in unseen
        # Where an identity leads is not known.
        if text.startswith(_IDENTITIES)
        or (text.startswith("IPPool") and (not server or any(part in text for part in of_server)))
    ]


def manifests_of(server: str, pools: Sequence[Obj]) -> str:
    """Return IPPools as YAML for `kubectl create`, below a comment that names their Harvester."""
    documents = yaml.safe_dump_all(map(_manifest, pools), sort_keys=False, explicit_start=True)
    # Quotes keep what a backup of others says within the comment.
    return f"# IPPools of Harvester {json.dumps(server)}\n{documents}"


def _manifest(pool: Obj) -> Obj:
    """Return the manifest that recreates a pool on another API server, with the addresses in use.

    All other fields of the server's answer stay out of the backup.
    """
    metadata = {name: pool["metadata"][name] for name in _KEPT if pool["metadata"].get(name)}
    return {
        "apiVersion": resources.IP_POOLS.api_version,
        "kind": resources.IP_POOLS.kind,
        "metadata": {"name": pool["metadata"]["name"], **metadata},
        **{name: pool[name] for name in ("spec", "status") if name in pool},
    }


async def _list_pools(accounts: list[Account], servers: asyncio.Semaphore) -> list[Obj] | Unseen:
    """Return all IPPools of a Harvester as the first account sees them that may.

    :param accounts: accounts of one Harvester
    :param servers: limits how many Harvesters are asked at once
    """
    server = accounts[0].kubeconfig.server
    refusal = Unseen(f"IPPools of Harvester {server}", "no account")
    for account in accounts:
        try:
            async with (
                servers,
                answering_client(account.kubeconfig, "harvester", HARVESTER_SECONDS) as harvester,
            ):
                return await list_all(harvester, resources.IP_POOLS)
        except (Forbidden, Unauthorized) as error:
            refusal = unseen(refusal.what, error)
        except RequestError as error:
            return unseen(refusal.what, error)
        except KubeconfigError as error:
            refusal = Unseen(refusal.what, str(error))
        except TimeoutError:
            return Unseen(refusal.what, f"no answer within {HARVESTER_SECONDS:.0f} s")
    return refusal


def _of_kind(objects: Mapping[ObjectId, Obj], kind: str) -> list[Obj]:
    return [obj for identity, obj in objects.items() if identity.kind == kind]
