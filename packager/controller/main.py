"""Wires the packager: caches, sync loop and status reports, on one manager."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from prometheus_client import generate_latest

from caphv.api import names
from caphv.api.object import Key
from caphv.api.resources import CLUSTER_API_GROUP, CLUSTER_API_VERSIONS
from caphv.runtime.client import ApiClient
from caphv.runtime.clientconfig import own_namespace, process_configuration
from caphv.runtime.discovery import served_version
from caphv.runtime.election import LeaderElection
from caphv.runtime.errors import NotFound, Unreachable
from caphv.runtime.eventloop import run_until_stop
from caphv.runtime.events import EventRecorder
from caphv.runtime.health import HealthServer
from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.metrics_auth import MetricsAuth
from caphv.runtime.runnable import Runnable
from packager.contents.uninstall import Waiting
from packager.controller import metrics, state
from packager.controller.fleetrelease import add_fleet_release
from packager.controller.loop import SyncIntervals, SyncLoop
from packager.controller.publisher import Publisher, PublisherOptions
from packager.controller.pushevent_relay import PushRelay
from packager.controller.pushevents import Receiver, ReceiverOptions
from packager.controller.state import ClusterCache
from packager.controller.status import Reporter
from packager.controller.upgrades import Upgrades
from packager.fleet import Fleet
from packager.upgrade import request as upgrade_request

log = logging.getLogger(__name__)

COMPONENT = "caphv-packager"
_MAX_DELAY_SECONDS = 15.0


@dataclass(frozen=True)
class PackagerOptions:
    """All settings of the packager in a cluster."""

    publisher: PublisherOptions
    kubeconfig: str = ""
    watch_filter: str = ""
    leader_elect: bool = False
    intervals: SyncIntervals = field(default_factory=SyncIntervals)
    addresses: BindAddresses = field(default_factory=BindAddresses)
    secure_metrics: bool = False
    metrics_certificate: Path | None = None
    receiver: ReceiverOptions | None = None
    """Address for push events, [host]:port, and the file with the shared secret."""


async def run(options: PackagerOptions, stop: asyncio.Event) -> None:
    """Run the packager until `stop` is set.

    Raises `KubeconfigError`, `LeaseLost`, and the errors of `Renderer`.
    """
    async with contextlib.AsyncExitStack() as stack:
        process = await run_until_stop(stack.enter_async_context(packager_process(options)), stop)
        if process is None:
            return
        process.manager.add_runnable(Metrics())
        await process.manager.run(stop)


@contextlib.asynccontextmanager
async def packager_process(options: PackagerOptions) -> AsyncIterator[Process]:
    """Yield a packager that is connected to its management cluster; `manager.run` starts it."""
    client = ApiClient(await process_configuration(options.kubeconfig), name="management")
    try:
        async with HealthServer(
            options.addresses.health, "waiting for the management cluster"
        ) as health:
            yield await Process.connect(client, options, health)
    finally:
        await client.close()


class Metrics(Runnable):
    """Adds the packager's metrics to the metrics of the process."""

    async def run(self) -> None:
        """Wait, because metrics are rendered on request."""
        await asyncio.Event().wait()

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(metrics.REGISTRY)


class Process:
    """All components, wired; `manager.run` starts them."""

    def __init__(
        self,
        client: ApiClient,
        options: PackagerOptions,
        version: str,
        health: HealthServer | None = None,
    ) -> None:
        """Create all components.

        :param client: client of the management cluster
        :param options: all settings
        :param version: the served version of Cluster API
        :param health: answers probes, a new one by default
        """
        selection = state.ClusterFilter(options.publisher.namespace, options.watch_filter)
        election = _election(client, selection.share) if options.leader_elect else None
        if election:
            # Writes fail as soon as the lease is lost.
            client.fence = election.fence

        metrics_auth = None
        if options.secure_metrics:
            metrics_auth = MetricsAuth(client, options.metrics_certificate)
        self.manager = Manager(
            addresses=options.addresses,
            election=election,
            health=health,
            metrics_auth=metrics_auth,
        )

        self._events = EventRecorder(client, COMPONENT)
        publisher = Publisher(options.publisher)

        self._clusters = ClusterCache(
            client=client,
            version=version,
            options=selection,
            changed=self._on_cluster_change,
            settled=self._on_kind_read,
        )
        self._fleet = Fleet(self._clusters.kinds, self._on_fleet_change)
        self._reporter = Reporter(
            client=client,
            clusters=self._clusters,
            fleet=self._fleet,
            events=self._events,
            is_before=publisher.is_before,
        )
        self._upgrades = Upgrades(
            publisher=publisher,
            fleet=self._fleet,
            reporter=self._reporter,
            events=self._events,
            election=election,
            file=upgrade_request.file_of(selection.share),
            due=self._on_upgrade_due,
        )

        self.loop = SyncLoop(
            clusters=self._clusters,
            publisher=publisher,
            reporter=self._reporter,
            intervals=options.intervals,
            path=options.publisher.repository.remote.path,
            waiting=Waiting(self._fleet.uninstallable),
            upgrades=self._upgrades,
        )

        for informer in self._clusters.informers:
            self.manager.add_informer(informer)
        self.manager.add_controller(self._reporter.controller)
        self.manager.add_task(self._events.run)
        self.manager.add_task(self.loop.run)

        if options.receiver:
            # All replicas receive push events, because a Git host calls any of them.
            relay = PushRelay(election, self.loop.debouncer.trigger_now)
            self.manager.add_runnable(relay)
            self.manager.add_runnable(Receiver(*options.receiver, relay.push))

        self.manager.on_start(self._start)
        self.manager.on_stop(self._stop)

    @classmethod
    async def connect(
        cls, client: ApiClient, options: PackagerOptions, health: HealthServer | None = None
    ) -> Process:
        """Discover the releases of Cluster API and Fleet; wait for the management cluster."""
        delay = 0.5
        while True:
            try:
                # The core may be upgraded to another contract version while the packager is
                # stopped.
                version = await served_version(client, CLUSTER_API_GROUP, CLUSTER_API_VERSIONS)
                rendering = await add_fleet_release(client, options.publisher.rendering)
                publisher = replace(options.publisher, rendering=rendering)
                return cls(client, replace(options, publisher=publisher), version, health)
            except (NotFound, Unreachable) as error:
                log.warning("management cluster is not ready, retrying in %.1f s: %s", delay, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY_SECONDS)

    # Handlers are methods of the process, because the sync loop is created after the caches that
    # call them.

    def _on_cluster_change(self, key: Key, is_urgent: bool) -> None:
        self.loop.debouncer.touch(key, now=is_urgent)

    def _on_kind_read(self) -> None:
        self.loop.debouncer.trigger_now()
        self._reporter.resync()

    def _on_fleet_change(self, bundle: Key) -> None:
        self._reporter.on_fleet_change(bundle)
        self._upgrades.on_fleet_change(bundle)

    def _on_upgrade_due(self) -> None:
        self.loop.debouncer.trigger_now()

    async def _start(self) -> None:
        self._clusters.connect()
        self._clusters.harvester_clusters.add_handler(self._reporter.on_harvester_cluster_change)
        self._fleet.connect()

    async def _stop(self) -> None:
        await self._events.flush()
        await self._clusters.kinds.close()
        await self.loop.close()


def _election(client: ApiClient, share: str) -> LeaderElection:
    # Deployments that divide the clusters by filter or namespace each need their own leader.
    name = f"{share}.{names.PACKAGER_LEASE}" if share else names.PACKAGER_LEASE
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return LeaderElection(client, namespace=own_namespace(), name=name, identity=identity)
