"""Select the Pods that a drain has to end, and evict them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from caphv.api.object import PODS, Obj, annotations_of, at, being_deleted, key_of, labels_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, NotFound
from caphv.runtime.listing import list_pages

DRAIN_SECONDS = 120.0
"""How long Pods may take to end. The shutdown of their VM ends those that remain."""
_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
_MAX_CONCURRENT = 8


async def pods_to_evict(client: ApiClient, nodes: Iterable[str]) -> list[Obj]:
    """Return the Pods on Nodes that a drain has to end. Raises `ApiError`, `Unreachable`."""
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def read(node: str) -> list[Obj]:
        async with limit:
            pages = list_pages(client, PODS, field_selector=f"spec.nodeName={node}")
            return [pod async for page in pages for pod in page if is_evicted(pod)]

    return [pod for pods in await asyncio.gather(*map(read, nodes)) for pod in pods]


def is_evicted(pod: Obj) -> bool:
    """Return whether a drain ends a Pod: only one that a controller recreates on another Node.

    Pods of DaemonSets and of the kubelet stay, as do those that have ended. A Pod without a
    controller would be lost, while it starts again with its Node if it stays.
    """
    if _MIRROR_ANNOTATION in annotations_of(pod):
        return False
    if at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return False
    owners = pod["metadata"].get("ownerReferences") or ()
    controllers = [owner.get("kind") for owner in owners if owner.get("controller")]
    return bool(controllers) and "DaemonSet" not in controllers


def is_agent_of_rancher(pod: Obj) -> bool:
    """Return whether a Pod is Rancher's agent, through which the workload API is reached."""
    is_agent = labels_of(pod).get("app") == "cattle-cluster-agent"
    return is_agent and key_of(pod).namespace == "cattle-system"


async def evict(client: ApiClient, pods: Iterable[Obj]) -> int:
    """Evict Pods, and return how many a PodDisruptionBudget protects. Raises `Unreachable`."""
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def evict_one(pod: Obj) -> int:
        """Evict a Pod; return 1 if the API refuses that, else 0."""
        key = key_of(pod)
        metadata = {"name": key.name, "namespace": key.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = PODS.path(key.namespace, key.name, "eviction")
        async with limit:
            try:
                await client.request("POST", path, resource=PODS, verb="evict", body=body)
            except (NotFound, Conflict):
                return 0  # it has ended meanwhile
            except ApiError:
                # The API answers 429 for one budget and 500 for several. Other errors count as
                # well, because the time for the drain is bounded.
                return 1
        return 0

    ending = [pod for pod in pods if not being_deleted(pod)]
    return sum(await asyncio.gather(*map(evict_one, ending)))
