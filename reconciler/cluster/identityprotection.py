"""Protect identity Secrets in use by finalizers, because deletions need their credentials.

`kubectl delete namespace` deletes the identity Secret together with the HarvesterCluster. Without
credentials, the provider could delete nothing on Harvester, and users cannot recreate the Secret in
a namespace that is being terminated.

If a user deletes only the Secret, it is released at once, so that users can rotate it by deleting
and creating it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from caphv.api import names
from caphv.api.object import LEASES, NAMESPACES, SECRETS, Key, Obj, being_deleted, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Result
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from reconciler.cluster.references import may_use
from reconciler.context import Context

log = logging.getLogger(__name__)

MISSING_RIGHT = (
    "the provider may not patch Secrets, so it cannot set a finalizer, and the deletion of the "
    "namespace would leave objects on Harvester behind; apply the roles of this release"
)
RETRY_SECONDS = 600.0
_CLUSTER_FINALIZERS = {names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER}


class IdentityProtection:
    """Set finalizers in reconciles of clusters, and remove them in reconciles of Secrets."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refused: dict[Key, float] = {}
        # Without the lock, clusters that share a Secret would only get conflicts.
        self._lock = asyncio.Lock()

    async def ensure(self, secret: Key) -> bool:
        """Set the finalizer on an identity Secret.

        Returns False if the provider lacks the right to patch Secrets.
        """
        if self._is_settled(secret):
            return True

        async with self._lock:
            listed = self._context.caches.secrets.get(*secret)
            if listed is None or self._is_settled(secret):
                return True
            refused_at = self._refused.get(secret)
            if refused_at is not None and time.monotonic() - refused_at < RETRY_SECONDS:
                return False

            try:
                await self._context.ensure_finalizer(
                    self._context.caches.secrets, listed, self._context.identity_finalizer, ""
                )
            except Forbidden as error:
                if refused_at is None:
                    log.warning("identity Secret %s: %s: %s", secret, MISSING_RIGHT, error.message)
                self._refused[secret] = time.monotonic()
                return False
            except NotFound:
                return True
            self._refused.pop(secret, None)
            return True

    async def reconcile(self, key: Key) -> Result | None:
        """Remove the finalizer from a Secret that no cluster needs."""
        caches = self._context.caches
        secret = caches.secrets.get(*key)
        if secret is None:
            self._refused.pop(key, None)
            return None
        if self._context.identity_finalizer not in _finalizers(secret):
            return None

        clusters = [
            cluster
            for cluster in caches.harvester_clusters.store.by_index("identity", str(key))
            if may_use(secret, cluster)
        ]
        if is_needed(secret, clusters, terminating=False):
            return None
        if is_needed(secret, clusters, terminating=True) and await self._is_terminating(
            key.namespace
        ):
            return None

        with contextlib.suppress(NotFound):
            await self._context.remove_finalizer(
                caches.secrets, secret, self._context.identity_finalizer
            )
        return None

    def _is_settled(self, secret: Key) -> bool:
        """Return whether the Secret has the finalizer, or is being deleted and cannot get it."""
        listed = self._context.caches.secrets.get(*secret)
        if listed is None:
            return False
        # The API server refuses new finalizers on an object that is being deleted.
        return being_deleted(listed) or self._context.identity_finalizer in _finalizers(listed)

    async def _is_terminating(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted; False if it may not be read."""
        try:
            return being_deleted(await self._context.client.get(NAMESPACES, namespace))
        except (NotFound, Forbidden):
            return False


def is_needed(secret: Obj, clusters: Iterable[Obj], *, terminating: bool) -> bool:
    """Return whether an identity Secret has to stay for HarvesterClusters that refer to it.

    :param secret: the Secret
    :param clusters: the HarvesterClusters
    :param terminating: whether the namespace of the Secret is being deleted
    """
    held = [
        cluster
        for cluster in clusters
        if not being_deleted(cluster) or _finalizers(cluster) & _CLUSTER_FINALIZERS
    ]
    if not being_deleted(secret):
        return bool(held)

    # A user may replace a Secret by deleting it, unless clusters need its credentials for their
    # deletion. Clusters in a terminating namespace will need them.
    namespace = secret["metadata"]["namespace"]
    return any(
        being_deleted(cluster) or (terminating and cluster["metadata"]["namespace"] == namespace)
        for cluster in held
    )


async def secrets_with_finalizer(client: ApiClient, namespace: str = "") -> list[Obj]:
    """Return the Secrets (metadata only) with a finalizer of any provider of this kind.

    :param namespace: the only namespace to list, empty for all
    """
    secrets: list[Obj] = []
    token = ""
    while True:
        page = await client.list(
            SECRETS, namespace, limit=500, continue_token=token, metadata_only=True
        )
        secrets += [secret for secret in page["items"] if _ours(_finalizers(secret))]
        token = page["metadata"].get("continue") or ""
        if not token:
            return secrets


async def running(client: ApiClient) -> str:
    """Return namespace and name of a provider's Lease that is held now.

    Returns an empty text if no Lease is held, or Leases may not be listed.
    """
    try:
        leases = await client.list(LEASES)
    except Forbidden:
        return ""
    for lease in leases["items"]:
        if lease["metadata"]["name"].endswith(names.LEASE) and _is_held(lease):
            return str(key_of(lease))
    return ""


async def remove_all(client: ApiClient, secrets: Iterable[Obj]) -> dict[Key, str]:
    """Remove the finalizers of all providers from these Secrets.

    Returns the error of each Secret that was not changed.
    """
    errors = {}
    for secret in secrets:
        key = key_of(secret)
        metadata = secret["metadata"]
        others = [name for name in metadata["finalizers"] if not _ours({name})]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": others}}
        try:
            await client.patch(SECRETS, key.name, key.namespace, patch)
        except NotFound:
            pass  # deleted meanwhile
        except ApiError as error:
            errors[key] = str(error)
    return errors


def _ours(finalizers: Iterable[str]) -> bool:
    """Return whether any of these finalizers is one of a provider of this kind."""
    return any(name.startswith(names.IDENTITY_FINALIZER_PREFIX) for name in finalizers)


def _is_held(lease: Obj) -> bool:
    """Return whether a Lease has a holder that has renewed it in time."""
    spec = lease.get("spec") or {}
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime") or ""))
        duration = timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0))
    except ValueError:
        return False
    return bool(spec.get("holderIdentity")) and renewed + duration > datetime.now(UTC)


def _finalizers(obj: Obj) -> set[str]:
    return set(obj["metadata"].get("finalizers") or ())
