"""PodDisruptionBudgets that stop a drain: the usual reason why a rollout stops at a Node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caphv.api.object import POD_DISRUPTION_BUDGETS, Key, Obj, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from overview.doctor.model import Check, Result, ok, skipped
from overview.harvester import WORKLOAD_SECONDS, answering_client, read_access
from overview.reader import list_all

_SHOWN = 3


async def disruption_checks(management: ApiClient, cluster: Key) -> list[Check]:
    """Ask a workload cluster for budgets that allow no disruption now. Never raises for one that does not answer."""
    try:
        access = await read_access(management, Key(cluster.namespace, f"{cluster.name}-kubeconfig"), "value")
        async with answering_client(access, "workload", WORKLOAD_SECONDS) as client:
            return list(checks(cluster, await list_all(client, POD_DISRUPTION_BUDGETS)))
    except (ApiError, Unreachable, KubeconfigError, TimeoutError) as error:
        why = str(error) or f"no answer within {WORKLOAD_SECONDS:.0f} s"
        return [skipped("disruptions", f"Cluster {cluster}", f"the workload cluster cannot be read: {why}")]


def checks(cluster: Key, budgets: Iterable[Obj]) -> Iterator[Check]:
    """Say which budgets would stop a drain."""
    subject = f"Cluster {cluster}"
    found = sorted(str(key_of(obj)) for obj in budgets if _blocks(obj.get("status") or {}))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        message = f"PodDisruptionBudget {', '.join(found[:_SHOWN])}{more} allows no eviction: drains would wait for it"
        remedy = "Run more replicas of these workloads, or set spec.deletion.nodeDrainTimeoutSeconds of the Machines"
        yield Check("disruptions", subject, Result.WARNING, message, remedy)
    else:
        yield ok("disruptions", subject, "no PodDisruptionBudget stops a drain")


def _blocks(status: Obj) -> bool:
    return bool(status.get("expectedPods")) and not status.get("disruptionsAllowed")
