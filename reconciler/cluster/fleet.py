"""Labels of a cluster on its Fleet Cluster, so that bundles for CNI, CSI and cloud provider find it.

Rancher imports a Cluster with label `cluster-api.cattle.io/rancher-auto-import=true` in one of two ways (contract):
older versions create a `provisioning.cattle.io` Cluster of the same name, whose status names the managed cluster;
current ones create the managed cluster with labels that name its Cluster. The Fleet Cluster has the name of the managed
cluster.

With Turtles' feature `use-caapf` the managed cluster carries `provisioning.cattle.io/externally-managed`: Rancher makes
no Fleet Cluster. CAAPF makes one in the namespace of the Cluster, owned by it and with its labels.
"""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, key_of, labels_of
from caphv.runtime.cache import Informer
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, ServerFault
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import RANCHER

_READY = ConditionType.FLEET_INTEGRATION_READY
DEFAULT_WORKSPACE = "fleet-default"


async def ensure_fleet_labels(scope: ClusterScope) -> None:
    """Label the Fleet Cluster. Condition `FleetIntegrationReady` reports progress and gates nothing."""
    if labels_of(scope.cluster).get(names.AUTO_IMPORT_LABEL) != "true":
        scope.draft.drop(_READY)
        return
    rancher = scope.context.rancher
    scope.subscribe(RANCHER)
    rancher.start()
    managed, fleet = rancher.informer(resources.MANAGED_CLUSTERS), rancher.informer(resources.FLEET_CLUSTERS)
    if rancher.installed is None or not rancher.synced:
        remaining = scope.memory.grace.remaining(_READY) if scope.draft.has(_READY) else 0.0
        if remaining:
            scope.requeue_within(remaining)
            return
        scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_IN_PROGRESS, "reading the clusters of Rancher")
    elif managed is None or fleet is None:
        message = "this management cluster has no Rancher with Fleet: their CRDs are missing"
        scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_NOT_APPLICABLE, message)
    else:
        try:
            missing = await _label(scope, managed, fleet)
        except (Forbidden, Invalid, NotFound, ServerFault) as error:
            # A webhook of Rancher that does not answer is a fault of the API server, too.
            _failed(scope, error)
        else:
            if missing:
                scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_IN_PROGRESS, missing)
            else:
                scope.draft.set_true(_READY)


def managed_cluster_name(cluster: Key, imported: Obj | None, managed: Iterable[Obj]) -> str:
    """Name of the managed cluster (`management.cattle.io`) of a Cluster, by label or import; empty for none."""
    owner = {names.CAPI_OWNER_LABEL: cluster.name, names.CAPI_OWNER_NAMESPACE_LABEL: cluster.namespace}
    labelled = sorted(str(obj["metadata"]["name"]) for obj in managed if owner.items() <= labels_of(obj).items())
    if labelled:
        return labelled[0]
    return str(((imported or {}).get("status") or {}).get("clusterName") or "")


def fleet_labels(cluster: Obj) -> dict[str, str]:
    """Labels of the Fleet Cluster: its Cluster, and the labels of the Cluster by which bundles are selected.

    Only name and namespace together identify a cluster within a workspace.
    """
    own, (namespace, name) = labels_of(cluster), key_of(cluster)
    chosen = {label: own[label] for label in names.FLEET_LABELS if label in own}
    owner = {names.CAPI_OWNER_LABEL: name, names.CAPI_OWNER_NAMESPACE_LABEL: namespace}
    return {**chosen, **owner, names.CLUSTER_NAME_LABEL: name}


async def _label(scope: ClusterScope, managed: Informer, fleet: Informer) -> str:
    """Write workspace and labels; return what is still missing."""
    imports = scope.context.rancher.informer(resources.RANCHER_CLUSTERS)
    imported = imports.get(*scope.cluster_key) if imports else None
    name = managed_cluster_name(scope.cluster_key, imported, managed.store)
    found = managed.get("", name) if name else None
    if found is None:
        return "waiting for Rancher to import the cluster"
    if found["external"]:
        owner = scope.cluster["metadata"]["uid"]
        theirs = (obj for obj in fleet.store if obj["metadata"]["namespace"] == scope.cluster_key.namespace)
        if any(owner in obj["owners"] for obj in theirs):
            return ""
        return (
            "waiting for CAAPF to import the cluster into Fleet: Rancher leaves that to it, because Turtles has "
            f"feature use-caapf (annotation {names.EXTERNALLY_MANAGED_ANNOTATION})"
        )
    workspace = found["spec"]["fleetWorkspaceName"]
    client = scope.context.client
    if not workspace:
        workspace = DEFAULT_WORKSPACE
        patch: Obj = {"spec": {"fleetWorkspaceName": workspace}}
        managed.observe(await client.patch(resources.MANAGED_CLUSTERS, name, "", patch))
    target = fleet.get(workspace, name)
    if target is None:
        return f"waiting for Fleet Cluster {workspace}/{name}"
    wanted = fleet_labels(scope.cluster)
    if not wanted.items() <= labels_of(target).items():
        patch = {"metadata": {"labels": wanted}}
        fleet.observe(await client.patch(resources.FLEET_CLUSTERS, name, workspace, patch))
        scope.event("FleetClusterLabelled", f"copied the labels of the Cluster to Fleet Cluster {key_of(target)}")
    return ""


def _failed(scope: ClusterScope, error: ApiError) -> None:
    message = f"cannot label the Fleet Cluster: {error.message}"
    if not scope.draft.has_message(_READY, message):
        scope.warning_event(Reason.FLEET_INTEGRATION_FAILED, message)
    scope.draft.set_false(_READY, Reason.FLEET_INTEGRATION_FAILED, message)
    scope.requeue_within(60.0)
