"""Read workload clusters, with the kubeconfigs that Cluster API writes for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from caphv.api.object import NODES, Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from caphv.runtime.kubeconfig import KubeconfigError
from operations.read.accounts import read_kubeconfig
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen
from operations.read.servers import SERVERS_AT_ONCE, WORKLOAD_SECONDS, answering_client


async def read_nodes(client: ApiClient, clusters: Sequence[Key]) -> dict[Key, list[Obj] | Unseen]:
    """Return the Nodes of each workload cluster, or why they cannot be read."""
    limit = asyncio.Semaphore(SERVERS_AT_ONCE)

    async def read_cluster(key: Key) -> list[Obj] | Unseen:
        nodes = f"Nodes of cluster {key}"
        secret = Key(key.namespace, f"{key.name}-kubeconfig")
        try:
            async with limit:
                kubeconfig = await read_kubeconfig(client, secret, "value")
                async with answering_client(kubeconfig, "workload", WORKLOAD_SECONDS) as workload:
                    return await list_all(workload, NODES)
        except RequestError as error:
            return unseen(nodes, error)
        except (KubeconfigError, TimeoutError) as error:
            return Unseen(nodes, str(error) or f"no answer within {WORKLOAD_SECONDS:.0f} s")

    answers = await asyncio.gather(*map(read_cluster, clusters))
    return dict(zip(clusters, answers, strict=True))
