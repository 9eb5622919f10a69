"""One session per Harvester account: its client, its right to use shared caches, and its health.

All clusters with the same credentials share a session. It is opened for the first of these clusters
and closed after the last one, whatever state their HarvesterClusters are in. Objects that several
accounts may read are read once; see `reconciler.harvester.harvester` and
`reconciler.harvester.sharing`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import random
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api.object import NAMESPACES, Obj, list_at, uid_of
from caphv.runtime.addresses import AddressCheck
from caphv.runtime.cache import Change, Informer
from caphv.runtime.errors import Forbidden, RequestError, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler import metrics
from reconciler.harvester.accounthealth import AccountHealth
from reconciler.harvester.allocator import AddressAllocator
from reconciler.harvester.harvester import Harvester, Harvesters, Probe
from reconciler.harvester.importrefusals import ImportRefusals
from reconciler.harvester.sharedcache import Collection
from reconciler.harvester.sharing import CacheSharing
from reconciler.harvester.views import (
    ClusterWideCaches,
    TargetNamespace,
    View,
    refusal_of,
    sync_error_of,
)
from reconciler.harvester.watchedcollections import (
    CLUSTER_WIDE,
    DEPLOYMENT,
    HARVESTER_DEPLOYMENT,
    HARVESTER_NAMESPACE,
    PROBE_BACKOFF_SECONDS,
)

log = logging.getLogger(__name__)

# Seconds between two reviews of rights. A 403 shows the loss of a right earlier.
_REVIEW_SECONDS = 600.0
# After a 403, reviews are at least this many seconds apart, because not each 403 means that the
# account has lost a right.
_REVIEW_RETRY_SECONDS = 30.0
# Seconds until the second attempt to connect. The wait doubles up to `PROBE_BACKOFF_SECONDS`.
_FIRST_BACKOFF_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """Callbacks of sessions.

    :param changed: an object changed that these sessions read
    :param health: Harvester became unreachable or reachable for a session
    :param caches: all caches of a session became current, or a cache fails for a new reason
    :param limited: the server has reached a limit
    :param filled: caches of a session were filled or replaced: those of a target namespace, or
        cluster-wide ones for an empty text
    """

    changed: Callable[[Mapping[Session, None], Change], None]
    health: Callable[[Session], None]
    caches: Callable[[Session], None] = lambda _session: None
    limited: Callable[[Session], None] = lambda _session: None
    filled: Callable[[Session, str], None] = lambda _session, _namespace: None


class Session(ClusterWideCaches):
    """Client, caches and allocator for one account; created by `Sessions`.

    :param access: the credentials
    :param events: callbacks
    :param identity: the Secret of the credentials, for metrics and the log
    :param harvesters: all Harvesters that sessions are connected to, with their shared caches
    :param fence: called before each write; raises if this process is no longer the leader
    :param check_address: refuses servers at addresses that the provider must not reach
    :param machines: counts the machines of the account's clusters
    :param claimed: returns whether a machine has or requests an address, or a control plane
        answers there
    :param management_cluster: uid of this management cluster, which selects VMs
    """

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
        # Identity. Secrets with the same content share a session, and metrics name the first one.
        self.identity = identity
        self.fingerprint = access.fingerprint
        self.server = access.server
        self.ca = access.ca
        self.uid = ""
        self.management_cluster = management_cluster
        self._access = access
        self._events = events

        # Client, with limits for the memory and time that its server may cost.
        self._requests = metrics.IdentityRequests(identity)
        self.client = access.client(
            check_address,
            name="harvester",
            on_response=self._handle_response,
            fence=fence,
            opaque=True,
        )
        self.machines = machines
        self._claimed = claimed
        if self.client.budget and self.client.time:
            self.client.budget.machines = machines
            self.client.time.machines = self._all_machines
            self.client.time.objects = self._all_objects
        self.client.on_limit = functools.partial(events.limited, self)

        # Health and rights.
        self._harvesters = harvesters
        self._harvester: Harvester | None = None
        self._denied = False
        self._reviewed = -_REVIEW_RETRY_SECONDS
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._caches_state: Hashable = (False, frozenset(), "", "")
        self._caches_report: asyncio.Handle | None = None

        # Caches.
        self._probe = Probe(self.report_health, self.own_informers, self.report_caches)
        self._sharing = CacheSharing(self, lambda views: self._spawn(self._announce(views)))
        self._views = {}
        for collection in CLUSTER_WIDE:
            self._views[collection] = self.new_view(collection)
        # Each step of a reconcile asks for the health, so the view is not looked up each time.
        deployment = self._views[DEPLOYMENT]
        self._health = AccountHealth(
            lambda: self.error_of(deployment), lambda: self._events.health(self)
        )

        self.namespaces: dict[str, TargetNamespace] = {}
        self.import_refusals = ImportRefusals()
        self.allocator = AddressAllocator(self.client, lambda: self.pools, self.address_in_use)

    # Caches

    def refusal(self, namespace: TargetNamespace, *watched: Informer) -> str:
        """Return why the account may not read caches of a namespace or cluster-wide caches.

        Of the cluster-wide caches, only those in `watched` and those that were never filled count.
        """
        cluster_wide = [
            view
            for view in self._views.values()
            if view.informer in watched or not view.informer.synced
        ]
        return refusal_of([*namespace.views, *cluster_wide], self.error_of)

    def own_informers(self) -> list[Informer]:
        """Return the caches that this session does not share."""
        return [view.own for view in self._all_views() if view.is_read_alone]

    def watch_namespace(self, name: str) -> TargetNamespace:
        """Return the caches of a target namespace; the first call opens them."""
        if name not in self.namespaces:
            self.namespaces[name] = TargetNamespace(self, name)
            if self._harvester:
                self._spawn(self._sharing.open(self.namespaces[name].views))
        return self.namespaces[name]

    async def unwatch_namespace(self, name: str) -> None:
        """Close the caches of a target namespace that is no longer used."""
        namespace = self.namespaces.pop(name, None)
        if namespace is None:
            return
        for view in namespace.views:
            await self._sharing.close(view)

    # Health

    @property
    def error(self) -> Exception | None:
        """Why requests to Harvester fail now, None if they do not."""
        return self._health.error

    @property
    def is_unauthorized(self) -> bool:
        """Whether Harvester rejects the credentials (for example an expired token)."""
        return isinstance(self.error, Unauthorized)

    @property
    def deployment_object(self) -> Obj | None:
        """Harvester's Deployment; None if it does not exist."""
        return self.deployment.get(HARVESTER_NAMESPACE, HARVESTER_DEPLOYMENT)

    @property
    def available(self) -> bool:
        """Contract: Deployment `harvester-system/harvester` has Available=True."""
        for condition in list_at(self.deployment_object, "status", "conditions"):
            if condition.get("type") == "Available" and condition.get("status") == "True":
                return True
        return False

    @property
    def neighbours(self) -> Mapping[Session, None]:
        """All sessions on the same Harvester, with this one."""
        return self._harvester.sessions if self._harvester else {self: None}

    def _all_machines(self) -> int:
        """Count the machines of all accounts, because this account may read caches for all."""
        return self._harvester.machines() if self._harvester else self.machines()

    def _all_objects(self) -> int:
        """Count the cached objects of this Harvester, whichever account reads them."""
        informers = self._harvester.informers() if self._harvester else self.own_informers()
        return sum(len(informer.store) for informer in informers)

    def probe(self) -> None:
        """Verify the credentials now, because Harvester answered a request with 401."""
        self._wake.set()

    def report_health(self) -> None:
        """Report the health if it has changed."""
        self._health.report()

    def report_caches(self) -> None:
        """Report soon when all caches have become current, or when one fails for a new reason."""
        # An outage ends all watches together, and each report reads the state of all of them. So
        # all that end in one turn of the event loop cause one report.
        if self._caches_report is None:
            self._caches_report = asyncio.get_running_loop().call_soon(self._report_caches)

    def _report_caches(self) -> None:
        self._caches_report = None
        views = self._all_views()
        errors = [self.error_of(view) for view in views]
        failing = frozenset(number for number, error in enumerate(errors) if error)
        current = all(
            view.informer.current or error for view, error in zip(views, errors, strict=True)
        )
        refusal = refusal_of(views, self.error_of)

        state = current, failing, refusal, sync_error_of(views, self.error_of)
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
            await self._sharing.close(view)
        if self._caches_report:
            self._caches_report.cancel()
        if self._harvester:
            self._harvesters.leave(self, self._harvester)
        await self.client.close()

    def handle_refusal(self, collection: Collection) -> None:
        """Read a collection without sharing, because Harvester has refused this account's list.

        Other accounts may still list it, and continue to share their cache.
        """
        for view in self._all_views():
            if view.collection == collection and view.is_shared:
                self._sharing.read_alone(view)

    def new_view(self, collection: Collection) -> View:
        """Return a view that is empty until the session knows which cache it may use."""
        probe = self._views[DEPLOYMENT].own if DEPLOYMENT in self._views else None
        options = {**self._probe.options(collection, probe), **collection.options}
        cache = Informer(
            self.client, collection.resource, namespace=collection.namespace, **options
        )
        cache.add_handler(lambda change: self._events.changed({self: None}, change))
        cache.watch_state.add_handler(lambda _connected: self.report_caches())
        return View(collection, cache)

    async def _run(self) -> None:
        """Connect, open the caches, and review the account's rights until the session is closed."""
        # The session has to know its Harvester before it opens caches, because accounts on the same
        # Harvester share them.
        await self._connect()
        await self._sharing.open(self._all_views())
        self._reviewed = time.monotonic()

        while True:
            # Try rejected credentials often, so that work continues soon after they are renewed.
            until_review = self._reviewed + _REVIEW_RETRY_SECONDS - time.monotonic()
            delay = _REVIEW_SECONDS * random.uniform(0.8, 1.2)
            if self._health.is_rejected:
                delay = PROBE_BACKOFF_SECONDS
            elif self._denied:
                delay = max(0.0, until_review)
            woken = await self._sleep(delay)

            try:
                if self._health.is_rejected:
                    await self._identify()
                elif not woken or until_review <= 0:
                    await self._review()
            except RequestError as error:
                log.debug(
                    "rights of %s on %s cannot be verified: %s", self.identity, self.server, error
                )
                if isinstance(error, Unreachable):
                    self._health.record_no_answer(error)

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
        """Try until Harvester answers, then join the other sessions on the same Harvester."""
        delay = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                self.uid = await self._identify()
                break
            except RequestError as error:
                self._health.record_connect_error(error)

            # The failed request itself may have set the event, and must not end the wait.
            self._wake.clear()
            # After `probe`, retry at once, and do not lengthen the back-off.
            has_been_probed = await self._sleep(delay * random.uniform(0.75, 1.25))
            if not has_been_probed:
                delay = min(delay * 2, PROBE_BACKOFF_SECONDS)

        self._harvester = self._harvesters.enter(self, self._access, self.uid)
        self._sharing.join(self._harvester)
        self.allocator.join(self._harvester.allocators)
        self._health.record_connection()

    async def _identify(self) -> str:
        """Return the uid of `kube-system` on this Harvester, empty if it may not be read."""
        try:
            return uid_of(await self.client.get(NAMESPACES, "kube-system"))
        except Forbidden as error:
            log.warning("cannot verify that %s stays the same Harvester: %s", self.server, error)
            return ""

    async def _announce(self, views: list[View]) -> None:
        """Requeue the clusters and machines that wait for these caches."""
        for view in views:
            await view.wait_until_filled()

        # One account may have hundreds of namespaces, and each is of interest to few clusters.
        is_cluster_wide = any(view.collection in self._views for view in views)
        namespace = "" if is_cluster_wide else views[0].collection.namespace
        self._events.filled(self, namespace)
        self.report_caches()

    async def _review(self) -> None:
        """Review what the account may read, and join or leave shared caches accordingly."""
        self._denied = False
        self._reviewed = time.monotonic()
        await self._sharing.review(self._all_views())

    def _all_views(self) -> list[View]:
        """Return the views of cluster-wide collections and of all target namespaces."""
        views = list(self._views.values())
        for namespace in self.namespaces.values():
            views += namespace.views
        return views

    def _handle_response(self, code: int, seconds: float | None) -> None:
        """Count a response, and learn from it whether credentials and rights are still valid.

        :param code: HTTP status, 0 for none
        """
        self._requests.count(code, seconds)
        if self._health.handle_status(code):
            self._wake.set()
        elif code == 403:
            self._denied = True
            self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the session."""
        # An empty context keeps the name of the cluster whose reconcile opened the session out of
        # the session's log.
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def address_in_use(self, address: str) -> bool:
        """Return whether a load balancer, a VM or a machine has or requests an address."""
        # The pools alone cannot tell. Harvester's load balancer controller takes over an address
        # that is reserved without history by releasing it for a moment, and it releases the address
        # of a deleted LoadBalancer. The entry of a VM may be lost, because users edit pools.
        caches = [self.services]
        for namespace in self.namespaces.values():
            caches += (namespace.load_balancers, namespace.instances)
        for cache in caches:
            if cache.store.by_index("address", address):
                return True
        return self._claimed(address)
