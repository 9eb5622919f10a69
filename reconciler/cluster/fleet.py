"""Label the Fleet Cluster of a cluster, so that bundles for CNI, CSI and cloud provider find it.

Rancher imports a Cluster with label `cluster-api.cattle.io/rancher-auto-import=true` in one of two
ways (contract). Older versions create a `provisioning.cattle.io` Cluster of the same name, whose
status names the managed cluster. Current versions create the managed cluster with labels that name
the Cluster. The Fleet Cluster has the name of the managed cluster.

With Turtles' feature `use-caapf`, the managed cluster carries annotation
`provisioning.cattle.io/externally-managed`, and Rancher creates no Fleet Cluster. CAAPF creates one
in the namespace of the Cluster, with the Cluster as owner and with its labels.
"""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, key_of, labels_of, text_at, uid_of
from caphv.runtime.cache import Informer
from caphv.runtime.errors import Forbidden, Invalid, NotFound, ServerFault
from reconciler.cluster.scope import ClusterScope
from reconciler.remote.rancher import is_externally_managed, is_owned_by_cluster
from reconciler.triggers import RANCHER

_READY = ConditionType.FLEET_INTEGRATION_READY
DEFAULT_WORKSPACE = "fleet-default"


async def ensure_fleet_labels(scope: ClusterScope) -> None:
    """Label the Fleet Cluster, and report it in a condition that gates nothing."""
    if labels_of(scope.cluster).get(names.AUTO_IMPORT_LABEL) != "true":
        scope.draft.drop(_READY)
        return

    rancher = scope.context.rancher
    # The subscription outlives this reconcile, because later changes matter to a ready cluster,
    # too.
    scope.subscribe(RANCHER)
    rancher.start()
    managed = rancher.informer(resources.MANAGED_CLUSTERS)
    fleet = rancher.informer(resources.FLEET_CLUSTERS)
    if rancher.is_installed is None or not rancher.synced:
        _report_reading(scope)
        return

    scope.memory.additional_grace.mark_known(_READY)
    if managed is None or fleet is None:
        message = "this management cluster has no Rancher with Fleet: their CRDs are missing"
        scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_NOT_APPLICABLE, message)
        return

    try:
        missing = await _label(scope, managed, fleet)
    except (Forbidden, Invalid, NotFound, ServerFault) as error:
        # The API server also reports a fault when a webhook of Rancher does not answer.
        message = f"cannot label the Fleet Cluster: {error.message}"
        if not scope.draft.has_message(_READY, message):
            scope.warning_event(Reason.FLEET_INTEGRATION_FAILED, message)
        scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_FAILED, message)
        scope.requeue_within(60.0)
        return
    if missing:
        scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_IN_PROGRESS, missing)
    else:
        scope.draft.set_true(_READY)


def _report_reading(scope: ClusterScope) -> None:
    """Report that the caches of Rancher are not filled, unless the status already says more."""
    if scope.draft.has(_READY):
        remaining = scope.memory.additional_grace.remaining(_READY)
        if remaining:
            scope.requeue_within(remaining)
            return
    scope.draft.set_false(
        _READY, Reason.FLEET_INTEGRATION_IN_PROGRESS, "reading the clusters of Rancher"
    )


def managed_cluster_name(cluster: Key, imported: Obj | None, managed: Iterable[Obj]) -> str:
    """Return the name of the managed cluster (`management.cattle.io`) of a Cluster.

    Labels of the managed cluster name the Cluster, or else the status of the imported cluster names
    the managed cluster. Returns an empty name for none.
    """
    owner = {
        names.CAPI_OWNER_LABEL: cluster.name,
        names.CAPI_OWNER_NAMESPACE_LABEL: cluster.namespace,
    }
    labelled = sorted(
        str(obj["metadata"]["name"]) for obj in managed if owner.items() <= labels_of(obj).items()
    )
    if labelled:
        return labelled[0]
    return text_at(imported, "status", "clusterName")


def fleet_labels(cluster: Obj) -> dict[str, str]:
    """Return the labels of the Fleet Cluster.

    They name the Cluster, with its namespace, because names alone are not unique in a workspace.
    They also repeat the labels of the Cluster by which bundles are selected.
    """
    labels = labels_of(cluster)
    namespace, name = key_of(cluster)
    selecting = {label: labels[label] for label in names.FLEET_LABELS if label in labels}
    owner = {names.CAPI_OWNER_LABEL: name, names.CAPI_OWNER_NAMESPACE_LABEL: namespace}
    return {**selecting, **owner, names.CLUSTER_NAME_LABEL: name}


async def _label(scope: ClusterScope, managed: Informer, fleet: Informer) -> str:
    """Set workspace and labels of the cluster in Rancher and Fleet.

    Returns what the cluster still waits for; empty if the labels are set.
    """
    imports = scope.context.rancher.informer(resources.RANCHER_CLUSTERS)
    imported = imports.get(*scope.cluster_key) if imports else None
    name = managed_cluster_name(scope.cluster_key, imported, managed.store)
    cluster = managed.get("", name) if name else None
    if cluster is None:
        return "waiting for Rancher to import the cluster"
    if is_externally_managed(cluster):
        return _wait_for_caapf(scope, fleet)

    workspace = cluster["spec"]["fleetWorkspaceName"]
    client = scope.context.client
    if not workspace:
        workspace = DEFAULT_WORKSPACE
        patch: Obj = {"spec": {"fleetWorkspaceName": workspace}}
        managed.observe(await client.patch(resources.MANAGED_CLUSTERS, name, "", patch))
    target = fleet.get(workspace, name)
    if target is None:
        return f"waiting for Fleet Cluster {workspace}/{name}"

    labels = fleet_labels(scope.cluster)
    if not labels.items() <= labels_of(target).items():
        patch = {"metadata": {"labels": labels}}
        fleet.observe(await client.patch(resources.FLEET_CLUSTERS, name, workspace, patch))
        scope.event(
            "FleetClusterLabelled",
            f"copied the labels of the Cluster to Fleet Cluster {key_of(target)}",
        )
    return ""


def _wait_for_caapf(scope: ClusterScope, fleet: Informer) -> str:
    """Return a message until CAAPF has created the Fleet Cluster; empty afterwards."""
    uid = uid_of(scope.cluster)
    namespace = scope.cluster_key.namespace
    if any(
        key_of(obj).namespace == namespace and is_owned_by_cluster(obj, uid) for obj in fleet.store
    ):
        return ""
    return (
        "waiting for CAAPF to import the cluster into Fleet: Rancher leaves that to it, "
        "because Turtles has feature use-caapf (annotation "
        f"{names.EXTERNALLY_MANAGED_ANNOTATION})"
    )
