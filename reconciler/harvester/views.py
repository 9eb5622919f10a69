"""Views of a session on the objects of a Harvester, in shared caches or caches of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from caphv.runtime.cache import Informer
from caphv.runtime.errors import Forbidden, NotFound
from reconciler.harvester.sharedcache import Collection
from reconciler.harvester.watchedcollections import (
    DEPLOYMENT,
    HOSTS,
    IMAGES,
    KEY_PAIRS,
    LOAD_BALANCER_SERVICES,
    POOLS,
    collections_of,
)

if TYPE_CHECKING:
    from reconciler.harvester.session import Session
    from reconciler.harvester.sharing import CacheSharing


class View:
    """View of a session on one collection: empty at first, then a shared cache or its own."""

    def __init__(self, collection: Collection, own: Informer) -> None:
        self.collection = collection
        self.informer = own
        self.own = own
        self._task: asyncio.Task[None] | None = None
        self._announcement: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def is_shared(self) -> bool:
        """Whether the session uses the shared cache."""
        return self.informer is not self.own

    @property
    def is_read_alone(self) -> bool:
        """Whether the session reads the collection by itself."""
        return self._task is not None

    def read_alone(self, *, server: str, identity: str) -> None:
        """Read the collection into the session's own cache, and use that cache.

        :param server: server of the session, for the log
        :param identity: identity of the session, for the log
        """
        self.informer = self.own
        self._task = self.own.start(server=server, identity=identity)

    def share(self, informer: Informer) -> None:
        """Use a shared cache, and drop the content of the session's own cache."""
        self.informer = informer
        self.own.clear()

    def unshare(self) -> None:
        """Use the session's own cache without reading it."""
        self.informer = self.own

    def replace_announcement(self, task: asyncio.Task[None]) -> None:
        """Keep the task that announces the cache in use, and cancel the task of a former cache."""
        if self._announcement:
            self._announcement.cancel()
        self._announcement = task

    @property
    def is_closed(self) -> bool:
        """Whether the session no longer needs the collection."""
        return self._closed.is_set()

    def close(self) -> None:
        """Release the tasks that wait for the cache."""
        self._closed.set()

    async def wait_until_filled(self) -> None:
        """Wait until the cache in use has been filled, or the view is closed."""
        waits = [
            asyncio.create_task(self.informer.wait_synced()),
            asyncio.create_task(self._closed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self) -> None:
        """Stop the session's own cache."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


class ClusterWideCaches:
    """Caches of a session that do not depend on a namespace."""

    _views: dict[Collection, View]
    _sharing: CacheSharing

    def error_of(self, view: View) -> Exception | None:
        """Return why the account cannot read a cache, None while there is no error.

        A refusal of another account that reads a shared cache does not count.
        """
        return self._sharing.error_of(view)

    @property
    def deployment(self) -> Informer:
        """Harvester's own Deployment."""
        return self._views[DEPLOYMENT].informer

    @property
    def hosts(self) -> Informer:
        """Nodes of Harvester."""
        return self._views[HOSTS].informer

    @property
    def images(self) -> Informer:
        """VirtualMachineImages of all namespaces."""
        return self._views[IMAGES].informer

    @property
    def key_pairs(self) -> Informer:
        """KeyPairs of all namespaces."""
        return self._views[KEY_PAIRS].informer

    @property
    def pools(self) -> Informer:
        """IPPools."""
        return self._views[POOLS].informer

    @property
    def services(self) -> Informer:
        """Services of load balancers in all namespaces."""
        return self._views[LOAD_BALANCER_SERVICES].informer

    @property
    def synced(self) -> bool:
        """Whether the cluster-wide caches have been filled."""
        return all(view.informer.synced for view in self._views.values())

    @property
    def is_settled(self) -> bool:
        """Whether each cluster-wide cache has been filled, or has an error that says why not."""
        return all(view.informer.synced or self.error_of(view) for view in self._views.values())

    @property
    def sync_error(self) -> str:
        """Why cluster-wide caches cannot be filled; empty while first lists are being read."""
        return sync_error_of(self._views.values(), self.error_of)

    @property
    def missing_kind(self) -> str:
        """A kind of Harvester that the server does not serve, empty if it serves all."""
        for view in self._views.values():
            if isinstance(self.error_of(view), NotFound):
                return str(view.informer.resource)
        return ""


class TargetNamespace:
    """Caches of one namespace on Harvester."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._error_of = session.error_of
        collections = collections_of(name, session.management_cluster)
        self._vms = session.new_view(collections.vms)
        self._instances = session.new_view(collections.instances)
        self._claims = session.new_view(collections.claims)
        self._load_balancers = session.new_view(collections.load_balancers)
        self.views = (self._vms, self._instances, self._claims, self._load_balancers)

    @property
    def vms(self) -> Informer:
        """VirtualMachines, indexed by `harvestercluster/machinetype`."""
        return self._vms.informer

    @property
    def instances(self) -> Informer:
        """VirtualMachineInstances."""
        return self._instances.informer

    @property
    def claims(self) -> Informer:
        """PersistentVolumeClaims."""
        return self._claims.informer

    @property
    def load_balancers(self) -> Informer:
        """LoadBalancers."""
        return self._load_balancers.informer

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
        """Whether all watches of the namespace are connected."""
        return all(informer.current for informer in self.informers)

    @property
    def sync_error(self) -> str:
        """Why caches cannot be filled; empty while the first lists are still being read."""
        return sync_error_of(self.views, self._error_of)


_ErrorOf = Callable[[View], Exception | None]


def sync_error_of(views: Iterable[View], error_of: _ErrorOf) -> str:
    """Return why caches cannot be filled; empty while the first lists are still being read.

    :param error_of: returns why the account cannot read a cache
    """
    errors = (error_of(view) for view in views if not view.informer.synced)
    return "; ".join(str(error) for error in errors if error)


def refusal_of(views: Iterable[View], error_of: _ErrorOf) -> str:
    """Return why an account may not read caches, whether they are filled or not.

    Returns an empty text if the account may read them, or while a first list is still being read.
    Filled caches count, because a cache becomes outdated once its watch is refused.

    :param error_of: returns why the account cannot read a cache
    """
    errors = [(view, error_of(view)) for view in views]
    if any(not view.informer.synced and error is None for view, error in errors):
        return ""  # which error comes first depends on the order of answers

    return "; ".join(str(error) for _, error in errors if isinstance(error, Forbidden))
