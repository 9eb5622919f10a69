"""The reconciler of clusters on servers in memory: a management cluster, a Harvester and a workload cluster.

Caches are always up to date, and no controller of Harvester acts: a test plays kube-vip and the load balancer's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import resources
from caphv.api.conditions import get_condition
from caphv.api.object import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    SERVICES,
    Key,
    Obj,
    Resource,
    key_of,
)
from caphv.runtime.store import IndexFunction, Store
from reconciler.cluster import identity
from reconciler.cluster.controller import ClusterReconciler
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.harvester.allocator import AddressAllocator
from reconciler.harvester.watchedcollections import collections_of
from reconciler.memory.store import Memory
from reconciler.queues import Queues
from reconciler.remote.clusteridentities import ClusterIdentities, NotRead
from reconciler.remote.guestvolumes import reclaim_policies
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics
from tests.support.memoryserver import MemoryServer
from tests.support.tokenserver import TokenServer

CORE = "cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta1"
KEY = Key("team", "demo")
TARGET = "vms"


class Cached:
    """What an `Informer` offers readers, straight from a server. Of kinds in `lags`, it has no objects yet.

    `stalled` has, by server and kind, what caches know whose watches deliver nothing (`stall`).
    """

    synced = current = True
    last_error = None
    lags: frozenset[str] = frozenset()
    stalled: Mapping[tuple[str, str], dict[Key, Obj]] = MappingProxyType({})

    def __init__(
        self, server: MemoryServer, resource: Resource, indexes: Mapping[str, IndexFunction] | None = None
    ) -> None:
        self.resource, self._server, self._indexes = resource, server, indexes

    @property
    def store(self) -> Store:
        known = self._known
        store = Store(self._indexes)
        for obj in self._server.stored(self.resource) if known is None else known.values():
            store.put(key_of(obj), obj)
        return store

    @property
    def _known(self) -> dict[Key, Obj] | None:
        return self.stalled.get((self._server.name, self.resource.kind))

    def get(self, namespace: str, name: str) -> Obj | None:
        return None if self.resource.kind in self.lags else self.store.get(namespace, name)

    async def read(self, namespace: str, name: str) -> Obj | None:
        for obj in self._server.stored(self.resource):
            if key_of(obj) == Key(namespace, name):
                self.observe(obj)
                return obj
        return None

    def observe(self, obj: Obj) -> None:
        if self._known is not None:
            self._known[key_of(obj)] = obj

    def forget(self, namespace: str, name: str) -> None:
        if self._known is not None:
            self._known.pop(Key(namespace, name), None)

    def observe_deletion(self, namespace: str, name: str, answer: Obj | None) -> bool:
        if answer is None:
            self.forget(namespace, name)
        else:
            self.observe(answer)
        return answer is None


def stall(monkeypatch: pytest.MonkeyPatch, server: MemoryServer, *watched: Resource) -> None:
    """Have watches of these kinds deliver nothing from now on: caches learn what the process writes, and no more."""
    known = {
        (server.name, resource.kind): {key_of(obj): copy.deepcopy(obj) for obj in server.stored(resource)}
        for resource in watched
    }
    monkeypatch.setattr(Cached, "stalled", {**Cached.stalled, **known})


class MemoryIdentities(ClusterIdentities):
    """HarvesterClusterIdentities and namespaces straight from a server; `unread` are errors instead, by kind."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(cast(Any, None), "caphv-system")
        self._server = server
        self.unread: dict[str, Exception | None] = {}

    def _start_identities(self) -> Any:
        return self._cache(resources.HARVESTER_CLUSTER_IDENTITIES)

    def _start_namespaces(self) -> Any:
        return self._cache(NAMESPACES)

    def _cache(self, resource: Resource) -> Cached:
        if resource.kind in self.unread:
            raise NotRead(self.unread[resource.kind])
        return Cached(self._server, resource)


