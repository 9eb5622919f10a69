"""Leader election on a Lease, in the form that client-go uses, so that the Go provider and this one exclude each other.

Why not the election of the `kubernetes` package: it does not release the lease on a stop (a restart then waits for it
to expire), compares wall clocks of machines, and reads before every renewal.

Whoever sees a lease measures its age by the own clock since it was last renewed; clocks of machines are never compared.

A process that waits can leave a note on the Lease. The holder finds it at its next renewal, which then meets another
version than it has read: no right, no watch and no request is needed for it that there is not already.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import LEASES, Obj, annotations_of
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, NotFound, Unreachable

log = logging.getLogger(__name__)

_NOTE = "caphv.io/note-to-holder"
_NOTE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: a lease lasts `duration`; a holder gives up after `deadline` without renewal and renews each `retry`."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


class LeaderElection:
    """Compete for one Lease as `identity` (unique for each process).

    `on_sync_request` is called while this process holds it and another one has left a note; it may be set at any time.
    """

    def __init__(
        self, client: ApiClient, *, namespace: str, name: str, identity: str, timing: Timing | None = None
    ) -> None:
        self._client = client
        self._namespace, self._name, self._identity = namespace, name, identity
        self._timing = timing or Timing()
        self.on_sync_request: Callable[[], None] = lambda: None
        self._lease: Obj | None = None
        self._note = ""
        self._seen: tuple[Obj, float] = ({}, 0.0)
        self._renewed = 0.0

    @property
    def holding(self) -> bool:
        """Whether this process holds the lease, as far as it has seen."""
        return self._holding()

    async def request_sync(self) -> None:
        """Have the holder hear of something within seconds. Raises ApiError and Unreachable.

        Where nobody holds the lease there is nobody to hear, and whoever gets it begins with everything anyway.
        """
        for attempt in range(1, _NOTE_ATTEMPTS + 1):
            try:
                lease = await self._client.get(LEASES, self._name, self._namespace)
                annotations = {**annotations_of(lease), _NOTE: f"{self._identity} {_now()}"}
                metadata = {**lease["metadata"], "annotations": annotations}
                await self._client.replace(LEASES, {**lease, "metadata": metadata})
            except NotFound:
                return
            except Conflict:
                # The holder renewed it at this very moment.
                if attempt == _NOTE_ATTEMPTS:
                    raise
            else:
                return

    async def acquire(self) -> None:
        """Wait until this process holds the lease."""
        waiting_for = ""
        while not await self._attempt():
            holder = _spec(self._lease or {}).get("holderIdentity") or ""
            if holder and holder != waiting_for:
                waiting_for = holder
                log.info("waiting for lease %s/%s, held by %s", self._namespace, self._name, holder)
            await asyncio.sleep(self._timing.retry * random.uniform(1.0, 1.2))
        metrics.LEADER.set(1)
        log.info("holding lease %s/%s as %s", self._namespace, self._name, self._identity)

    async def hold(self) -> None:
        """Renew until the lease is lost; then return. The caller must stop all writes at once."""
        while (remaining := self._remaining()) > 0:
            await asyncio.sleep(min(self._timing.retry, remaining))
            try:
                async with asyncio.timeout(self._remaining()):
                    if not await self._attempt() and self._lease and not self._holding():
                        break
            except TimeoutError:
                break
        metrics.LEADER.set(0)
        log.error("lost lease %s/%s", self._namespace, self._name)

    async def release(self) -> None:
        """Give the lease back, so that the next process need not wait for it to expire."""
        metrics.LEADER.set(0)
        # Read it again: the answer to a renewal may have been lost when `hold` was cancelled.
        await self._reread()
        if self._lease is None or not self._holding():
            return
        spec = {**_spec(self._lease), "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            await self._client.replace(LEASES, {**self._lease, "spec": spec})
        except (ApiError, Unreachable) as error:
            log.warning("lease %s/%s not released: %s", self._namespace, self._name, error)

    async def _attempt(self) -> bool:
        try:
            lease = self._lease if self._lease and self._holding() else await self._read()
            if not self._holding() and not self._expired():
                return False
            started = time.monotonic()
            self._lease = await self._client.replace(LEASES, self._claim(lease))
        except NotFound:
            return await self._create()
        except (ApiError, Unreachable) as error:
            level = logging.DEBUG if isinstance(error, Conflict) else logging.WARNING
            log.log(level, "lease %s/%s: %s", self._namespace, self._name, error)
            if not isinstance(error, Unreachable):
                await self._reread()
            return False
        self._renewed = started
        return True

    async def _create(self) -> bool:
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {"leaseTransitions": 0},
        }
        started = time.monotonic()
        try:
            self._lease = await self._client.create(LEASES, self._claim(lease))
        except (ApiError, Unreachable) as error:
            log.warning("cannot create lease %s/%s: %s", self._namespace, self._name, error)
            return False
        self._renewed = started
        return True

    async def _reread(self) -> None:
        try:
            await self._read()
        except (ApiError, Unreachable):
            self._lease = None

    async def _read(self) -> Obj:
        self._lease = lease = await self._client.get(LEASES, self._name, self._namespace)
        before, self._note = self._note, annotations_of(lease).get(_NOTE, "")
        if self._holding() and before != self._note:
            self.on_sync_request()
        return lease

    def _holding(self) -> bool:
        return self._lease is not None and _spec(self._lease).get("holderIdentity") == self._identity

    def _remaining(self) -> float:
        # Counted from before the request of the last renewal: others may count from when the server got it.
        return self._timing.deadline - (time.monotonic() - self._renewed)

    def _expired(self) -> bool:
        spec = _spec(self._lease or {})
        if not spec.get("holderIdentity"):
            return True
        if self._seen[0] != spec:
            # Not the version of the object: a note is no renewal.
            self._seen = (spec, time.monotonic())
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._timing.duration)

    def _claim(self, lease: Obj) -> Obj:
        spec = dict(_spec(lease))
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(holderIdentity=self._identity, leaseDurationSeconds=int(self._timing.duration), renewTime=_now())
        return {**lease, "spec": spec}


def _spec(lease: Obj) -> Obj:
    return lease.get("spec") or {}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
