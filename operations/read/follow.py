"""Keep a view of clusters up to date by watches, for a page or a terminal that shows changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from caphv.api import resources
from caphv.api.object import EVENTS, Obj, Resource
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import ApiError, Forbidden, NotFound, RequestError, Unreachable
from operations.read.management import control_plane_kinds, kinds_of, unseen
from operations.read.objects import ManagementObjects, Unseen

# Changes come in bursts. For example, a machine that becomes ready changes half a dozen objects.
_QUIET_SECONDS = 0.3
# After this time, the view begins even if some lists are still missing.
_FIRST_SECONDS = 20.0
# A state that lasts too long becomes a problem, although no object changes.
_MAX_DELAY_SECONDS = 30.0
_EVENT_KINDS = ("Cluster", "HarvesterCluster", "HarvesterMachine")
# The page does not wait for these, and is right without them for a moment.
_LATER_KINDS = ("Event", "MachineHealthCheck")
_EVENT_FIELDS = ("series", "lastTimestamp", "eventTime", "count")
# As long as the message of an Event of the newer API may be. The older one has no limit.
_MAX_TEXT_LENGTH = 1024


class Follower:
    """Watch the objects that `read_management` reads, while the block of its context lasts.

    :param client: client of the management cluster
    :param namespace: the namespace to watch; empty for all namespaces
    :param page: also watch the Events and MachineHealthChecks that only the live page shows
    """

    def __init__(self, client: ApiClient, namespace: str = "", *, page: bool = False) -> None:
        self._client = client
        self._namespace = namespace
        self._for_page = page

        self._informers: dict[str, Informer] = {}
        self._control_planes: dict[tuple[str, str], Informer | Unseen] = {}
        self._events: list[Informer] = []
        self._health_checks: Informer | None = None

        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._search_at = 0.0

    @property
    def away(self) -> bool:
        """Whether the server does not answer; a missing right or kind is an answer."""
        for informer in (*self._informers.values(), *self._control_planes.values()):
            error = informer.last_error if isinstance(informer, Informer) else None
            if error is not None and not isinstance(error, (Forbidden, NotFound)):
                return True
        return False

    async def __aenter__(self) -> Follower:
        """Start all watches.

        Raises `ApiError`, `Unreachable`, `NoClusterApiError` where clusters cannot be read.
        """
        try:
            await self._start_all()
        except BaseException:
            # Python does not call `__aexit__` for a block that was not entered.
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End all watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def snapshot(self) -> ManagementObjects:
        """Return the objects that are known now."""
        objects = ManagementObjects(server=self._client.server)
        for name, informer in self._informers.items():
            setattr(objects, name, _with_kind(informer))
            self._report(objects, informer)

        for control_planes in self._control_planes.values():
            if isinstance(control_planes, Unseen):
                objects.unseen.append(control_planes)
                continue
            objects.control_planes += _with_kind(control_planes)
            self._report(objects, control_planes)

        if self._health_checks:
            objects.machine_health_checks = _with_kind(self._health_checks)
            if not isinstance(self._health_checks.last_error, NotFound):  # a core without the kind
                self._report(objects, self._health_checks)
        for informer in self._events:
            objects.events += informer.store
            self._report(objects, informer)
        return objects

    async def changes(self) -> AsyncIterator[ManagementObjects]:
        """Yield the known objects at once, after each change, and after some time without one.

        Time matters even without a change, because a wait that lasts too long becomes a problem.
        """
        while True:
            # The event is cleared first, so that a change while the consumer works wakes the next
            # round.
            self._changed.clear()
            await self._follow_control_planes()
            yield self.snapshot()

            with suppress(TimeoutError):
                async with asyncio.timeout(_MAX_DELAY_SECONDS):
                    await self._changed.wait()
                await asyncio.sleep(_QUIET_SECONDS)

    async def _start_all(self) -> None:
        """Start the watches, and wait for the first lists of those that are not for the page."""
        # A watch retries forever, so that a kind that cannot be read at all must fail here.
        kinds = await kinds_of(self._client)
        await self._client.list(kinds["clusters"], self._namespace, limit=1)

        for name, resource in kinds.items():
            self._informers[name] = self._start(resource)
        await self._wait_for_lists(list(self._informers.values()))
        await self._follow_control_planes()

        # The first lists of these kinds are not awaited, because the page can show them later.
        if self._for_page:
            health_checks = resources.machine_health_checks(kinds["machines"].version)
            self._health_checks = self._start(health_checks)
            self._events = [
                self._start(EVENTS, f"involvedObject.kind={kind}", _slim_event)
                for kind in _EVENT_KINDS
            ]

    def _start(
        self,
        resource: Resource,
        field_selector: str = "",
        transform: Callable[[Obj], Obj] | None = None,
    ) -> Informer:
        """Watch a kind; each change, error and first answer wakes `changes`."""

        def wake(_change: Change | Exception) -> None:
            self._changed.set()

        informer = Informer(
            self._client,
            resource,
            namespace=self._namespace,
            field_selector=field_selector,
            transform=transform,
            on_error=wake,
            on_contact=self._changed.set,
        )
        informer.add_handler(wake)
        self._tasks.append(informer.start())
        return informer

    async def _wait_for_lists(self, informers: list[Informer]) -> None:
        """Wait until each has its first list, or has failed to read it."""
        deadline = asyncio.get_running_loop().time() + _FIRST_SECONDS
        while not all(informer.synced or informer.last_error for informer in informers):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)

    async def _follow_control_planes(self) -> None:
        """Watch the kinds of control planes that clusters refer to."""
        # A provider may be installed later, so that absent kinds are searched again.
        time = asyncio.get_running_loop().time()
        if time >= self._search_at:
            self._search_at = time + _MAX_DELAY_SECONDS
            self._control_planes = {
                kind: informer
                for kind, informer in self._control_planes.items()
                if not isinstance(informer, Unseen)
            }

        fresh = control_plane_kinds(self._informers["clusters"].store) - self._control_planes.keys()
        started = []
        for kind in sorted(fresh):
            try:
                informer = self._start(await find_resource(self._client, *kind))
            except RequestError as error:
                self._control_planes[kind] = unseen(".".join(reversed(kind)), error)
            else:
                self._control_planes[kind] = informer
                started.append(informer)

        await self._wait_for_lists(started)

    def _report(self, objects: ManagementObjects, informer: Informer) -> None:
        """Record why an informer has not read its kind."""
        error = informer.last_error
        kind = str(informer.resource)
        if isinstance(error, (ApiError, Unreachable)):
            objects.unseen.append(unseen(kind, error))
        elif error is not None:
            objects.unseen.append(Unseen(kind, f"{type(error).__name__}: {error}"))
        elif not informer.synced and informer.resource.kind not in _LATER_KINDS:
            objects.unseen.append(Unseen(kind, "not read yet"))


def _slim_event(event: Obj) -> Obj:
    """Return only the fields of an Event that the page shows, cut, because tenants write Events."""
    metadata = event["metadata"]
    about = event.get("involvedObject") or {}
    identity = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "metadata": {name: metadata[name] for name in identity if name in metadata},
        "involvedObject": {name: _cut(about.get(name)) for name in ("kind", "namespace", "name")},
        **{name: _cut(event.get(name)) for name in ("type", "reason", "message")},
        **{name: event[name] for name in _EVENT_FIELDS if name in event},
    }


def _cut(text: object) -> str:
    return str(text or "")[:_MAX_TEXT_LENGTH]


def _with_kind(informer: Informer) -> list[Obj]:
    """Return the objects of an informer with kind and version, which lists leave out."""
    head = {"apiVersion": informer.resource.api_version, "kind": informer.resource.kind}
    return [{**head, **obj} for obj in informer.store]
