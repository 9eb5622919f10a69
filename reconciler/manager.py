"""Create and connect all parts of the provider: caches, queues, controllers, event handlers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
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
from caphv.runtime.clientconfig import own_namespace, process_configuration
from caphv.runtime.controller import Controller
from caphv.runtime.discovery import served_version
from caphv.runtime.election import LeaderElection, share_name
from caphv.runtime.errors import Forbidden, NotFound, ServerFault, TooManyRequests, Unreachable
from caphv.runtime.eventloop import run_until_stop
from caphv.runtime.events import EventRecorder
from caphv.runtime.health import HealthServer
from caphv.runtime.heartbeat import Heartbeat
from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.metrics_auth import MetricsAuth
from caphv.runtime.queue import Group
from caphv.runtime.runnable import Runnable
from reconciler import resync
from reconciler.caches import Caches
from reconciler.cluster.controller import ClusterReconciler
from reconciler.cluster.identityprotection import IdentityProtection
from reconciler.cluster.pools import used_pools
from reconciler.clusteridentity.controller import TokenRenewer
from reconciler.context import Context
from reconciler.eventhandlers import EventHandlers
from reconciler.extension.server import ExtensionServer
from reconciler.harvester import connectionmetrics, poolmetrics
from reconciler.harvester.sessions import Sessions
from reconciler.machine.controller import MachineReconciler
from reconciler.machinetemplate.controller import MachineTemplateReconciler
from reconciler.queues import RENEWALS, Queues
from reconciler.remote.clusteridentities import ClusterIdentities
from reconciler.remote.ipam import Ipam
from reconciler.remote.objectwatch import ObjectWatches
from reconciler.remote.rancher import Rancher
from reconciler.remote.workloadcluster import WorkloadClusters

log = logging.getLogger(__name__)

COMPONENT = "caphv-controller-manager"
_WAITING = "waiting for the management cluster"


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """Options of `caphv run`.

    With a `namespace`, the provider reads nothing in other namespaces, so that a Role is enough.
    Identity Secrets must be in that namespace, too. `watch_filter` also limits which objects this
    process reconciles.

    :param metrics_certificate: a folder for `secure_metrics`, see `MetricsAuth`
    :param address_policy: addresses to which kubeconfigs in Secrets may lead
    :param harvester_cache_mib: memory for cached objects of one Harvester
    :param extension_address: where to serve the runtime extension, `[host]:port`; empty for nowhere
    :param extension_certificate: folder with the certificate of the runtime extension
    :param extension_clients: authorities of the clients of the runtime extension, None for anyone
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
    extension_address: str = ""
    extension_certificate: Path = Path()
    extension_clients: Path | None = None


async def run(
    options: ProviderOptions,
    stop: asyncio.Event,
    parts: Callable[[ApiClient], Sequence[Runnable]] | None = None,
) -> None:
    """Run the provider and `parts` until `stop` is set. Raises `KubeconfigError`, `LeaseLost`."""
    configuration = await process_configuration(options.kubeconfig)
    policy = options.address_policy
    policy.record_own(os.environ.get("KUBERNETES_SERVICE_HOST", ""))
    client = ApiClient(
        dataclasses.replace(configuration, check_address=policy.record_own), name="management"
    )

    try:
        async with HealthServer(options.addresses.health, _WAITING) as health:
            provider = await run_until_stop(Provider.connect(client, options, health), stop)
            if provider is None:
                return

            if parts:
                for part in parts(client):
                    provider.manager.add_runnable(part)

            await provider.manager.run(stop)
    finally:
        await client.close()


