"""Stand-in for Rancher's import of Cluster API clusters: same objects, no connections.

A Cluster with label `cluster-api.cattle.io/rancher-auto-import=true` gets a managed cluster `c-…`: with current Turtles
one with owner labels, with older versions through a `provisioning.cattle.io` Cluster of the same name. Once it has a
workspace, Fleet's Cluster of its name appears there.

Turtles with feature `use-caapf` annotates the managed cluster with `provisioning.cattle.io/externally-managed`. Then
Rancher makes no Fleet Cluster, and CAAPF makes one (`tests/support/caapf.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path

from caphv.api.object import NAMESPACES, Key, Obj, Resource, annotations_of, key_of, labels_of
from caphv.api.resources import FLEET_CLUSTERS, MANAGED_CLUSTERS, RANCHER_CLUSTERS
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import AlreadyExists
from sandbox import manifests
from sandbox.capi.resources import CLUSTERS

AUTO_IMPORT = "cluster-api.cattle.io/rancher-auto-import"
EXTERNALLY_MANAGED = "provisioning.cattle.io/externally-managed"
OWNER, OWNER_NAMESPACE = "cluster-api.cattle.io/capi-cluster-owner", "cluster-api.cattle.io/capi-cluster-owner-ns"
CRDS = Path(__file__).parent / "rancher-crds.yaml"


async def install(client: ApiClient) -> None:
    """Install the CRDs of Rancher that the import needs."""
    await manifests.apply(client, manifests.read([CRDS]))


class Rancher:
    """The import for all Clusters of a management cluster; `turtles` selects the current way."""

    def __init__(self, client: ApiClient, *, turtles: bool = True, use_caapf: bool = False) -> None:
        self._client = client
        self._turtles, self._use_caapf = turtles, use_caapf
        self._clusters = Informer(client, CLUSTERS, max_backoff=2)
        self._managed = Informer(client, MANAGED_CLUSTERS, max_backoff=2)
        self._controller = Controller("rancher", self._reconcile, concurrency=2)

    async def run(self) -> None:
        """Import clusters until cancelled; the CRDs must exist."""
        tasks = [self._clusters.start(), self._managed.start()]
        try:
            await asyncio.gather(self._clusters.wait_synced(), self._managed.wait_synced())
            self._clusters.add_handler(lambda change: self._controller.enqueue(change.key))
            self._managed.add_handler(lambda change: self._controller.enqueue(change.key))
            await self._controller.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reconcile(self, key: Key) -> None:
        if not key.namespace:
            await self._join_fleet(key.name)
            return
        cluster = self._clusters.get(*key)
        if cluster is not None and labels_of(cluster).get(AUTO_IMPORT) == "true":
            await self._import(key)

    async def _import(self, key: Key) -> None:
        name = managed_name(key)
        labels = {OWNER: key.name, OWNER_NAMESPACE: key.namespace} if self._turtles else {}
        annotations = {EXTERNALLY_MANAGED: "true"} if self._use_caapf else {}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        await self._ensure(MANAGED_CLUSTERS, {"metadata": metadata, "spec": {"displayName": key.name}})
        if not self._turtles:
            await self._ensure(
                RANCHER_CLUSTERS, {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": {}}
            )
            status = {"status": {"clusterName": name}}
            await self._client.patch(RANCHER_CLUSTERS, key.name, key.namespace, status, subresource="status")

    async def _join_fleet(self, name: str) -> None:
        managed = self._managed.get("", name)
        workspace = (managed or {}).get("spec", {}).get("fleetWorkspaceName")
        if managed is None or not workspace or annotations_of(managed).get(EXTERNALLY_MANAGED) == "true":
            return
        await self._ensure(NAMESPACES, {"metadata": {"name": workspace}})
        metadata = {"name": name, "namespace": workspace, "labels": {"management.cattle.io/cluster-name": name}}
        await self._ensure(FLEET_CLUSTERS, {"metadata": metadata, "spec": {"clientID": key_of(managed).name}})

    async def _ensure(self, resource: Resource, obj: Obj) -> None:
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        with contextlib.suppress(AlreadyExists):
            await self._client.create(resource, typed)


def managed_name(cluster: Key) -> str:
    """Name of the managed cluster of a Cluster; Rancher's are random, these are predictable."""
    return f"c-{hashlib.sha256(str(cluster).encode()).hexdigest()[:5]}"