class MemoryCase:
    """HarvesterCluster `team/demo` with its Cluster, and what its reconciles did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.management, self.harvester, self.workload = MemoryServer(), TokenServer(), MemoryServer()
        for server, name in (
            (self.management, "management"),
            (self.harvester, "harvester"),
            (self.workload, "workload"),
        ):
            server.name = name
        full = {
            "server": "https://harvester",
            "targetNamespace": TARGET,
            "identitySecret": {"namespace": "team", "name": "identity"},
            "loadBalancerConfig": {"ipamType": "dhcp"},
            **spec,
        }
        owner = {"apiVersion": CORE, "kind": "Cluster", "name": "demo", "uid": "cluster"}
        metadata = {"name": "demo", "namespace": "team", "uid": "demo-uid", "ownerReferences": [owner]}
        self.management.put(
            {"apiVersion": INFRASTRUCTURE, "kind": "HarvesterCluster", "metadata": metadata, "spec": full}
        )
        cluster = {"name": "demo", "namespace": "team", "uid": "cluster"}
        self.management.put({"apiVersion": CORE, "kind": "Cluster", "metadata": cluster, "spec": {}})
        self.events: list[tuple[str, str]] = []
        self.machines: list[Obj] = []
        self.guests_answer = False
        self.connection_lost = False
        self.session = self._session()
        self.context = self._context()
        monkeypatch.setattr(identity, "ensure_session", self._ensure_session)
        self.reconciler = ClusterReconciler(self.context, cast(Any, None))

    @property
    def obj(self) -> Obj:
        """The HarvesterCluster."""
        found = self.management.find("HarvesterCluster", "demo", "team")
        assert found is not None
        return found

    @property
    def cluster(self) -> Obj:
        """The Cluster."""
        found = self.management.find("Cluster", "demo", "team")
        assert found is not None
        return found

    def condition(self, name: str) -> tuple[str, str]:
        """Status and reason of a condition; empty without it."""
        found = get_condition((self.obj.get("status") or {}).get("conditions") or [], name) or {}
        return str(found.get("status") or ""), str(found.get("reason") or "")

    async def reconcile(self) -> float | None:
        """Reconcile once; return when it wants to be called again."""
        result = await self.reconciler.reconcile(KEY)
        return result.requeue_after if result else None

    def written(self, draft: StatusDraft) -> StatusDraft:
        """Store the status that a step has drafted; return the draft of the next reconcile."""
        return StatusDraft(self.management.put({**self.obj, "status": draft.fields}))

    def scope(self) -> ClusterScope:
        """The scope of one reconcile that is connected."""
        return ClusterScope(self.context, self.obj, self.cluster, StatusDraft(self.obj), cast(Any, self.session))

    def assign(self, address: str) -> None:
        """Have kube-vip assign an address to the cluster's Service."""
        (service,) = self.harvester.stored(SERVICES)
        self.harvester.put({**service, "status": {"loadBalancer": {"ingress": [{"ip": address}]}}})

    def add_machine(self, name: str, *, control_plane: bool = True, **vm_labels: str) -> Obj:
        """Add a HarvesterMachine with its VM; return the VM."""
        labels = {"cluster.x-k8s.io/control-plane": ""} if control_plane else {}
        metadata = {"name": name, "namespace": "team", "uid": f"{name}-uid", "labels": labels}
        self.machines.append({"kind": "HarvesterMachine", "metadata": metadata, "spec": {}})
        template = {"metadata": {"labels": vm_labels}, "spec": {}}
        place = {"name": name, "namespace": TARGET, "annotations": {}}
        vm = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": place,
            "spec": {"template": template},
        }
        return self.harvester.put(vm)

    async def _ensure_session(self, scope: ClusterScope, *_: object) -> None:
        scope.session = cast(Any, self.session)

    def _session(self) -> Any:
        server = self.harvester
        vms, _, _, balancers = collections_of(TARGET, "")
        views = {
            "vms": Cached(server, resources.VIRTUAL_MACHINES, vms.options["indexes"]),
            "instances": Cached(server, resources.VIRTUAL_MACHINE_INSTANCES),
            "claims": Cached(server, PERSISTENT_VOLUME_CLAIMS),
            "load_balancers": Cached(server, resources.LOAD_BALANCERS, balancers.options["indexes"]),
        }
        self.namespace = SimpleNamespace(**views, synced=True, current=True, sync_error="")
        pools = Cached(server, resources.IP_POOLS)
        return SimpleNamespace(
            client=server,
            server="https://harvester",
            fingerprint="harvester",
            identity="team/identity",
            ca="CA",
            uid="harvester-uid",
            error=None,
            is_unauthorized=False,
            is_settled=True,
            synced=True,
            sync_error="",
            missing_kind="",
            available=True,
            deployment_object=True,
            pools=pools,
            services=Cached(server, SERVICES),
            hosts=Cached(server, NODES),
            namespaces={TARGET: self.namespace},
            watch_namespace=lambda _: self.namespace,
            refusal=lambda *_: "",
            probe=lambda: self.events.append(("", "probed")),
            allocator=AddressAllocator(cast(Any, server), lambda: cast(Any, pools), lambda _: False),
        )

    def _context(self) -> Context:
        clusters = Cached(self.management, resources.clusters("v1beta2"))
        caches = SimpleNamespace(
            harvester_clusters=Cached(self.management, resources.HARVESTER_CLUSTERS),
            harvester_machines=Cached(self.management, resources.HARVESTER_MACHINES),
            secrets=Cached(self.management, SECRETS),
            machines=SimpleNamespace(get=lambda *_: None),
            clusters=clusters,
            cluster_of=lambda _: clusters.get(*KEY),
            machines_of=lambda _: self.machines,
            publishes_failure_domains=True,
        )
        events = SimpleNamespace(
            event=lambda _about, kind, reason, _message: self.events.append((kind, reason)), is_limited=lambda _: False
        )
        workloads = SimpleNamespace(
            ensure=self._nothing,
            forget=lambda _: None,
            client=lambda _: self.workload if self.guests_answer else None,
            has_answered=lambda _: self.guests_answer,
            nodes=lambda _: self.workload.stored(NODES),
            reclaim_policies=lambda _: self._reclaim_policies(),
        )
        watches = SimpleNamespace(ensure=self._watch, forget=self._nothing, known=self._known)
        return Context(
            client=cast(Any, self.management),
            management_cluster="management-uid",
            events=cast(Any, events),
            caches=cast(Any, caches),
            queues=Queues(),
            sessions=cast(
                Any, SimpleNamespace(of=lambda _: self.session, release=self._nothing, accept=lambda _: False)
            ),
            workloads=cast(Any, workloads),
            object_watches=cast(Any, watches),
            rancher=cast(Any, None),
            cluster_identities=MemoryIdentities(self.management),
            ipam=cast(Any, None),
            topics=Topics(),
            memory=Memory(),
        )

    def _reclaim_policies(self) -> dict[str, str] | None:
        return reclaim_policies(self.workload.stored(PERSISTENT_VOLUMES)) if self.guests_answer else None

    async def _nothing(self, *_: object) -> None:
        return None

    async def _watch(self, _key: Key, client: MemoryServer, resource: Resource, _target: Key) -> Cached:
        return Cached(client, resource)

    def _known(self, _key: Key, resource: Resource, target: Key) -> Obj | None:
        return Cached(self.management if resource is CONFIG_MAPS else self.workload, resource).get(*target)


def of_kind(requests: list[str], kind: str) -> Iterator[str]:
    """Yield the requests that changed objects of a kind, by verb."""
    yield from (request.split()[0] for request in requests if request.split()[1] == kind)