class Provider:
    """All parts of the provider, connected to each other; `manager.run` starts them."""

    def __init__(
        self,
        client: ApiClient,
        options: ProviderOptions,
        *,
        cluster_api_version: str,
        management_cluster: str,
        health: HealthServer | None = None,
    ) -> None:
        # Set the fence first, because the objects created below copy it from the client.
        election = _election(client, options)
        if election:
            client.fence = election.fence

        self.context = _create_context(client, options, cluster_api_version, management_cluster)

        is_secure = options.secure_metrics
        folder = options.metrics_certificate
        self.manager = Manager(
            addresses=options.addresses,
            election=election,
            health=health,
            metrics_auth=MetricsAuth(client, folder) if is_secure else None,
        )
        if election is None:
            self.manager.add_runnable(_heartbeat(client, options))
        if options.extension_address:
            self.manager.add_runnable(
                ExtensionServer(
                    options.extension_address,
                    options.extension_certificate,
                    self.context.caches,
                    options.extension_clients,
                )
            )
        self._fill_manager(options.concurrency)

    def _fill_manager(self, concurrency: int) -> None:
        """Add caches, controllers and tasks to the manager, which starts them in this order."""
        context = self.context
        manager = self.manager
        for informer in context.caches:
            manager.add_informer(informer)
        for controller in self._controllers(concurrency):
            manager.add_controller(controller)
        manager.add_task(context.events.run)
        manager.add_task(lambda: resync.run(context.caches, context.queues))

        manager.on_start(self._start)
        manager.on_scrape(lambda: connectionmetrics.report(context.sessions))
        manager.on_scrape(lambda: poolmetrics.report(used_pools(context)))
        manager.on_stop(self._stop)

    def _controllers(self, concurrency: int) -> Iterator[Controller]:
        """Yield one controller per kind, and two for identities: for finalizers and for tokens."""
        context = self.context
        queues = self.context.queues
        protection = IdentityProtection(context)
        clusters = ClusterReconciler(context, protection)
        machines = MachineReconciler(context)
        templates = MachineTemplateReconciler(context)
        renewer = TokenRenewer(context)

        for name, reconcile, queue, workers in (
            ("harvestercluster", clusters.reconcile, queues.clusters, concurrency),
            ("harvestermachine", machines.reconcile, queues.machines, concurrency),
            ("harvestermachinetemplate", templates.reconcile, queues.templates, 2),
            ("identity", protection.reconcile, queues.identities, 2),
            ("tokenrenewal", renewer.reconcile, queues.renewals, RENEWALS),
        ):
            yield Controller(name, reconcile, queue=queue, concurrency=workers)

    @classmethod
    async def connect(
        cls, client: ApiClient, options: ProviderOptions, health: HealthServer | None = None
    ) -> Provider:
        """Ask the management cluster for its identity and API versions until it answers."""
        delay = 0.5
        while True:
            try:
                version = await served_version(
                    client, resources.CLUSTER_API_GROUP, resources.CLUSTER_API_VERSIONS
                )
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
            except Forbidden as error:
                # A server refuses requests right after its start, and until roles are applied.
                log.warning(
                    "management cluster refuses this provider, retrying in %.1f s: %s",
                    delay,
                    error,
                )

            await asyncio.sleep(delay)
            delay = min(delay * 2, 15)

    async def _start(self) -> None:
        """Connect the event handlers."""
        # Only the leader reconciles, so only the leader needs the handlers that feed the queues.
        EventHandlers(self.context).connect()

    async def _stop(self) -> None:
        """Send the Events that are queued, and close all connections."""
        await self.context.events.flush()
        await self.context.rancher.close()
        await self.context.cluster_identities.close()
        await self.context.ipam.close()
        await self.context.object_watches.close()
        await self.context.workloads.close()
        await self.context.sessions.close()


def _create_context(
    client: ApiClient, options: ProviderOptions, cluster_api_version: str, management_cluster: str
) -> Context:
    """Create the context of all reconcilers. Nothing connects before the manager starts.

    :param client: client of the management cluster
    :param options: options of this process
    :param cluster_api_version: the version of Cluster API that the management cluster serves
    :param management_cluster: uid of the management cluster
    """
    selector = f"{names.WATCH_FILTER_LABEL}={options.watch_filter}" if options.watch_filter else ""
    caches = Caches.create(
        client,
        cluster_api_version=cluster_api_version,
        namespace=options.namespace,
        selector=selector,
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
    workloads = WorkloadClusters(
        client, caches.clusters, caches.secrets, policy.check_workload, client.fence
    )

    groups = Groups(caches, sessions)
    identities = ClusterIdentities(client, own_namespace())
    servers = identities.renewed.servers
    queues = Queues(
        concurrency=options.concurrency,
        cluster_group=groups.of_cluster,
        machine_group=groups.of_machine,
        renewal_group=lambda key: Group(servers.get(key.name, "")),
    )

    return Context(
        client=client,
        management_cluster=management_cluster,
        events=EventRecorder(client, COMPONENT),
        caches=caches,
        queues=queues,
        sessions=sessions,
        workloads=workloads,
        object_watches=ObjectWatches(),
        rancher=Rancher(client),
        cluster_identities=identities,
        ipam=Ipam(client, options.namespace),
        namespace=options.namespace,
        identity_finalizer=names.identity_finalizer(options.watch_filter),
        cross_namespace_refs=options.cross_namespace_refs,
        allow_insecure_identities=options.allow_insecure_identities,
        updates_in_place=bool(options.extension_address),
    )


class Groups:
    """Group keys in queues: accounts take turns, and accounts of one server share its limit.

    While the server of a key is unknown, the key is in the group without a name.
    """

    def __init__(self, caches: Caches, sessions: Sessions) -> None:
        self._caches = caches
        self._sessions = sessions

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
    """Return the election of a leader, None if the options do not ask for one."""
    if not options.leader_elect:
        return None
    # Deployments that share the load by filter or namespace each elect a leader of their own.
    name = _lease_name(names.LEASE, options)
    return LeaderElection(client, namespace=own_namespace(), name=name, identity=_identity())


def _heartbeat(client: ApiClient, options: ProviderOptions) -> Heartbeat:
    """Return the heartbeat of a process that elects no leader."""
    name = _lease_name(names.HEARTBEAT_LEASE, options)
    return Heartbeat(client, namespace=own_namespace(), name=name, identity=_identity())


def _lease_name(lease: str, options: ProviderOptions) -> str:
    """Return the name of a Lease for the share of objects that this process reconciles."""
    share = share_name(options.namespace, options.watch_filter)
    return f"{share}.{lease}" if share else lease


def _identity() -> str:
    """Return the name of this process in a Lease."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"
