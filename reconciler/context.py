"""What the controllers work with: caches, sessions, workload clusters, queues, Events."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from caphv.api import names
from caphv.api.object import Obj, Resource, uid_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.events import EventRecorder, EventType
from reconciler.caches import Caches
from reconciler.harvester.ownership import Owner, recorded_owner
from reconciler.harvester.sessions import Sessions
from reconciler.memory import Memory
from reconciler.queues import Queues
from reconciler.remote.objectwatch import ObjectWatches
from reconciler.remote.rancher import Rancher
from reconciler.remote.workloadcluster import WorkloadClusters
from reconciler.status import StatusDraft
from reconciler.triggers import Topics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Context:
    """Everything around a reconcile.

    `management_cluster` is the uid of namespace `kube-system` there. `namespace` is the only one that this process may
    read, empty for all. `identity_finalizer` is set on identity Secrets in use. Without
    `cross_namespace_refs`, objects of other namespaces than the HarvesterCluster's are not used.
    """

    client: ApiClient
    management_cluster: str
    events: EventRecorder
    caches: Caches
    queues: Queues
    sessions: Sessions
    workloads: WorkloadClusters
    object_watches: ObjectWatches
    rancher: Rancher
    namespace: str = ""
    identity_finalizer: str = names.identity_finalizer()
    cross_namespace_refs: bool = True
    allow_insecure_identities: bool = False
    topics: Topics = field(default_factory=Topics)
    memory: Memory = field(default_factory=Memory)

    def owner(self, kind: str, obj: Obj) -> Owner:
        """The record that objects on Harvester carry for this object."""
        metadata = obj["metadata"]
        return Owner(kind, metadata["namespace"], metadata["name"], metadata["uid"], self.management_cluster)

    def belongs_to_another_tenant(self, obj: Obj, owner: Owner) -> bool:
        """Whether the owner of an object on Harvester exists here, in another namespace than `owner`.

        Tenants may share an account on Harvester. What a tenant writes on its own object, such as annotation
        `caphv.io/adopt` or a providerID, gives it nothing of another one.
        """
        recorded = recorded_owner(obj)
        if recorded is None or recorded.management_cluster != owner.management_cluster:
            return False
        if recorded.namespace == owner.namespace:
            return False
        informers = (self.caches.harvester_machines, self.caches.harvester_clusters)
        cache = next((informer for informer in informers if informer.resource.kind == recorded.kind), None)
        living = cache.get(recorded.namespace, recorded.name) if cache else None
        return living is not None and uid_of(living) == recorded.uid

    def event(self, resource: Resource, obj: Obj, kind: EventType, reason: str, message: str) -> None:
        """Queue an Event about an object, and log it: the log keeps it for longer."""
        log.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, message)
        about = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": obj["metadata"]}
        self.events.event(about, kind, reason, message)

    async def ensure_finalizer(self, informer: Informer, obj: Obj, finalizer: str, legacy: str) -> None:
        """Add our finalizer, in place of the one of early releases, before anything exists that it has to protect."""
        present = obj["metadata"].get("finalizers") or []
        wanted = [f for f in present if f != legacy]
        if finalizer not in wanted:
            wanted.append(finalizer)
        if wanted != present:
            await self._patch_finalizers(informer, obj, wanted)
            self._log_life(informer, "new")

    async def remove_finalizer(self, informer: Informer, obj: Obj, *finalizers: str) -> None:
        """Remove our finalizers, so that the API server deletes the object."""
        present = obj["metadata"].get("finalizers") or []
        wanted = [f for f in present if f not in finalizers]
        if wanted != present:
            await self._patch_finalizers(informer, obj, wanted)
            self._log_life(informer, "deleted")

    async def patch_spec(self, informer: Informer, obj: Obj, spec: dict[str, object]) -> Obj:
        """Merge fields into the spec; return the new object."""
        metadata = obj["metadata"]
        new = await self.client.patch(informer.resource, metadata["name"], metadata["namespace"], {"spec": spec})
        informer.observe(new)
        return new

    async def write_status(self, informer: Informer, obj: Obj, draft: StatusDraft) -> None:
        """Write the status if it differs, as one patch. Raises `Conflict` if another client wrote the object.

        The version is a precondition, because conditions are one list that others write, too, and because a write that
        is delayed past the loss of the lease must not undo those of the next leader.
        """
        status = draft.patch()
        if status is None:
            return
        metadata = obj["metadata"]
        patch = {"metadata": {"resourceVersion": draft.version}, "status": status}
        new = await self.client.patch(
            informer.resource, metadata["name"], metadata["namespace"], patch, subresource="status"
        )
        informer.observe(new)
        news = draft.readiness_news()
        draft.written(new)
        if news:
            log.info("%s is %s", informer.resource.kind, news)

    def _log_life(self, informer: Informer, what: str) -> None:
        # An identity Secret stays: the finalizer only protects it.
        if informer is not self.caches.secrets:
            log.info("%s is %s", informer.resource.kind, what)

    async def _patch_finalizers(self, informer: Informer, obj: Obj, finalizers: list[str]) -> None:
        metadata = obj["metadata"]
        # The list is shared: without the precondition, finalizers of others could be lost.
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        new = await self.client.patch(informer.resource, metadata["name"], metadata["namespace"], patch)
        informer.observe(new)
