"""Event handlers: from a change of an object to the keys that have to be reconciled.

Neither the provider's own writes nor noise (heartbeats, managed fields) may requeue a converged object, so each handler
first compares the fields that reconciles read.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from typing import Any

from caphv.api import clusterapi, conditions, ippool, names, resources
from caphv.api.names import LOAD_BALANCER_SUFFIX, ConditionType, generated_names
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, labels_of, uid_of
from caphv.runtime.cache import Change
from reconciler import triggers
from reconciler.cluster.identity import secret_of
from reconciler.context import Context
from reconciler.harvester.ipam import balancer_addresses, instance_addresses, machine_addresses
from reconciler.harvester.session import Session, SessionEvents
from reconciler.machine.node import initialization, topology
from reconciler.machine.vmstatus import agent_connected, paused
from reconciler.machinetemplate.controller import ARCHITECTURE

_METADATA = ("generation", "deletionTimestamp", "finalizers", "ownerReferences", "annotations", "labels")


class EventHandlers:
    """Feeds the queues of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._caches = context.caches
        self._clusters, self._machines = context.queues.clusters, context.queues.machines
        self._templates, self._identities = context.queues.templates, context.queues.identities

    def connect(self) -> None:
        """Install the handlers on all sources of events."""
        self._caches.harvester_clusters.add_handler(self.harvester_cluster)
        self._caches.harvester_machines.add_handler(self.harvester_machine)
        self._caches.harvester_machine_templates.add_handler(self.harvester_machine_template)
        self._caches.clusters.add_handler(self.cluster)
        self._caches.machines.add_handler(self.machine)
        self._caches.secrets.add_handler(self.secret)
        self._context.sessions.connect(SessionEvents(self.harvester, self.health, self.caches, self.limited))
        self._context.workloads.connect(self.node, self.workload_reached)
        self._context.object_watches.connect(self._clusters.add)
        self._context.rancher.connect(self.rancher)

    # Management cluster

    def harvester_cluster(self, change: Change) -> None:
        """The cluster; its machines and their templates when its spec, readiness or failure domains change."""
        if _differs(change, _metadata):
            self._clusters.add(change.key)
            for obj in filter(None, (change.old, change.new)):
                self._identities.add(secret_of(obj))
        if _differs(change, _fields_for_machines):
            cluster = self._caches.cluster_of(change.obj)
            if cluster:
                self._add_machines_of(cluster)
                self._add_templates_of(cluster)

    def harvester_machine(self, change: Change) -> None:
        """The machine; when it is deleted or moves its cluster, if that depends on it.

        The deletion of a cluster waits for its machines, as does a cluster on another Harvester; a load balancer leads
        to those of the control plane, and a domain that no machine uses is not reported.
        """
        if _differs(change, _metadata):
            self._machines.add(change.key)
        if clusterapi.is_control_plane(change.obj) and _differs(change, _handover_fields):
            # An older one stays until the load balancer serves a newer one.
            cluster = self._caches.cluster_of(change.obj)
            self._add_machines_of(cluster, control_plane=True)
        if machine_addresses(change.old) - machine_addresses(change.new):
            self._address_left(change.obj)
        moved = change.old is not None and _differs(change, _failure_domain)
        if change.new is not None and not moved:
            return
        cluster = self._caches.cluster_of(change.obj)
        harvester_cluster = self._caches.harvester_cluster_of(cluster) if cluster else None
        if harvester_cluster is None:
            return
        key = key_of(harvester_cluster)
        depends = _has_unavailable_domain(harvester_cluster)
        if change.new is None:
            # A reconcile that runs may be about to report that it waits.
            waits = self._clusters.is_processing(key) or not _settled(harvester_cluster)
            depends = depends or waits or clusterapi.is_control_plane(change.obj)
        if depends:
            self._clusters.add(key)

    def harvester_machine_template(self, change: Change) -> None:
        """The template."""
        if change.new is not None and _differs(change, _metadata):
            self._templates.add(change.key)

    def cluster(self, change: Change) -> None:
        """The infrastructure of a Cluster, its machines and their templates."""
        if change.old is not None and (change.new is None or uid_of(change.new) != uid_of(change.old)):
            self._context.workloads.forget(change.key)
        if not _differs(change, _cluster_fields):
            return
        kind, name = clusterapi.infrastructure_ref(change.obj)
        if kind == resources.HARVESTER_CLUSTERS.kind:
            self._clusters.add(Key(change.key.namespace, name))
            self._add_machines_of(change.obj)
            self._add_templates_of(change.obj)

    def machine(self, change: Change) -> None:
        """The infrastructure of a Machine."""
        kind, name = clusterapi.infrastructure_ref(change.obj)
        if kind == resources.HARVESTER_MACHINES.kind and _differs(change, _machine_fields):
            self._machines.add(Key(change.key.namespace, name))

    def secret(self, change: Change) -> None:
        """Identity Secrets, bootstrap data, and kubeconfigs of workload clusters."""
        identity = str(change.key)
        if change.new is not None and change.new["metadata"].get("finalizers"):
            self._identities.add(change.key)
        for cluster in self._caches.harvester_clusters.store.by_index("identity", identity):
            self._clusters.add(key_of(cluster))
        if change.new is None:
            return
        for machine in self._caches.machines.store.by_index("bootstrap", identity):
            _, name = clusterapi.infrastructure_ref(machine)
            self._machines.add(Key(change.key.namespace, name))
        owner = change.key.name.removesuffix("-kubeconfig")
        if owner != change.key.name:
            owned = self._caches.clusters.get(change.key.namespace, owner)
            _, name = clusterapi.infrastructure_ref(owned) if owned else ("", "")
            if name:
                self._clusters.add(Key(change.key.namespace, name))

    # Harvester

    def harvester(self, sessions: Mapping[Session, None], change: Change) -> None:
        """Any object on a Harvester, in a cache that these sessions read."""
        handle = {
            "VirtualMachine": self._machine_on_harvester,
            "VirtualMachineInstance": self._machine_on_harvester,
            "PersistentVolumeClaim": self._machine_on_harvester,
            "Service": self._load_balancer,
            "LoadBalancer": self._load_balancer,
            "IPPool": self._pool,
            "VirtualMachineImage": self._image_or_key_pair,
            "KeyPair": self._image_or_key_pair,
            "Node": self._host,
            "Deployment": self._host,
        }.get(change.resource.kind)
        if handle:
            handle(sessions, change)

    def _load_balancer(self, sessions: Mapping[Session, None], change: Change) -> None:
        self._add_cluster_of_load_balancer(sessions, change.key)
        # Its address may have been free in its pool before: allocations leave out what a load balancer holds.
        if balancer_addresses(change.old) - balancer_addresses(change.new):
            self._may_allocate(sessions)

    def _add_cluster_of_load_balancer(self, sessions: Mapping[Session, None], load_balancer: Key) -> None:
        for cluster in self._harvester_clusters_on(sessions, load_balancer.namespace):
            if load_balancer.name in generated_names(cluster, LOAD_BALANCER_SUFFIX):
                self._clusters.add(key_of(cluster))

    def _may_allocate(self, sessions: Mapping[Session, None]) -> None:
        """An address is no longer in use, which some pool may have had as free all the time."""
        for session in sessions:
            for pool in session.pools.store:
                self._context.topics.notify(triggers.pool(session.fingerprint, pool["metadata"]["name"]))

    def _address_left(self, machine: Obj) -> None:
        session = self._session_of(machine)
        if session:
            self._may_allocate(session.neighbours)

    def _session_of(self, machine: Obj) -> Session | None:
        harvester_cluster = self._caches.harvester_cluster_of_machine(machine)
        return self._context.sessions.of(key_of(harvester_cluster)) if harvester_cluster else None

    def _pool(self, sessions: Mapping[Session, None], change: Change) -> None:
        """Who waits for an address, and whose entry was removed: a VM or load balancer has its address anyway."""
        if _differs(change, _pool_fields):
            for session in sessions:
                self._context.topics.notify(triggers.pools(session.fingerprint))
        if not _may_serve_more(change):
            return
        for session in sessions:
            self._context.topics.notify(triggers.pool(session.fingerprint, change.key.name))
        for holder in _lost_holders(change):
            namespace, _, name = holder.partition("/")
            machine = self._caches.harvester_machines.get(namespace, name)
            if machine and not being_deleted(machine) and self._session_of(machine) in sessions:
                self._machines.add(key_of(machine))
            self._add_cluster_of_load_balancer(sessions, Key(namespace, name))

    def _image_or_key_pair(self, sessions: Mapping[Session, None], change: Change) -> None:
        topic = triggers.images if change.resource.kind == "VirtualMachineImage" else triggers.key_pairs
        for session in sessions:
            self._context.topics.notify(topic(session.fingerprint))

    def _host(self, sessions: Mapping[Session, None], change: Change) -> None:
        if not _differs(change, _host_fields):
            return
        for session in sessions:
            for key in self._context.sessions.users(session):
                self._clusters.add(key)
            if change.old is not None and change.new is not None and _differs(change, topology):
                self._add_machines_on(session)
            if _differs(change, _architecture):
                for cluster in self._clusters_using(session):
                    self._add_templates_of(cluster)

    def health(self, session: Session) -> None:
        """A Harvester became unreachable or reachable, or rejects the credentials."""
        for key in self._context.sessions.users(session):
            self._clusters.add(key)
        self._add_machines_on(session)

    def caches(self, session: Session) -> None:
        """A cache of a Harvester became current, or failed for the first time."""
        self._context.topics.notify(triggers.caches(session.fingerprint))

    def limited(self, session: Session) -> None:
        """A Harvester has reached a limit."""
        for key in self._context.sessions.users(session):
            self._clusters.add(key)

    # Workload clusters

    def node(self, cluster: Key, change: Change) -> None:
        """The machine of a Node: they share the name, and the machine lives in the Cluster's namespace."""
        key = Key(cluster.namespace, change.key.name)
        machine = self._caches.harvester_machines.get(*key)
        # Not each Node is a machine's; a machine that appears later is reconciled then.
        if machine and _differs(change, _node_fields) and not _became_initialized(change, machine):
            self._machines.add(key)

    def workload_reached(self, cluster: Key) -> None:
        """The API of a workload cluster answered for the first time, or reached a limit."""
        obj = self._caches.clusters.get(*cluster)
        kind, name = clusterapi.infrastructure_ref(obj) if obj else ("", "")
        if kind == resources.HARVESTER_CLUSTERS.kind:
            self._clusters.add(Key(cluster.namespace, name))

    def rancher(self) -> None:
        """Something that Rancher knows about clusters."""
        self._context.topics.notify(triggers.RANCHER)

    def _add_machines_on(self, session: Session) -> None:
        for cluster in self._clusters_using(session):
            self._add_machines_of(cluster)

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

    def _harvester_clusters_on(self, sessions: Mapping[Session, None], namespace: str) -> list[Obj]:
        keys = (key for session in sessions for key in self._context.sessions.users(session, namespace))
        return [obj for key in keys if (obj := self._caches.harvester_clusters.get(*key))]

    def _machine_on_harvester(self, sessions: Mapping[Session, None], change: Change) -> None:
        changed = _differs(change, _vm_fields) and not _without_status(change)
        is_instance = change.resource.kind == "VirtualMachineInstance"
        if changed and is_instance and instance_addresses(change.old) - instance_addresses(change.new):
            self._may_allocate(sessions)
        balanced = names.MACHINE_TYPE_LABEL in labels_of(change.obj) and _differs(change, _backend_fields)
        if not (changed or balanced):
            return
        name = change.key.name
        if change.resource.kind == "PersistentVolumeClaim":
            if change.new is not None:
                return  # only the deletion of disks matters
            name = name.rpartition("-disk-")[0]
        for machine in self._caches.harvester_machines.store.by_index("name", name):
            cluster = self._caches.cluster_of(machine)
            harvester_cluster = self._caches.harvester_cluster_of(cluster) if cluster else None
            if harvester_cluster is None:
                continue
            key = key_of(harvester_cluster)
            if self._context.sessions.uses(key, sessions, change.key.namespace):
                if changed:
                    self._machines.add(key_of(machine))
                if balanced:
                    self._clusters.add(key)


