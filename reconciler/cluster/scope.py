"""Scope of one reconcile of one HarvesterCluster: its objects and the findings of its phases."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from caphv.api import names, resources
from caphv.api.names import LOAD_BALANCER_SUFFIX, ConditionType, Reason, generated_names
from caphv.api.object import Key, Obj, key_of
from caphv.api.ownership import Owner, same_name
from reconciler import triggers
from reconciler.blocked import Blocked, Cause
from reconciler.context import Context
from reconciler.harvester.rights import command_for
from reconciler.harvester.session import Session
from reconciler.harvester.views import TargetNamespace
from reconciler.memory.cluster import ClusterMemory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Subscription, Watched


@dataclass(slots=True)
class ClusterScope:
    """Objects and findings of one reconcile of a HarvesterCluster.

    :param obj: the HarvesterCluster
    :param cluster: the Cluster that owns it
    :param draft: the status that the reconcile writes at its end
    :param session: the session, set by the phase that reads the identity
    :param requeue_after: delay in seconds, set by phases that depend on time
    :param read_only: write nothing to the HarvesterCluster, as for a paused cluster
    """

    context: Context
    obj: Obj
    cluster: Obj
    draft: StatusDraft
    session: Session | None = None
    requeue_after: float | None = None
    read_only: bool = False

    @property
    def key(self) -> Key:
        """Key of the HarvesterCluster."""
        return key_of(self.obj)

    @property
    def cluster_key(self) -> Key:
        """Key of the Cluster."""
        return key_of(self.cluster)

    @property
    def memory(self) -> ClusterMemory:
        """Memory of earlier reconciles of this cluster."""
        return self.context.memory.cluster(self.obj)

    @property
    def target_namespace(self) -> str:
        """Namespace on Harvester of all namespaced objects."""
        return str(self.obj["spec"]["targetNamespace"])

    @property
    def owner(self) -> Owner:
        """Owner record of the cluster's objects on Harvester."""
        return self.context.owner(resources.HARVESTER_CLUSTERS.kind, self.obj)

    @property
    def load_balancer_name(self) -> str:
        """Name of LoadBalancer and placeholder Service.

        This is the Go provider's name if an object with that name exists for the cluster.
        """
        # Check both kinds, because the Service exists before the LoadBalancer.
        name, *former_names = generated_names(self.obj, LOAD_BALANCER_SUFFIX)
        for former in former_names:
            for informer in (self.require_session().services, self.namespace().load_balancers):
                balancer = informer.get(self.target_namespace, former)
                if balancer and same_name(balancer, self.owner):
                    return former
        return name

    def reservation(self, load_balancer: str) -> str:
        """Return the id under which pools hold the address of the control plane (contract)."""
        return f"{self.target_namespace}/{load_balancer}"

    def require_session(self) -> Session:
        """Return the session. Raises `Blocked` while there is none."""
        if self.session is None:
            raise Blocked(
                ConditionType.HARVESTER_CONNECTION_READY,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                "waiting for the identity to be read",
                Watched.SECRET,
            )
        return self.session

    def namespace(self) -> TargetNamespace:
        """Return the caches of the target namespace. Raises `Blocked` until they are filled."""
        session = self.require_session()
        with self.subscribe(triggers.caches(session.fingerprint)) as caches:
            namespace = session.watch_namespace(self.target_namespace)
            if not namespace.synced:
                raise self._cannot_read(namespace, caches)
        return namespace

    def require_current_namespace(self) -> TargetNamespace:
        """Return caches that follow Harvester. Raises `Blocked` while a watch is not connected."""
        session = self.require_session()
        with self.subscribe(triggers.caches(session.fingerprint)) as caches:
            namespace = self.namespace()
            if not (namespace.current and session.pools.current and session.services.current):
                raise self._cannot_read(namespace, caches)
        return namespace

    def _cannot_read(self, namespace: TargetNamespace, source: Subscription) -> Blocked:
        """Return why the caches of the namespace are not filled, or not current."""
        session = self.require_session()
        where = f"namespace {self.target_namespace} on Harvester"
        refusal = session.refusal(namespace, session.pools, session.services)

        if refusal:
            reason = Reason.TARGET_NAMESPACE_NOT_READY
            message = f"{where} cannot be read: {refusal}{command_for(self.target_namespace)}"
        else:
            reason = Reason.TARGET_NAMESPACE_CHECKING
            message = namespace.sync_error or f"reading {where}"

        has_cause = bool(refusal or namespace.sync_error)
        return Blocked(
            ConditionType.TARGET_NAMESPACE_READY,
            reason,
            message,
            source,
            warn=has_cause,
            cause=Cause.MISSING if has_cause else Cause.UNKNOWN,
        )

    def warning_event(self, reason: str, message: str) -> None:
        """Emit an Event of type Warning, and log it."""
        self.context.event(resources.HARVESTER_CLUSTERS, self.obj, "Warning", reason, message)
        self.draft.warned = message

    def event(self, reason: str, message: str) -> None:
        """Emit an Event of type Normal, and log it."""
        self.context.event(resources.HARVESTER_CLUSTERS, self.obj, "Normal", reason, message)

    def subscribe(self, *topics: Hashable) -> Subscription:
        """Requeue the cluster when a topic changes. Call this before reading the topics' state."""
        return self.context.topics.subscribe(self.context.queues.clusters, self.key, *topics)

    def requeue_within(self, delay: float | None) -> None:
        """Requeue the cluster after at most this many seconds. The shortest delay counts."""
        delays = filter(None, (self.requeue_after, delay))
        self.requeue_after = min(delays, default=None)

    async def drop_adopt_annotation(self) -> None:
        """Remove the annotation that asks for an adoption from the HarvesterCluster."""
        patch = {"metadata": {"annotations": {names.ADOPT_ANNOTATION: None}}}
        informer = self.context.caches.harvester_clusters
        self.obj = await self.context.client.patch(
            informer.resource, self.key.name, self.key.namespace, patch
        )
        informer.observe(self.obj)
        self.draft.rebase(self.obj)

    async def patch_spec(self, spec: dict[str, object]) -> None:
        """Merge fields into the spec of the HarvesterCluster."""
        self.obj = await self.context.patch_spec(
            self.context.caches.harvester_clusters, self.obj, spec
        )
        self.draft.rebase(self.obj)
