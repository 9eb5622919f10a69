"""Whether a provider is at work, by the Leases that its leader renews, or a provider without leader election."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

from caphv.api import names, remedies
from caphv.api.object import LEASES, Obj, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from overview.model import Provider
from overview.reader import list_all

SILENT_SECONDS = 60.0
"""A leader renews its Lease every two seconds, a provider without leader election every 15."""
_NAMESPACE = "caphv-system"


async def read_provider(client: ApiClient, now: datetime) -> Provider | None:
    """Return what the Leases say; None where none exists or may be read.

    All namespaces are read only if the Leases at the usual place say that the provider is silent: another Deployment
    may serve the clusters.
    """
    leases: list[Obj] = []
    provider = None
    for name in (names.LEASE, names.HEARTBEAT_LEASE):
        with suppress(ApiError, Unreachable):
            leases.append(await client.get(LEASES, name, _NAMESPACE))
        provider = provider_of(leases, now)
        if provider and not provider.silent:
            return provider

    if provider is None or provider.silent:
        with suppress(ApiError, Unreachable):
            provider = provider_of(await list_all(client, LEASES), now)
    return provider


def provider_of(leases: Iterable[Obj], now: datetime) -> Provider | None:
    """Return the state of the provider whose Lease was renewed last. Several Deployments have a Lease each."""
    own = [lease for lease in leases if _is_providers(key_of(lease).name)]
    if not own:
        return None
    newest = max(own, key=renewed_at)
    since, place = renewed_at(newest), key_of(newest)
    if not since or (now - datetime.fromisoformat(since)).total_seconds() <= SILENT_SECONDS:
        return Provider(str(place))
    return Provider(
        str(place),
        silent=True,
        since=since,
        cause=f"silent: Lease {place} is not renewed; what is shown may be outdated",
        next_step=f"Check whether it runs: {remedies.GET_PODS(namespace=place.namespace)}",
    )


def _is_providers(name: str) -> bool:
    return name == names.LEASE or name.endswith(f".{names.LEASE}")  # several Deployments put their share first


def renewed_at(lease: Obj) -> str:
    """Return when a Lease was renewed last; empty if it never was."""
    return str((lease.get("spec") or {}).get("renewTime") or "")
