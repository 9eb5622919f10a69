"""Find PodDisruptionBudgets that stop a drain, the usual reason why a rollout stops at a Node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caphv.api.counting import name_some
from caphv.api.object import POD_DISRUPTION_BUDGETS, Key, Obj, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from operations.read.accounts import read_kubeconfig
from operations.read.management import list_all
from operations.read.servers import WORKLOAD_SECONDS, answering_client
from operations.status.check import Check, Result, ok, skipped


async def disruption_checks(management: ApiClient, cluster: Key) -> list[Check]:
    """Ask a workload cluster for budgets that allow no disruption now.

    Never raises. For a cluster that does not answer, the check is skipped.
    """
    secret = Key(cluster.namespace, f"{cluster.name}-kubeconfig")
    try:
        access = await read_kubeconfig(management, secret, "value")
        async with answering_client(access, "workload", WORKLOAD_SECONDS) as client:
            return list(checks(cluster, await list_all(client, POD_DISRUPTION_BUDGETS)))
    except (ApiError, Unreachable, KubeconfigError, TimeoutError) as error:
        reason = str(error) or f"no answer within {WORKLOAD_SECONDS:.0f} s"
        message = f"the workload cluster cannot be read: {reason}"
        return [skipped("disruptions", f"Cluster {cluster}", message)]


def checks(cluster: Key, budgets: Iterable[Obj]) -> Iterator[Check]:
    """Report the budgets that would stop a drain."""
    subject = f"Cluster {cluster}"
    blocking = sorted(str(key_of(obj)) for obj in budgets if _blocks(obj.get("status") or {}))
    if not blocking:
        yield ok("disruptions", subject, "no PodDisruptionBudget stops a drain")
        return

    message = (
        f"PodDisruptionBudget {name_some(blocking)} allows no eviction: drains would wait for it"
    )
    remedy = (
        "Run more replicas of these workloads, or set spec.deletion.nodeDrainTimeoutSeconds of "
        "the Machines"
    )
    yield Check("disruptions", subject, Result.WARNING, message=message, remedy=remedy)


def _blocks(status: Obj) -> bool:
    # A budget without Pods allows no disruption either, but it stops nothing.
    return bool(status.get("expectedPods")) and not status.get("disruptionsAllowed")
