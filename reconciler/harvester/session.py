"""One session per Harvester account: a client, the right to use shared caches, and the account's own health.

All clusters with the same credentials share a session. It opens with the first and closes with the last of them,
whatever state their HarvesterClusters are in. What several accounts may read is read once, see
`reconciler.harvester.harvester`; where a SelfSubjectAccessReview says that an account may not list a collection, the
session has a cache of its own, whose errors say which right is missing.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import random
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api.object import NAMESPACES, Obj, uid_of
from caphv.runtime.addresses import AddressCheck
from caphv.runtime.cache import Change, Informer
from caphv.runtime.errors import ApiError, Forbidden, NotFound, Unauthorized, Unreachable, without_trace
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler import metrics
from reconciler.harvester.allocator import AddressAllocator
from reconciler.harvester.harvester import (
    CLUSTER_WIDE,
    DEPLOYMENT,
    HARVESTER_DEPLOYMENT,
    HARVESTER_NAMESPACE,
    HOSTS,
    IMAGES,
    KEY_PAIRS,
    LOAD_BALANCER_SERVICES,
    POOLS,
    PROBE_BACKOFF,
    Harvester,
    Harvesters,
    Probe,
)
from reconciler.harvester.rights import may
from reconciler.harvester.sharedcache import Collection
from reconciler.harvester.views import TargetNamespace, View, refusal_of, sync_error_of

log = logging.getLogger(__name__)

# Rights that end are noticed by a 403, or after this many seconds.
_REVIEW_SECONDS = 600.0
_REVIEW_AGAIN = 30.0


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """Callbacks of sessions.

    `changed`: an object changed that these sessions read. `health`: a Harvester became unreachable or reachable for
    one. `caches`: all caches of a session became current, or one cannot be filled for a new reason. `limited`: the
    server has reached a limit.
    """

    changed: Callable[[Mapping[Session, None], Change], None]
    health: Callable[[Session], None]
    caches: Callable[[Session], None] = lambda _session: None
    limited: Callable[[Session], None] = lambda _session: None


class Session:
    """Client, caches and allocator for one account; created by `Sessions`."""

    def __init__(
        self,
        access: Kubeconfig,
        events: SessionEvents,
        identity: str,
        harvesters: Harvesters,
        *,
        fence: Callable[[], None] | None = None,
        check_address: AddressCheck | None = None,
        machines: Callable[[], int] = lambda: 0,
        claimed: Callable[[str], bool] = lambda _address: False,
        management_cluster: str = "",
    ) -> None:
        # Secrets with the same content share a session; metrics name the first of them.
        self.identity = identity
        self.fingerprint = access.fingerprint
        self.server = access.server
        self.ca = access.ca
        self.any_address = access.any_address
        self.uid = ""
        self.management_cluster = management_cluster
        self._access = access
        self._requests = metrics.IdentityRequests(identity)
        self.client = access.client(
            check_address, name="harvester", on_response=self._responded, fence=fence, opaque=True
        )
        self.machines = machines
        self._claimed = claimed
        if self.client.budget and self.client.time:
            self.client.budget.machines = machines
            self.client.time.machines = self._all_machines
            self.client.time.objects = self._all_objects
        self.client.on_limit = functools.partial(events.limited, self)
        self._events = events
        self._harvesters = harvesters
        self._harvester: Harvester | None = None
        self._connect_error: Exception | None = None
        self._rejected = False
        self._unanswered: Unreachable | None = None
        self._denied = False
        self._reviewed = -_REVIEW_AGAIN
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._health = ""
        self._caches_state: Hashable = (False, frozenset(), "", "")
        self._probe = Probe(self.report_health, self.own_informers, self.report_caches)
        self._views: dict[Collection, View] = {}
        for collection in CLUSTER_WIDE:
            self._views[collection] = self.new_view(collection)
        self._deployment = self._views[DEPLOYMENT]
        self.namespaces: dict[str, TargetNamespace] = {}
        self.allocator = AddressAllocator(self.client, lambda: self.pools, self.address_in_use)

    # Caches

    @property
    def deployment(self) -> Informer:
        """Harvester's own Deployment."""
        return self._deployment.informer

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
    def settled(self) -> bool:
        """Whether each cluster-wide cache has been filled, or has an error that says why not."""
        return all(view.informer.synced or view.informer.last_error for view in self._views.values())

    @property
    def sync_error(self) -> str:
        """Why cluster-wide caches cannot be filled; empty while the first lists are still being read."""
        return sync_error_of(view.informer for view in self._views.values())

    def refusal(self, namespace: TargetNamespace, *watched: Informer) -> str:
        """What the account may not read of a namespace, of these cluster-wide caches, and of those never filled."""
        others = (each for each in self._views.values() if each.informer in watched or not each.informer.synced)
        return refusal_of([*namespace.views, *others], self._reads)

    def _reads(self, view: View) -> bool:
        """Whether the account reads a collection itself, so that errors are its own."""
        return not view.shared or bool(self._harvester and self._harvester.cache(view.collection).reads(self))

    @property
    def missing_kind(self) -> str:
        """A kind that the server does not serve, because it is no Harvester; empty if it serves all."""
        informers = (view.informer for view in self._views.values())
        return next((str(one.resource) for one in informers if isinstance(one.last_error, NotFound)), "")

    def own_informers(self) -> list[Informer]:
        """Caches that this session does not share."""
        return [view.own for view in self._all_views() if view.task]

    def watch_namespace(self, name: str) -> TargetNamespace:
        """The caches of a target namespace; the first call opens them."""
        if name not in self.namespaces:
            self.namespaces[name] = TargetNamespace(self, name)
            if self._harvester:
                self._spawn(self._open_views(self.namespaces[name].views))
        return self.namespaces[name]

    async def unwatch_namespace(self, name: str) -> None:
        """Close the caches of a target namespace that no cluster uses any more."""
        namespace = self.namespaces.pop(name, None)
        for view in namespace.views if namespace else ():
            await self._close_view(view)

    # Health

    @property
    def error(self) -> Exception | None:
        """Why requests to Harvester fail now; None if they do not."""
        if self._rejected:
            # Whether the credentials are still rejected is not known while nothing answers.
            rejection = Unauthorized(401, "Unauthorized", "the credentials are invalid or have expired")
            return self._unanswered or rejection
        return self._connect_error or self.deployment.last_error

    @property
    def unauthorized(self) -> bool:
        """Whether Harvester rejects the credentials (for example an expired token)."""
        return isinstance(self.error, Unauthorized)

    @property
    def deployed(self) -> Obj | None:
        """Harvester's Deployment; None if it does not exist."""
        return self.deployment.get(HARVESTER_NAMESPACE, HARVESTER_DEPLOYMENT)

    @property
    def available(self) -> bool:
        """Contract: Deployment `harvester-system/harvester` has Available=True."""
        deployment = self.deployed
        conditions = (deployment or {}).get("status", {}).get("conditions") or ()
        return any(c.get("type") == "Available" and c.get("status") == "True" for c in conditions)

    @property
    def neighbours(self) -> Mapping[Session, None]:
        """All sessions on the same Harvester, with this one."""
        return self._harvester.sessions if self._harvester else {self: None}

    def _all_machines(self) -> int:
        """Machines on this Harvester: this account may read caches for all others."""
        return self._harvester.machines() if self._harvester else self.machines()

    def _all_objects(self) -> int:
        """Objects that are cached of this Harvester, of whomever they are."""
        informers = self._harvester.informers() if self._harvester else self.own_informers()
        return sum(len(informer.store) for informer in informers)

    def probe(self) -> None:
        """A request was answered 401: verify the credentials now."""
        self._wake.set()

    def report_health(self) -> None:
        """Report a change of health, but not each attempt."""
        error = self.error
        health = type(error).__name__ if error else "answers" if self._harvester else ""
        if health != self._health:
            self._health = health
            self._events.health(self)

    def report_caches(self) -> None:
        """Report when all caches have become current, or others fail or for a new reason."""
        informers = [view.informer for view in self._all_views()]
        # An informer forgets its error when the server accepts its watch, before it is current.
        failing = frozenset(number for number, informer in enumerate(informers) if informer.last_error)
        current = all(informer.current or informer.last_error for informer in informers)
        refused = refusal_of(self._all_views(), self._reads)
        state = current, failing, refused, sync_error_of(informers)
        if state != self._caches_state:
            self._caches_state = state
            self._events.caches(self)

    # Life

    def start(self) -> None:
        """Connect, and keep the account's rights up to date, until `close`."""
        self._spawn(self._run())

    async def close(self) -> None:
        """Leave all caches and close the connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for view in self._all_views():
            await self._close_view(view)
        if self._harvester:
            self._harvesters.leave(self, self._harvester)
        await self.client.close()

    def refused(self, collection: Collection) -> None:
        """Harvester has refused to list a collection that other accounts still may list: read it alone."""
        for view in self._all_views():
            if view.collection == collection and view.shared:
                if collection == POOLS:
                    self.allocator.writes_for_others = False
                view.informer = view.own
                view.task = view.own.start(server=self.server, identity=self.identity)
                self._announce_switch(view)

    def new_view(self, collection: Collection) -> View:
        """A view that is empty until the session has found out what it may use."""
        probe = self._views[DEPLOYMENT].own if DEPLOYMENT in self._views else None
        options = {**self._probe.options(collection, probe), **collection.options}
        own = Informer(self.client, collection.resource, namespace=collection.namespace, **options)
        own.add_handler(lambda change: self._events.changed({self: None}, change))
        own.freshness.add_handler(lambda _current: self.report_caches())
        return View(collection, own)

    async def _run(self) -> None:
        await self._connect()
        await self._open_views(self._all_views())
        self._reviewed = time.monotonic()
        while True:
            wait_for_review = self._reviewed + _REVIEW_AGAIN - time.monotonic()
            delay = _REVIEW_SECONDS * random.uniform(0.8, 1.2)
            if self._rejected:
                delay = PROBE_BACKOFF
            elif self._denied:
                delay = max(0.0, wait_for_review)
            woken = await self._sleep(delay)
            try:
                if self._rejected:
                    await self._identify()
                elif not woken or wait_for_review <= 0:
                    await self._review()
            except (ApiError, Unreachable) as error:
                log.debug("rights of %s on %s cannot be verified: %s", self.identity, self.server, error)
                if isinstance(error, Unreachable):
                    self._unanswered = without_trace(error)
                    self.report_health()

    async def _sleep(self, delay: float) -> bool:
        """Sleep, or return True early after `probe` or a refusal."""
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _connect(self) -> None:
        delay = 0.2
        while True:
            try:
                self.uid = await self._identify()
                break
            except (ApiError, Unreachable) as error:
                self._connect_error = without_trace(error)
                self.report_health()
            self._wake.clear()
            if not await self._sleep(delay * random.uniform(0.75, 1.25)):
                delay = min(delay * 2, PROBE_BACKOFF)
        self._connect_error = None
        self._harvester = self._harvesters.enter(self, self._access, self.uid)
        self.allocator.join(self._harvester.allocators)
        self.report_health()

    async def _identify(self) -> str:
        """The uid of `kube-system` on this Harvester; empty if the account may not read it."""
        try:
            return uid_of(await self.client.get(NAMESPACES, "kube-system"))
        except Forbidden as error:
            log.warning("cannot verify that %s stays the same Harvester: %s", self.server, error)
            return ""

    async def _open_views(self, views: Iterable[View]) -> None:
        views = list(views)
        for view in views:
            if not view.shared and not view.task:
                await self._open_view(view)
        self._spawn(self._announce(views))

    async def _announce(self, views: Iterable[View]) -> None:
        """Requeue the clusters and machines that wait for these caches."""
        for view in views:
            await view.settled()
        self._events.health(self)
        self.report_caches()

    def _announce_switch(self, view: View) -> None:
        """Requeue what may wait for a change that neither cache has reported: the one left, or the one joined."""
        if view.switch:
            view.switch.cancel()
        view.switch = self._spawn(self._announce([view]))

    async def _open_view(self, view: View) -> None:
        assert self._harvester is not None  # noqa: S101 - set by _connect
        # The first account needs no review: its own list shows what it may.
        allowed = not self._harvester.cache(view.collection).members or await may(self.client, "list", view.collection)
        if view.closed:
            return
        if allowed:
            cache = self._harvester.cache(view.collection)
            view.informer = cache.informer
            view.own.clear()
            cache.join(self)
            await self._share_turns(view)
        else:
            view.task = view.own.start(server=self.server, identity=self.identity)

    async def _share_turns(self, view: View) -> None:
        """Find out whether this account may write pools for the others, and they for it."""
        if view.collection == POOLS:
            self.allocator.writes_for_others = view.shared and await may(self.client, "patch", POOLS)

    async def _review(self) -> None:
        """Leave shared caches that the account may no longer list, and join those that it may now."""
        assert self._harvester is not None  # noqa: S101 - set by _connect
        self._denied, self._reviewed = False, time.monotonic()
        for view in self._all_views():
            cache = self._harvester.cache(view.collection)
            await self._share_turns(view)
            if view.shared and cache.reads(self):
                continue
            allowed = await may(self.client, "list", view.collection)
            if view.shared and not allowed:
                await self._harvester.leave(self, view.collection)
                self.refused(view.collection)
            elif allowed and not view.shared:
                await view.stop()
                await self._open_view(view)
                self._announce_switch(view)

    async def _close_view(self, view: View) -> None:
        view.close()
        await view.stop()
        if view.shared and self._harvester:
            view.informer = view.own
            await self._harvester.leave(self, view.collection)

    def _all_views(self) -> list[View]:
        return [*self._views.values(), *(view for ns in self.namespaces.values() for view in ns.views)]

    def _responded(self, code: int, seconds: float | None) -> None:
        self._requests.answered(code, seconds)
        if code:
            self._unanswered = None
        if code == 401:
            if not self._rejected:
                self._rejected = True
                self._wake.set()
            self.report_health()
        elif 200 <= code < 300 and self._rejected:
            self._rejected = False
            self.report_health()
        elif code == 403:
            self._denied = True
            self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def address_in_use(self, address: str) -> bool:
        """Whether a load balancer, a VM or a machine has an address or is about to, whatever the pools say.

        Harvester's load balancer controller frees an address that is reserved without history for a moment while it
        takes it over, and the address of a deleted LoadBalancer. The entry of a VM may be lost: users edit pools.
        """
        caches = [self.services]
        for namespace in self.namespaces.values():
            caches += (namespace.load_balancers, namespace.instances)
        return any(cache.store.by_index("address", address) for cache in caches) or self._claimed(address)
