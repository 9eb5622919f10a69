"""Keep all sessions, and which HarvesterCluster uses which session and target namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from caphv.api.object import Key
from caphv.runtime.addresses import AddressCheck
from caphv.runtime.budget import SHARED_CACHE_BYTES
from caphv.runtime.cache import Change
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler import metrics
from reconciler.harvester.harvester import Harvesters
from reconciler.harvester.session import Session, SessionEvents

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Use:
    """How one HarvesterCluster uses a session.

    :param namespace: target namespace of the cluster
    :param harvester_uid: the Harvester that the cluster is known to run on, empty if unknown
    :param accepted: whether the session leads to the Harvester of the cluster
    """

    session: Session
    namespace: str
    identity: str
    """The Secret of the credentials. Secrets with the same content share a session."""
    harvester_uid: str = ""
    accepted: bool = False


class Sessions:
    """Open a session for its first cluster, and close it after the last.

    :param fence: called before each write; raises if this process is no longer the leader
    :param check_address: refuses servers at addresses that the provider must not reach
    :param machines_of: counts the machines of a HarvesterCluster
    :param clusters_with: yields the HarvesterClusters with an address: of a machine, or of an
        external endpoint
    :param management_cluster: uid of the management cluster whose objects are read in full
    :param cache_bytes: memory that the caches of one Harvester may take
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
        self._machines_of = machines_of
        self._clusters_with = clusters_with
        self._fence = fence
        self._check_address = check_address
        self._management_cluster = management_cluster
        self._events = SessionEvents(lambda _sessions, _change: None, lambda _session: None)
        self._harvesters = Harvesters(self._report_change, cache_bytes)
        self._sessions: dict[str, Session] = {}
        self._uses: dict[Key, _Use] = {}
        self._users: dict[Session, dict[Key, _Use]] = {}

    def connect(self, events: SessionEvents) -> None:
        """Report the events of all sessions."""
        self._events = events

    def of(self, cluster: Key) -> Session | None:
        """Return the session that the machines of a HarvesterCluster may use, else None.

        They may use it once it is known to lead to the right Harvester.
        """
        use = self._uses.get(cluster)
        if use is None:
            return None
        is_same_harvester = bool(use.harvester_uid) and use.session.uid == use.harvester_uid
        if use.accepted or is_same_harvester:
            return use.session
        # A session whose caches are not filled can do no harm, and may have an error to report.
        return None if use.session.synced else use.session

    def identity_of(self, cluster: Key) -> str:
        """Return the Secret whose credentials a cluster's session has, empty without a session."""
        use = self._uses.get(cluster)
        return use.identity if use else ""

    def users(self, session: Session, namespace: str = "") -> list[Key]:
        """Return the HarvesterClusters that use a session, and this target namespace if given."""
        users = self._users.get(session, {})
        return [key for key, use in users.items() if not namespace or use.namespace == namespace]

    def uses(self, cluster: Key, sessions: Container[Session], namespace: str) -> bool:
        """Return whether a HarvesterCluster uses one of these sessions, and this namespace."""
        use = self._uses.get(cluster)
        return use is not None and use.session in sessions and use.namespace == namespace

    async def assign(
        self,
        cluster: Key,
        access: Kubeconfig,
        namespace: str,
        *,
        identity: str,
        harvester_uid: str = "",
    ) -> Session:
        """Assign the session of an identity to a cluster, and return the session.

        Closes the cluster's former session if no other cluster uses it. Raises `KubeconfigError` if
        the credentials cannot be loaded.

        :param cluster: the HarvesterCluster
        :param access: the credentials
        :param namespace: target namespace of the cluster
        :param identity: `<namespace>/<name>` of the Secret of the credentials
        :param harvester_uid: the Harvester that the cluster is known to run on
        """
        session = self._sessions.get(access.fingerprint)
        if session is None:
            session = self._open(access, identity)

        former = self._uses.get(cluster)
        if former and former.session is session and former.namespace == namespace:
            former.identity = identity
            former.harvester_uid = harvester_uid
            return session

        # Record the new use before the former one is released. Otherwise a change of the namespace
        # alone would close the session.
        self._uses[cluster] = use = _Use(session, namespace, identity, harvester_uid)
        self._users.setdefault(session, {})[cluster] = use
        if former:
            if former.session is not session:
                self._users[former.session].pop(cluster)
            await self._collect(former)
        return session

    def _open(self, access: Kubeconfig, identity: str) -> Session:
        """Open a session for credentials that no cluster has used yet."""
        events = SessionEvents(
            self._report_change,
            self._report_health,
            self._report_caches,
            self._report_limit,
            self._report_filled,
        )
        session = Session(
            access,
            events,
            identity,
            self._harvesters,
            fence=self._fence,
            check_address=self._check_address,
            machines=lambda: self._machines(access.fingerprint),
            claimed=lambda address: self._is_claimed(access.fingerprint, address),
            management_cluster=self._management_cluster,
        )

        self._sessions[access.fingerprint] = session
        session.start()
        log.info("session opened for %s", access.server)
        return session

    def client(self, access: Kubeconfig) -> ApiClient:
        """Return a client for requests about credentials themselves, which the caller closes.

        Raises `KubeconfigError` if the credentials cannot be loaded.
        """
        return access.client(self._check_address, name="harvester", fence=self._fence, opaque=True)

    def __iter__(self) -> Iterator[Session]:
        """Yield all sessions that are open."""
        return iter(list(self._sessions.values()))

    def __contains__(self, cluster: Key) -> bool:
        """Return whether a cluster has a session."""
        return cluster in self._uses

    def accept(self, cluster: Key) -> bool:
        """Record that a cluster's session leads to its Harvester; return whether that is news."""
        use = self._uses[cluster]
        is_news = not use.accepted
        use.accepted = True
        return is_news

    async def release(self, cluster: Key) -> None:
        """Release the session of a deleted cluster."""
        former = self._uses.pop(cluster, None)
        if former:
            self._users[former.session].pop(cluster, None)
            await self._collect(former)

    async def close(self) -> None:
        """Close all sessions."""
        self._uses.clear()
        self._users.clear()
        for session in list(self._sessions.values()):
            await session.close()
        self._sessions.clear()

    # Sessions get these methods instead of the callbacks, because `connect` may replace the
    # callbacks after the first session has been opened.

    def _report_change(self, sessions: Mapping[Session, None], change: Change) -> None:
        self._events.changed(sessions, change)

    def _report_health(self, session: Session) -> None:
        self._events.health(session)

    def _report_caches(self, session: Session) -> None:
        self._events.caches(session)

    def _report_limit(self, session: Session) -> None:
        self._events.limited(session)

    def _report_filled(self, session: Session, namespace: str) -> None:
        self._events.filled(session, namespace)

    def _machines(self, fingerprint: str) -> int:
        """Count the machines for which a session is used."""
        session = self._sessions.get(fingerprint)
        return sum(self._machines_of(cluster) for cluster in self.users(session)) if session else 0

    def _is_claimed(self, fingerprint: str, address: str) -> bool:
        """Return whether a machine or endpoint on the Harvester of a session has an address."""
        # Machines on other Harvesters do not count: another Harvester may use the same network, and
        # thus the same address.
        session = self._sessions.get(fingerprint)
        uses = (self._uses.get(cluster) for cluster in self._clusters_with(address))
        return session is not None and any(use.session in session.neighbours for use in uses if use)

    async def _collect(self, use: _Use) -> None:
        """Close the session or the caches of the namespace if they are no longer used."""
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
