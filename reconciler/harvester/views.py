"""What one session sees of a Harvester: shared caches where it may, its own where it may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from caphv.runtime.cache import Informer
from caphv.runtime.errors import Forbidden
from reconciler.harvester.harvester import collections_of
from reconciler.harvester.sharedcache import Collection

if TYPE_CHECKING:
    from reconciler.harvester.session import Session


class View:
    """What a session sees of one collection: nothing yet, the shared cache, or a cache of its own."""

    def __init__(self, collection: Collection, own: Informer) -> None:
        self.collection = collection
        self.informer = own
        self.own = own
        self.task: asyncio.Task[None] | None = None
        self.switch: asyncio.Task[None] | None = None
        """Announces that another cache is used now."""
        self._closed = asyncio.Event()

    @property
    def shared(self) -> bool:
        """Whether the shared cache is used."""
        return self.informer is not self.own

    @property
    def closed(self) -> bool:
        """Whether the session does not need the collection any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """Let the tasks that wait for the cache continue."""
        self._closed.set()

    async def settled(self) -> None:
        """Wait until the cache that is used now has been filled, or the view is closed."""
        waits = [asyncio.create_task(self.informer.wait_synced()), asyncio.create_task(self._closed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def stop(self) -> None:
        """Stop the session's own cache."""
        if self.task:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None


class TargetNamespace:
    """Caches of one namespace on Harvester."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self.views = tuple(session.new_view(it) for it in collections_of(name, session.management_cluster))

    @property
    def vms(self) -> Informer:
        """VirtualMachines, indexed by `harvestercluster/machinetype`."""
        return self.views[0].informer

    @property
    def instances(self) -> Informer:
        """VirtualMachineInstances."""
        return self.views[1].informer

    @property
    def claims(self) -> Informer:
        """PersistentVolumeClaims."""
        return self.views[2].informer

    @property
    def load_balancers(self) -> Informer:
        """LoadBalancers."""
        return self.views[3].informer

    @property
    def informers(self) -> list[Informer]:
        """All caches of the namespace."""
        return [view.informer for view in self.views]

    @property
    def synced(self) -> bool:
        """Whether all caches of the namespace have been filled."""
        return all(view.informer.synced for view in self.views)

    @property
    def current(self) -> bool:
        """Whether absence from these caches means absence on Harvester, now."""
        return all(informer.current for informer in self.informers)

    @property
    def sync_error(self) -> str:
        """Why caches cannot be filled; empty while the first lists are still being read."""
        return sync_error_of(self.informers)


def sync_error_of(informers: Iterable[Informer]) -> str:
    """Why caches cannot be filled; empty while the first lists are still being read."""
    return "; ".join(str(one.last_error) for one in informers if not one.synced and one.last_error)


def refusal_of(views: Iterable[View], reads: Callable[[View], bool]) -> str:
    """Why an account may not read caches, filled or not; empty if it may, or while a first list is still being read.

    A cache that was filled shows the past once its watch is refused. `reads` says whether the account reads it itself:
    the error of another one that reads for it says nothing about it.
    """
    views = list(views)
    if any(not view.informer.synced and view.informer.last_error is None for view in views):
        return ""  # what fails first depends on the order of answers
    errors = (view.informer.last_error for view in views if reads(view))
    return "; ".join(str(error) for error in errors if isinstance(error, Forbidden))
