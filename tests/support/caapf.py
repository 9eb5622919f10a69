"""Stand-in for CAAPF's import of clusters into Fleet, after its `controllers/cluster.rs` and `api/capi_cluster.rs`.

A Cluster whose control plane is initialized gets a Fleet Cluster in its namespace, which becomes a workspace. The Fleet
Cluster is named by `spec.cluster.naming` of the FleetAddonConfig, has labels and annotations of the Cluster, and is
owned by it. `spec.templateValues`, which has the manifests of Cluster, control plane and infrastructure, is left out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from caphv.api.object import NAMESPACES, Key, Obj, annotations_of, key_of, labels_of
from caphv.api.resources import FLEET_CLUSTERS
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from sandbox.capi.resources import CLUSTERS

_CLASS = "clusterclass-{}.fleet.addons.cluster.x-k8s.io"
_WORKSPACE = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"
_MANAGER = "addon-provider-fleet"
_AGENT_NAMESPACE = "fleet-addon-agent"
_TOLERATIONS = [
    {"effect": "NoSchedule", "key": "node.kubernetes.io/not-ready", "operator": "Exists"},
    {"effect": "NoSchedule", "key": "node.cluster.x-k8s.io/uninitialized", "operator": "Exists"},
    {
        "effect": "NoSchedule",
        "key": "node.cloudprovider.kubernetes.io/uninitialized",
        "operator": "Equal",
        "value": "true",
    },
]


@dataclass(frozen=True)
class Naming:
    """`spec.cluster.naming` of the FleetAddonConfig."""

    prefix: str = ""
    suffix: str = ""


def fleet_cluster(cluster: Obj, naming: Naming) -> Obj | None:
    """Return the Fleet Cluster of a Cluster, None while its control plane is not initialized."""
    status = cluster.get("status") or {}
    if not (status.get("initialization") or {}).get("controlPlaneInitialized"):
        return None
    key = key_of(cluster)
    ref = ((cluster["spec"].get("topology") or {}).get("classRef")) or {}
    classes = {"name": ref["name"], "namespace": ref.get("namespace", key.namespace)} if ref else {}
    owner = {name: cluster[name] for name in ("apiVersion", "kind")}
    owner |= {name: cluster["metadata"][name] for name in ("name", "uid")}
    return {
        "apiVersion": FLEET_CLUSTERS.api_version,
        "kind": FLEET_CLUSTERS.kind,
        "metadata": {
            "name": f"{naming.prefix}{key.name}{naming.suffix}",
            "namespace": key.namespace,
            "labels": {**labels_of(cluster), **{_CLASS.format(name): value for name, value in classes.items()}},
            "annotations": annotations_of(cluster),
            "ownerReferences": [owner],
        },
        "spec": {
            "kubeConfigSecret": f"{key.name}-kubeconfig",
            "hostNetwork": True,
            "agentNamespace": _AGENT_NAMESPACE,
            "agentTolerations": _TOLERATIONS,
        },
    }


class Caapf:
    """The import for all Clusters of a management cluster with Fleet."""

    def __init__(self, client: ApiClient, naming: Naming = Naming()) -> None:
        self._client, self._naming = client, naming
        self._clusters = Informer(client, CLUSTERS, max_backoff=2)
        self._controller = Controller("caapf", self._reconcile, concurrency=1)

    async def run(self) -> None:
        """Import clusters until cancelled; the CRDs must exist."""
        task = self._clusters.start()
        try:
            await self._clusters.wait_synced()
            self._clusters.add_handler(lambda change: self._controller.enqueue(change.key))
            await self._controller.run()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _reconcile(self, key: Key) -> None:
        cluster = self._clusters.get(*key)
        # Lists of an API server have no type of their items.
        typed = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, **(cluster or {})}
        found = fleet_cluster(typed, self._naming) if cluster else None
        if found:
            await self._client.apply(FLEET_CLUSTERS, found, manager=_MANAGER)
            metadata = {"name": key.namespace, "annotations": {_WORKSPACE: "true"}}
            workspace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
            await self._client.apply(NAMESPACES, workspace, manager=_MANAGER)
