"""Report a workload cluster without cloud provider or CSI driver, where no packager does so.

A packager writes condition `AddonBundlesReady`. Clusters whose add-ons are installed in another way
have no such condition, unless the workload cluster itself lacks them some time after its first
Node.
"""

from __future__ import annotations

from datetime import UTC, datetime

from caphv.api import names
from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import CSI_DRIVERS, DEPLOYMENTS, LEASES, Resource, annotations_of, labels_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from reconciler.cluster.scope import ClusterScope

GRACE_SECONDS = 600.0
"""Seconds that add-ons may take after the first Node."""
RECHECK_SECONDS = 600.0
"""Seconds between two checks for missing add-ons, because no watch reports their installation."""
_READY = ConditionType.ADDON_BUNDLES_READY
_NAMESPACE = "kube-system"
# Cloud controller managers elect their leader by this Lease, unless a flag turns that off.
_LEASE = "cloud-controller-manager"
_DEPLOYMENT = "harvester-cloud-provider"
_CSI_DRIVER = "driver.harvesterhci.io"


async def report_missing_addons(scope: ClusterScope) -> None:
    """Set the condition if add-ons are missing, and remove it once they exist.

    The condition gates nothing.
    """
    condition = get_condition(scope.draft.fields.get("conditions") or [], _READY)
    if condition is not None and condition.get("reason") != Reason.ADDON_BUNDLES_MISSING:
        return  # a packager reports

    suspended = annotations_of(scope.cluster).get(names.SUSPEND_ADDONS_ANNOTATION) == "true"
    if scope.memory.addons_found or suspended:
        scope.draft.drop(_READY)
        return

    workloads = scope.context.workloads
    client = workloads.client(scope.cluster_key)
    if client is None or not workloads.has_answered(scope.cluster_key):
        return  # an event enqueues the cluster when the workload API answers
    remaining = _grace(scope)
    if remaining > 0:
        scope.requeue_within(remaining)
        return

    # These requests are sent only after the grace period, and never again once add-ons were found.
    needs_csi = labels_of(scope.cluster).get(names.CSI_LABEL) != "none"
    try:
        missing = await _missing(client, csi=needs_csi)
    except RequestError:
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
    """Return the seconds until add-ons should exist, or until the next check without a Node."""
    nodes = scope.context.workloads.nodes(scope.cluster_key)
    created = [node["metadata"]["creationTimestamp"] for node in nodes]
    if not created:
        return GRACE_SECONDS
    age = datetime.now(UTC) - datetime.fromisoformat(min(created))
    return GRACE_SECONDS - age.total_seconds()


async def _missing(client: ApiClient, *, csi: bool) -> list[str]:
    """Name the add-ons that the workload cluster lacks."""
    # A cloud provider that elects no leader has no Lease, so its Deployment counts, too.
    missing = []
    leases = await _exists(client, LEASES, _LEASE, _NAMESPACE)
    if not leases and not await _exists(client, DEPLOYMENTS, _DEPLOYMENT, _NAMESPACE):
        missing.append("cloud provider")
    if csi and not await _exists(client, CSI_DRIVERS, _CSI_DRIVER):
        missing.append("CSI driver")
    return missing


async def _exists(client: ApiClient, resource: Resource, name: str, namespace: str = "") -> bool:
    """Return whether an object exists."""
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return False
    return True
