"""What the controllers work with: caches of the management cluster, sessions, workload clusters, events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from caphv.api import clusterapi, resources
from caphv.api.object import Key, Obj, Resource, key_of, owner_reference
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.events import EventRecorder
from reconciler.harvester.ownership import Owner
from reconciler.harvester.session import Sessions
from reconciler.remote.objectwatch import SingleWatches
from reconciler.remote.rancher import Rancher
from reconciler.remote.workloadcluster import Workloads
from reconciler.status import StatusDraft, Waiters


@dataclass(slots=True)
class Context:
    """Everything around a reconcile.

    `management_cluster` is the uid of the `kube-system` namespace there, `namespace` the only one that this process may
    look into, empty for all.
    """

    client: ApiClient
    management_cluster: str
    events: EventRecorder
    clusters: Informer
    machines: Informer
    secrets: Informer
    harvester_clusters: Informer
    harvester_machines: Informer
    harvester_machine_templates: Informer
    sessions: Sessions
    workloads: Workloads
    singles: SingleWatches
    rancher: Rancher
    waiters: Waiters
    enqueue_cluster: Callable[[Key], None]
    enqueue_machine: Callable[[Key], None]
    enqueue_template: Callable[[Key], None]
    namespace: str = ""
    allow_insecure_identities: bool = False
    # When (monotonic) this process had the VM of a machine deleted, by the machine's uid, until all of it is gone.
    deleting: dict[str, float] = field(default_factory=dict)
    # Machines, by uid, whose etcd member is gone while their deletion goes on.
    members_removed: set[str] = field(default_factory=set)
    # The kubeconfig that new guests of a HarvesterCluster find in a file: each machine needs it, and it stays the same.
    guest_kubeconfigs: dict[Key, str] = field(default_factory=dict, repr=False)

    def owner(self, kind: str, obj: Obj) -> Owner:
        """The record that objects on Harvester carry for this object."""
        metadata = obj["metadata"]
        return Owner(kind, metadata["namespace"], metadata["name"], metadata["uid"], self.management_cluster)

    def cluster_of(self, obj: Obj) -> Obj | None:
        """The Cluster of a HarvesterCluster (its owner) or of a machine (Cluster API's label)."""
        name = _cluster_name(obj)
        return self.clusters.get(obj["metadata"]["namespace"], name) if name else None

    def lost_cluster_of(self, obj: Obj) -> Obj:
        """What is known of the Cluster of an object when it is gone: its name and namespace."""
        return {"metadata": {"name": _cluster_name(obj), "namespace": obj["metadata"]["namespace"]}}

    def harvester_cluster_of(self, cluster: Obj) -> Obj | None:
        """The HarvesterCluster that a Cluster refers to."""
        kind, name = clusterapi.infrastructure_ref(cluster)
        if kind != resources.HARVESTER_CLUSTERS.kind:
            return None
        return self.harvester_clusters.get(cluster["metadata"]["namespace"], name)

    def machines_of(self, cluster: Obj) -> list[Obj]:
        """HarvesterMachines of a Cluster, ordered by name."""
        return self.harvester_machines.store.by_index("cluster", str(key_of(cluster)))

    def templates_of(self, cluster: Obj) -> list[Obj]:
        """HarvesterMachineTemplates of a Cluster."""
        return self.harvester_machine_templates.store.by_index("cluster", str(key_of(cluster)))

    async def ensure_finalizer(self, informer: Informer, obj: Obj, finalizer: str, legacy: str) -> None:
        """Write our finalizer (and swap the one of early releases) before anything exists that it has to protect."""
        present = obj["metadata"].get("finalizers") or []
        wanted = [f for f in present if f != legacy]
        if finalizer not in wanted:
            wanted.append(finalizer)
        if wanted != present:
            await self._patch_finalizers(informer, obj, wanted)

    async def remove_finalizer(self, informer: Informer, obj: Obj, *finalizers: str) -> None:
        """Let the API server delete the object: nothing of ours is left of it."""
        present = obj["metadata"].get("finalizers") or []
        wanted = [f for f in present if f not in finalizers]
        if wanted != present:
            await self._patch_finalizers(informer, obj, wanted)

    async def patch_spec(self, informer: Informer, obj: Obj, spec: dict[str, object]) -> Obj:
        """Merge fields into the spec; answers the new object."""
        metadata = obj["metadata"]
        new = await self.client.patch(informer.resource, metadata["name"], metadata["namespace"], {"spec": spec})
        informer.observe(new)
        return new

    async def write_status(self, informer: Informer, obj: Obj, draft: StatusDraft) -> None:
        """Write the status if it differs, as one patch."""
        patch = draft.patch()
        if patch is None:
            return
        metadata = obj["metadata"]
        informer.observe(
            await self.client.patch(
                informer.resource, metadata["name"], metadata["namespace"], {"status": patch}, subresource="status"
            )
        )
        draft.written()

    async def _patch_finalizers(self, informer: Informer, obj: Obj, finalizers: list[str]) -> None:
        metadata = obj["metadata"]
        # Others keep finalizers in the same list: without the precondition theirs could be lost.
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        new = await self.client.patch(informer.resource, metadata["name"], metadata["namespace"], patch)
        if new["metadata"].get("finalizers") or "deletionTimestamp" not in new["metadata"]:
            informer.observe(new)


def with_kind(resource: Resource, obj: Obj) -> Obj:
    """Objects from a list lack kind and version, which Events need."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": obj["metadata"]}


def _cluster_name(obj: Obj) -> str:
    reference = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    return str(reference["name"]) if reference else clusterapi.cluster_name(obj)
