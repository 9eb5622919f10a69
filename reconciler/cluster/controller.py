"""Reconcile one HarvesterCluster: run its phases in order, and patch the status once at the end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from caphv.api import clusterapi, names, parking
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, at, being_deleted, key_of
from caphv.api.ownership import wants_adoption
from caphv.runtime import logs
from caphv.runtime.controller import Result
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, RequestError, Unauthorized
from reconciler import metrics
from reconciler.blocked import Blocked
from reconciler.caches import cluster_name
from reconciler.cluster import (
    addons,
    backups,
    cloudconfig,
    connection,
    deletion,
    endpoint,
    externalendpoint,
    failuredomains,
    fleet,
    guestbalancers,
    guestname,
    guestvolumes,
    images,
    loadbalancer,
    pools,
    refusals,
    report,
)
from reconciler.cluster.connector import REFUSED_ONCE, Connector
from reconciler.cluster.evacuation.phase import evacuate_hosts
from reconciler.cluster.identityprotection import IdentityProtection
from reconciler.cluster.parking import phase as park
from reconciler.cluster.parking.schedule import follow_schedule
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Delay

_FINALIZERS = {names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER}
_Phase = Callable[[ClusterScope], Awaitable[None] | None]


class ClusterReconciler:
    """Reconcile HarvesterClusters, one key at a time.

    The phases of a cluster run in the order of the list in `__init__`. Each phase relies on the
    results of the phases before it, and raises `Blocked` while it has to wait.
    """

    def __init__(self, context: Context, protection: IdentityProtection) -> None:
        self._context = context
        self._connector = Connector(context, protection)

        self._phases: tuple[_Phase, ...] = (
            # Connect to Harvester.
            self._ensure_finalizer,
            self._connector.connect,
            connection.ensure_namespace,
            self._record_guest,
            park.finish_resume,
            evacuate_hosts,
            guestname.require_unique_name,
            # Create the infrastructure that machines need.
            failuredomains.ensure_failure_domains,
            pools.ensure_vm_pool,
            self._ensure_endpoint,
            self._set_ready,
            # Support the running cluster. None of these phases blocks machines.
            images.ensure_images,
            backups.keep_backups,
            self._watch_workload_cluster,
            fleet.ensure_fleet_labels,
            cloudconfig.ensure_cloud_config,
            addons.report_missing_addons,
            self._finish_adoption,
        )

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one HarvesterCluster closer to its spec.

        Raises `ApiError` and `Unreachable` for a retry with back-off.
        """
        self._context.topics.unsubscribe_all(self._context.queues.clusters, key)
        obj = self._context.caches.harvester_clusters.get(*key)
        if obj is None:
            await self._forget(key)
            return None

        operation = "delete" if being_deleted(obj) else "normal"
        started = time.monotonic()
        try:
            with logs.context(cluster=f"{key.namespace}/{cluster_name(obj)}"):
                return await self._reconcile(obj)
        finally:
            metrics.CLUSTER_RECONCILE_SECONDS.labels(operation).observe(time.monotonic() - started)

    async def _reconcile(self, obj: Obj) -> Result | None:
        """Reconcile a cluster, or connect to its Harvester if another controller manages it."""
        cluster = self._context.caches.cluster_of(obj)
        if cluster is None:
            return await self._delete_without_cluster(obj) if being_deleted(obj) else None

        scope = ClusterScope(self._context, obj, cluster, StatusDraft(obj))
        # Another controller writes the spec and the status of an externally managed cluster.
        if clusterapi.externally_managed(obj):
            report.remove_metric(scope.key)
            return await self._connector.connect_read_only(scope)

        delay: float | None = None
        failure: RequestError | None = None
        if not clusterapi.paused(None, obj):
            try:
                delay = await follow_schedule(scope, datetime.now(UTC))
            except RequestError as error:
                failure = error  # a schedule must not keep a cluster from its machines
        result = await self._reconcile_managed(scope)
        if failure:
            raise failure
        if delay is None:
            return result
        delays = filter(None, (delay, result.requeue_after if result else None))
        return Result(requeue_after=min(delays))

    async def _reconcile_managed(self, scope: ClusterScope) -> Result | None:
        """Park or resume the cluster, run its phases, or only connect to Harvester in a pause."""
        obj = scope.obj
        cluster = scope.cluster
        # A pause of the HarvesterCluster itself is a user's: nothing is written then.
        if parking.concerns(cluster) and not clusterapi.paused(None, obj):
            is_held = parking.is_moving(cluster) or parking.is_restoring_etcd(cluster)
            if is_held or parking.awaits_confirmation(cluster):
                park.report_held(scope)
            elif not parking.is_resumed_unpaused(cluster):
                return await self._park(scope)
        else:
            park.report_invalid(scope)

        if clusterapi.paused(cluster, obj):
            report.remove_metric(scope.key)
            scope.draft.set_true(ConditionType.PAUSED)
            await self._write_status(scope)
            return await self._connector.connect_read_only(scope)

        scope.draft.set_false(ConditionType.PAUSED, Reason.NOT_PAUSED)
        return await self._run_phases(scope)

    async def _park(self, scope: ClusterScope) -> Result:
        """Park or resume the cluster, and report how far it is.

        What else the status says stays as it was before: nothing of it is observed meanwhile.
        """
        # Its status is never written: while Harvester is shut down, that is no failure.
        unwritten = ClusterScope(
            self._context, scope.obj, scope.cluster, StatusDraft(scope.obj), read_only=True
        )
        try:
            if await park.keep_record(scope):
                unwritten.cluster = scope.cluster
                try:
                    await self._connector.connect(unwritten)
                except Blocked:
                    await park.begin_without_harvester(scope)
                    raise
                scope.session = unwritten.session
                await park.advance(scope)
        except Blocked as blocked:
            scope.requeue_within(blocked.requeue_after)
            park.report_blocked(scope, blocked)
        except Unauthorized:
            if unwritten.session is None:
                raise
            unwritten.session.probe()
            scope.requeue_within(REFUSED_ONCE)
        except RequestError as error:
            park.report_progress(scope, f"a request failed, which is repeated: {error}")
            await self._write_paused(scope)
            raise

        # Guests run until all is parked, and again from the first start.
        if not scope.draft.is_true(ConditionType.PARKED):
            await cloudconfig.renew_cloud_config(
                unwritten, "the cluster is being parked or resumed"
            )
            scope.requeue_within(unwritten.requeue_after)
        park.report_schedule(scope)
        await self._write_paused(scope)
        return Result(requeue_after=scope.requeue_after)

    async def _write_paused(self, scope: ClusterScope) -> None:
        """Write the status of a cluster that is parked or resumed, and no readiness of it."""
        if at(scope.cluster, "spec", "paused"):
            report.remove_metric(scope.key)
            scope.draft.set_true(ConditionType.PAUSED)
        await self._write_status(scope)

    async def _delete_without_cluster(self, obj: Obj) -> Result | None:
        """Handle a deletion without a Cluster.

        The finalizer is removed only from a HarvesterCluster that never had a Cluster. For any
        other one, the deletion is reported as blocked.
        """
        metadata = obj["metadata"]
        if not metadata.get("ownerReferences") and not obj.get("status"):
            # Neither status nor anything on Harvester is written before Cluster API has set the
            # owner. With a status, the owner was removed, for example by a restore.
            await self._remove_finalizer(obj)
            return None

        if clusterapi.paused(None, obj):
            return None
        if not _has_finalizer(obj):
            return None

        # Only name and namespace of a deleted Cluster are known.
        cluster = {"metadata": {"name": cluster_name(obj), "namespace": metadata["namespace"]}}
        scope = ClusterScope(self._context, obj, cluster, StatusDraft(obj))
        try:
            deletion.require_no_machines(scope)
            raise deletion.orphan_failure()
        except Blocked as blocked:
            return await self._wait(scope, blocked)

    async def _run_phases(self, scope: ClusterScope) -> Result | None:
        """Run the phases or the deletion, and report in the status why they ended."""
        try:
            if being_deleted(scope.obj):
                await self._delete(scope)
                return None
            await self._normal(scope)
        except Blocked as blocked:
            return await self._wait(scope, blocked)
        except Unauthorized:
            if scope.session is None:
                raise  # the management cluster has refused, not Harvester
            scope.session.probe()
            rejection = connection.report_rejection(scope, Delay(REFUSED_ONCE))
            return await self._wait(scope, rejection)
        except RequestError as error:
            # The status reports only errors that a user has to fix. A retry resolves the others.
            if isinstance(error, (Forbidden, Invalid)) and await self._handle_refusal(scope, error):
                return None
            connection.note_lost_namespace(scope, error)
            await cloudconfig.renew_cloud_config(scope, str(error))
            await self._write(scope)
            raise

        await self._write(scope)
        return Result(requeue_after=scope.requeue_after)

    async def _normal(self, scope: ClusterScope) -> None:
        """Run the phases of a cluster that is not deleted, until one of them raises."""
        for phase in self._phases:
            pending = phase(scope)
            if pending is not None:
                await pending

    async def _ensure_finalizer(self, scope: ClusterScope) -> None:
        """Set the finalizer before anything is created, and continue with the patched object."""
        clusters = self._context.caches.harvester_clusters
        await self._context.ensure_finalizer(
            clusters, scope.obj, names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER
        )
        scope.obj = clusters.get(*scope.key) or scope.obj
        scope.draft.rebase(scope.obj)

    async def _record_guest(self, scope: ClusterScope) -> None:
        """Keep the proof of what the guest created on Harvester, which has to outlive its VMs."""
        await guestvolumes.connect(scope)
        await guestbalancers.record_guest(scope)
        if await guestvolumes.record_volumes(scope):
            guestvolumes.finish_recording(scope)

    async def _ensure_endpoint(self, scope: ClusterScope) -> None:
        """Ensure the endpoint of the control plane, and the load balancer that serves it."""
        if externalendpoint.is_external(scope):
            await externalendpoint.ensure_external_endpoint(scope)
            loadbalancer.report_first_vm(scope, loadbalancer.control_plane_vms(scope))
            externalendpoint.report_external_endpoint(scope)
        else:
            await externalendpoint.restore_source(scope)
            await endpoint.ensure_endpoint(scope)
            await loadbalancer.ensure_load_balancer(scope)

    def _set_ready(self, scope: ClusterScope) -> None:
        """Report that machines can be created, because their infrastructure exists."""
        scope.memory.grace.mark_known()
        if not scope.draft.is_true(ConditionType.INFRASTRUCTURE_READY):
            scope.event("InfrastructureReady", "infrastructure is ready for machines")
        scope.draft.set_true(ConditionType.INFRASTRUCTURE_READY)
        scope.draft.set_true(ConditionType.READY)
        scope.draft.set_ready(ready=True)

    async def _watch_workload_cluster(self, scope: ClusterScope) -> None:
        """Connect to the workload cluster once its kubeconfig exists."""
        await self._context.workloads.ensure(scope.cluster_key)

    async def _finish_adoption(self, scope: ClusterScope) -> None:
        """Drop the annotation that requests adoption, after the phases have adopted all objects.

        Otherwise two management clusters with the annotation would adopt from each other forever.
        """
        if wants_adoption(scope.obj):
            await scope.drop_adopt_annotation()

    async def _delete(self, scope: ClusterScope) -> None:
        """Delete the cluster's objects on Harvester, and remove the finalizer last.

        Raises `Blocked` while there are machines, or while an object on Harvester still exists.
        """
        if not _has_finalizer(scope.obj):
            return  # our part of the deletion is complete, and other finalizers keep the object
        scope.memory.outage.begin()
        try:
            await self._connector.connect(scope)
            scope.memory.outage.end()
            await self._record_guest(scope)
        except Blocked:
            # If machines exist, report them instead, because the deletion waits for them first.
            deletion.require_no_machines(scope)
            raise

        deletion.require_no_machines(scope)
        await deletion.delete_infrastructure(scope)
        await cloudconfig.delete_cloud_config(scope)
        await backups.delete_backups(scope)
        guestbalancers.report_kept_balancers(scope)
        guestvolumes.report_kept_volumes(scope)
        scope.event("InfrastructureDeleted", "deleted all objects of this cluster on Harvester")
        await self._remove_finalizer(scope.obj)

    async def _wait(self, scope: ClusterScope, blocked: Blocked) -> Result | None:
        """Report why a phase waits, and requeue. Return None if this ended the deletion instead."""
        scope.requeue_within(blocked.requeue_after)

        reported = blocked
        if being_deleted(scope.obj):
            if await self._end_deletion(scope, blocked):
                return None
            reported = blocked.with_advice(deletion.advice(scope.obj, blocked))
        elif grace := report.seconds_of_grace(scope, blocked):
            scope.requeue_within(grace)
            return Result(requeue_after=scope.requeue_after)

        # The phase that renews the guests' token may not run, and the token would expire meanwhile.
        await cloudconfig.renew_cloud_config(scope, reported.message)
        report.report_wait(scope, reported)
        await self._write(scope)
        return Result(requeue_after=scope.requeue_after)

    async def _end_deletion(self, scope: ClusterScope, blocked: Blocked) -> bool:
        """Remove the finalizer of a blocked deletion if allowed, and return whether it was."""
        caches = self._context.caches
        if deletion.was_never_provisioned(scope.obj) and not caches.machines_of(scope.cluster):
            await self._remove_finalizer(scope.obj)
            return True
        delay = deletion.outage_remaining(scope, blocked)
        if not deletion.may_force_delete(scope.obj, blocked):
            return False
        if delay:
            scope.requeue_within(delay)
            return False
        await self._force_delete(scope, blocked)
        return True

    async def _handle_refusal(self, scope: ClusterScope, error: ApiError) -> bool:
        """Report a refused request. Return True if the deletion was forced instead."""
        refusal = report.refused_request(scope, error)
        deleting = being_deleted(scope.obj)
        if deleting and refusals.by_harvester(error):
            if deletion.may_force_delete(scope.obj, refusal):
                await self._force_delete(scope, refusal)
                return True
            refusal = refusal.with_advice(deletion.advice(scope.obj, refusal))

        # A cluster that is ready stays ready.
        if deleting or not scope.draft.fields.get("ready"):
            report.report_wait(scope, refusal)
        return False

    async def _force_delete(self, scope: ClusterScope, blocked: Blocked) -> None:
        """Force a deletion at a user's request, with an Event that lists what may remain."""
        message = f"force-deleted because {blocked.message}; {deletion.left_over(scope.obj)}"
        scope.warning_event("ForcedDeletion", message)
        await self._remove_finalizer(scope.obj)

    async def _write(self, scope: ClusterScope) -> None:
        """Write status and metric."""
        report.set_metric(scope)
        await self._write_status(scope)

    async def _write_status(self, scope: ClusterScope) -> None:
        """Write the status, and no metric."""
        await self._context.write_status(
            self._context.caches.harvester_clusters, scope.obj, scope.draft
        )

    async def _remove_finalizer(self, obj: Obj) -> None:
        """Let the API server delete a HarvesterCluster, as far as this provider is concerned."""
        try:
            await self._context.remove_finalizer(
                self._context.caches.harvester_clusters,
                obj,
                names.CLUSTER_FINALIZER,
                names.LEGACY_CLUSTER_FINALIZER,
            )
        except NotFound:
            self._context.caches.harvester_clusters.forget(*key_of(obj))

    async def _forget(self, key: Key) -> None:
        """Release all resources of a HarvesterCluster that no longer exists."""
        self._context.memory.forget_cluster(key)
        await self._context.object_watches.forget(key)
        await self._connector.release(key)
        report.remove_metric(key)


def _has_finalizer(obj: Obj) -> bool:
    """Return whether our finalizer, or the finalizer of the Go provider, holds the object."""
    return not _FINALIZERS.isdisjoint(obj["metadata"].get("finalizers") or ())
