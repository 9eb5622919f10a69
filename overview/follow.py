"""Keeps a view of clusters up to date by watches, so that a page or a terminal shows each change at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from caphv.api import resources
from caphv.api.object import EVENTS, Obj, Resource
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import ApiError, Forbidden, NotFound, Unreachable
from overview.objects import ManagementObjects, Unseen
from overview.reader import control_plane_kinds, kinds_of, unseen

# Changes come in bursts: a machine that becomes ready changes half a dozen objects.
_QUIET = 0.3
_FIRST_SECONDS = 20.0
# What lasts too long counts as a problem without a change of any object.
_LONGEST_SECONDS = 30.0
_EVENT_KINDS = ("Cluster", "HarvesterCluster", "HarvesterMachine")


class Follower:
    """Watches what `read_management` reads. Use it as a context; `ManagementObjects` comes out of `changes`.

    :param page: also watch what only the live page shows: Events and MachineHealthChecks
    """

    def __init__(self, client: ApiClient, namespace: str = "", *, page: bool = False) -> None:
        self._client = client
        self._for_page = page
        self._events: list[Informer] = []
        self._health_checks: Informer | None = None
        self._namespace = namespace
        self._informers: dict[str, Informer] = {}
        self._control_planes: dict[tuple[str, str], Informer | Unseen] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._search_at = 0.0

    @property
    def away(self) -> bool:
        """Whether the server does not answer. A missing right, or a kind that it does not have, is none of that."""
        informers = [*self._informers.values(), *self._control_planes.values()]
        errors = [each.last_error for each in informers if isinstance(each, Informer)]
        return any(error is not None and not isinstance(error, (Forbidden, NotFound)) for error in errors)

    async def __aenter__(self) -> Follower:
        """Start all watches. Raises `ApiError`, `Unreachable`, `NoClusterApiError` where clusters cannot be read."""
        kinds = await kinds_of(self._client)
        await self._client.list(kinds["clusters"], self._namespace, limit=1)
        for name, resource in kinds.items():
            self._informers[name] = self._start(resource)
        await self._filled(list(self._informers.values()))
        await self._follow_control_planes()
        if self._for_page:
            self._health_checks = self._start(resources.machine_health_checks(kinds["machines"].version))
            self._events = [self._start(EVENTS, f"involvedObject.kind={kind}") for kind in _EVENT_KINDS]
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End all watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def snapshot(self) -> ManagementObjects:
        """What is known now."""
        found = ManagementObjects(server=self._client.server)
        for name, informer in self._informers.items():
            setattr(found, name, _with_kind(informer))
            self._report(found, informer)
        for own in self._control_planes.values():
            if isinstance(own, Unseen):
                found.unseen.append(own)
                continue
            found.control_planes += _with_kind(own)
            self._report(found, own)
        if self._health_checks:
            found.machine_health_checks = _with_kind(self._health_checks)
            if not isinstance(self._health_checks.last_error, NotFound):  # a core without the kind
                self._report(found, self._health_checks)
        for informer in self._events:
            found.events += informer.store
            self._report(found, informer)
        return found

    async def changes(self) -> AsyncIterator[ManagementObjects]:
        """Yield what is known: now, on each change, and now and then, for what is made of it changes in time."""
        while True:
            self._changed.clear()
            await self._follow_control_planes()
            yield self.snapshot()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_SECONDS):
                    await self._changed.wait()
                await asyncio.sleep(_QUIET)

    def _start(self, resource: Resource, field_selector: str = "") -> Informer:
        informer = Informer(
            self._client,
            resource,
            namespace=self._namespace,
            field_selector=field_selector,
            on_error=self._failed,
            on_contact=self._changed.set,
        )
        informer.add_handler(self._wake)
        self._tasks.append(informer.start())
        return informer

    def _wake(self, _change: Change) -> None:
        self._changed.set()

    def _failed(self, _error: Exception) -> None:
        self._changed.set()

    async def _filled(self, informers: list[Informer]) -> None:
        """Wait until each has its first list, or has failed to read it."""
        deadline = asyncio.get_running_loop().time() + _FIRST_SECONDS
        while not all(informer.synced or informer.last_error for informer in informers):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)

    async def _follow_control_planes(self) -> None:
        """Watch the kinds of control planes that clusters refer to; those of a provider may come later."""
        now = asyncio.get_running_loop().time()
        if now >= self._search_at:
            self._search_at = now + _LONGEST_SECONDS
            for kind in [kind for kind, own in self._control_planes.items() if isinstance(own, Unseen)]:
                del self._control_planes[kind]
        fresh = control_plane_kinds(self._informers["clusters"].store) - self._control_planes.keys()
        for kind in sorted(fresh):
            try:
                self._control_planes[kind] = self._start(await find_resource(self._client, *kind))
            except (ApiError, Unreachable) as error:
                self._control_planes[kind] = unseen(".".join(reversed(kind)), error)
        started = [self._control_planes[kind] for kind in fresh]
        await self._filled([each for each in started if isinstance(each, Informer)])

    def _report(self, found: ManagementObjects, informer: Informer) -> None:
        error, what = informer.last_error, str(informer.resource)
        if isinstance(error, (ApiError, Unreachable)):
            found.unseen.append(unseen(what, error))
        elif error is not None:
            found.unseen.append(Unseen(what, f"{type(error).__name__}: {error}"))


def _with_kind(informer: Informer) -> list[Obj]:
    head = {"apiVersion": informer.resource.api_version, "kind": informer.resource.kind}
    return [{**head, **obj} for obj in informer.store]
