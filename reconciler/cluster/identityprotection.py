"""Finalizers on identity Secrets in use, so that the credentials outlive what has to be deleted with them.

`kubectl delete namespace` deletes the identity Secret together with the HarvesterCluster. Without credentials, nothing
on Harvester could be deleted, and no one can recreate the Secret in a namespace that is being terminated.

A Secret that a user deletes alone is released at once, so that rotation by delete and create works.
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
    "the provider may not patch Secrets, so it cannot set a finalizer, and the deletion of the namespace would leave "
    "objects on Harvester behind; apply the roles of this release"
)
RETRY_SECONDS = 600.0
_CLUSTER_FINALIZERS = {names.CLUSTER_FINALIZER, names.LEGACY_CLUSTER_FINALIZER}


class IdentityProtection:
    """Sets finalizers in reconciles of clusters (`ensure`), and removes them in reconciles of Secrets (`reconcile`)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refused: dict[Key, float] = {}
        self._lock = asyncio.Lock()  # clusters that share a Secret would only get conflicts

    async def ensure(self, secret: Key) -> bool:
        """Set the finalizer on an identity Secret. Return False if the provider lacks the right to patch Secrets."""
        if self._done(secret):
            return True
        async with self._lock:
            listed = self._context.caches.secrets.get(*secret)
            if listed is None or self._done(secret):
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
        """Remove the finalizer from a Secret that no cluster needs any more."""
        secret = self._context.caches.secrets.get(*key)
        if secret is None:
            self._refused.pop(key, None)
            return None
        if self._context.identity_finalizer not in (secret["metadata"].get("finalizers") or ()):
            return None
        clusters = [
            cluster
            for cluster in self._context.caches.harvester_clusters.store.by_index("identity", str(key))
            if may_use(secret, cluster)
        ]
        if needed(secret, clusters, terminating=False):
            return None
        if needed(secret, clusters, terminating=True) and await self._terminating(key.namespace):
            return None
        with contextlib.suppress(NotFound):
            await self._context.remove_finalizer(self._context.caches.secrets, secret, self._context.identity_finalizer)
        return None

    def _done(self, secret: Key) -> bool:
        listed = self._context.caches.secrets.get(*secret)
        # The API server refuses new finalizers on what is being deleted.
        return listed is not None and (
            being_deleted(listed) or self._context.identity_finalizer in (listed["metadata"].get("finalizers") or ())
        )

    async def _terminating(self, namespace: str) -> bool:
        try:
            return being_deleted(await self._context.client.get(NAMESPACES, namespace))
        except (NotFound, Forbidden):
            return False


def needed(secret: Obj, clusters: Iterable[Obj], *, terminating: bool) -> bool:
    """Whether an identity Secret has to stay for these HarvesterClusters, which refer to it.

    A Secret that is being deleted stays for clusters that are being deleted, too: they need its credentials. With
    `terminating`, its namespace is being deleted, and so will be the clusters in it.
    """
    held = [cluster for cluster in clusters if not being_deleted(cluster) or _finalizers(cluster) & _CLUSTER_FINALIZERS]
    if not being_deleted(secret):
        return bool(held)
    namespace = secret["metadata"]["namespace"]
    return any(
        being_deleted(cluster) or (terminating and cluster["metadata"]["namespace"] == namespace) for cluster in held
    )


async def protected(client: ApiClient, namespace: str = "") -> list[Obj]:
    """Secrets (metadata only) of a namespace, or of all, with a finalizer of any provider of this kind."""
    found: list[Obj] = []
    token = ""
    while True:
        page = await client.list(SECRETS, namespace, limit=500, continue_token=token, metadata_only=True)
        found += [secret for secret in page["items"] if _ours(_finalizers(secret))]
        token = page["metadata"].get("continue") or ""
        if not token:
            return found


async def running(client: ApiClient) -> str:
    """Namespace and name of a provider's Lease that is held now; empty if none is, or Leases may not be listed."""
    try:
        leases = await client.list(LEASES)
    except Forbidden:
        return ""
    held = (lease for lease in leases["items"] if lease["metadata"]["name"].endswith(names.LEASE) and _held(lease))
    return next((str(key_of(lease)) for lease in held), "")


async def remove_all(client: ApiClient, secrets: Iterable[Obj]) -> list[str]:
    """Remove the finalizers of all providers from these Secrets; return an error for each that was not changed."""
    errors = []
    for secret in secrets:
        key, metadata = key_of(secret), secret["metadata"]
        kept = [name for name in metadata["finalizers"] if not _ours({name})]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": kept}}
        try:
            await client.patch(SECRETS, key.name, key.namespace, patch)
        except NotFound:
            pass  # deleted meanwhile
        except ApiError as error:
            errors.append(f"Secret {key}: {error}")
    return errors


def _ours(finalizers: Iterable[str]) -> bool:
    return any(name.startswith(names.IDENTITY_FINALIZER_PREFIX) for name in finalizers)


def _held(lease: Obj) -> bool:
    spec = lease.get("spec") or {}
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime") or ""))
        lasting = timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0))
    except ValueError:
        return False
    return bool(spec.get("holderIdentity")) and renewed + lasting > datetime.now(UTC)


def _finalizers(obj: Obj) -> set[str]:
    return set(obj["metadata"].get("finalizers") or ())
