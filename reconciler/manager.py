"""The provider put together: caches, sessions, workload clusters and all controllers, on one manager."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caphv.api import clusterapi, names, resources
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj, key_of, owner_reference, uid_of
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.discovery import served_version
from caphv.runtime.election import LeaderElection
from caphv.runtime.errors import NotFound, Unreachable
from caphv.runtime.eventloop import unless_stopped
from caphv.runtime.events import EventRecorder
from caphv.runtime.kubeconfig import own_configuration, own_namespace
from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.metrics_auth import MetricsAuth
from caphv.runtime.runnable import Runnable
from reconciler.cluster import fleet
from reconciler.cluster.controller import ClusterReconciler
from reconciler.cluster.pools import used_pools
from reconciler.context import Context
from reconciler.eventhandlers import Watches
from reconciler.harvester import poolmetrics
from reconciler.harvester.session import Session, SessionEvents, Sessions
from reconciler.machine.controller import MachineReconciler
from reconciler.machinetemplate.controller import TemplateReconciler
from reconciler.remote.objectwatch import SingleWatches
from reconciler.remote.rancher import Rancher
from reconciler.remote.workloadcluster import Workloads
from reconciler.status import Waiters

log = logging.getLogger(__name__)

COMPONENT = "caphv-controller-manager"


@dataclass(frozen=True, slots=True)
class Options:
    """What `caphv run` can be told; `namespace` and `watch_filter` limit which objects this process cares for.

    With a `namespace` nothing is read in others, so that a Role there is enough: identity Secrets are there, too.
    `metrics_certificate` is a folder for `secure_metrics`, see `MetricsAuth`.
    """

    kubeconfig: str = ""
    namespace: str = ""
    watch_filter: str = ""
    leader_elect: bool = False
    concurrency: int = 32
    allow_insecure_identities: bool = False
    addresses: BindAddresses = field(default_factory=BindAddresses)
    secure_metrics: bool = False
    metrics_certificate: Path | None = None


async def run(
    options: Options, stop: asyncio.Event, parts: Callable[[ApiClient], Sequence[Runnable]] | None = None
) -> None:
    """Run the provider until `stop` is set, and `parts` beside it. Raises `KubeconfigError`, `LeaseLost`."""
    client = ApiClient(await own_configuration(options.kubeconfig), name="management")
    try:
        provider = await unless_stopped(Provider.connect(client, options), stop)
        if provider is None:
            return
        for part in parts(client) if parts else ():
            provider.manager.add_runnable(part)
        await provider.manager.run(stop)
    finally:
        await client.close()


class Provider:
    """All parts, wired; `manager.run` makes them live."""

    def __init__(
        self, client: ApiClient, options: Options, *, cluster_api_version: str, management_cluster: str
    ) -> None:
        self.manager = Manager(
            addresses=options.addresses,
            election=_election(client, options),
            metrics_auth=MetricsAuth(client, options.metrics_certificate) if options.secure_metrics else None,
        )
        selector = f"{names.WATCH_FILTER_LABEL}={options.watch_filter}" if options.watch_filter else ""
        namespace = options.namespace
        events = EventRecorder(client, COMPONENT)
        clusters = Informer(client, resources.clusters(cluster_api_version), namespace=namespace)
        machines = Informer(
            client,
            resources.machines(cluster_api_version),
            namespace=namespace,
            indexes={"bootstrap": _bootstrap_secret},
        )
        # Of Secrets only the metadata is ever held.
        secrets = Informer(client, SECRETS, namespace=namespace, metadata_only=True, transform=_slim_secret)
        harvester_clusters = Informer(
            client,
            resources.HARVESTER_CLUSTERS,
            namespace=namespace,
            label_selector=selector,
            indexes={"identity": _identity_secret},
        )
        harvester_machines = Informer(
            client,
            resources.HARVESTER_MACHINES,
            namespace=namespace,
            label_selector=selector,
            indexes={"cluster": _cluster, "name": _name},
        )
        harvester_machine_templates = Informer(
            client,
            resources.HARVESTER_MACHINE_TEMPLATES,
            namespace=namespace,
            label_selector=selector,
            indexes={"cluster": _cluster_of_template},
        )
        context = Context(
            client=client,
            management_cluster=management_cluster,
            events=events,
            clusters=clusters,
            machines=machines,
            secrets=secrets,
            harvester_clusters=harvester_clusters,
            harvester_machines=harvester_machines,
            harvester_machine_templates=harvester_machine_templates,
            sessions=Sessions(SessionEvents(self._harvester_changed, self._harvester_health)),
            workloads=Workloads(client, secrets, self._node_changed, self._workload_reached),
            singles=SingleWatches(self._enqueue_cluster),
            rancher=Rancher(client, self._rancher_changed),
            waiters=Waiters(self._enqueue_any),
            enqueue_cluster=self._enqueue_cluster,
            enqueue_machine=self._enqueue_machine,
            enqueue_template=self._enqueue_template,
            namespace=namespace,
            allow_insecure_identities=options.allow_insecure_identities,
        )
        self.context = context
        self.clusters = Controller(
            "harvestercluster", ClusterReconciler(context).reconcile, concurrency=options.concurrency
        )
        self.machines = Controller(
            "harvestermachine",
            MachineReconciler(context).reconcile,
            concurrency=options.concurrency,
            group_of=self._harvester_of,
            group_limit=max(1, options.concurrency * 3 // 4),
        )
        self.templates = Controller("harvestermachinetemplate", TemplateReconciler(context).reconcile, concurrency=2)
        self.watches = Watches(context)
        own = (harvester_clusters, harvester_machines, harvester_machine_templates)
        for informer in (clusters, machines, secrets, *own):
            self.manager.add_informer(informer)
        for controller in (self.clusters, self.machines, self.templates):
            self.manager.add_controller(controller)
        self.manager.add_task(events.run)
        self.manager.on_start(self._start)
        self.manager.on_scrape(lambda: poolmetrics.report(used_pools(context)))
        self.manager.on_stop(self._stop)

    @classmethod
    async def connect(cls, client: ApiClient, options: Options) -> Provider:
        """Find out what the management cluster is and speaks, waiting for it as long as it takes."""
        delay = 0.5
        while True:
            try:
                version = await served_version(client, resources.CLUSTER_API_GROUP, resources.CLUSTER_API_VERSIONS)
                management_cluster = uid_of(await client.get(NAMESPACES, "kube-system"))
                return cls(client, options, cluster_api_version=version, management_cluster=management_cluster)
            except (NotFound, Unreachable) as error:
                log.warning("management cluster is not ready, trying again in %.1f s: %s", delay, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 15)

    # Handlers close over the provider, because queues exist only after the context that they work on.

    def _enqueue_cluster(self, key: Key) -> None:
        self.clusters.enqueue(key)

    def _enqueue_machine(self, key: Key) -> None:
        self.machines.enqueue(key)

    def _enqueue_template(self, key: Key) -> None:
        self.templates.enqueue(key)

    def _enqueue_any(self, key: Key) -> None:
        # Names of the two kinds may be equal; a key too many costs a look into a cache.
        self.clusters.enqueue(key)
        self.machines.enqueue(key)

    def _harvester_changed(self, session: Session, change: Change) -> None:
        self.watches.harvester(session, change)

    def _harvester_health(self, session: Session) -> None:
        self.watches.health(session)

    def _node_changed(self, cluster: Key, change: Change) -> None:
        self.watches.node(cluster, change)

    def _rancher_changed(self) -> None:
        self.context.waiters.notify(fleet.TOPIC)

    def _workload_reached(self, cluster: Key) -> None:
        self.watches.workload_reached(cluster)

    def _harvester_of(self, key: Key) -> str:
        """Queue group of a machine: its Harvester, so that a slow one never takes all workers."""
        machine = self.context.harvester_machines.get(*key)
        cluster = self.context.cluster_of(machine) if machine else None
        harvester_cluster = self.context.harvester_cluster_of(cluster) if cluster else None
        session = self.context.sessions.of(key_of(harvester_cluster)) if harvester_cluster else None
        return session.fingerprint if session else ""

    async def _start(self) -> None:
        self.watches.connect()

    async def _stop(self) -> None:
        await self.context.events.flush()
        await self.context.rancher.close()
        await self.context.singles.close()
        await self.context.workloads.close()
        await self.context.sessions.close()


def _election(client: ApiClient, options: Options) -> LeaderElection | None:
    if not options.leader_elect:
        return None
    # Deployments that share the load by filter or namespace each need a leader of their own.
    share = re.sub(r"[^a-z0-9]+", "-", f"{options.watch_filter} {options.namespace}".lower()).strip("-")
    name = f"{share}.{names.LEASE}" if share else names.LEASE
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return LeaderElection(client, namespace=own_namespace(), name=name, identity=identity)


def _slim_secret(secret: Obj) -> Obj:
    metadata = secret["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion")
    return {"metadata": {name: metadata[name] for name in kept if name in metadata}}


def _bootstrap_secret(machine: Obj) -> Iterable[str]:
    name = clusterapi.bootstrap_secret_name(machine)
    return [f"{machine['metadata']['namespace']}/{name}"] if name else []


def _identity_secret(cluster: Obj) -> Iterable[str]:
    reference = (cluster.get("spec") or {}).get("identitySecret") or {}
    return [f"{reference.get('namespace')}/{reference.get('name')}"]


def _cluster(machine: Obj) -> Iterable[str]:
    name = clusterapi.cluster_name(machine)
    return [f"{machine['metadata']['namespace']}/{name}"] if name else []


def _cluster_of_template(template: Obj) -> Iterable[str]:
    # The core makes the Cluster its owner; only templates of a ClusterClass's Clusters have the label, too.
    owner = owner_reference(template, "Cluster", resources.CLUSTER_API_GROUP)
    return [f"{template['metadata']['namespace']}/{owner['name']}"] if owner else _cluster(template)


def _name(machine: Obj) -> Iterable[str]:
    return [machine["metadata"]["name"]]