def _differs(change: Change, view: Any) -> bool:
    return change.old is None or change.new is None or view(change.old) != view(change.new)


def _metadata(obj: Obj) -> list[Any]:
    return [obj["metadata"].get(name) for name in _METADATA]


def _fields_for_machines(obj: Obj) -> list[Any]:
    status = obj.get("status") or {}
    return [obj["metadata"].get("generation"), status.get("ready"), status.get("failureDomains")]


def _handover_fields(obj: Obj) -> list[Any]:
    """When a machine counts as a replacement: its owner is set after its creation, and may be cached even later."""
    return [obj["metadata"].get("ownerReferences"), (obj.get("status") or {}).get("ready")]


def _failure_domain(obj: Obj) -> Any:
    return (obj.get("status") or {}).get("failureDomain")


def _settled(obj: Obj) -> bool:
    status = obj.get("status") or {}
    return conditions.is_true(status.get("conditions") or [], ConditionType.READY) and not being_deleted(obj)


def _has_unavailable_domain(obj: Obj) -> bool:
    return any(not domain.get("controlPlane") for domain in (obj.get("status") or {}).get("failureDomains") or ())


def _cluster_fields(obj: Obj) -> list[Any]:
    spec = obj.get("spec") or {}
    return [
        spec.get("paused"),
        spec.get("infrastructureRef"),
        clusterapi.infrastructure_provisioned(obj),
        obj["metadata"].get("deletionTimestamp"),
        annotations_of(obj).get(names.SUSPEND_ADDONS_ANNOTATION),
        *(
            labels_of(obj).get(name)
            for name in (names.WATCH_FILTER_LABEL, names.AUTO_IMPORT_LABEL, *names.FLEET_LABELS)
        ),
    ]


