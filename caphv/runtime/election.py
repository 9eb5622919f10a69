"""Leader election on a Lease, in client-go's format, so that the Go provider and this one exclude each other.

Why not the leader election of the `kubernetes` package: it does not release the lease on shutdown (a restart then
waits until it expires), it compares the clocks of machines, and it reads before every renewal. Here a process measures
the age of a lease by its own clock, from the moment it saw the renewal.

A standby can ask the leader for a sync by an annotation on the Lease, and a user for other work by annotations of their
own. The leader finds them at its next renewal, which meets a newer version than it has read; that takes no further
right, watch or request. With a renewal it also removes those that it has handled.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from caphv.api.object import LEASES, Obj, annotations_of
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, Fenced, NotFound, Unreachable

log = logging.getLogger(__name__)

_SYNC_ANNOTATION = "caphv.io/note-to-holder"
_SYNC_ATTEMPTS = 5
# Two requests fit into the deadline of a renewal.
_REQUEST_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: a lease lasts `duration`; its holder renews every `retry` and gives up after `deadline`."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


class LeaderElection:
    """Compete for one Lease as `identity` (unique to each process).

    Renewals use connections and a time-out of their own: behind other work they would come too late.
    `on_sync_request` is called when a standby asks for a sync while this process leads, and `on_annotations` with all
    annotations of the Lease when they change; both may be set at any time.
    """

    def __init__(
        self, client: ApiClient, *, namespace: str, name: str, identity: str, timing: Timing | None = None
    ) -> None:
        self._client = client.dedicated(timeout=_REQUEST_SECONDS)
        self._namespace, self._name, self._identity = namespace, name, identity
        self._timing = timing or Timing()
        self.on_sync_request: Callable[[], None] = lambda: None
        self.on_annotations: Callable[[Mapping[str, str]], None] = lambda _: None
        self._lease: Obj | None = None
        self._annotations: Mapping[str, str] = {}
        self._handled: dict[str, str] = {}
        self._sync_request = ""
        self._seen: tuple[Obj, float] = ({}, 0.0)
        self._renewed = 0.0
        self._leading = False

    @property
    def holding(self) -> bool:
        """Whether this process held the lease when it last looked."""
        return self._holding()

    def fence(self) -> None:
        """Raise `Fenced` once the lease may have expired, so that no delayed write meets those of the next holder."""
        if self._leading and self._remaining() <= 0:
            raise Fenced(f"lease {self._namespace}/{self._name} may have expired; nothing may be written any more")

    @property
    def lease(self) -> Obj | None:
        """The Lease as this process last read or wrote it."""
        return self._lease

    def remove_annotation(self, name: str, value: str) -> None:
        """Remove an annotation with the next renewal, unless it has another value by then."""
        self._handled[name] = value

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def request_sync(self) -> None:
        """Ask the leader to sync within seconds. Raises ApiError and Unreachable.

        Without a leader this does nothing: the next one starts with a full sync anyway.
        """
        for attempt in range(1, _SYNC_ATTEMPTS + 1):
            try:
                lease = await self._client.get(LEASES, self._name, self._namespace)
                annotations = {**annotations_of(lease), _SYNC_ANNOTATION: f"{self._identity} {_now()}"}
                metadata = {**lease["metadata"], "annotations": annotations}
                await self._client.replace(LEASES, {**lease, "metadata": metadata})
            except NotFound:
                return
            except Conflict:
                # The holder renewed it at the same moment.
                if attempt == _SYNC_ATTEMPTS:
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
        self._leading = True
        metrics.LEADER.set(1)
        log.info("holding lease %s/%s as %s", self._namespace, self._name, self._identity)

    async def hold(self) -> None:
        """Renew until the lease is lost, then return. The caller must stop all writes at once."""
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
        """Release the lease, so that the next process need not wait until it expires."""
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
        self._report_annotations()
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
        before, self._sync_request = self._sync_request, annotations_of(lease).get(_SYNC_ANNOTATION, "")
        if self._holding() and before != self._sync_request:
            self.on_sync_request()
        return lease

    def _report_annotations(self) -> None:
        now = annotations_of(self._lease or {})
        # What was removed may be set again, with the same value.
        self._handled = {name: value for name, value in self._handled.items() if now.get(name) == value}
        if now != self._annotations:
            self._annotations = dict(now)
            self.on_annotations(self._annotations)

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
            # Not the version of the object: a sync request is no renewal.
            self._seen = (spec, time.monotonic())
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._timing.duration)

    def _claim(self, lease: Obj) -> Obj:
        spec = dict(_spec(lease))
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(holderIdentity=self._identity, leaseDurationSeconds=int(self._timing.duration), renewTime=_now())
        annotations = {name: value for name, value in annotations_of(lease).items() if self._handled.get(name) != value}
        return {**lease, "metadata": {**lease["metadata"], "annotations": annotations}, "spec": spec}


def _spec(lease: Obj) -> Obj:
    return lease.get("spec") or {}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
