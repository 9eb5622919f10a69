"""Event handlers, which map a changed object to the keys that have to be reconciled.

`EventHandlers.connect` lists the watched objects and their handlers. Neither the provider's own
writes nor noise (heartbeats, managed fields) may requeue a converged object, so each handler first
compares the fields that reconciles read (`reconciler.predicates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caphv.api import clusterapi, evacuation, names, parking, resources
from caphv.api.guestparts import DELETE, guest_name, hotplugged_claims
from caphv.api.names import LOAD_BALANCER_SUFFIX, generated_names
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    at,
    being_deleted,
    key_of,
    labels_of,
    uid_of,
)
from caphv.runtime.cache import Change
from reconciler import triggers
from reconciler.caches import cluster_name
from reconciler.cluster.identity import secret_of
from reconciler.context import Context
from reconciler.harvester.addressuse import (
    balancer_addresses,
    instance_addresses,
    machine_addresses,
)
from reconciler.harvester.session import Session, SessionEvents
from reconciler.harvester.topology import accepts_machines
from reconciler.machine.growth import growth_fields
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.machine.node import topology
from reconciler.machine.vm import has_maxima
from reconciler.predicates import (
    architecture,
    backend_fields,
    cluster_fields,
    differs,
    entries,
    failure_domain,
    fields_for_machines,
    guest_fields,
    handover_fields,
    has_unavailable_domain,
    host_fields,
    is_initialization,
    is_ready,
    machine_fields,
    may_serve_more,
    metadata_fields,
    node_fields,
    pool_fields,
    restored_labels,
    vm_fields,
    volume_fields,
    without_status,
)

_Sessions = Mapping[Session, None]


class EventHandlers:
    """Feed the queues of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._caches = context.caches
        self._clusters, self._machines = context.queues.clusters, context.queues.machines
        self._templates, self._identities = context.queues.templates, context.queues.identities

        # Objects on Harvester, by kind.
        self._harvester_handlers = {
            "VirtualMachine": self._harvester_vm,
            "VirtualMachineInstance": self._harvester_vm,
            "PersistentVolumeClaim": self._harvester_vm,
            "Service": self._harvester_load_balancer,
            "LoadBalancer": self._harvester_load_balancer,
            "IPPool": self._harvester_pool,
            "VirtualMachineImage": self._harvester_image,
            "KeyPair": self._harvester_key_pair,
            "Node": self._harvester_host,
            "Deployment": self._harvester_host,
        }

    def connect(self) -> None:
        """Install the handlers on all sources of events."""
        caches, context = self._caches, self._context

        # Objects of the management cluster.
        watches = (
            (caches.harvester_clusters, self.harvester_cluster),
            (caches.harvester_machines, self.harvester_machine),
            (caches.harvester_machine_templates, self.harvester_machine_template),
            (caches.clusters, self.cluster),
            (caches.machines, self.machine),
            (caches.secrets, self.secret),
        )
        for cache, handler in watches:
            cache.add_handler(handler)

        context.sessions.connect(
            SessionEvents(self.harvester, self.health, self.caches, self.limits)
        )

        # Workload clusters, single objects that a cluster refers to, and Rancher.
        context.workloads.connect(self.node, self.workload_answer, self.workload_reach)
        context.object_watches.connect(self._clusters.add)
        context.rancher.connect(self.rancher)

    # Management cluster

    def harvester_cluster(self, change: Change) -> None:
        """Enqueue the cluster, its machines and their templates.

        Machines and templates depend on its spec, readiness and failure domains only.
        """
        if differs(change, metadata_fields):
            self._clusters.add(change.key)
            # A former Secret may lose its finalizer, and a new one gets it.
            for obj in filter(None, (change.old, change.new)):
                self._identities.add(secret_of(obj))

        if differs(change, fields_for_machines):
            cluster = self._caches.cluster_of(change.obj)
            if cluster:
                self._add_machines_of(cluster)
                self._add_templates_of(cluster)

    def harvester_machine(self, change: Change) -> None:
        """Enqueue the machine, and also its cluster if the change matters to the cluster."""
        if differs(change, metadata_fields):
            self._machines.add(change.key)

        if clusterapi.is_control_plane(change.obj) and differs(change, handover_fields):
            # The deletion of an older machine waits until the load balancer serves a newer one.
            cluster = self._caches.cluster_of(change.obj)
            self._add_machines_of(cluster, control_plane=True)

        # Allocations skip addresses of machines, whatever the pools say. Now the address is free.
        if machine_addresses(change.old) - machine_addresses(change.new):
            session = self._session_of(change.obj)
            if session:
                self._notify_pools_of(session.neighbours)

        changed_domain = change.old is not None and differs(change, failure_domain)
        if change.new is None or changed_domain:
            self._add_cluster_of_machine(change)

    def _add_cluster_of_machine(self, change: Change) -> None:
        """Enqueue the cluster of a machine that was deleted or moved, if it depends on that."""
        cluster = self._caches.cluster_of(change.obj)
        harvester_cluster = self._caches.harvester_cluster_of(cluster) if cluster else None
        if harvester_cluster is None:
            return

        key = key_of(harvester_cluster)
        # The status stops listing an unavailable domain once no machine uses it any more.
        is_affected = has_unavailable_domain(harvester_cluster)
        if change.new is None:
            # The deletion of a cluster waits for its machines, as does a cluster that was moved to
            # another Harvester. A running reconcile may be about to report that it waits.
            may_wait = self._clusters.is_processing(key) or not is_ready(harvester_cluster)
            # The load balancer leads to the machines of the control plane.
            is_backend = clusterapi.is_control_plane(change.obj)
            is_affected = is_affected or may_wait or is_backend
        if is_affected:
            self._clusters.add(key)

    def harvester_machine_template(self, change: Change) -> None:
        """Enqueue the template."""
        if change.new is not None and differs(change, metadata_fields):
            self._templates.add(change.key)

    def cluster(self, change: Change) -> None:
        """Enqueue the infrastructure of a Cluster, its machines and their templates."""
        # Another Cluster with the same name has another kubeconfig.
        former = change.old
        if former is not None and (change.new is None or uid_of(change.new) != uid_of(former)):
            self._context.workloads.forget(change.key)
        if not differs(change, cluster_fields):
            return

        kind, name = clusterapi.infrastructure_ref(change.obj)
        if kind == resources.HARVESTER_CLUSTERS.kind:
            self._clusters.add(Key(change.key.namespace, name))
            self._add_machines_of(change.obj)
            self._add_templates_of(change.obj)

    def machine(self, change: Change) -> None:
        """Enqueue the infrastructure of a Machine."""
        kind, name = clusterapi.infrastructure_ref(change.obj)
        if kind == resources.HARVESTER_MACHINES.kind and differs(change, machine_fields):
            self._machines.add(Key(change.key.namespace, name))

    def secret(self, change: Change) -> None:
        """Enqueue the objects that read an identity, bootstrap data, or a cluster's kubeconfig."""
        # Readers are found by the name of the Secret alone, because the cache keeps no data of
        # Secrets.
        secret = str(change.key)
        if change.new is not None and change.new["metadata"].get("finalizers"):
            self._identities.add(change.key)
        for harvester_cluster in self._caches.harvester_clusters.store.by_index("identity", secret):
            self._clusters.add(key_of(harvester_cluster))
        if change.new is None:
            return

        for machine in self._caches.machines.store.by_index("bootstrap", secret):
            _, name = clusterapi.infrastructure_ref(machine)
            self._machines.add(Key(change.key.namespace, name))

        cluster_name = change.key.name.removesuffix("-kubeconfig")
        if cluster_name != change.key.name:
            cluster = self._caches.clusters.get(change.key.namespace, cluster_name)
            _, name = clusterapi.infrastructure_ref(cluster) if cluster else ("", "")
            if name:
                self._clusters.add(Key(change.key.namespace, name))

    # Harvester

    def harvester(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the objects that depend on an object on Harvester.

        :param sessions: the sessions that read the changed cache
        """
        handle = self._harvester_handlers.get(change.resource.kind)
        if handle:
            handle(sessions, change)

    def _harvester_vm(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the machine of a VM, instance or disk, and its cluster if a backend changed."""
        self._harvester_volumes(sessions, change)
        kind = change.resource.kind
        # An instance has these labels, too, but they follow the template of its VM.
        relabelled = kind == "VirtualMachine" and differs(change, restored_labels)
        changed = (relabelled or differs(change, vm_fields)) and not without_status(change)
        # KubeVirt reports sizes and migratability of each VM some time after it has started.
        resized = not changed and change.old and change.new and differs(change, growth_fields)
        if changed and kind == "VirtualMachineInstance":
            freed_addresses = instance_addresses(change.old) - instance_addresses(change.new)
            if freed_addresses:
                self._notify_pools_of(sessions)

        # KubeVirt copies the labels of a VM's template to the instance, which is the backend.
        is_backend = names.MACHINE_TYPE_LABEL in labels_of(change.obj)
        balanced = is_backend and differs(change, backend_fields)
        evacuates = changed and _concerns_evacuation(sessions, change)
        if not (changed or balanced or resized):
            return

        name = change.key.name
        if kind == "PersistentVolumeClaim":
            if change.new is not None:
                return  # only the deletion of disks matters
            # Disks have the name of their VM as a prefix.
            name = name.rpartition("-disk-")[0]

        # Several machines may have this name, in other namespaces or on other Harvesters.
        for machine in self._caches.harvester_machines.store.by_index("name", name):
            cluster = self._caches.cluster_of(machine)
            harvester_cluster = self._caches.harvester_cluster_of(cluster) if cluster else None
            if cluster is None or harvester_cluster is None:
                continue
            key = key_of(harvester_cluster)
            if self._context.sessions.uses(key, sessions, change.key.namespace):
                if changed or (resized and has_maxima(machine.get("spec") or {})):
                    self._machines.add(key_of(machine))
                # A VM that a user starts while its cluster is parked is stopped again.
                if balanced or evacuates or (changed and parking.concerns(cluster)):
                    self._clusters.add(key)

    def _harvester_volumes(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue clusters that delete volumes of their guests: one came, went or was attached."""
        if change.resource.kind == "VirtualMachine":
            matters = differs(change, volume_fields)
        elif change.resource.kind == "PersistentVolumeClaim":
            # A new one may have been hot-plugged before the cache had it.
            deleted = change.new is None and names.GUEST_OF_ANNOTATION in annotations_of(change.obj)
            matters = change.old is None or deleted
        else:
            return

        for session in sessions if matters else ():
            changes_hands = _has_recorded_volume(session, change)
            for key in self._context.sessions.users(session, change.key.namespace):
                cluster = self._caches.harvester_clusters.get(*key)
                if not cluster:
                    continue
                if changes_hands or cluster["spec"].get("guestVolumes") == DELETE:
                    self._clusters.add(key)

    def _harvester_load_balancer(self, sessions: _Sessions, change: Change) -> None:
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
        """Enqueue the clusters whose guest has a name, which is empty for none."""
        for session in sessions if guest else ():
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

    def _session_of(self, machine: Obj) -> Session | None:
        harvester_cluster = self._caches.harvester_cluster_of_machine(machine)
        return self._context.sessions.of(key_of(harvester_cluster)) if harvester_cluster else None

    def _harvester_pool(self, sessions: _Sessions, change: Change) -> None:
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
            machine = self._caches.harvester_machines.get(namespace, name)
            if machine and not being_deleted(machine) and self._session_of(machine) in sessions:
                self._machines.add(key_of(machine))
            self._add_cluster_of_load_balancer(sessions, Key(namespace, name))

    def _harvester_image(self, sessions: _Sessions, _change: Change) -> None:
        """Enqueue the machines that wait for an image."""
        for session in sessions:
            self._context.topics.notify(triggers.images(session.fingerprint))

    def _harvester_key_pair(self, sessions: _Sessions, _change: Change) -> None:
        """Enqueue the machines that wait for a key pair."""
        for session in sessions:
            self._context.topics.notify(triggers.key_pairs(session.fingerprint))

    def _harvester_host(self, sessions: _Sessions, change: Change) -> None:
        """Enqueue the clusters on a Harvester, and objects that depend on its hosts."""
        if not differs(change, host_fields):
            return
        for session in sessions:
            for key in self._context.sessions.users(session):
                self._clusters.add(key)
            # Machines copy zone and region of their host to their Node.
            if change.old is not None and change.new is not None and differs(change, topology):
                self._add_machines_on(session)
            # A VM grows by a migration to another host.
            if differs(change, accepts_machines):
                self._add_machines_on(session, growing=True)
            if differs(change, architecture):
                for cluster in self._clusters_using(session):
                    self._add_templates_of(cluster)

    def health(self, session: Session) -> None:
        """Enqueue all objects on a Harvester that began or stopped to answer or to reject us."""
        for key in self._context.sessions.users(session):
            self._clusters.add(key)
        self._add_machines_on(session)

    def caches(self, session: Session) -> None:
        """Enqueue the objects that wait for a cache that became current or began to fail."""
        self._context.topics.notify(triggers.caches(session.fingerprint))

    def limits(self, session: Session) -> None:
        """Enqueue the clusters on a Harvester that has reached a limit."""
        for key in self._context.sessions.users(session):
            self._clusters.add(key)

    # Workload clusters

    def node(self, cluster: Key, change: Change) -> None:
        """Enqueue the machine of a Node. Both have the same name."""
        key = Key(cluster.namespace, change.key.name)
        machine = self._caches.harvester_machines.get(*key)
        # A Node may belong to no machine. A machine that appears later is reconciled anyway.
        if machine and differs(change, node_fields) and not is_initialization(change, machine):
            self._machines.add(key)

    def workload_answer(self, cluster: Key) -> None:
        """Enqueue a cluster whose API answered for the first time, or reached a limit."""
        obj = self._caches.clusters.get(*cluster)
        kind, name = clusterapi.infrastructure_ref(obj) if obj else ("", "")
        if kind == resources.HARVESTER_CLUSTERS.kind:
            self._clusters.add(Key(cluster.namespace, name))

    def workload_reach(self, cluster: Key) -> None:
        """Enqueue a cluster whose endpoint is external, when its API is lost or answers again.

        Harvester's load balancers report by themselves whether the control plane answers.
        """
        obj = self._caches.clusters.get(*cluster)
        infrastructure = self._caches.harvester_cluster_of(obj) if obj else None
        if at(infrastructure, "spec", "loadBalancerConfig", "ipamType") == "none":
            self.workload_answer(cluster)

    def rancher(self) -> None:
        """Enqueue the clusters that wait for a change of Rancher's objects."""
        self._context.topics.notify(triggers.RANCHER)

    def _add_machines_on(self, session: Session, *, growing: bool = False) -> None:
        """Enqueue the machines on a Harvester, on request only those whose VMs can grow."""
        for cluster in self._clusters_using(session):
            for machine in self._caches.machines_of(cluster):
                if not growing or has_maxima(machine.get("spec") or {}):
                    self._machines.add(key_of(machine))

    def _clusters_using(self, session: Session) -> Iterator[Obj]:
        for key in self._context.sessions.users(session):
            harvester_cluster = self._caches.harvester_clusters.get(*key)
            cluster = self._caches.cluster_of(harvester_cluster) if harvester_cluster else None
            if cluster:
                yield cluster

    def _add_templates_of(self, cluster: Obj) -> None:
        for template in self._caches.templates_of(cluster):
            self._templates.add(key_of(template))

    def _add_machines_of(self, cluster: Obj | None, *, control_plane: bool = False) -> None:
        for machine in self._caches.machines_of(cluster) if cluster else ():
            if not control_plane or clusterapi.is_control_plane(machine):
                self._machines.add(key_of(machine))


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
    """Return whether an instance comes to a host that is evacuated, or leaves one."""
    if change.resource.kind != "VirtualMachineInstance":
        return False
    before, after = (str(at(obj, "status", "nodeName") or "") for obj in (change.old, change.new))
    if before == after:
        return False
    hosts = (session.hosts.get("", name) for session in sessions for name in (before, after))
    return any(host is not None and evacuation.is_wanted(host) for host in hosts)