def _machine_fields(obj: Obj) -> list[Any]:
    return [
        clusterapi.bootstrap_secret_name(obj),
        clusterapi.failure_domain(obj),
        obj["metadata"].get("deletionTimestamp"),
        clusterapi.is_control_plane(obj),
    ]


def _vm_fields(obj: Obj) -> list[Any]:
    status = obj.get("status") or {}
    return [
        obj["metadata"].get("uid"),
        obj["metadata"].get("deletionTimestamp"),
        obj["metadata"].get("generation"),
        obj["metadata"].get("annotations"),
        status.get("printableStatus"),
        status.get("phase"),
        status.get("nodeName"),
        status.get("interfaces"),
        paused(obj),
        agent_connected(obj),
    ]


def _without_status(change: Change) -> bool:
    """Whether a VM was added that KubeVirt has not seen, as after the provider's own write: its status will follow."""
    added = change.old is None and change.new is not None
    return added and change.resource.kind == "VirtualMachine" and not change.obj.get("status")


def _backend_fields(obj: Obj) -> list[Any]:
    return [labels_of(obj), annotations_of(obj).get(names.OWNER_UID_ANNOTATION)]


def _host_fields(obj: Obj) -> list[Any]:
    return [obj["metadata"].get("labels"), obj.get("spec"), (obj.get("status") or {}).get("conditions")]


