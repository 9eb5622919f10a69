"""Share caches, sessions, workload clusters, queues and Events among the controllers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from caphv.api import names
from caphv.api.object import Obj, Resource, uid_of
from caphv.api.ownership import Owner, recorded_owner
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.events import EventRecorder, EventType
from reconciler.caches import Caches
from reconciler.harvester.sessions import Sessions
from reconciler.memory.store import Memory
from reconciler.queues import Queues
from reconciler.remote.clusteridentities import ClusterIdentities
from reconciler.remote.ipam import Ipam
from reconciler.remote.objectwatch import ObjectWatches
from reconciler.remote.rancher import Rancher
from reconciler.remote.workloadcluster import WorkloadClusters
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Context:
    """Objects and settings that all reconciles share.

    :param client: client of the management cluster
    :param management_cluster: uid of namespace `kube-system` of the management cluster
    :param namespace: the only namespace that this process may read, empty for all
    :param identity_finalizer: finalizer of identity Secrets in use
    :param cross_namespace_refs: whether a HarvesterCluster may use objects of other namespaces
    :param allow_insecure_identities: whether a kubeconfig may leave the server unverified
    :param updates_in_place: whether the runtime extension for updates in place is served
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
    cluster_identities: ClusterIdentities
    ipam: Ipam
    namespace: str = ""
    identity_finalizer: str = names.identity_finalizer()
    cross_namespace_refs: bool = True
    allow_insecure_identities: bool = False
    updates_in_place: bool = False
    topics: Topics = field(default_factory=Topics)
    memory: Memory = field(default_factory=Memory)

    def owner(self, kind: str, obj: Obj) -> Owner:
        """Return the record that objects on Harvester carry for this object."""
        metadata = obj["metadata"]
        return Owner(
            kind, metadata["namespace"], metadata["name"], metadata["uid"], self.management_cluster
        )

    def belongs_to_another_tenant(self, obj: Obj, owner: Owner) -> bool:
        """Return whether the owner of an object on Harvester exists in another namespace here.

        Tenants may share an account on Harvester. A tenant must not get objects of another tenant
        by what it writes on its own object, such as annotation `caphv.io/adopt` or a providerID.

        :param obj: the object on Harvester
        :param owner: the object that is to own it
        """
        recorded = recorded_owner(obj)
        if recorded is None or recorded.management_cluster != owner.management_cluster:
            return False
        if recorded.namespace == owner.namespace:
            return False
        informers = (self.caches.harvester_machines, self.caches.harvester_clusters)
        cache = next(
            (informer for informer in informers if informer.resource.kind == recorded.kind), None
        )
        living = cache.get(recorded.namespace, recorded.name) if cache else None
        return living is not None and uid_of(living) == recorded.uid

    def event(
        self, resource: Resource, obj: Obj, kind: EventType, reason: str, message: str
    ) -> None:
        """Queue an Event about an object, and log it."""
        # By default, the API server deletes Events after an hour; the log keeps them for longer.
        log.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, message)
        about = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": obj["metadata"],
        }
        self.events.event(about, kind, reason, message)

    async def ensure_finalizer(
        self, informer: Informer, obj: Obj, finalizer: str, legacy: str
    ) -> None:
        """Add our finalizer, and remove the finalizer of early releases.

        Call this before anything exists that the finalizer has to protect.

        :param informer: the cache of the object
        :param obj: the object
        :param finalizer: our finalizer
        :param legacy: the finalizer of early releases, empty for none
        """
        present = obj["metadata"].get("finalizers") or []
        intended = [name for name in present if name != legacy]
        if finalizer not in intended:
            intended.append(finalizer)
        if intended != present:
            await self._patch_finalizers(informer, obj, intended)
            self._log_life(informer, "new")

    async def remove_finalizer(self, informer: Informer, obj: Obj, *finalizers: str) -> None:
        """Remove our finalizers, so that the API server can delete the object."""
        present = obj["metadata"].get("finalizers") or []
        remaining = [name for name in present if name not in finalizers]
        if remaining != present:
            await self._patch_finalizers(informer, obj, remaining)
            self._log_life(informer, "deleted")

    async def patch_spec(self, informer: Informer, obj: Obj, spec: dict[str, object]) -> Obj:
        """Merge fields into the spec; return the new object."""
        metadata = obj["metadata"]
        patched = await self.client.patch(
            informer.resource, metadata["name"], metadata["namespace"], {"spec": spec}
        )
        informer.observe(patched)
        return patched

    async def write_status(self, informer: Informer, obj: Obj, draft: StatusDraft) -> None:
        """Write the status if it differs, as one patch.

        Raises `Conflict` if another client wrote the object.
        """
        status = draft.patch()
        if status is None:
            return

        # The version is a precondition for two reasons: conditions are one list that others write,
        # too, and a write that is delayed past the loss of the lease must not undo writes of the
        # next leader.
        metadata = obj["metadata"]
        patch = {"metadata": {"resourceVersion": draft.version}, "status": status}
        written = await self.client.patch(
            informer.resource, metadata["name"], metadata["namespace"], patch, subresource="status"
        )
        informer.observe(written)
        news = draft.readiness_news()
        draft.confirm(written)
        if news:
            log.info("%s is %s", informer.resource.kind, news)

    def _log_life(self, informer: Informer, state: str) -> None:
        """Log that an object is new or deleted, as its finalizer shows.

        :param state: `new` or `deleted`
        """
        # The finalizer of an identity Secret may be set and removed while the Secret exists.
        if informer is not self.caches.secrets:
            log.info("%s is %s", informer.resource.kind, state)

    async def _patch_finalizers(self, informer: Informer, obj: Obj, finalizers: list[str]) -> None:
        """Replace the finalizers of an object, unless it has changed. Raises `Conflict`."""
        metadata = obj["metadata"]
        # Other controllers write the same list. Without the precondition, this patch could remove
        # their finalizers.
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}
        }
        patched = await self.client.patch(
            informer.resource, metadata["name"], metadata["namespace"], patch
        )
        informer.observe(patched)
