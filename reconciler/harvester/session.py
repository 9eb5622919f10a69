"""One session per Harvester identity: a client, shared watches, and the allocator of its address pools.

All clusters with the same identity share a session. It opens with the first and closes with the last of them. Watches
of cluster-wide collections (hosts, images, key pairs, pools, Services of load balancers) run once per session, those of
a target namespace once per namespace. The uid of namespace `kube-system` identifies a Harvester: sessions of different
identities on one Harvester allocate addresses together.

The watch of Harvester's own Deployment doubles as probe: while Harvester is unreachable, only the probe retries often
and the other watches wait for it, so that an outage of hours costs one request every few seconds, whatever the number
of machines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from caphv.api import names, resources
from caphv.api.object import (
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    labels_of,
    uid_of,
)
from caphv.runtime.cache import Change, Informer
from caphv.runtime.errors import Forbidden, Unauthorized
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler import metrics
from reconciler.harvester.allocator import AddressAllocator, AllocatorGroup

log = logging.getLogger(__name__)

HARVESTER_NAMESPACE = "harvester-system"
HARVESTER_DEPLOYMENT = "harvester"
_PROBE_BACKOFF = 4.0
_BACKOFF = 60.0


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """Callbacks of a session: an object changed; Harvester became unreachable or reachable."""

    changed: Callable[[Session, Change], None]
    health: Callable[[Session], None]


class TargetNamespace:
    """Watches of one namespace on Harvester. VMs are indexed by `harvestercluster/machinetype`."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self.vms = session.informer(resources.VIRTUAL_MACHINES, namespace=name, indexes={"machinetype": _machine_type})
        self.instances = session.informer(resources.VIRTUAL_MACHINE_INSTANCES, namespace=name, transform=_slim_instance)
        self.claims = session.informer(PERSISTENT_VOLUME_CLAIMS, namespace=name, transform=_slim_claim)
        self.load_balancers = session.informer(resources.LOAD_BALANCERS, namespace=name)

    @property
    def informers(self) -> list[Informer]:
        """All watches of the namespace."""
        return [self.vms, self.instances, self.claims, self.load_balancers]

    @property
    def synced(self) -> bool:
        """Whether all caches of the namespace have been filled."""
        return all(informer.synced for informer in self.informers)

    @property
    def sync_error(self) -> str:
        """Why caches cannot be filled; empty while the first lists are still being read."""
        return _sync_error(self.informers)