def _may_serve_more(change: Change) -> bool:
    """Whether a pool may have an address for a request that it refused before: allocations alone change nothing."""
    if change.old is None or change.new is None:
        return True
    return not _entries(change.old) <= _entries(change.new) or _pool_fields(change.old) != _pool_fields(change.new)


def _lost_holders(change: Change) -> list[str]:
    """Ids of which a pool had an address and has it no more."""
    return [holder for _, holder in _entries(change.old) - _entries(change.new)]


def _entries(pool: Obj | None) -> ItemsView[str, str]:
    """Addresses of a pool with their holders."""
    return ippool.allocated(pool or {}).items()


def _pool_fields(obj: Obj) -> list[Any]:
    # Without the marks of addresses, which each allocation adds, and that of the end of a write without an answer.
    ours = (names.ADDRESS_HOLDER_PREFIX, names.SUPERSEDED_ANNOTATION)
    own = {name: value for name, value in annotations_of(obj).items() if not name.startswith(ours)}
    return [obj.get("spec"), own, obj["metadata"].get("deletionTimestamp")]


def _architecture(obj: Obj) -> str | None:
    return labels_of(obj).get(ARCHITECTURE)


def _node_fields(obj: Obj) -> list[Any]:
    # Not the labels: with another client that sets zone and region, too, each would answer the other forever.
    return [obj["spec"].get("providerID"), obj["spec"].get("taints"), obj["metadata"].get("uid")]


def _became_initialized(change: Change, machine: Obj) -> bool:
    """Whether a Node that was there lacks nothing any more, as after the provider's own write."""
    if change.old is None or change.new is None or uid_of(change.old) != uid_of(change.new):
        return False
    provider_id = change.new["spec"].get("providerID")
    return provider_id == machine["spec"].get("providerID") and not initialization(change.new, provider_id)
