"""A Harvester: the caches that all accounts on it share, and the lock of its address pools.

Two accounts are on the same Harvester if their kubeconfigs have the same URL, CA, server name and
proxy, and if namespace `kube-system` has the same uid on a connection of each. The uid alone proves
nothing, because an unverified server can claim any; equal URL and CA mean that TLS has verified the
same server. A connection that does not verify its server, or may not read the uid, shares nothing.

The watch of Harvester's own Deployment doubles as probe. While Harvester is unreachable, only the
probe retries often, and the other watches wait for it. So an outage of hours costs one request
every few seconds, whatever the number of accounts and machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from caphv.runtime.budget import SHARED_CACHE_BYTES, MemoryBudget
from caphv.runtime.cache import Change, Informer
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.harvester.allocator import AllocatorGroup
from reconciler.harvester.sharedcache import Collection, SharedCache
from reconciler.harvester.watchedcollections import DEPLOYMENT

if TYPE_CHECKING:
    from reconciler.harvester.session import Session

_BACKOFF_SECONDS = 60.0


class ServerKey(NamedTuple):
    """What identifies a Harvester; accounts with equal keys share caches.

    :param uid: uid of namespace `kube-system`
    :param unshared: fingerprint of credentials that share nothing with others, else empty
    """

    server: str
    ca: str
    tls_server_name: str
    proxy_url: str
    uid: str
    unshared: str


class Probe:
    """Follow the watch of Harvester's Deployment, and let the other watches resume with it.

    :param on_health: called when the health changes
    :param others: returns the other watches
    :param on_failure: called when one of the other watches fails
    """

    def __init__(
        self,
        on_health: Callable[[], None],
        others: Callable[[], Iterable[Informer]],
        on_failure: Callable[[], None],
    ) -> None:
        self._on_health = on_health
        self._others = others
        self._on_failure = on_failure
        self._waiting = False
        self._health = ""

    def options(self, collection: Collection, probe: Informer | None) -> dict[str, Any]:
        """Return the options of a collection's informer that depend on the probe."""
        if collection == DEPLOYMENT:
            return {"on_error": self._handle_probe_failure, "on_contact": self._handle_probe_answer}
        return {"on_error": self._handle_failure, "probe": probe, "max_backoff": _BACKOFF_SECONDS}

    def _handle_failure(self, _error: Exception) -> None:
        self._waiting = True
        self._on_failure()

    def _handle_probe_failure(self, error: Exception) -> None:
        self._report(type(error).__name__)

    def _handle_probe_answer(self) -> None:
        """Let all watches that have failed retry now, because Harvester answers."""
        if self._waiting:
            self._waiting = False
            for informer in self._others():
                informer.retry_now()
        self._report("answers")

    def _report(self, health: str) -> None:
        """Call `on_health` if the health differs from what was reported last."""
        if health != self._health:
            self._health = health
            self._on_health()


class Harvester:
    """One Harvester and the sessions of all accounts on it."""

    def __init__(
        self,
        key: ServerKey,
        server: str,
        on_change: Callable[[Mapping[Session, None], Change], None],
        allocators: AllocatorGroup | None = None,
        cache_bytes: int = SHARED_CACHE_BYTES,
    ) -> None:
        self.key = key
        self.sessions: dict[Session, None] = {}
        self.allocators = allocators or AllocatorGroup()
        self._on_change = on_change
        self._budget = MemoryBudget(cache_bytes, server)
        self._budget.machines = self.machines
        self._caches: dict[Collection, SharedCache] = {}
        self._probe = Probe(self._report_health, self.informers, self._report_caches)

    def machines(self) -> int:
        """Count the machines of all accounts."""
        return sum(session.machines() for session in self.sessions)

    def cache(self, collection: Collection) -> SharedCache:
        """Return the shared cache of a collection; it has no reader before an account joins."""
        if collection not in self._caches:
            probe = None if collection == DEPLOYMENT else self.cache(DEPLOYMENT).informer
            options = self._probe.options(collection, probe)
            on_change: Any = self._on_change
            cache = SharedCache(collection, self._budget, on_change, options)
            cache.informer.watch_state.add_handler(lambda _connected: self._report_caches())
            self._caches[collection] = cache
        return self._caches[collection]

    def informers(self) -> list[Informer]:
        """Return all watches of this Harvester, for all accounts and for single ones."""
        return [
            *(cache.informer for cache in self._caches.values()),
            *(informer for session in self.sessions for informer in session.own_informers()),
        ]

    async def leave(self, session: Session, collection: Collection) -> None:
        """Record that a session no longer uses the shared cache of a collection."""
        cache = self._caches.get(collection)
        if cache and cache.leave(session):
            # Remove the cache before it is closed, so that an account that joins meanwhile gets a
            # new one.
            del self._caches[collection]
            await cache.close()

    def _report_caches(self) -> None:
        for session in list(self.sessions):
            session.report_caches()

    def _report_health(self) -> None:
        for session in list(self.sessions):
            session.report_health()


class Harvesters:
    """All Harvesters that a session leads to.

    :param on_change: called with the sessions that a change in a shared cache concerns
    :param cache_bytes: memory for the shared caches of one Harvester
    """

    def __init__(
        self,
        on_change: Callable[[Mapping[Session, None], Change], None],
        cache_bytes: int = SHARED_CACHE_BYTES,
    ) -> None:
        self._on_change = on_change
        self._cache_bytes = cache_bytes
        self._harvesters: dict[ServerKey, Harvester] = {}
        # Allocators of Harvesters that have no session now, for example while the only credentials
        # are replaced. Their writes still wait for an answer.
        self._unanswered: dict[ServerKey, AllocatorGroup] = {}

    def enter(self, session: Session, access: Kubeconfig, uid: str) -> Harvester:
        """Return the Harvester that a session leads to, whose `kube-system` has this uid."""
        key = server_key(access, uid)
        harvester = self._harvesters.get(key)
        if harvester is None:
            allocators = self._unanswered.pop(key, None)
            harvester = Harvester(
                key, access.server, self._on_change, allocators, self._cache_bytes
            )
            self._harvesters[key] = harvester
        harvester.sessions[session] = None
        return harvester

    def leave(self, session: Session, harvester: Harvester) -> None:
        """Record that a session has been closed."""
        harvester.sessions.pop(session, None)
        if not harvester.sessions:
            self._harvesters.pop(harvester.key, None)
            # A later session with other credentials has to supersede these writes.
            if harvester.allocators.unanswered:
                self._unanswered[harvester.key] = harvester.allocators


def server_key(access: Kubeconfig, uid: str) -> ServerKey:
    """Return the key of the Harvester at the end of a connection, whose `kube-system` has a uid."""
    # An unverified server can claim any uid, so such a connection shares with nothing but itself.
    unshared = access.fingerprint if access.insecure or not uid else ""
    return ServerKey(
        access.server,
        access.ca.strip(),
        access.tls_server_name,
        access.proxy_url,
        uid,
        unshared,
    )
