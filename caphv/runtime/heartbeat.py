"""A Lease that a process renews without competing for it, so that others can tell whether it is alive.

A process that elects a leader has such a Lease already. This one excludes no other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging

from caphv.api.object import LEASES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, NotFound, Unreachable
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

_INTERVAL = 15.0
# Renewals that may be missed before the Lease counts as expired.
_MISSED = 4
# For the last write of a process that ends.
_RELEASE_SECONDS = 2.0


class Heartbeat(Runnable):
    """Renew the Lease `namespace`/`name` as `identity` until the process ends, and leave it behind.

    Without the right to do so, or without the namespace, the process runs on as if there were no heartbeat.
    """

    def __init__(
        self, client: ApiClient, *, namespace: str, name: str, identity: str, interval: float = _INTERVAL
    ) -> None:
        self._client = client
        self._namespace, self._name, self._identity = namespace, name, identity
        self._interval = interval
        self._lease: Obj | None = None
        self._refused = False

    async def run(self) -> None:
        """Renew the Lease at each interval; at the end, it has no holder."""
        try:
            while True:
                await self._beat(self._identity)
                await asyncio.sleep(self._interval)
        finally:
            if self._lease:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RELEASE_SECONDS):
                        await self._beat("")

    async def _beat(self, holder: str) -> None:
        try:
            self._lease = await self._renew(holder)
        except (ApiError, Unreachable) as error:
            self._lease = None
            if not self._refused and not isinstance(error, Conflict):
                log.info("no heartbeat in lease %s/%s: %s", self._namespace, self._name, error)
                self._refused = True
        else:
            self._refused = False

    async def _renew(self, holder: str) -> Obj:
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, int(_MISSED * self._interval)),
            "renewTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            lease = self._lease or await self._client.get(LEASES, self._name, self._namespace)
            return await self._client.replace(LEASES, {**lease, "spec": spec})
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            return await self._client.create(LEASES, lease)
