"""Tell from Leases whether a provider is at work.

The leader renews a Lease. Without leader election, the only provider does.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from caphv.api import clusterapi, names, remedies
from caphv.api.object import (
    LEASES,
    NAMESPACES,
    Obj,
    annotations_of,
    key_of,
    owner_reference,
    text_at,
)
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from operations.read.management import list_all
from operations.read.objects import conditions_of, time_of
from operations.status.model import Provider

SILENT_SECONDS = 60.0
"""A leader renews its Lease every two seconds, a provider without leader election every 15."""
RELEASED_SECONDS = 15.0
"""A provider that stops releases its Lease, and another replica takes it within two seconds."""
_NAMESPACE = "caphv-system"


async def read_provider(client: ApiClient, now: datetime) -> Provider | None:
    """Return the state of the provider by its Leases; None if no Lease exists or may be read.

    One GET is enough if the provider has its usual namespace and is at work.
    """
    provider = await _newest_provider(client, now)
    if provider is None or not provider.silent:
        return provider

    namespace = None
    with suppress(ApiError, Unreachable):
        namespace = await client.get(NAMESPACES, provider.lease.partition("/")[0])
    folder = sandbox_of(namespace)
    return replace(provider, next_step=start_sandbox(folder)) if folder else provider


def sandbox_of(namespace: Obj | None) -> str:
    """Return the folder of the sandbox that runs a provider, by the namespace of the provider.

    Empty for a provider in a cluster.
    """
    return annotations_of(namespace).get(names.SANDBOX_ANNOTATION, "") if namespace else ""


def start_sandbox(folder: str) -> str:
    """Return the next step for a provider that a sandbox is to run."""
    return f"Start what the sandbox lacks: {remedies.START_SANDBOX(folder=shlex.quote(folder))}"


async def _newest_provider(client: ApiClient, now: datetime) -> Provider | None:
    """Return the provider at work, else the provider whose Lease was renewed last."""
    leases: list[Obj] = []
    provider = None
    for name in (names.LEASE, names.HEARTBEAT_LEASE):
        with suppress(ApiError, Unreachable):
            leases.append(await client.get(LEASES, name, _NAMESPACE))
        provider = provider_of(leases, now)
        if provider and not provider.silent:
            return provider

    # A Deployment in another namespace may serve the clusters, because a removed Deployment leaves
    # its Lease behind. Without the right to list the Leases of all namespaces, only the usual
    # namespace is read.
    for namespace in ("", _NAMESPACE):
        with suppress(ApiError, Unreachable):
            return provider_of(await list_all(client, LEASES, namespace), now) or provider
    return provider


def provider_of(leases: Iterable[Obj], now: datetime) -> Provider | None:
    """Return the state of the provider whose Lease was renewed last.

    Each Deployment of the provider has its own Lease.
    """
    newest = newest_lease(leases)
    if newest is None:
        return None

    since = _renewed_at(newest)
    key = key_of(newest)
    renewed_at = time_of(since)
    is_old = renewed_at and (now - renewed_at).total_seconds() > SILENT_SECONDS
    if not is_old and not is_released(newest, now):
        return Provider(str(key))

    return Provider(
        str(key),
        silent=True,
        since=since,
        cause=f"silent: Lease {key} is not renewed; the data shown may be outdated",
        next_step=f"Check whether it runs: {remedies.GET_PODS(namespace=key.namespace)}",
    )


def provider_or_absence(
    provider: Provider | None, harvester_clusters: Iterable[Obj], now: datetime
) -> Provider | None:
    """Return the provider, or that there is none, if a HarvesterCluster proves it.

    Without a readable Lease, one that nothing has reconciled for a minute shows that no provider is
    installed, or that it serves other objects.
    """
    if provider is not None:
        return provider

    untouched = []
    for obj in harvester_clusters:
        # A provider waits for an owner, and another controller may manage the object.
        owner = owner_reference(obj, "Cluster", CLUSTER_API_GROUP)
        if owner is None or clusterapi.externally_managed(obj):
            continue
        created = str(obj["metadata"].get("creationTimestamp") or "")
        created_at = time_of(created)
        is_old = created_at and (now - created_at).total_seconds() > SILENT_SECONDS
        if is_old and not any(conditions_of(obj)) and not obj["metadata"].get("finalizers"):
            untouched.append((created, key_of(obj)))
    if not untouched:
        return None

    since, key = min(untouched)
    return Provider(
        "",
        silent=True,
        since=since,
        cause=f"none has reconciled HarvesterCluster {key}, and no Lease of one can be read",
        next_step=f"Install it, or see whether it runs: {remedies.GET_PODS(namespace=_NAMESPACE)}",
    )


def newest_lease(leases: Iterable[Obj]) -> Obj | None:
    """Return the provider's Lease that was renewed last; None if no Lease is a provider's."""
    provider_leases = [lease for lease in leases if _is_provider_lease(key_of(lease).name)]
    return max(provider_leases, key=_renewed_at, default=None)


def is_released(lease: Obj, now: datetime) -> bool:
    """Return whether the provider has released its Lease, and no other replica has taken it."""
    renewed_at = time_of(_renewed_at(lease))
    if renewed_at is None or text_at(lease, "spec", "holderIdentity"):
        return False
    return (now - renewed_at).total_seconds() > RELEASED_SECONDS


def _is_provider_lease(name: str) -> bool:
    # If several Deployments share the clusters, each prefixes the Lease with the name of its share.
    return name == names.LEASE or name.endswith(f".{names.LEASE}")


def _renewed_at(lease: Obj) -> str:
    """Return the time at which a Lease was renewed last; empty if it never was renewed."""
    return text_at(lease, "spec", "renewTime")
