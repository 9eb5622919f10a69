"""Connect clusters to their Harvesters, for their own phases and for their machines."""

from __future__ import annotations

from caphv.api.object import Key, key_of
from caphv.runtime.controller import Result
from caphv.runtime.errors import Unauthorized
from reconciler.blocked import Blocked
from reconciler.cluster import cloudconfig, connection, identity, limits
from reconciler.cluster.identityprotection import IdentityProtection
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.statusdraft import StatusDraft

# Seconds until a retry after Harvester has refused a request for the first time.
REFUSED_ONCE = 5.0


class Connector:
    """Gives clusters sessions to their Harvesters, with the identities that they name."""

    def __init__(self, context: Context, protection: IdentityProtection) -> None:
        self._context = context
        self._protection = protection
        self._identities = identity.Identities(
            allow_insecure=context.allow_insecure_identities, namespace=context.namespace
        )

    async def connect(self, scope: ClusterScope) -> None:
        """Give the cluster and its machines a session to its Harvester.

        Raises `Blocked` while there is none.
        """
        try:
            await identity.ensure_session(scope, self._identities, self._protection)
            await connection.ensure_connection(scope)
        except Blocked as blocked:
            self._remember_connection(scope, "" if blocked.is_unknown else blocked.message)
            raise
        finally:
            limits.report_limits(scope)
        self._remember_connection(scope, "")

    async def connect_read_only(self, scope: ClusterScope) -> Result:
        """Connect a paused or externally managed cluster for its machines.

        Renews the credentials of its guests, which would otherwise expire during the pause.
        """
        # The status of this scope is never written.
        unwritten = ClusterScope(
            self._context, scope.obj, scope.cluster, StatusDraft(scope.obj), read_only=True
        )
        try:
            await self.connect(unwritten)
        except Blocked as blocked:
            unwritten.requeue_within(blocked.requeue_after)
            await cloudconfig.renew_cloud_config(unwritten, blocked.message)
            return Result(requeue_after=unwritten.requeue_after)
        except Unauthorized:
            if unwritten.session is None:
                raise  # the management cluster has refused, not Harvester
            unwritten.session.probe()
            return Result(requeue_after=REFUSED_ONCE)

        await cloudconfig.renew_cloud_config(unwritten, "the cluster is paused")
        return Result(requeue_after=unwritten.requeue_after)

    async def release(self, key: Key) -> None:
        """Release the identity and the session of a HarvesterCluster that no longer exists."""
        self._identities.release(key)
        await self._context.sessions.release(key)

    def _remember_connection(self, scope: ClusterScope, error: str) -> None:
        """Remember why the connection fails, and requeue all machines when the reason changes."""
        if scope.memory.connection_error == error:
            return
        scope.memory.connection_error = error
        for machine in self._context.caches.machines_of(scope.cluster):
            self._context.queues.machines.add(key_of(machine))
