"""Reconciles one HarvesterCluster: its phases in order, one status patch at the end."""

from __future__ import annotations

import contextlib
import time

from caphv.api import clusterapi, names
from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, being_deleted, key_of
from caphv.runtime import logs
from caphv.runtime.controller import Result
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unauthorized, Unreachable
from reconciler import metrics
from reconciler.caches import cluster_name
from reconciler.cluster import (
    addons,
    cloudconfig,
    connection,
    deletion,
    endpoint,
    failuredomains,
    fleet,
    guestname,
    identity,
    limits,
    loadbalancer,
    pools,
    refusals,
)
from reconciler.cluster.identityprotection import IdentityProtection
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.harvester.ownership import wants_adoption
from reconciler.status import Blocked, StatusDraft
from reconciler.triggers import Delay, Watched

# Seconds until a request that was refused once is retried.
_REFUSED_ONCE = 5.0
_FINALIZERS = {names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER}


class ClusterReconciler:
    """`reconcile` takes the key of a HarvesterCluster."""

    def __init__(self, context: Context, protection: IdentityProtection) -> None:
        self._context = context
        self._protection = protection
        self._identities = identity.Identities(
            allow_insecure=context.allow_insecure_identities, namespace=context.namespace
        )

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one HarvesterCluster closer to its spec. Raises `ApiError`, `Unreachable` for a retry."""
        obj = self._context.caches.harvester_clusters.get(*key)
        if obj is None:
            await self._gone(key)
            return None
        operation = "delete" if being_deleted(obj) else "normal"
        started = time.monotonic()
        try:
            with logs.context(cluster=f"{key.namespace}/{cluster_name(obj)}"):
                return await self._reconcile(obj)
        finally:
            metrics.CLUSTER_RECONCILE_SECONDS.labels(operation).observe(time.monotonic() - started)

    async def _reconcile(self, obj: Obj) -> Result | None:
        cluster = self._context.caches.cluster_of(obj)
        if cluster is None:
            return await self._without_cluster(obj) if being_deleted(obj) else None
        scope = ClusterScope(self._context, obj, cluster, StatusDraft(obj))
        if clusterapi.externally_managed(obj):
            _remove_metric(scope.key)
            return await self._read_only(scope)
        if clusterapi.paused(cluster, obj):
            _remove_metric(scope.key)
            scope.draft.set_true(ConditionType.PAUSED)
            await self._write_status(scope)
            return await self._read_only(scope)
        scope.draft.set_false(ConditionType.PAUSED, Reason.NOT_PAUSED)
        return await self._attempt(scope)

    async def _read_only(self, scope: ClusterScope) -> Result:
        """Connect a paused or externally managed cluster for its machines, and renew credentials of its guests."""
        unwritten = ClusterScope(self._context, scope.obj, scope.cluster, StatusDraft(scope.obj), read_only=True)
        try:
            await self._connect(unwritten)
        except Blocked as blocked:
            unwritten.requeue_within(blocked.requeue_after)
            await cloudconfig.renew_cloud_config(unwritten, blocked.message)
            return Result(requeue_after=unwritten.requeue_after)
        except Unauthorized:
            if unwritten.session is None:
                raise
            unwritten.session.probe()
            return Result(requeue_after=_REFUSED_ONCE)
        await cloudconfig.renew_cloud_config(unwritten, "the cluster is paused")
        return Result(requeue_after=unwritten.requeue_after)

    async def _connect(self, scope: ClusterScope) -> None:
        """Give the cluster and its machines a session to its Harvester. Raises `Blocked` while there is none."""
        try:
            await identity.ensure_session(scope, self._identities, self._protection)
            await connection.ensure_connection(scope)
        except Blocked as blocked:
            self._connection_result(scope, "" if blocked.unknown else blocked.message)
            raise
        finally:
            limits.report_limits(scope)
        self._connection_result(scope, "")

    def _connection_result(self, scope: ClusterScope, error: str) -> None:
        if scope.memory.connection_error == error:
            return
        scope.memory.connection_error = error
        for machine in self._context.caches.machines_of(scope.cluster):
            self._context.queues.machines.add(key_of(machine))

    async def _without_cluster(self, obj: Obj) -> Result | None:
        """Handle a deletion without a Cluster."""
        if not obj["metadata"].get("ownerReferences"):
            await self._remove_finalizer(obj)  # nothing is created before Cluster API has set the owner
        elif not clusterapi.paused(None, obj) and set(obj["metadata"].get("finalizers") or ()) & _FINALIZERS:
            scope = ClusterScope(self._context, obj, _lost_cluster(obj), StatusDraft(obj))
            try:
                deletion.require_no_machines(scope)
                raise deletion.orphaned()
            except Blocked as blocked:
                return await self._blocked(scope, blocked)
        return None

    async def _attempt(self, scope: ClusterScope) -> Result | None:
        try:
            if being_deleted(scope.obj):
                await self._delete(scope)
                return None
            await self._normal(scope)
        except Blocked as blocked:
            return await self._blocked(scope, blocked)
        except Unauthorized:
            if scope.session is None:
                raise
            scope.session.probe()
            return await self._blocked(scope, connection.refused(scope, Delay(_REFUSED_ONCE)))
        except (ApiError, Unreachable) as error:
            # A refused request needs a user's action. A cluster that is ready stays so.
            if isinstance(error, (Forbidden, Invalid)):
                refused = _refused(scope, error)
                if being_deleted(scope.obj) and refusals.by_harvester(error):
                    if deletion.may_force_delete(scope.obj, refused):
                        await self._force_delete(scope, refused)
                        return None
                    refused.message += deletion.advice(refused)
                if being_deleted(scope.obj) or not scope.draft.fields.get("ready"):
                    self._report(scope, refused)
            connection.note_lost_namespace(scope, error)
            await cloudconfig.renew_cloud_config(scope, str(error))
            await self._write(scope)
            raise
        await self._write(scope)
        return Result(requeue_after=scope.requeue_after)

    async def _normal(self, scope: ClusterScope) -> None:
        await self._context.ensure_finalizer(
            self._context.caches.harvester_clusters,
            scope.obj,
            names.CLUSTER_FINALIZER,
            names.LEGACY_CLUSTER_FINALIZER,
        )
        scope.obj = self._context.caches.harvester_clusters.get(*scope.key) or scope.obj
        scope.draft.moved_to(scope.obj)
        await self._connect(scope)
        await connection.ensure_namespace(scope)
        guestname.require_unique_name(scope)
        failuredomains.ensure_failure_domains(scope)
        await pools.ensure_vm_pool(scope)
        await endpoint.ensure_endpoint(scope)
        await loadbalancer.ensure_load_balancer(scope)
        scope.memory.grace.known()
        if not scope.draft.is_true(ConditionType.INFRASTRUCTURE_READY):
            scope.event("InfrastructureReady", "infrastructure is ready for machines")
        scope.draft.set_true(ConditionType.INFRASTRUCTURE_READY)
        scope.draft.set_true(ConditionType.READY)
        scope.draft.provisioned(ready=True)
        await self._context.workloads.ensure(scope.cluster_key)
        await fleet.ensure_fleet_labels(scope)
        await cloudconfig.ensure_cloud_config(scope)
        await addons.report_missing_addons(scope)
        if wants_adoption(scope.obj):
            # Once: otherwise two management clusters with the annotation would adopt from each other forever.
            await scope.drop_annotation(names.ADOPT_ANNOTATION)

    async def _delete(self, scope: ClusterScope) -> None:
        if not set(scope.obj["metadata"].get("finalizers") or ()) & _FINALIZERS:
            return  # done; other finalizers keep the object
        try:
            await self._connect(scope)
        except Blocked:
            deletion.require_no_machines(scope)
            raise
        deletion.require_no_machines(scope)
        await deletion.delete_infrastructure(scope)
        await cloudconfig.delete_cloud_config(scope)
        scope.event("InfrastructureDeleted", "deleted all objects of this cluster on Harvester")
        await self._remove_finalizer(scope.obj)

    async def _blocked(self, scope: ClusterScope, blocked: Blocked) -> Result | None:
        scope.requeue_within(blocked.requeue_after)
        if being_deleted(scope.obj):
            if deletion.never_provisioned(scope.obj) and not self._context.caches.machines_of(scope.cluster):
                await self._remove_finalizer(scope.obj)
                return None
            if deletion.may_force_delete(scope.obj, blocked):
                await self._force_delete(scope, blocked)
                return None
            blocked.message += deletion.advice(blocked)
        elif not blocked.unknown:
            scope.memory.grace.known()
        elif _was_known(scope, blocked) and (remaining := scope.memory.grace.remaining(blocked.condition)):
            # What was known stays while this process, or its connection, starts.
            scope.requeue_within(remaining)
            return Result(requeue_after=scope.requeue_after)
        await cloudconfig.renew_cloud_config(scope, blocked.message)
        self._report(scope, blocked)
        await self._write(scope)
        return Result(requeue_after=scope.requeue_after)

    async def _force_delete(self, scope: ClusterScope, blocked: Blocked) -> None:
        message = f"force-deleted because {blocked.message}; {deletion.left_over(scope.obj)}"
        scope.warning_event("ForcedDeletion", message)
        await self._remove_finalizer(scope.obj)

    def _report(self, scope: ClusterScope, blocked: Blocked) -> None:
        scope.draft.set_false(blocked.condition, blocked.reason, blocked.message)
        # Cluster API would report the cluster as unavailable, although an outage of Harvester's API stops no VM.
        stays_ready = blocked.outage and scope.draft.fields.get("ready") and not being_deleted(scope.obj)
        if not stays_ready:
            for summary in (ConditionType.INFRASTRUCTURE_READY, ConditionType.READY):
                if summary is not blocked.condition:
                    scope.draft.set_false(summary, blocked.reason, blocked.message)
            scope.draft.provisioned(ready=False)
        if blocked.warn and not scope.draft.has_message(blocked.condition, blocked.message):
            scope.warning_event(blocked.reason, blocked.message)

    async def _write(self, scope: ClusterScope) -> None:
        ready = bool(scope.draft.fields.get("ready"))
        metrics.CLUSTER_READY.labels(str(scope.key)).set(int(ready))
        await self._write_status(scope)

    async def _write_status(self, scope: ClusterScope) -> None:
        await self._context.write_status(self._context.caches.harvester_clusters, scope.obj, scope.draft)

    async def _remove_finalizer(self, obj: Obj) -> None:
        try:
            await self._context.remove_finalizer(
                self._context.caches.harvester_clusters, obj, names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER
            )
        except NotFound:
            self._context.caches.harvester_clusters.forget(*key_of(obj))

    async def _gone(self, key: Key) -> None:
        self._context.memory.forget_cluster(key)
        await self._context.object_watches.forget(key)
        self._identities.release(key)
        await self._context.sessions.release(key)
        _remove_metric(key)


def _remove_metric(key: Key) -> None:
    """Of a cluster that no longer exists, or whose state is not observed because it is paused or managed by others."""
    with contextlib.suppress(KeyError):
        metrics.CLUSTER_READY.remove(str(key))


def _was_known(scope: ClusterScope, blocked: Blocked) -> bool:
    """Whether the stored status says more than "unknown": that the cluster is ready, or why it was not.

    A condition that reports a failure already gets the current cause at once.
    """
    status = scope.obj.get("status") or {}
    reported = get_condition(status.get("conditions") or [], blocked.condition)
    if blocked.warn and reported is not None and reported.get("status") == "False":
        return False
    return bool(status.get("ready")) or (not blocked.warn and reported is not None)


def _lost_cluster(obj: Obj) -> Obj:
    """What is known of a deleted Cluster: its name and namespace."""
    return {"metadata": {"name": cluster_name(obj), "namespace": obj["metadata"]["namespace"]}}


def _refused(scope: ClusterScope, error: ApiError) -> Blocked:
    return Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        f"a request was refused {refusals.explained(error, scope.target_namespace)}",
        Watched.SELF,  # and the back-off of the failed reconcile
        warn=True,
    )
