"""Clusters and machines as the Cluster API core leaves them, and the times of their steps."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from caphv.api.object import NODES, SECRETS, Obj, at, being_deleted
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.capi.resources import CLUSTERS, MACHINES
from sandbox.cluster import CLUSTER_LABEL, CORE_VERSION, IDENTITY, KUBERNETES_VERSION
from sandbox.guest.join import JOIN_FILE, WORKER
from sandbox.harvester import kinds
from tools.bench.environment import Bench, join_token
from tools.bench.times import TAINT, Times

_IN_FLIGHT = 16


@dataclass
class Watcher:
    """Records the times of the steps that watches report. `times` has them by machine name."""

    bench: Bench
    times: dict[str, Times] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    clusters: dict[str, Obj] = field(default_factory=dict)

    def start(self) -> list[asyncio.Task[None]]:
        """Watch everything."""
        pairs: list[tuple[ApiClient, Any, Any]] = [
            (self.bench.management, HARVESTER_MACHINES, self._record_machine),
            (self.bench.management, HARVESTER_CLUSTERS, self._record_cluster),
            (self.bench.harvester, kinds.VIRTUAL_MACHINES, self._record_vm),
            (self.bench.harvester, kinds.INSTANCES, self._record_instance),
            *((client, NODES, self._record_node) for client in self.bench.workloads),
        ]

        tasks = []
        for client, resource, handler in pairs:
            informer = Informer(client, resource)
            informer.add_handler(handler)
            tasks.append(informer.start())
        return tasks

    async def wait_until(self, title: str, condition: Any, timeout: float) -> None:
        """Wait for a condition over what watches reported. Raises `TimeoutError`."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.changed.clear()
            try:
                async with asyncio.timeout(max(0.01, deadline - time.monotonic())):
                    await self.changed.wait()
            except TimeoutError:
                raise TimeoutError(f"not within {timeout:.0f} s: {title}") from None

    def _record_machine(self, change: Change) -> None:
        # Only the first report counts, because an informer whose watch broke reports all objects
        # again.
        times = self._times_of(change.key.name)
        times.created = times.created or time.monotonic()
        if change.new is None:
            times.gone = time.monotonic()
        elif at(change.new, "status", "ready"):
            times.ready = times.ready or time.monotonic()
        self.changed.set()

    def _record_cluster(self, change: Change) -> None:
        self.clusters.pop(change.key.name, None)
        if change.new is not None:
            self.clusters[change.key.name] = change.new
        self.changed.set()

    def _record_vm(self, change: Change) -> None:
        times = self._times_of(change.key.name)
        times.vm = times.vm or time.monotonic()

    def _record_instance(self, change: Change) -> None:
        # The guest agent reports the interfaces after the boot.
        interfaces = at(change.obj, "status", "interfaces") or ()
        if any(interface.get("ipAddress") for interface in interfaces):
            times = self._times_of(change.key.name)
            times.address = times.address or time.monotonic()

    def _record_node(self, change: Change) -> None:
        if change.new is None or being_deleted(change.new):
            return

        times = self._times_of(change.key.name)
        times.node = times.node or time.monotonic()
        # To initialize a Node, the provider sets the ID and then removes the taint.
        spec = change.new.get("spec") or {}
        if spec.get("providerID") and not any(t["key"] == TAINT for t in spec.get("taints") or ()):
            times.initialized = times.initialized or time.monotonic()
        self.changed.set()

    def _times_of(self, name: str) -> Times:
        return self.times.setdefault(name, Times())


async def create_clusters(
    bench: Bench, watcher: Watcher, prefix: str, count: int, accounts: int, targets: int
) -> list[str]:
    """Create clusters, wait until their infrastructure is ready, and return their names.

    Each cluster has a namespace of the same name on the management cluster. Cluster `n` uses the
    account `n` modulo `accounts`. With `targets`, the clusters share this many target namespaces on
    Harvester.
    """
    names = [f"{prefix}{number}" for number in range(count)]
    for number, name in enumerate(names):
        target = f"{prefix}vms-{number % targets}" if targets else name
        objects = cluster_objects(bench, name, number, number % accounts, target)
        await manifests.apply(bench.management, objects)

    await watcher.wait_until(
        "clusters are ready",
        lambda: all(at(watcher.clusters.get(name), "status", "ready") for name in names),
        60,
    )

    # The provider creates machines only after the core has reported this.
    provisioned = {"status": {"initialization": {"infrastructureProvisioned": True}}}
    for name in names:
        await bench.management.patch(CLUSTERS, name, name, provisioned, subresource="status")
    return names


