"""Workload clusters: one client and one watch of Nodes for each Cluster with machines on Harvester.

Credentials come from the Secret `<cluster>-kubeconfig`, which is read again only when it changes.
It is normal that a workload API server is unreachable, because its control plane boots or its
cluster is being deleted. The watch keeps retrying, and `hint` ends its back-off, for example when a
control plane VM gets an address.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caphv.api import resources
from caphv.api.object import (
    NODES,
    PERSISTENT_VOLUMES,
    SECRETS,
    Key,
    Obj,
    at,
    dict_at,
    owner_reference,
    uid_of,
)
from caphv.runtime.addresses import AddressCheck
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop
from reconciler.remote.firstcontact import FirstContact
from reconciler.remote.guestvolumes import reclaim_policies, slim_volume

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 10.0
# A control plane may take this long to boot.
_BOOT_SECONDS = 600.0
_CACHED_METADATA = (
    "name",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "labels",
    "deletionTimestamp",
)
_INVALID = "invalid kubeconfig of workload cluster %s: %s"


def kubeconfig_secret(cluster: Key) -> Key:
    """Return the key of the Secret in which Cluster API keeps a workload cluster's kubeconfig."""
    return Key(cluster.namespace, f"{cluster.name}-kubeconfig")


@dataclass(slots=True)
class _Workload:
    """The connection to one workload cluster.

    :param fingerprint: hash of server and credentials
    :param volumes: cache of PersistentVolumes, None until reclaim policies are asked for
    :param outage: the first error since the API has stopped to answer, None while it answers
    """

    client: ApiClient
    nodes: Informer
    fingerprint: str
    tasks: list[asyncio.Task[None]]
    volumes: Informer | None = None
    outage: Exception | None = None

    async def close(self) -> None:
        """Stop the watches, and close the connection."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.close()


class WorkloadClusters:
    """Workload clusters by key of their Cluster.

    :param management: client of the management cluster
    :param clusters: cache of Clusters
    :param secrets: cache of Secrets, metadata only
    :param check_address: refuses servers at addresses that the provider must not reach
    :param fence: called before each write; raises if this process is no longer the leader
    """

    def __init__(
        self,
        management: ApiClient,
        clusters: Informer,
        secrets: Informer,
        check_address: AddressCheck | None = None,
        fence: Callable[[], None] | None = None,
    ) -> None:
        self._management = management
        self._clusters = clusters
        self._secrets = secrets
        self._check_address = check_address
        self._fence = fence
        self._changed: Callable[[Key, Change], None] = lambda _cluster, _change: None
        self._reached: Callable[[Key], None] = lambda _cluster: None
        self._changed_reach: Callable[[Key], None] = lambda _cluster: None
        self._workloads: dict[Key, _Workload] = {}
        self._versions: dict[Key, str] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connect(
        self,
        changed: Callable[[Key, Change], None],
        reached: Callable[[Key], None],
        changed_reach: Callable[[Key], None] = lambda _cluster: None,
    ) -> None:
        """Call these functions from now on.

        :param changed: called for each change of a Node
        :param reached: called when a workload API answers for the first time, reaches a limit, or
            reports other volumes
        :param changed_reach: called when an outage of a workload API begins or ends
        """
        self._changed = changed
        self._reached = reached
        self._changed_reach = changed_reach

    def client(self, cluster: Key) -> ApiClient | None:
        """Return the client of the workload API, None while its kubeconfig does not exist."""
        workload = self._workloads.get(cluster)
        return workload.client if workload else None

    def has_answered(self, cluster: Key) -> bool:
        """Return whether the workload API has answered with these credentials."""
        workload = self._workloads.get(cluster)
        return workload is not None and workload.nodes.synced

    def outage(self, cluster: Key) -> Exception | None:
        """Return the first error since a workload API has stopped to answer, None if it answers.

        An API that has never answered has an outage, too, once the first attempt has failed.
        """
        workload = self._workloads.get(cluster)
        return workload.outage if workload else None

    def node(self, cluster: Key, name: str) -> Obj | None:
        """Return a Node from the cache.

        Returns None while it does not exist or the workload API has not answered.
        """
        workload = self._workloads.get(cluster)
        return workload.nodes.get("", name) if workload else None

    def nodes(self, cluster: Key) -> list[Obj]:
        """Return all Nodes from the cache."""
        workload = self._workloads.get(cluster)
        return list(workload.nodes.store) if workload else []

    def cache_node(self, cluster: Key, node: Obj) -> None:
        """Put the response to our own write of a Node into the cache."""
        workload = self._workloads.get(cluster)
        if workload:
            workload.nodes.observe(node)

    def reclaim_policies(self, cluster: Key) -> dict[str, str] | None:
        """Return the reclaim policies of Harvester's volumes, by the name of the claim there.

        The first call opens a watch, which reports changes as contacts. None while the workload API
        does not answer.
        """
        workload = self._workloads.get(cluster)
        if workload is None:
            return None
        if workload.volumes is None:
            workload.volumes = self._watch_volumes(cluster, workload)
        volumes = workload.volumes
        return reclaim_policies(volumes.store) if volumes.synced and volumes.current else None

    def _watch_volumes(self, cluster: Key, workload: _Workload) -> Informer:
        """Start the watch of PersistentVolumes."""
        volumes = Informer(
            workload.client,
            PERSISTENT_VOLUMES,
            transform=slim_volume,
            on_contact=lambda: self._reached(cluster),
            max_backoff=_BACKOFF_SECONDS,
            patience=_BOOT_SECONDS,
        )

        def report(change: Change) -> None:
            if (change.old or {}).get("spec") != (change.new or {}).get("spec"):
                self._reached(cluster)

        volumes.add_handler(report)
        workload.tasks.append(volumes.start(cluster=str(cluster)))
        return volumes

    def hint(self, cluster: Key) -> None:
        """Retry without waiting for the back-off, because the workload API may be reachable now."""
        workload = self._workloads.get(cluster)
        if workload and not workload.nodes.synced:
            workload.nodes.retry_now()

    async def ensure(self, cluster: Key) -> None:
        """Connect to the workload cluster, or reconnect when its kubeconfig has changed.

        Sends no request while the version of the Secret stays the same.
        """
        secret_key = kubeconfig_secret(cluster)
        owner = self._clusters.get(*cluster)
        secret = self._secrets.get(*secret_key)
        version = secret["metadata"]["resourceVersion"] if secret else ""
        if not version or self._versions.get(cluster) == version or owner is None:
            return

        async with self._locks.setdefault(cluster, asyncio.Lock()):
            if self._versions.get(cluster) == version:
                return  # another reconcile has connected while this one waited for the lock
            try:
                full = await self._management.get(SECRETS, secret_key.name, secret_key.namespace)
            except NotFound:
                return
            # The Secret may be left over from a deleted Cluster with the same name, until the
            # garbage collector deletes it. Only the uid tells the two Clusters apart.
            reference = owner_reference(full, "Cluster", resources.CLUSTER_API_GROUP)
            if reference and reference.get("uid") != uid_of(owner):
                return

            kubeconfig = await _load_kubeconfig(cluster, full)
            # The Cluster may have been deleted meanwhile. Nothing would close a connection that is
            # opened after `forget`.
            current = self._clusters.get(*cluster)
            if current is None or uid_of(current) != uid_of(owner):
                return
            if kubeconfig:
                self._open(cluster, kubeconfig)
            self._versions[cluster] = version

    def forget(self, cluster: Key) -> None:
        """Close the connection to a deleted cluster, and forget its Nodes at once.

        Another cluster may use the same name next.
        """
        self._versions.pop(cluster, None)
        self._locks.pop(cluster, None)
        self._close(cluster)

    async def close(self) -> None:
        """Close all connections."""
        for cluster in list(self._workloads):
            self.forget(cluster)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _close(self, cluster: Key) -> None:
        """Close a connection without waiting for its end."""
        # This does not await, so that neither a cancellation nor `forget` can interrupt the
        # replacement of a connection.
        workload = self._workloads.pop(cluster, None)
        if workload:
            task = asyncio.create_task(workload.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self, cluster: Key, kubeconfig: Kubeconfig) -> None:
        """Replace the connection to a cluster, unless the kubeconfig leads to the same server."""
        former = self._workloads.get(cluster)
        if former and former.fingerprint == kubeconfig.fingerprint:
            return
        try:
            client = kubeconfig.client(
                self._check_address, name="workload", timeout=10, fence=self._fence, opaque=True
            )
        except KubeconfigError as error:
            log.warning(_INVALID, cluster, error)
            return
        client.on_limit = functools.partial(self._reached, cluster)
        self._close(cluster)

        first_contact = FirstContact(lambda: self._reached(cluster))

        def on_contact() -> None:
            first_contact()
            if workload.outage:
                workload.outage = None
                self._changed_reach(cluster)

        def on_error(error: Exception) -> None:
            # Keep the first error, because a message about it must stay the same.
            if workload.outage is None:
                workload.outage = error
                self._changed_reach(cluster)

        nodes = Informer(
            client,
            NODES,
            transform=_slim,
            on_error=on_error,
            on_contact=on_contact,
            max_backoff=_BACKOFF_SECONDS,
            patience=_BOOT_SECONDS,
        )
        nodes.add_handler(lambda change: self._changed(cluster, change))
        # The task calls nothing before this function returns.
        task = nodes.start(cluster=str(cluster))
        workload = _Workload(client, nodes, kubeconfig.fingerprint, [task])
        self._workloads[cluster] = workload


async def _load_kubeconfig(cluster: Key, secret: Obj) -> Kubeconfig | None:
    """Return the kubeconfig in a Secret. Log an invalid one and return None."""
    try:
        raw = base64.b64decode(at(secret, "data", "value") or "")
        return await off_loop(len(raw), lambda: parse_kubeconfig(raw))
    except (KubeconfigError, binascii.Error) as error:
        log.warning(_INVALID, cluster, error)
        return None


def _slim(node: Obj) -> Obj:
    """Return the fields of a Node to cache."""
    metadata: dict[str, Any] = node["metadata"]
    spec = node.get("spec") or {}
    info = dict_at(node, "status", "nodeInfo")
    return {
        "metadata": {name: metadata[name] for name in _CACHED_METADATA if name in metadata},
        "spec": {name: spec[name] for name in ("providerID", "taints") if name in spec},
        "status": {"nodeInfo": {"systemUUID": info.get("systemUUID", "")}},
    }
