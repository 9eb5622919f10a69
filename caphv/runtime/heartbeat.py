"""Renew a Lease without competing for it, so that others can tell whether this process is alive.

A process with leader election has such a Lease already. This Lease excludes no other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging

from caphv.api.object import LEASES, Obj, at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, RequestError
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 15.0
# The Lease counts as expired after this many missed renewals.
_MAX_MISSED = 4
# Seconds for the last write of a process that ends.
_RELEASE_SECONDS = 2.0


class Heartbeat(Runnable):
    """Renew the Lease `namespace`/`name` as `identity` until the process ends, and leave it behind.

    If the right to do so or the namespace is missing, the process keeps running without a
    heartbeat.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._interval = interval
        self._lease: Obj | None = None
        self._refused = False

    async def run(self) -> None:
        """Renew the Lease at each interval, and remove its holder at the end."""
        try:
            while True:
                await self._beat()
                await asyncio.sleep(self._interval)
        finally:
            with contextlib.suppress(TimeoutError, RequestError):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._release()

    async def _beat(self) -> None:
        """Renew the Lease. Log only the first failure in a row."""
        try:
            self._lease = await self._renew()
        except RequestError as error:
            self._lease = None
            if not self._refused and not isinstance(error, Conflict):
                log.info("no heartbeat in lease %s/%s: %s", self._namespace, self._name, error)
                self._refused = True
        else:
            self._refused = False

    async def _release(self) -> None:
        """Remove the holder of the Lease, if it is this process. Raises `RequestError`."""
        # A write that the end has interrupted may have succeeded, so what was read last is too old.
        lease = await self._client.get(LEASES, self._name, self._namespace)
        if at(lease, "spec", "holderIdentity") == self._identity:
            await self._client.replace(LEASES, {**lease, "spec": self._spec("")})

    async def _renew(self) -> Obj:
        """Write the Lease with this process as its holder, and create it if it does not exist."""
        spec = self._spec(self._identity)
        try:
            lease = self._lease or await self._client.get(LEASES, self._name, self._namespace)
            return await self._client.replace(LEASES, {**lease, "spec": spec})
        except NotFound:
            lease = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
            return await self._client.create(LEASES, lease)

    def _spec(self, holder: str) -> Obj:
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, int(_MAX_MISSED * self._interval)),
            "renewTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
