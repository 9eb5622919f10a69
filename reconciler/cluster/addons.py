"""Reports a workload cluster without cloud provider or CSI driver, where no packager reports its add-ons.

A packager writes condition `AddonBundlesReady`. Clusters whose add-ons are installed in another way have no such
condition, unless the workload cluster itself lacks them some time after its first Node.
"""

from __future__ import annotations

from datetime import UTC, datetime

from caphv.api import names
from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import CSI_DRIVERS, DEPLOYMENTS, LEASES, Resource, annotations_of, labels_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from reconciler.cluster.scope import ClusterScope

GRACE_SECONDS = 600.0
"""How long after the first Node add-ons may take."""
RECHECK_SECONDS = 600.0
"""How often what is missing is looked for again; nothing in the cache says when it is installed."""
_READY = ConditionType.ADDON_BUNDLES_READY
_NAMESPACE = "kube-system"
# Cloud controller managers elect their leader by this Lease, unless a flag turns that off.
_LEASE, _DEPLOYMENT = "cloud-controller-manager", "harvester-cloud-provider"
_CSI_DRIVER = "driver.harvesterhci.io"


async def report_missing_addons(scope: ClusterScope) -> None:
    """Set the condition if add-ons are missing, and remove it once they exist. It gates nothing."""
    known = get_condition(scope.draft.fields.get("conditions") or [], _READY)
    if known is not None and known.get("reason") != Reason.ADDON_BUNDLES_MISSING:
        return  # a packager reports
    if scope.memory.addons_found or annotations_of(scope.cluster).get(names.SUSPEND_ADDONS_ANNOTATION) == "true":
        scope.draft.drop(_READY)
        return
    workloads = scope.context.workloads
    client = workloads.client(scope.cluster_key)
    if client is None or not workloads.reached(scope.cluster_key):
        return  # enqueued when the workload API answers
    remaining = _grace(scope)
    if remaining > 0:
        scope.requeue_within(remaining)
        return
    try:
        missing = await _missing(client, csi=labels_of(scope.cluster).get(names.CSI_LABEL) != "none")
    except (ApiError, Unreachable):
        scope.requeue_within(RECHECK_SECONDS)
        return
    if not missing:
        scope.memory.addons_found = True
        scope.draft.drop(_READY)
        return
    scope.requeue_within(RECHECK_SECONDS)
    message = (
        f"the workload cluster has no {' and no '.join(missing)}, and no packager has reported its "
        "add-ons: install them, or, if none is wanted, set annotation "
        f"{names.SUSPEND_ADDONS_ANNOTATION}=true on the Cluster"
    )
    if not scope.draft.has_message(_READY, message):
        scope.event(Reason.ADDON_BUNDLES_MISSING, message)
    scope.draft.set_false(_READY, Reason.ADDON_BUNDLES_MISSING, message)


def _grace(scope: ClusterScope) -> float:
    """Seconds until add-ons should exist; without a Node, until it is worth looking again."""
    created = [node["metadata"]["creationTimestamp"] for node in scope.context.workloads.nodes(scope.cluster_key)]
    if not created:
        return GRACE_SECONDS
    return GRACE_SECONDS - (datetime.now(UTC) - datetime.fromisoformat(min(created))).total_seconds()


async def _missing(client: ApiClient, *, csi: bool) -> list[str]:
    missing = []
    leases = await _exists(client, LEASES, _LEASE, _NAMESPACE)
    if not leases and not await _exists(client, DEPLOYMENTS, _DEPLOYMENT, _NAMESPACE):
        missing.append("cloud provider")
    if csi and not await _exists(client, CSI_DRIVERS, _CSI_DRIVER):
        missing.append("CSI driver")
    return missing


async def _exists(client: ApiClient, resource: Resource, name: str, namespace: str = "") -> bool:
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return False
    return True
