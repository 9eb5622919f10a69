"""Wires the provider: caches first, then queues, controllers, and the event handlers that feed the queues."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, Key, key_of, uid_of
from caphv.runtime.addresses import AddressPolicy
from caphv.runtime.budget import MIB, SHARED_CACHE_BYTES
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.discovery import served_version
from caphv.runtime.election import LeaderElection
from caphv.runtime.errors import Forbidden, NotFound, ServerFault, TooManyRequests, Unreachable
from caphv.runtime.eventloop import unless_stopped
from caphv.runtime.events import EventRecorder
from caphv.runtime.health import HealthServer
from caphv.runtime.heartbeat import Heartbeat
from caphv.runtime.kubeconfig import own_namespace, process_configuration
from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.metrics_auth import MetricsAuth
from caphv.runtime.queue import Group
from caphv.runtime.runnable import Runnable
from reconciler import resync
from reconciler.caches import Caches
from reconciler.cluster.controller import ClusterReconciler
from reconciler.cluster.identityprotection import IdentityProtection
from reconciler.cluster.pools import used_pools
from reconciler.context import Context
from reconciler.eventhandlers import EventHandlers
from reconciler.harvester import connectionmetrics, poolmetrics
from reconciler.harvester.sessions import Sessions
from reconciler.machine.controller import MachineReconciler
from reconciler.machinetemplate.controller import MachineTemplateReconciler
from reconciler.queues import Queues
from reconciler.remote.objectwatch import ObjectWatches
from reconciler.remote.rancher import Rancher
from reconciler.remote.workloadcluster import WorkloadClusters

log = logging.getLogger(__name__)

COMPONENT = "caphv-controller-manager"
_WAITING = "waiting for the management cluster"


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """Options of `caphv run`. `namespace` and `watch_filter` limit which objects this process reconciles.

    With a `namespace`, nothing is read in other namespaces, so that a Role is enough. Identity Secrets must be there,
    too. `metrics_certificate` is a folder for `secure_metrics`, see `MetricsAuth`. `address_policy` says where
    kubeconfigs in Secrets may lead. `harvester_cache_mib` is the memory for cached objects of one Harvester.
    """

    kubeconfig: str = ""
    namespace: str = ""
    watch_filter: str = ""
    leader_elect: bool = False
    concurrency: int = 32
    cross_namespace_refs: bool = True
    allow_insecure_identities: bool = False
    addresses: BindAddresses = field(default_factory=BindAddresses)
    secure_metrics: bool = False
    metrics_certificate: Path | None = None
    address_policy: AddressPolicy = field(default_factory=AddressPolicy)
    harvester_cache_mib: int = SHARED_CACHE_BYTES // MIB


async def run(
    options: ProviderOptions, stop: asyncio.Event, parts: Callable[[ApiClient], Sequence[Runnable]] | None = None
) -> None:
    """Run the provider and `parts` until `stop` is set. Raises `KubeconfigError`, `LeaseLost`."""
    own = await process_configuration(options.kubeconfig)
    policy = options.address_policy
    policy.record_own(os.environ.get("KUBERNETES_SERVICE_HOST", ""))
    client = ApiClient(dataclasses.replace(own, check_address=policy.record_own), name="management")
    try:
        async with HealthServer(options.addresses.health, _WAITING) as health:
            provider = await unless_stopped(Provider.connect(client, options, health), stop)
            if provider is None:
                return
            for part in parts(client) if parts else ():
                provider.manager.add_runnable(part)
            await provider.manager.run(stop)
    finally:
        await client.close()


class Provider:
    """All parts, wired; `manager.run` starts them."""

    def __init__(
        self,
        client: ApiClient,
        options: ProviderOptions,
        *,
        cluster_api_version: str,
        management_cluster: str,
        health: HealthServer | None = None,
    ) -> None:
        election = _election(client, options)
        if election:
            client.fence = election.fence
        selector = f"{names.WATCH_FILTER_LABEL}={options.watch_filter}" if options.watch_filter else ""
        caches = Caches.create(
            client, cluster_api_version=cluster_api_version, namespace=options.namespace, selector=selector
        )
        policy = options.address_policy
        sessions = Sessions(
            client.fence,
            policy.check,
            caches.count_machines,
            caches.clusters_with,
            management_cluster=management_cluster,
            cache_bytes=options.harvester_cache_mib * MIB,
        )
        groups = Groups(caches, sessions)
        queues = Queues(
            concurrency=options.concurrency, cluster_group=groups.of_cluster, machine_group=groups.of_machine
        )
        self.context = Context(
            client=client,
            management_cluster=management_cluster,
            events=EventRecorder(client, COMPONENT),
            caches=caches,
            queues=queues,
            sessions=sessions,
            workloads=WorkloadClusters(client, caches.clusters, caches.secrets, policy.check_workload, client.fence),
            object_watches=ObjectWatches(),
            rancher=Rancher(client),
            namespace=options.namespace,
            identity_finalizer=names.identity_finalizer(options.watch_filter),
            cross_namespace_refs=options.cross_namespace_refs,
            allow_insecure_identities=options.allow_insecure_identities,
        )
        self.manager = Manager(
            addresses=options.addresses,
            election=election,
            health=health,
            metrics_auth=MetricsAuth(client, options.metrics_certificate) if options.secure_metrics else None,
        )
        if election is None:
            self.manager.add_runnable(_heartbeat(client, options))
        for informer in caches:
            self.manager.add_informer(informer)
        for controller in self._controllers(options.concurrency):
            self.manager.add_controller(controller)
        self.manager.add_task(self.context.events.run)
        self.manager.add_task(lambda: resync.run(caches, queues))
        self.manager.on_start(self._start)
        self.manager.on_scrape(lambda: connectionmetrics.report(sessions))
        self.manager.on_scrape(lambda: poolmetrics.report(used_pools(self.context)))
        self.manager.on_stop(self._stop)

    def _controllers(self, concurrency: int) -> Iterator[Controller]:
        context, queues = self.context, self.context.queues
        protection = IdentityProtection(context)
        yield Controller(
            "harvestercluster",
            ClusterReconciler(context, protection).reconcile,
            queue=queues.clusters,
            concurrency=concurrency,
        )
        yield Controller(
            "harvestermachine",
            MachineReconciler(context).reconcile,
            queue=queues.machines,
            concurrency=concurrency,
        )
        yield Controller(
            "harvestermachinetemplate",
            MachineTemplateReconciler(context).reconcile,
            queue=queues.templates,
            concurrency=2,
        )
        yield Controller("identity", protection.reconcile, queue=queues.identities, concurrency=2)

    @classmethod
    async def connect(cls, client: ApiClient, options: ProviderOptions, health: HealthServer | None = None) -> Provider:
        """Ask the management cluster for its identity and API versions, and retry until it answers."""
        delay = 0.5
        while True:
            try:
                version = await served_version(client, resources.CLUSTER_API_GROUP, resources.CLUSTER_API_VERSIONS)
                management_cluster = uid_of(await client.get(NAMESPACES, "kube-system"))
                return cls(
                    client,
                    options,
                    cluster_api_version=version,
                    management_cluster=management_cluster,
                    health=health,
                )
            except (NotFound, TooManyRequests, ServerFault, Unreachable) as error:
                log.warning("management cluster is not ready, retrying in %.1f s: %s", delay, error)
            except Forbidden as error:  # also of a server that has just started, or of roles that are applied later
                log.warning("management cluster refuses this provider, retrying in %.1f s: %s", delay, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 15)

    async def _start(self) -> None:
        # Only the leader reconciles, so only the leader has queues to feed.
        EventHandlers(self.context).connect()

    async def _stop(self) -> None:
        await self.context.events.flush()
        await self.context.rancher.close()
        await self.context.object_watches.close()
        await self.context.workloads.close()
        await self.context.sessions.close()


class Groups:
    """Groups of keys in their queues: accounts take turns, and all accounts on one server share the limit.

    A key whose server is not known yet is in the group without a name.
    """

    def __init__(self, caches: Caches, sessions: Sessions) -> None:
        self._caches, self._sessions = caches, sessions

    def of_cluster(self, key: Key) -> Group:
        """Return the group of a HarvesterCluster."""
        session = self._sessions.of(key)
        return Group(session.server, session.fingerprint) if session else Group()

    def of_machine(self, key: Key) -> Group:
        """Return the group of a HarvesterMachine."""
        machine = self._caches.harvester_machines.get(*key)
        harvester_cluster = self._caches.harvester_cluster_of_machine(machine) if machine else None
        return self.of_cluster(key_of(harvester_cluster)) if harvester_cluster else Group()


def _election(client: ApiClient, options: ProviderOptions) -> LeaderElection | None:
    if not options.leader_elect:
        return None
    # Deployments that share the load by filter or namespace each elect a leader of their own.
    name = _of_share(names.LEASE, options)
    return LeaderElection(client, namespace=own_namespace(), name=name, identity=_identity())


def _heartbeat(client: ApiClient, options: ProviderOptions) -> Heartbeat:
    name = _of_share(names.HEARTBEAT_LEASE, options)
    return Heartbeat(client, namespace=own_namespace(), name=name, identity=_identity())


def _of_share(lease: str, options: ProviderOptions) -> str:
    share = re.sub(r"[^a-z0-9]+", "-", f"{options.watch_filter} {options.namespace}".lower()).strip("-")
    return f"{share}.{lease}" if share else lease


def _identity() -> str:
    return f"{socket.gethostname()}_{uuid.uuid4()}"
