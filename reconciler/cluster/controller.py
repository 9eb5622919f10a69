"""Reconcile one HarvesterCluster: its phases in order, one status patch at the end."""

from __future__ import annotations

import contextlib
import time

from caphv.api import clusterapi, names
from caphv.api.names import ConditionType, Reason
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from caphv.runtime.resource import Key, Obj, being_deleted, key_of
from reconciler import metrics
from reconciler.cluster import failuredomains, identity, loadbalancer, pools
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.flow import Blocked, StatusDraft


class ClusterReconciler:
    """`reconcile` takes the key of a HarvesterCluster and answers when to come back, if time alone decides."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._identities = identity.Identities()

    async def reconcile(self, key: Key) -> float | None:
        """Bring one HarvesterCluster closer to its spec. Raises `ApiError`, `Unreachable` for a retry."""
        obj = self._context.harvester_clusters.get(*key)
        if obj is None:
            await self._gone(key)
            return None
        operation = "delete" if being_deleted(obj) else "normal"
        started = time.monotonic()
        try:
            return await self._reconcile(obj)
        finally:
            metrics.CLUSTER_RECONCILE_SECONDS.labels(operation).observe(time.monotonic() - started)

    async def _reconcile(self, obj: Obj) -> float | None:
        cluster = self._context.cluster_of(obj)
        if clusterapi.externally_managed(obj):
            return None
        if cluster is None:
            # Before Cluster API has set the owner there is nothing to do; without one nothing was ever made.
            if being_deleted(obj) and not obj["metadata"].get("ownerReferences"):
                await self._remove_finalizer(obj)
            return None
        scope = ClusterScope(self._context, obj, cluster, StatusDraft(obj))
        if clusterapi.paused(cluster, obj):
            scope.draft.set_true(ConditionType.PAUSED)
            await self._write(scope)
            return None
        scope.draft.set_false(ConditionType.PAUSED, Reason.NOT_PAUSED)
        try:
            if being_deleted(obj):
                await self._delete(scope)
                return None
            await self._normal(scope)
        except Blocked as blocked:
            self._report(scope, blocked)
            await self._write(scope)
            return blocked.after
        except (ApiError, Unreachable):
            await self._write(scope)
            raise
        await self._write(scope)
        return None

    async def _normal(self, scope: ClusterScope) -> None:
        await self._context.ensure_finalizer(
            self._context.harvester_clusters,
            scope.obj,
            names.CLUSTER_FINALIZER,
            names.LEGACY_CLUSTER_FINALIZER,
        )
        scope.obj = self._context.harvester_clusters.get(*scope.key) or scope.obj
        await identity.ensure_session(scope, self._identities)
        await identity.ensure_connection(scope)
        await identity.ensure_namespace(scope)
        scope.draft.fields["failureDomains"] = failuredomains.failure_domains(scope.connected().hosts.store)
        await pools.ensure_vm_pool(scope)
        await loadbalancer.ensure_endpoint(scope)
        await loadbalancer.ensure_load_balancer(scope)
        if not scope.draft.is_true(ConditionType.INFRASTRUCTURE_READY):
            scope.tell("InfrastructureReady", "the cluster's infrastructure is ready for machines")
        scope.draft.set_true(ConditionType.INFRASTRUCTURE_READY)
        scope.draft.set_true(ConditionType.READY)
        scope.draft.provisioned(ready=True)
        await self._context.workloads.ensure(scope.cluster_key)

    async def _delete(self, scope: ClusterScope) -> None:
        machines = self._context.machines_of(scope.cluster)
        if machines:
            raise Blocked(
                ConditionType.INFRASTRUCTURE_READY,
                Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
                f"waiting for {len(machines)} HarvesterMachine(s) to go, first {machines[0]['metadata']['name']}",
            )
        await identity.ensure_session(scope, self._identities)
        await identity.ensure_connection(scope)
        scope.namespace()
        await loadbalancer.delete_load_balancer(scope)
        if scope.draft.is_true(ConditionType.CUSTOM_IP_POOL_CREATED):
            await loadbalancer.release_address(scope)
            await pools.delete_pool(scope, ConditionType.CUSTOM_IP_POOL_CREATED, pools.LOAD_BALANCER_SUFFIX)
        await loadbalancer.delete_placeholder(scope)
        await loadbalancer.release_address(scope)
        await pools.delete_pool(scope, ConditionType.VM_IP_POOL_CREATED, pools.VM_SUFFIX)
        scope.tell("InfrastructureDeleted", "nothing of this cluster is left on Harvester")
        await self._remove_finalizer(scope.obj)

    def _report(self, scope: ClusterScope, blocked: Blocked) -> None:
        scope.draft.set_false(blocked.condition, blocked.reason, blocked.message)
        for summary in (ConditionType.INFRASTRUCTURE_READY, ConditionType.READY):
            if summary is not blocked.condition:
                scope.draft.set_false(summary, blocked.reason, blocked.message)
        scope.draft.provisioned(ready=False)
        if blocked.warn:
            scope.warn(blocked.reason, blocked.message)

    async def _write(self, scope: ClusterScope) -> None:
        ready = bool(scope.draft.fields.get("ready"))
        metrics.CLUSTER_READY.labels(str(scope.key)).set(int(ready))
        await self._context.write_status(self._context.harvester_clusters, scope.obj, scope.draft)

    async def _remove_finalizer(self, obj: Obj) -> None:
        try:
            await self._context.remove_finalizer(
                self._context.harvester_clusters, obj, names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER
            )
        except NotFound:
            self._context.harvester_clusters.forget(*key_of(obj))

    async def _gone(self, key: Key) -> None:
        await self._context.sessions.release(key)
        with contextlib.suppress(KeyError):
            metrics.CLUSTER_READY.remove(str(key))
