"""Event handlers, which map a changed object to the keys that have to be reconciled.

`EventHandlers.connect` lists the watched objects and their handlers; those of objects on Harvester
are in `reconciler.harvesterhandlers`. Neither the provider's own writes nor noise (heartbeats,
managed fields) may requeue a converged object, so each handler first compares the fields that
reconciles read (`reconciler.predicates`).
"""

from __future__ import annotations

from caphv.api import clusterapi, resources
from caphv.api.identities import cluster_identity, identity_of, is_cluster_identity, reference_of
from caphv.api.object import Key, Obj, at, key_of, uid_of
from caphv.runtime.cache import Change
from reconciler import triggers
from reconciler.context import Context
from reconciler.harvester.addressuse import endpoint_addresses, machine_addresses
from reconciler.harvesterhandlers import HarvesterHandlers
from reconciler.machine.addresses.ipamplan import machine_of
from reconciler.predicates import (
    awaits_backup_check,
    cluster_fields,
    differs,
    failure_domain,
    fields_for_machines,
    handover_fields,
    has_unavailable_domain,
    is_initialization,
    is_ready,
    machine_fields,
    metadata_fields,
    node_fields,
)


class EventHandlers:
    """Feed the queues of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._caches = context.caches
        self._clusters = context.queues.clusters
        self._machines = context.queues.machines
        self._templates = context.queues.templates
        self._identities = context.queues.identities
        self._renewals = context.queues.renewals
        self._harvester = HarvesterHandlers(context)

    def connect(self) -> None:
        """Install the handlers on all sources of events."""
        caches = self._caches
        context = self._context

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

        self._harvester.connect()

        # Identities, workload clusters, single objects that a cluster refers to, Rancher and IPAM.
        context.cluster_identities.connect(self.cluster_identity, self.namespace)
        context.workloads.connect(self.node, self.workload_answer, self.workload_reach)
        context.object_watches.connect(self._clusters.add)
        context.rancher.connect(self.rancher)
        context.ipam.connect(self.ipam, self.address_claim)

    # Management cluster

    def harvester_cluster(self, change: Change) -> None:
        """Enqueue the cluster, its machines and their templates.

        Machines and templates depend on its spec, readiness and failure domains only.
        """
        if differs(change, metadata_fields):
            self._clusters.add(change.key)
            # A former Secret may lose its finalizer, and a new one gets it.
            for obj in filter(None, (change.old, change.new)):
                if not is_cluster_identity(identity := identity_of(obj)):
                    self._identities.add(identity)

        if differs(change, fields_for_machines):
            cluster = self._caches.cluster_of(change.obj)
            if cluster:
                self._add_machines_of(cluster)
                self._add_templates_of(cluster)

        # Allocations skip the address of an external endpoint. Now it is free.
        if endpoint_addresses(change.old) - endpoint_addresses(change.new):
            self._harvester.notify_pools_of_cluster(change.key)

    def harvester_machine(self, change: Change) -> None:
        """Enqueue the machine, and also its cluster if the change matters to the cluster."""
        if differs(change, metadata_fields):
            self._machines.add(change.key)

        cluster = self._caches.cluster_of(change.obj)
        is_backend = clusterapi.is_control_plane(change.obj, cluster)
        if is_backend and differs(change, handover_fields):
            # The deletion of an older machine waits until the load balancer serves a newer one.
            self._add_machines_of(cluster, control_plane=True)
            self._add_cluster_with_backups(cluster)

        # Allocations skip addresses of machines, whatever the pools say. Now the address is free.
        if machine_addresses(change.old) - machine_addresses(change.new):
            self._harvester.notify_pools_of_machine(change.obj)

        changed_domain = change.old is not None and differs(change, failure_domain)
        if change.new is None or changed_domain:
            self._add_cluster_of_machine(change)

    def _add_cluster_with_backups(self, cluster: Obj | None) -> None:
        """Enqueue a cluster that can check backups only once a control plane machine runs."""
        infrastructure = self._caches.harvester_cluster_of(cluster) if cluster else None
        if infrastructure and awaits_backup_check(infrastructure):
            self._clusters.add(key_of(infrastructure))

    def _add_cluster_of_machine(self, change: Change) -> None:
        """Enqueue the cluster of a machine that was deleted or moved, if it depends on that."""
        cluster = self._caches.cluster_of(change.obj)
        harvester_cluster = self._caches.harvester_cluster_of(cluster) if cluster else None
        if harvester_cluster is None:
            return

        key = key_of(harvester_cluster)
        # The status stops listing an unavailable domain once no machine uses it.
        is_affected = has_unavailable_domain(harvester_cluster)
        if change.new is None:
            # The deletion of a cluster waits for its machines, as does a cluster that was moved to
            # another Harvester. A running reconcile may be about to report that it waits.
            may_wait = self._clusters.is_processing(key) or not is_ready(harvester_cluster)
            # The load balancer leads to the machines of the control plane.
            is_backend = clusterapi.is_control_plane(change.obj, cluster)
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
        if identity := self._context.cluster_identities.renewed.identity_of(change.key):
            self._renewals.add(Key("", identity))
        for identity in self._context.cluster_identities.with_secret(change.key):
            self.cluster_identity(identity)
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

    def cluster_identity(self, name: str) -> None:
        """Enqueue the clusters that refer to a HarvesterClusterIdentity; to any without a name.

        Also enqueues the renewal of its token, if the provider renews or has renewed it.
        """
        identities = self._context.cluster_identities
        for renewed in identities.with_renewal():
            if name in ("", renewed):
                self._renewals.add(Key("", renewed))
        # The token of an identity that is no longer renewed, or was deleted, is revoked.
        if name and self._caches.secrets.get(*identities.renewed.key_of(name)):
            self._renewals.add(Key("", name))

        store = self._caches.harvester_clusters.store
        for cluster in store.by_index("identity", str(cluster_identity(name))) if name else store:
            if reference_of(cluster):
                self._clusters.add(key_of(cluster))

    def namespace(self, name: str) -> None:
        """Enqueue the clusters of a namespace, by name, whose identity its labels may permit."""
        if not name:
            self.cluster_identity("")
            return
        for cluster in self._caches.harvester_clusters.store.by_index("identity_namespace", name):
            self._clusters.add(key_of(cluster))

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

    def ipam(self) -> None:
        """Enqueue the machines that wait for the API of IPAddressClaims."""
        self._context.topics.notify(triggers.IPAM)

    def address_claim(self, claim: Key) -> None:
        """Enqueue the machine of an IPAddressClaim, which has the machine's name in its own."""
        key = Key(claim.namespace, machine_of(claim.name))
        if self._caches.harvester_machines.get(*key):
            self._machines.add(key)

    def _add_templates_of(self, cluster: Obj) -> None:
        for template in self._caches.templates_of(cluster):
            self._templates.add(key_of(template))

    def _add_machines_of(self, cluster: Obj | None, *, control_plane: bool = False) -> None:
        """Enqueue the machines of a cluster, on request only those of its control plane."""
        if cluster is None:
            return
        for machine in self._caches.machines_of(cluster):
            if not control_plane or clusterapi.is_control_plane(machine, cluster):
                self._machines.add(key_of(machine))