async def create_machine(bench: Bench, cluster: str, name: str) -> None:
    """Create a worker's Machine and HarvesterMachine."""
    # The owner reference has the Machine's UID.
    machine = await bench.management.create(MACHINES, _machine(cluster, name))
    await bench.management.create(
        HARVESTER_MACHINES, _harvester_machine(cluster, name, machine["metadata"]["uid"])
    )


async def create_machines(bench: Bench, pairs: Iterable[tuple[str, str]]) -> None:
    """Create many machines as fast as the API server takes them."""
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def create(cluster: str, name: str) -> None:
        async with gate:
            await create_machine(bench, cluster, name)

    await asyncio.gather(*(create(*pair) for pair in pairs))


async def delete_machines(bench: Bench, pairs: Iterable[tuple[str, str]]) -> None:
    """Request the deletion of HarvesterMachines, without waiting for it."""
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def delete(cluster: str, name: str) -> None:
        async with gate:
            await bench.management.delete(HARVESTER_MACHINES, name, cluster)

    await asyncio.gather(*(delete(*pair) for pair in pairs))


def cluster_objects(bench: Bench, name: str, number: int, account: int, target: str) -> list[Obj]:
    """Build a cluster with its Secrets, as a user and the control plane provider create them.

    `number` selects the workload API server, and `account` the identity on Harvester. `target` is
    the namespace on Harvester.
    """
    server = bench.workload(number)
    credentials = yaml.safe_load(bench.workload_kubeconfig(number))

    # The simulated guest reads this file and registers its Node.
    join = {
        "role": WORKER,
        "server": server.url,
        "token": join_token(server.name),
        "ca": server.ca.certificate.decode(),
        "version": KUBERNETES_VERSION,
        "cni": True,
    }
    files = [{"path": JOIN_FILE, "permissions": "0600", "content": yaml.safe_dump(join)}]
    bootstrap = "#cloud-config\n" + yaml.safe_dump(
        {"write_files": files, "runcmd": ["caphv-sandbox-join"]}
    )

    metadata = {"name": name, "namespace": name}
    harvester_cluster = {
        "targetNamespace": target,
        "identitySecret": {"name": IDENTITY, "namespace": name},
        "loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "load-balancers"},
        "vmNetworkConfig": {
            "gateway": f"{bench.network}.0.1",
            "subnetMask": "255.255.128.0",
            "ipPoolRef": "machines-large",
        },
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        _secret(name, IDENTITY, {"kubeconfig": bench.harvester_identity(account)}),
        _secret(name, f"{name}-bootstrap", {"value": bootstrap.encode()}),
        _secret(name, f"{name}-kubeconfig", {"value": yaml.safe_dump(credentials).encode()}),
        {
            "apiVersion": CORE_VERSION,
            "kind": "Cluster",
            "metadata": metadata,
            "spec": {"infrastructureRef": _reference("HarvesterCluster", name)},
        },
        {
            "apiVersion": HARVESTER_CLUSTERS.api_version,
            "kind": "HarvesterCluster",
            "metadata": {**metadata, "labels": {CLUSTER_LABEL: name}},
            "spec": harvester_cluster,
        },
    ]


def _machine(cluster: str, name: str) -> Obj:
    return {
        "apiVersion": CORE_VERSION,
        "kind": "Machine",
        "metadata": {"name": name, "namespace": cluster, "labels": {CLUSTER_LABEL: cluster}},
        "spec": {
            "clusterName": cluster,
            "bootstrap": {"dataSecretName": f"{cluster}-bootstrap"},
            "infrastructureRef": _reference("HarvesterMachine", name),
        },
    }


def _harvester_machine(cluster: str, name: str, owner: str) -> Obj:
    reference = {
        "apiVersion": CORE_VERSION,
        "kind": "Machine",
        "name": name,
        "uid": owner,
        "controller": True,
    }

    return {
        "apiVersion": HARVESTER_MACHINES.api_version,
        "kind": "HarvesterMachine",
        "metadata": {
            "name": name,
            "namespace": cluster,
            "labels": {CLUSTER_LABEL: cluster},
            "ownerReferences": [reference],
        },
        "spec": machine_spec(),
    }


def _secret(namespace: str, name: str, values: dict[str, bytes]) -> Obj:
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": SECRETS.kind, "metadata": metadata, "data": data}


def _reference(kind: str, name: str) -> Obj:
    return {"apiGroup": HARVESTER_MACHINES.group, "kind": kind, "name": name}


def machine_spec() -> Obj:
    """Return the spec of each HarvesterMachine."""
    disk = {
        "volumeType": "image",
        "imageName": "default/sles-15",
        "volumeSize": "40Gi",
        "bootOrder": 1,
    }
    return {
        "cpu": 2,
        "memory": "4Gi",
        "sshUser": "sles",
        "sshKeyPair": "default/caphv",
        "networks": ["default/production"],
        "volumes": [disk],
    }
