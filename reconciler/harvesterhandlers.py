"""Handlers of events on Harvester: which objects depend on one that changed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caphv.api import evacuation, names, parking
from caphv.api.guestparts import DELETE, guest_name, hotplugged_claims
from caphv.api.hosts import accepts_machines
from caphv.api.ippool import machine_holder
from caphv.api.names import LOAD_BALANCER_SUFFIX, generated_names
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    being_deleted,
    key_of,
    labels_of,
    text_at,
)
from caphv.api.release import release_of
from caphv.runtime.cache import Change
from reconciler import triggers
from reconciler.caches import cluster_name
from reconciler.context import Context
from reconciler.harvester.addressuse import (
    balancer_addresses,
    instance_addresses,
)
from reconciler.harvester.session import Session, SessionEvents
from reconciler.machine.diskgrowth import disk_states
from reconciler.machine.growth import growth_fields
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.machine.inplace import is_update_in_progress
from reconciler.machine.node import topology
from reconciler.machine.vm import has_maxima
from reconciler.predicates import (
    architecture,
    backend_fields,
    differs,
    entries,
    guest_fields,
    host_fields,
    image_fields,
    may_serve_more,
    pool_fields,
    restored_labels,
    vm_fields,
    volume_fields,
    without_status,
)

_Sessions = Mapping[Session, None]


class HarvesterHandlers:
    """Feed the queues of one context with what depends on objects on Harvester."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._caches = context.caches
        self._clusters = context.queues.clusters
        self._machines = context.queues.machines
        self._templates = context.queues.templates
        self._handlers = {
            "VirtualMachine": self._vm,
            "VirtualMachineInstance": self._vm,
            "PersistentVolumeClaim": self._vm,
            "Service": self._load_balancer,
            "LoadBalancer": self._load_balancer,
            "IPPool": self._pool,
            "VirtualMachineImage": self._image,
            "KeyPair": self._key_pair,
            "Node": self._host,
            "Deployment": self._host,
        }

    def connect(self) -> None:
        """Install the handlers on all sessions."""
        self._context.sessions.connect(
            SessionEvents(self.handle, self.health, self.caches, self.limits, self.filled)
        )

    def handle(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the objects that depend on an object on Harvester.

        :param sessions: the sessions that read the changed cache
        """
        handler = self._handlers.get(change.resource.kind)
        if handler:
            handler(sessions, change)

    def _vm(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the machine of a VM, instance or disk, and its cluster if a backend changed."""
        self._volumes(sessions, change)
        kind = change.resource.kind
        # An instance has these labels, too, but they follow the template of its VM.
        relabelled = kind == "VirtualMachine" and differs(change, restored_labels)
        changed = (relabelled or differs(change, vm_fields)) and not without_status(change)
        # KubeVirt reports sizes and migratability of each VM some time after it has started.
        is_update = not changed and change.old and change.new
        resized = is_update and differs(change, growth_fields)
        attached = is_update and differs(change, disk_states)
        if changed and kind == "VirtualMachineInstance":
            freed_addresses = instance_addresses(change.old) - instance_addresses(change.new)
            if freed_addresses:
                self._notify_pools_of(sessions)

        # KubeVirt copies the labels of a VM's template to the instance, which is the backend.
        is_backend = names.MACHINE_TYPE_LABEL in labels_of(change.obj)
        balanced = is_backend and differs(change, backend_fields)
        evacuates = changed and _concerns_evacuation(sessions, change)
        if not (changed or balanced or resized or attached):
            return

        name = change.key.name
        if kind == "PersistentVolumeClaim":
            if change.new is not None:
                return  # only the deletion of disks matters
            # A deletion waits only for disks that have the name of their VM as a prefix. Harvester
            # names the disks of a VM that it restores otherwise, and deletes them itself.
            name = name.rpartition("-disk-")[0]

        # Several machines may have this name, in other namespaces or on other Harvesters.
        for machine in self._caches.harvester_machines.store.by_index("name", name):
            cluster = self._caches.cluster_of(machine)
            harvester_cluster = self._caches.harvester_cluster_of(cluster) if cluster else None
            if cluster is None or harvester_cluster is None:
                continue
            key = key_of(harvester_cluster)
            if self._context.sessions.uses(key, sessions, change.key.namespace):
                is_updated = is_update_in_progress(machine)
                may_follow = is_updated or self._context.updates_in_place
                grows = has_maxima(machine.get("spec") or {}) or may_follow
                # Only an update waits for disks.
                if changed or (resized and grows) or (attached and is_updated):
                    self._machines.add(key_of(machine))
                # A VM that a user starts while its cluster is parked is stopped again.
                if balanced or evacuates or (changed and parking.concerns(cluster)):
                    self._clusters.add(key)

    def _volumes(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue clusters that delete volumes of their guests: one came, went or was attached."""
        if change.resource.kind == "VirtualMachine":
            matters = differs(change, volume_fields)
        elif change.resource.kind == "PersistentVolumeClaim":
            # A new one may have been hot-plugged before the cache had it.
            deleted = change.new is None and names.GUEST_OF_ANNOTATION in annotations_of(change.obj)
            matters = change.old is None or deleted
        else:
            return

        if not matters:
            return
        for session in sessions:
            changes_hands = _has_recorded_volume(session, change)
            for key in self._context.sessions.users(session, change.key.namespace):
                cluster = self._caches.harvester_clusters.get(*key)
                if not cluster:
                    continue
                if changes_hands or cluster["spec"].get("guestVolumes") == DELETE:
                    self._clusters.add(key)

    def _load_balancer(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the cluster of a load balancer, and objects that wait for its former address."""
        self._add_cluster_of_load_balancer(sessions, change.key)
        if change.resource.kind == "LoadBalancer" and differs(change, guest_fields):
            self._add_cluster_of_guest(sessions, change.key.namespace, guest_name(change.obj))
        # The pool may have listed the address as free all the time, but allocations skip addresses
        # of load balancers.
        if balancer_addresses(change.old) - balancer_addresses(change.new):
            self._notify_pools_of(sessions)

    def _add_cluster_of_load_balancer(self, sessions: _Sessions, load_balancer: Key) -> None:
        for session in sessions:
            for key in self._context.sessions.users(session, load_balancer.namespace):
                cluster = self._caches.harvester_clusters.get(*key)
                if cluster is None:
                    continue
                if load_balancer.name in generated_names(cluster, LOAD_BALANCER_SUFFIX):
                    self._clusters.add(key_of(cluster))

    def _add_cluster_of_guest(self, sessions: _Sessions, namespace: str, guest: str) -> None:
        """Enqueue the clusters whose guest has this name; none for an empty name."""
        if not guest:
            return
        for session in sessions:
            for key in self._context.sessions.users(session, namespace):
                obj = self._caches.harvester_clusters.get(*key)
                name = cluster_name(obj) if obj else ""
                if name and guest_cluster_name(Key(key.namespace, name)) == guest:
                    self._clusters.add(key)

    def _notify_pools_of(self, sessions: _Sessions) -> None:
        """Enqueue the objects that wait for an address, because an address is no longer in use."""
        # A pool may have listed the address as free all the time, so that no change of the pool
        # would enqueue them.
        for session in sessions:
            for pool in session.pools.store:
                self._context.topics.notify(
                    triggers.pool(session.fingerprint, pool["metadata"]["name"])
                )

    def _pool(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the objects that wait for an address, and those whose entry was removed."""
        if differs(change, pool_fields):
            for session in sessions:
                self._context.topics.notify(triggers.pools(session.fingerprint))
        if not may_serve_more(change):
            return

        for session in sessions:
            self._context.topics.notify(triggers.pool(session.fingerprint, change.key.name))
        # A VM or load balancer whose entry was removed still has its address, and its reconcile
        # reserves the address again.
        lost_entries = entries(change.old) - entries(change.new)
        for _, holder in lost_entries:
            namespace, _, name = holder.partition("/")
            cached = self._caches.harvester_machines
            # The name of a machine of the Go provider may look like the id of an interface.
            machine = cached.get(namespace, name) or cached.get(namespace, machine_holder(name))
            if machine and not being_deleted(machine) and self._session_of(machine) in sessions:
                self._machines.add(key_of(machine))
            self._add_cluster_of_load_balancer(sessions, Key(namespace, name))

    def _image(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the machines that wait for an image, and the clusters that declare it."""
        if not differs(change, image_fields):
            return
        image = change.obj
        image_names = {str(image["metadata"]["name"]), text_at(image, "spec", "displayName")}
        for session in sessions:
            self._context.topics.notify(triggers.images(session.fingerprint))
            for name in image_names:
                topic = triggers.image(session.fingerprint, change.key.namespace, name)
                self._context.topics.notify(topic)

    def _key_pair(self, sessions: _Sessions, _change: Change) -> None:
        """Enqueue the machines that wait for a key pair."""
        for session in sessions:
            self._context.topics.notify(triggers.key_pairs(session.fingerprint))

    def _host(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the clusters on a Harvester, and objects that depend on its hosts."""
        if not differs(change, host_fields):
            return

        for session in sessions:
            for key in self._context.sessions.users(session):
                self._clusters.add(key)

            # Machines copy zone and region of their host to their Node.
            if change.old is not None and change.new is not None and differs(change, topology):
                self._add_machines_on(session)
            # Disks of running VMs can change since certain releases.
            if self._context.updates_in_place and differs(change, release_of):
                self._add_machines_on(session)
            # A VM grows by a migration to another host.
            if differs(change, accepts_machines):
                self._add_machines_on(session, growing=True)
            if differs(change, architecture):
                for cluster in self._clusters_using(session):
                    for template in self._caches.templates_of(cluster):
                        self._templates.add(key_of(template))

    def health(self, session: Session) -> None:
        """Enqueue all objects on a Harvester that began or stopped to answer or to reject us."""
        self.filled(session, "")

    def filled(self, session: Session, namespace: str) -> None:
        """Enqueue all objects that use caches which were filled or replaced.

        :param namespace: target namespace of the caches, empty for cluster-wide caches
        """
        for key in self._context.sessions.users(session, namespace):
            self._clusters.add(key)
        self._add_machines_on(session, namespace)

    def caches(self, session: Session) -> None:
        """Enqueue the objects that wait for a cache that became current or began to fail."""
        self._context.topics.notify(triggers.caches(session.fingerprint))

    def limits(self, session: Session) -> None:
        """Enqueue the clusters on a Harvester that has reached a limit."""
        for key in self._context.sessions.users(session):
            self._clusters.add(key)

    def notify_pools_of_machine(self, machine: Obj) -> None:
        """Enqueue the objects that wait for an address, because a machine has one less."""
        if session := self._session_of(machine):
            self._notify_pools_of(session.neighbours)

    def notify_pools_of_cluster(self, key: Key) -> None:
        """Enqueue the objects that wait for an address, because a cluster has left its endpoint."""
        if session := self._context.sessions.of(key):
            self._notify_pools_of(session.neighbours)

    def _session_of(self, machine: Obj) -> Session | None:
        harvester_cluster = self._caches.harvester_cluster_of_machine(machine)
        return self._context.sessions.of(key_of(harvester_cluster)) if harvester_cluster else None

    def _add_machines_on(
        self, session: Session, namespace: str = "", *, growing: bool = False
    ) -> None:
        """Enqueue the machines on a Harvester, on request only those whose VMs can grow.

        :param namespace: enqueue only machines in this target namespace, if given
        """
        for cluster in self._clusters_using(session, namespace):
            for machine in self._caches.machines_of(cluster):
                if not growing or has_maxima(machine.get("spec") or {}):
                    self._machines.add(key_of(machine))

    def _clusters_using(self, session: Session, namespace: str = "") -> Iterator[Obj]:
        for key in self._context.sessions.users(session, namespace):
            harvester_cluster = self._caches.harvester_clusters.get(*key)
            cluster = self._caches.cluster_of(harvester_cluster) if harvester_cluster else None
            if cluster:
                yield cluster


def _has_recorded_volume(session: Session, change: Change) -> bool:
    """Return whether a VM has a volume that a guest had before, perhaps that of a lost cluster.

    Then this use is recorded, too, whatever its cluster does with volumes.
    """
    if change.new is None or change.resource.kind != "VirtualMachine":
        return False
    namespace = session.namespaces.get(change.key.namespace)
    if namespace is None:
        return False
    claims = (namespace.claims.get(change.key.namespace, n) for n in hotplugged_claims(change.new))
    return any(names.GUEST_OF_ANNOTATION in annotations_of(claim) for claim in claims if claim)


def _concerns_evacuation(sessions: _Sessions, change: Change) -> bool:
    """Return whether an instance comes to a host that is evacuated or drained, or leaves one."""
    if change.resource.kind != "VirtualMachineInstance":
        return False
    before, after = (text_at(obj, "status", "nodeName") for obj in (change.old, change.new))
    if before == after:
        return False
    hosts = (session.hosts.get("", name) for session in sessions for name in (before, after))
    return any(host is not None and evacuation.must_be_left(host) for host in hosts)
