"""Scope of one reconcile of one HarvesterCluster: its objects and the findings of its phases."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from caphv.api import resources
from caphv.api.names import LOAD_BALANCER_SUFFIX, ConditionType, Reason, generated_names
from caphv.api.object import Key, Obj, key_of
from reconciler import triggers
from reconciler.context import Context
from reconciler.harvester.identityaccount import command_for
from reconciler.harvester.ownership import Owner, same_name
from reconciler.harvester.session import Session
from reconciler.harvester.views import TargetNamespace
from reconciler.memory import ClusterMemory
from reconciler.status import Blocked, StatusDraft
from reconciler.triggers import Subscription, Watched


@dataclass(slots=True)
class ClusterScope:
    """`obj` is the HarvesterCluster, `cluster` its Cluster; the session exists after the identity phase.

    With `read_only`, as for a paused cluster, nothing is written to the HarvesterCluster. `requeue_after` is a delay in
    seconds, set where time alone decides.
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
        """What earlier reconciles of this cluster remembered."""
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
        """Name of LoadBalancer and placeholder Service; the Go provider's if it exists for the cluster."""
        name, *former = generated_names(self.obj, LOAD_BALANCER_SUFFIX)
        for candidate in former:
            for informer in (self.connected().services, self.namespace().load_balancers):
                found = informer.get(self.target_namespace, candidate)
                if found and same_name(found, self.owner):
                    return candidate
        return name

    def reservation(self, load_balancer: str) -> str:
        """Id under which pools hold the address of the control plane (contract: `<targetNamespace>/<lb name>`)."""
        return f"{self.target_namespace}/{load_balancer}"

    def connected(self) -> Session:
        """The session. Raises `Blocked` while there is none."""
        if self.session is None:
            raise Blocked(
                ConditionType.HARVESTER_CONNECTION_READY,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                "waiting for the identity to be read",
                Watched.SECRET,
            )
        return self.session

    def namespace(self) -> TargetNamespace:
        """Caches of the target namespace. Raises `Blocked` until they are filled."""
        session = self.connected()
        with self.subscribe(triggers.caches(session.fingerprint)) as caches:
            namespace = session.watch_namespace(self.target_namespace)
            if not namespace.synced:
                raise self._not_read(namespace, caches)
        return namespace

    def current_namespace(self) -> TargetNamespace:
        """Caches in which absence means absence on Harvester, now. Raises `Blocked` while a watch is not connected."""
        session = self.connected()
        with self.subscribe(triggers.caches(session.fingerprint)) as current:
            namespace = self.namespace()
            if not (namespace.current and session.pools.current and session.services.current):
                raise self._not_read(namespace, current)
        return namespace

    def _not_read(self, namespace: TargetNamespace, source: Subscription) -> Blocked:
        session, where = self.connected(), f"namespace {self.target_namespace} on Harvester"
        refusal = session.refusal(namespace, session.pools, session.services)
        if refusal:
            reason = Reason.TARGET_NAMESPACE_NOT_READY
            message = f"{where} cannot be read: {refusal}{command_for(self.target_namespace)}"
        else:
            reason = Reason.TARGET_NAMESPACE_CHECKING
            message = namespace.sync_error or f"reading {where}"
        known = bool(refusal or namespace.sync_error)
        return Blocked(ConditionType.TARGET_NAMESPACE_READY, reason, message, source, warn=known, unknown=not known)

    def warning_event(self, reason: str, message: str) -> None:
        """Emit an Event of type Warning, and log it."""
        self.context.event(resources.HARVESTER_CLUSTERS, self.obj, "Warning", reason, message)
        self.draft.warned = message

    def event(self, reason: str, message: str) -> None:
        """Emit an Event of type Normal, and log it."""
        self.context.event(resources.HARVESTER_CLUSTERS, self.obj, "Normal", reason, message)

    def subscribe(self, *topics: Hashable) -> Subscription:
        """Requeue the cluster when one of these topics changes; to be called before reading their state."""
        return self.context.topics.subscribe(self.context.queues.clusters, self.key, *topics)

    def requeue_within(self, delay: float | None) -> None:
        """Have the cluster reconciled again after at most this many seconds; the shortest delay counts."""
        self.requeue_after = min((wanted for wanted in (self.requeue_after, delay) if wanted), default=None)

    async def drop_annotation(self, name: str) -> None:
        """Remove an annotation from the HarvesterCluster."""
        patch = {"metadata": {"annotations": {name: None}}}
        informer = self.context.caches.harvester_clusters
        self.obj = await self.context.client.patch(informer.resource, self.key.name, self.key.namespace, patch)
        informer.observe(self.obj)
        self.draft.moved_to(self.obj)

    async def patch_spec(self, spec: dict[str, object]) -> None:
        """Merge fields into the spec of the HarvesterCluster."""
        self.obj = await self.context.patch_spec(self.context.caches.harvester_clusters, self.obj, spec)
        self.draft.moved_to(self.obj)
