"""Elect a leader on a Lease in client-go's format, so that we compete with the Go provider.

The leader election of the `kubernetes` package does not fit, because it does not release the lease
on shutdown (so that a restart waits until it expires), compares the clocks of machines, and reads
before every renewal. Here a process measures the age of a lease by its own clock, from the moment
when it observed the renewal.

A standby can request a sync from the leader by an annotation on the Lease. The leader finds the
annotation at its next renewal, because the Lease then has a newer version than the leader has read.
This needs no further right, watch or request.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import LEASES, Obj, annotations_of, at
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, Fenced, NotFound, RequestError, Unreachable

log = logging.getLogger(__name__)

_SYNC_ANNOTATION = "caphv.io/note-to-holder"
_MAX_SYNC_ATTEMPTS = 5
_MAX_RELEASE_ATTEMPTS = 3
# Two requests fit into the deadline of a renewal.
_REQUEST_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in seconds. A lease lasts `duration`, and its holder renews it every `retry`.

    The holder stops when no renewal has succeeded for `deadline`.
    """

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


class LeaderElection:
    """Compete for one Lease as `identity` (unique to each process).

    Renewals have their own connections and time-out, because they would come too late behind other
    work. The function `on_sync_request` is called when a standby requests a sync while this process
    leads. It may be set at any time.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
    ) -> None:
        self._client = client.clone(timeout=_REQUEST_SECONDS)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or Timing()
        self.on_sync_request: Callable[[], None] = lambda: None

        self._lease: Obj | None = None
        self._sync_request = ""
        # The spec that another process wrote last, and the time when this process first read it.
        self._last_spec: Obj = {}
        self._last_change = 0.0
        self._renewed = 0.0
        self._leading = False

    @property
    def holding(self) -> bool:
        """Whether this process held the lease when it last read or wrote it."""
        return self._is_holder()

    def fence(self) -> None:
        """Raise `Fenced` once the lease may have expired.

        A delayed write must not interfere with writes of the next holder.
        """
        if self._leading and self._remaining() <= 0:
            raise Fenced(
                f"lease {self._namespace}/{self._name} may have expired; nothing may be written "
                "any more"
            )

    @property
    def lease(self) -> Obj | None:
        """The Lease as this process last read or wrote it."""
        return self._lease

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def request_sync(self) -> None:
        """Request a sync from the leader within seconds. Raises `ApiError` and `Unreachable`.

        Does nothing without a leader, because the next leader starts with a full sync anyway.
        """
        for attempt in range(1, _MAX_SYNC_ATTEMPTS + 1):
            try:
                lease = await self._client.get(LEASES, self._name, self._namespace)
                request = {_SYNC_ANNOTATION: f"{self._identity} {_now()}"}
                annotations = {**annotations_of(lease), **request}
                metadata = {**lease["metadata"], "annotations": annotations}
                await self._client.replace(LEASES, {**lease, "metadata": metadata})
                return
            except NotFound:
                return
            except Conflict:
                # The holder renewed the lease at the same moment.
                if attempt == _MAX_SYNC_ATTEMPTS:
                    raise

    async def acquire(self) -> None:
        """Wait until this process holds the lease."""
        waiting_for = ""
        while not await self._attempt():
            holder = _spec(self._lease or {}).get("holderIdentity") or ""
            if holder and holder != waiting_for:
                waiting_for = holder
                log.info("waiting for lease %s/%s, held by %s", self._namespace, self._name, holder)
            await asyncio.sleep(self._timing.retry * random.uniform(1.0, 1.2))

        self._leading = True
        metrics.LEADER.set(1)
        log.info("holding lease %s/%s as %s", self._namespace, self._name, self._identity)

    async def hold(self) -> None:
        """Renew until the lease is lost, then return. The caller must stop all writes at once."""
        while (remaining := self._remaining()) > 0:
            await asyncio.sleep(min(self._timing.retry, remaining))
            try:
                async with asyncio.timeout(self._remaining()):
                    if not await self._attempt() and self._lease and not self._is_holder():
                        break
            except TimeoutError:
                break
        metrics.LEADER.set(0)
        log.error("lost lease %s/%s", self._namespace, self._name)

    async def release(self) -> None:
        """Release the lease, so that the next process need not wait until it expires."""
        metrics.LEADER.set(0)
        for attempt in range(1, _MAX_RELEASE_ATTEMPTS + 1):
            # Read the lease again, because the answer to a renewal may have been lost when `hold`
            # was cancelled.
            await self._reread()
            if self._lease is None or not self._is_holder():
                return

            spec = {
                **_spec(self._lease),
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": _now(),
            }
            try:
                await self._client.replace(LEASES, {**self._lease, "spec": spec})
                return
            except RequestError as error:
                # A Conflict means that the cancelled renewal, or a sync request, arrived late.
                if not isinstance(error, Conflict) or attempt == _MAX_RELEASE_ATTEMPTS:
                    log.warning("lease %s/%s not released: %s", self._namespace, self._name, error)
                    return

    async def _attempt(self) -> bool:
        """Acquire or renew the lease, and return whether this process now holds it."""
        try:
            # The holder need not read the lease, because a change by others causes a Conflict.
            lease = self._lease if self._lease and self._is_holder() else await self._read()
            self._note_renewal()
            if not self._is_holder() and not self._is_expired():
                return False

            # Take the time before the request, because others count the duration from the moment
            # when the server stores the renewal.
            started = time.monotonic()
            self._lease = await self._client.replace(LEASES, self._claim(lease))

        except NotFound:
            return await self._create()
        except RequestError as error:
            level = logging.DEBUG if isinstance(error, Conflict) else logging.WARNING
            log.log(level, "lease %s/%s: %s", self._namespace, self._name, error)
            if not isinstance(error, Unreachable):
                await self._reread()
            return False

        self._renewed = started
        return True

    async def _create(self) -> bool:
        """Create the Lease with this process as its holder, and return whether that succeeded."""
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {"leaseTransitions": 0},
        }
        started = time.monotonic()
        try:
            self._lease = await self._client.create(LEASES, self._claim(lease))
        except RequestError as error:
            log.warning("cannot create lease %s/%s: %s", self._namespace, self._name, error)
            return False
        self._renewed = started
        return True

    async def _reread(self) -> None:
        try:
            await self._read()
        except RequestError:
            self._lease = None

    async def _read(self) -> Obj:
        """Read the Lease. Call `on_sync_request` if this process leads and the request is new."""
        self._lease = lease = await self._client.get(LEASES, self._name, self._namespace)
        last_request = self._sync_request
        self._sync_request = annotations_of(lease).get(_SYNC_ANNOTATION, "")
        if self._is_holder() and self._sync_request != last_request:
            self.on_sync_request()
        return lease

    def _is_holder(self) -> bool:
        return at(self._lease, "spec", "holderIdentity") == self._identity

    def _remaining(self) -> float:
        """Return for how many seconds this process certainly holds the lease.

        They count from the moment before the request of the last renewal, because others may count
        from the moment when the server got the request.
        """
        return self._timing.deadline - (time.monotonic() - self._renewed)

    def _note_renewal(self) -> None:
        """Note when the Lease last changed, by the clock of this process."""
        spec = _spec(self._lease or {})
        # Compare the spec, not the version of the object, because a sync request is no renewal.
        if self._last_spec != spec:
            self._last_spec = spec
            self._last_change = time.monotonic()

    def _is_expired(self) -> bool:
        spec = _spec(self._lease or {})
        if not spec.get("holderIdentity"):
            return True
        duration = float(spec.get("leaseDurationSeconds") or self._timing.duration)
        return time.monotonic() - self._last_change > duration

    def _claim(self, lease: Obj) -> Obj:
        """Return the Lease with this process as its holder, renewed now."""
        spec = dict(_spec(lease))
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(
            holderIdentity=self._identity,
            leaseDurationSeconds=int(self._timing.duration),
            renewTime=_now(),
        )
        return {**lease, "spec": spec}


def share_name(namespace: str, watch_filter: str) -> str:
    """Return a name for the share of the clusters that one of several Deployments reconciles.

    Its Lease and its files have this name. It is empty for all clusters.
    """
    if not watch_filter:
        return namespace
    readable = re.sub(r"[^a-z0-9]+", "-", f"{watch_filter} {namespace}".lower()).strip("-")
    # A filter may have the name of a namespace, and two filters may differ in punctuation only.
    digest = hashlib.sha256(f"{namespace}/{watch_filter}".encode()).hexdigest()[:8]
    return f"{readable}-{digest}"


def _spec(lease: Obj) -> Obj:
    return lease.get("spec") or {}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