class Session:
    """Connection, caches and allocator for one identity; created by `Sessions`."""

    def __init__(self, access: Kubeconfig, events: SessionEvents, identity: str) -> None:
        # Secrets with the same content share a session; metrics name the first of them.
        self.identity = identity
        self.fingerprint = access.fingerprint
        self.server = access.server
        self.ca = access.ca
        self.client = access.client(name="harvester", on_response=metrics.IdentityRequests(identity).answered)
        self._events = events
        self._tasks: dict[Informer, asyncio.Task[None]] = {}
        self._watches_waiting = False
        self._probed = 0.0
        self._uid: str | None = None
        self._identifying = asyncio.Lock()
        self._health = ""
        self.namespaces: dict[str, TargetNamespace] = {}
        self.deployment = self._reported(
            Informer(
                self.client,
                DEPLOYMENTS,
                namespace=HARVESTER_NAMESPACE,
                field_selector=f"metadata.name={HARVESTER_DEPLOYMENT}",
                transform=_slim_deployment,
                on_error=self._probe_failed,
                on_contact=self._probe_answered,
                max_backoff=_PROBE_BACKOFF,
            )
        )
        self.hosts = self.informer(NODES, transform=_slim_host)
        self.images = self.informer(resources.IMAGES)
        self.key_pairs = self.informer(resources.KEY_PAIRS)
        self.pools = self.informer(resources.IP_POOLS)
        # Of all namespaces: an address that any load balancer announces must not be allocated.
        self.services = self.informer(SERVICES, label_selector=f"{names.SERVICE_LB_LABEL}=true")
        self.allocator = AddressAllocator(self.client, self.pools, self._addresses_in_use)

    @property
    def error(self) -> Exception | None:
        """Why requests to Harvester fail now; None if they do not."""
        return self.deployment.last_error

    @property
    def unauthorized(self) -> bool:
        """Whether Harvester rejects the credentials (for example an expired token)."""
        return isinstance(self.error, Unauthorized)

    @property
    def available(self) -> bool:
        """Contract: Deployment `harvester-system/harvester` has Available=True."""
        deployment = self.deployment.get(HARVESTER_NAMESPACE, HARVESTER_DEPLOYMENT)
        conditions = (deployment or {}).get("status", {}).get("conditions") or ()
        return any(c.get("type") == "Available" and c.get("status") == "True" for c in conditions)

    @property
    def synced(self) -> bool:
        """Whether the cluster-wide caches have been filled."""
        return all(informer.synced for informer in self._cluster_wide)

    @property
    def sync_error(self) -> str:
        """Why cluster-wide caches cannot be filled; empty while the first lists are still being read."""
        return _sync_error(self._cluster_wide)

    @property
    def _cluster_wide(self) -> list[Informer]:
        return [self.deployment, self.hosts, self.images, self.key_pairs, self.pools, self.services]

    def informer(self, resource: Resource, **options: Any) -> Informer:
        """An informer whose changes are reported; `start` runs it."""
        options = {"max_backoff": _BACKOFF, "on_error": self._watch_failed, "probe": self.deployment, **options}
        return self._reported(Informer(self.client, resource, **options))

    def start(self) -> None:
        """Start the cluster-wide watches."""
        self._run(self._cluster_wide)

    async def harvester_uid(self) -> str:
        """The uid of `kube-system` on this Harvester, read once; empty if the identity may not read it."""
        async with self._identifying:
            if self._uid is None:
                try:
                    self._uid = uid_of(await self.client.get(NAMESPACES, "kube-system"))
                except Forbidden as error:
                    log.warning("cannot verify that %s stays the same Harvester: %s", self.server, error)
                    self._uid = ""
            return self._uid

    def probe(self) -> None:
        """A request was answered 401: reconnect the probe now, so that it sees that, too."""
        if time.monotonic() - self._probed > _PROBE_BACKOFF:
            self._probed = time.monotonic()
            self._tasks.pop(self.deployment).cancel()
            self._run([self.deployment])

    def watch_namespace(self, name: str) -> TargetNamespace:
        """The caches of a target namespace; the first call starts their watches."""
        if name not in self.namespaces:
            self.namespaces[name] = TargetNamespace(self, name)
            self._run(self.namespaces[name].informers)
        return self.namespaces[name]

    async def unwatch_namespace(self, name: str) -> None:
        """Stop the watches of a target namespace that no cluster uses any more."""
        namespace = self.namespaces.pop(name, None)
        await self._stop(namespace.informers if namespace else [])

    async def close(self) -> None:
        """Stop all watches and close the connection."""
        await self._stop(list(self._tasks))
        self.allocator.leave()
        await self.client.close()

    def _reported(self, informer: Informer) -> Informer:
        informer.add_handler(lambda change: self._events.changed(self, change))
        return informer

    def _run(self, informers: list[Informer]) -> None:
        for informer in informers:
            self._tasks[informer] = informer.start()

    async def _stop(self, informers: list[Informer]) -> None:
        tasks = [self._tasks.pop(informer) for informer in informers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch_failed(self, _error: Exception) -> None:
        self._watches_waiting = True

    def _probe_answered(self) -> None:
        if self._watches_waiting:
            self._watches_waiting = False
            for informer in self._tasks:
                informer.retry_now()
        self._report_health("answers")

    def _probe_failed(self, error: Exception) -> None:
        self._report_health(type(error).__name__)

    def _report_health(self, health: str) -> None:
        """Report a change of health, but not each probe."""
        if health != self._health:
            self._health = health
            self._events.health(self)

    def _addresses_in_use(self) -> set[str]:
        """Addresses that a load balancer holds or is about to hold, whatever the pools say.

        Harvester's load balancer controller frees the address of a placeholder for a moment while it takes it over.
        """
        used: set[str] = set()
        for service in self.services.store:
            used.add(service["spec"].get("loadBalancerIP") or "")
            ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
            used.update(entry.get("ip") or "" for entry in ingress)
        for namespace in self.namespaces.values():
            used.update(lb.get("status", {}).get("address") or "" for lb in namespace.load_balancers.store)
        return used - {"", "0.0.0.0"}


class Sessions:
    """All sessions, and which HarvesterCluster uses which session and target namespace."""

    def __init__(self) -> None:
        self._events = SessionEvents(lambda _session, _change: None, lambda _session: None)
        self._sessions: dict[str, Session] = {}
        self._users: dict[Key, tuple[str, str]] = {}
        self._accepted: set[Key] = set()
        self._groups: WeakValueDictionary[str, AllocatorGroup] = WeakValueDictionary()

    def connect(self, events: SessionEvents) -> None:
        """Report the events of all sessions that open from now on."""
        self._events = events

    def of(self, cluster: Key) -> Session | None:
        """The session of a HarvesterCluster for its machines, once it is verified to lead to the right Harvester.

        Before that, a session whose caches are not filled is returned, too, because it may have an error to report.
        """
        fingerprint, _ = self._users.get(cluster, ("", ""))
        session = self._sessions.get(fingerprint)
        return session if session and (cluster in self._accepted or not session.synced) else None

    def users(self, session: Session, namespace: str = "") -> list[Key]:
        """HarvesterClusters that use a session (and that target namespace)."""
        return [
            key
            for key, (fingerprint, target) in self._users.items()
            if fingerprint == session.fingerprint and (not namespace or target == namespace)
        ]

    async def assign(self, cluster: Key, access: Kubeconfig, namespace: str, *, identity: str) -> Session:
        """Assign the session of an identity (`<namespace>/<Secret>`) to a cluster, and close a session without users.

        Raises `KubeconfigError` when the credentials cannot be loaded.
        """
        session = self._sessions.get(access.fingerprint)
        if session is None:
            session = Session(access, self._events, identity)
            self._sessions[access.fingerprint] = session
            session.start()
            log.info("session opened for %s", access.server)
        before = self._users.get(cluster)
        self._users[cluster] = (access.fingerprint, namespace)
        if before and before != self._users[cluster]:
            self._accepted.discard(cluster)
            await self._collect(*before)
        return session

    async def identify(self, session: Session) -> str:
        """Return the uid of the session's Harvester, see `Session.harvester_uid`, and join its allocators."""
        uid = await session.harvester_uid()
        if uid:
            group = self._groups.get(uid) or AllocatorGroup()
            self._groups[uid] = group
            session.allocator.join(group)
        return uid

    def accept(self, cluster: Key) -> bool:
        """Record that the cluster's session leads to its Harvester; return whether that is new."""
        new = cluster not in self._accepted
        self._accepted.add(cluster)
        return new

    async def release(self, cluster: Key) -> None:
        """Release the session of a deleted cluster."""
        self._accepted.discard(cluster)
        before = self._users.pop(cluster, None)
        if before:
            await self._collect(*before)

    async def close(self) -> None:
        """Close all sessions."""
        self._users.clear()
        self._accepted.clear()
        for session in list(self._sessions.values()):
            await session.close()
        self._sessions.clear()

    async def _collect(self, fingerprint: str, namespace: str) -> None:
        session = self._sessions.get(fingerprint)
        if session is None:
            return
        if not self.users(session):
            del self._sessions[fingerprint]
            await session.close()
            if not any(other.identity == session.identity for other in self._sessions.values()):
                metrics.forget_identity(session.identity)
            log.info("session closed for %s", session.server)
        elif not self.users(session, namespace):
            await session.unwatch_namespace(namespace)


def _sync_error(informers: Iterable[Informer]) -> str:
    return "; ".join(str(one.last_error) for one in informers if not one.synced and one.last_error)


def _machine_type(vm: Obj) -> list[str]:
    value = labels_of(vm).get(names.MACHINE_TYPE_LABEL)
    return [value] if value else []


def _metadata(obj: Obj, *names: str) -> dict[str, Any]:
    kept = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *names)
    return {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}


def _slim_instance(vmi: Obj) -> Obj:
    status = vmi.get("status") or {}
    kept = ("phase", "nodeName", "interfaces", "conditions", "reason")
    return {
        "metadata": _metadata(vmi, "labels", "ownerReferences"),
        "status": {name: status[name] for name in kept if name in status},
    }


def _slim_claim(claim: Obj) -> Obj:
    kept = {name: value for name, value in annotations_of(claim).items() if name.startswith("caphv.io/")}
    return {"metadata": {**_metadata(claim), "annotations": kept}}


def _slim_deployment(deployment: Obj) -> Obj:
    conditions = (deployment.get("status") or {}).get("conditions") or []
    return {"metadata": _metadata(deployment), "status": {"conditions": conditions}}


def _slim_host(node: Obj) -> Obj:
    return {
        "metadata": _metadata(node, "labels"),
        "spec": {"unschedulable": (node.get("spec") or {}).get("unschedulable", False)},
    }
