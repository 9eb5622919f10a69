"""All sessions, and which HarvesterCluster uses which session and target namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from caphv.api.object import Key
from caphv.runtime.addresses import AddressCheck
from caphv.runtime.budget import SHARED_CACHE_BYTES
from caphv.runtime.cache import Change
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler import metrics
from reconciler.harvester.harvester import Harvesters
from reconciler.harvester.session import Session, SessionEvents

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Use:
    session: Session
    namespace: str
    harvester_uid: str = ""
    accepted: bool = False


class Sessions:
    """Opens a session with its first cluster and closes it with the last.

    `fence` is that of the sessions' clients, `check_address` says to which addresses they may connect, `machines_of`
    counts the machines of a HarvesterCluster, `clusters_with` yields those with a machine that has an address.
    `management_cluster` is the one whose objects are read in full; `cache_bytes` is the memory that the caches of one
    Harvester may take.
    """

    def __init__(
        self,
        fence: Callable[[], None] | None = None,
        check_address: AddressCheck | None = None,
        machines_of: Callable[[Key], int] = lambda _cluster: 0,
        clusters_with: Callable[[str], Iterable[Key]] = lambda _address: (),
        *,
        management_cluster: str = "",
        cache_bytes: int = SHARED_CACHE_BYTES,
    ) -> None:
        self._machines_of, self._clusters_with = machines_of, clusters_with
        self._fence = fence
        self._check_address = check_address
        self._management_cluster = management_cluster
        self._events = SessionEvents(lambda _sessions, _change: None, lambda _session: None)
        self._harvesters = Harvesters(self._changed, cache_bytes)
        self._sessions: dict[str, Session] = {}
        self._uses: dict[Key, _Use] = {}
        self._users: dict[Session, dict[Key, _Use]] = {}

    def connect(self, events: SessionEvents) -> None:
        """Report the events of all sessions."""
        self._events = events

    def of(self, cluster: Key) -> Session | None:
        """The session of a HarvesterCluster for its machines, once it is verified to lead to the right Harvester.

        Before that, a session whose caches are not filled is returned, too, because it may have an error to report.
        """
        use = self._uses.get(cluster)
        if use is None:
            return None
        same = bool(use.harvester_uid) and use.session.uid == use.harvester_uid
        return use.session if use.accepted or same or not use.session.synced else None

    def users(self, session: Session, namespace: str = "") -> list[Key]:
        """HarvesterClusters that use a session (and that target namespace)."""
        users = self._users.get(session, {})
        return [key for key, use in users.items() if not namespace or use.namespace == namespace]

    def uses(self, cluster: Key, sessions: Container[Session], namespace: str) -> bool:
        """Whether a HarvesterCluster uses one of these sessions and that target namespace."""
        use = self._uses.get(cluster)
        return use is not None and use.session in sessions and use.namespace == namespace

    async def assign(
        self, cluster: Key, access: Kubeconfig, namespace: str, *, identity: str, harvester_uid: str = ""
    ) -> Session:
        """Assign the session of an identity (`<namespace>/<Secret>`) to a cluster, and close a session without users.

        `harvester_uid` is the Harvester that the cluster is known to run on. Raises `KubeconfigError` when the
        credentials cannot be loaded.
        """
        session = self._sessions.get(access.fingerprint)
        if session is None:
            events = SessionEvents(self._changed, self._health, self._caches, self._limited)
            session = Session(
                access,
                events,
                identity,
                self._harvesters,
                fence=self._fence,
                check_address=self._check_address,
                machines=lambda: self._machines(access.fingerprint),
                claimed=lambda address: self._claimed(access.fingerprint, address),
                management_cluster=self._management_cluster,
            )
            self._sessions[access.fingerprint] = session
            session.start()
            log.info("session opened for %s", access.server)
        before = self._uses.get(cluster)
        if before and before.session is session and before.namespace == namespace:
            before.harvester_uid = harvester_uid
            return session
        self._uses[cluster] = use = _Use(session, namespace, harvester_uid)
        self._users.setdefault(session, {})[cluster] = use
        if before:
            if before.session is not session:
                self._users[before.session].pop(cluster)
            await self._collect(before)
        return session

    def __iter__(self) -> Iterator[Session]:
        """All sessions that are open."""
        return iter(list(self._sessions.values()))

    def __contains__(self, cluster: Key) -> bool:
        """Whether a cluster has a session."""
        return cluster in self._uses

    def accept(self, cluster: Key) -> bool:
        """Record that the cluster's session leads to its Harvester; return whether that is new."""
        use = self._uses[cluster]
        new = not use.accepted
        use.accepted = True
        return new

    async def release(self, cluster: Key) -> None:
        """Release the session of a deleted cluster."""
        before = self._uses.pop(cluster, None)
        if before:
            self._users[before.session].pop(cluster, None)
            await self._collect(before)

    async def close(self) -> None:
        """Close all sessions."""
        self._uses.clear()
        self._users.clear()
        for session in list(self._sessions.values()):
            await session.close()
        self._sessions.clear()

    # Not the callbacks themselves: `connect` may replace them after the first session has been opened.

    def _changed(self, sessions: Mapping[Session, None], change: Change) -> None:
        self._events.changed(sessions, change)

    def _health(self, session: Session) -> None:
        self._events.health(session)

    def _caches(self, session: Session) -> None:
        self._events.caches(session)

    def _limited(self, session: Session) -> None:
        self._events.limited(session)

    def _machines(self, fingerprint: str) -> int:
        """Machines for which a session is used."""
        session = self._sessions.get(fingerprint)
        return sum(self._machines_of(cluster) for cluster in self.users(session)) if session else 0

    def _claimed(self, fingerprint: str, address: str) -> bool:
        """Whether a machine on the Harvester of a session has an address; another Harvester may have it, too."""
        session = self._sessions.get(fingerprint)
        uses = (self._uses.get(cluster) for cluster in self._clusters_with(address))
        return session is not None and any(use.session in session.neighbours for use in uses if use)

    async def _collect(self, use: _Use) -> None:
        session = use.session
        if not self.users(session):
            if self._sessions.pop(session.fingerprint, None) is None:
                return
            self._users.pop(session, None)
            await session.close()
            if not any(other.identity == session.identity for other in self._sessions.values()):
                metrics.forget_identity(session.identity)
            log.info("session closed for %s", session.server)
        elif not self.users(session, use.namespace):
            await session.unwatch_namespace(use.namespace)
