"""Workload clusters: one client and one watch of Nodes for each Cluster with machines on Harvester.

Credentials come from the Secret `<cluster>-kubeconfig`, which is read again only when it changes. An unreachable
workload API server is normal (its control plane boots, or the cluster is being deleted): the watch keeps retrying, and
`hint` ends its back-off, for example when a control plane VM gets an address.
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
from caphv.api.object import NODES, SECRETS, Key, Obj, owner_reference, uid_of
from caphv.runtime.addresses import AddressCheck
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop

log = logging.getLogger(__name__)

_BACKOFF = 10.0
# A control plane may take so long to boot.
_BOOT_SECONDS = 600.0
_INVALID = "invalid kubeconfig of workload cluster %s: %s"


def kubeconfig_secret(cluster: Key) -> Key:
    """Where Cluster API keeps the kubeconfig of a workload cluster (key `value`)."""
    return Key(cluster.namespace, f"{cluster.name}-kubeconfig")


@dataclass(slots=True)
class _Workload:
    client: ApiClient
    nodes: Informer
    task: asyncio.Task[None]
    fingerprint: str

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()


class WorkloadClusters:
    """Workload clusters by key of their Cluster; `fence` is that of their clients."""

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
        self._workloads: dict[Key, _Workload] = {}
        self._versions: dict[Key, str] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connect(self, changed: Callable[[Key, Change], None], reached: Callable[[Key], None]) -> None:
        """Report each change of a Node, and each workload API that answers for the first time or reaches a limit."""
        self._changed, self._reached = changed, reached

    def client(self, cluster: Key) -> ApiClient | None:
        """Client of the workload API, None while its kubeconfig does not exist."""
        workload = self._workloads.get(cluster)
        return workload.client if workload else None

    def reached(self, cluster: Key) -> bool:
        """Whether the workload API has answered with these credentials."""
        workload = self._workloads.get(cluster)
        return workload is not None and workload.nodes.synced

    def node(self, cluster: Key, name: str) -> Obj | None:
        """A Node from the cache; None while it does not exist or the workload API has not answered."""
        workload = self._workloads.get(cluster)
        return workload.nodes.get("", name) if workload else None

    def nodes(self, cluster: Key) -> list[Obj]:
        """All Nodes from the cache."""
        workload = self._workloads.get(cluster)
        return list(workload.nodes.store) if workload else []

    def observe(self, cluster: Key, node: Obj) -> None:
        """Put the response to an own write of a Node into the cache."""
        workload = self._workloads.get(cluster)
        if workload:
            workload.nodes.observe(node)

    def hint(self, cluster: Key) -> None:
        """The workload API may be reachable now: retry without waiting for the back-off."""
        workload = self._workloads.get(cluster)
        if workload and not workload.nodes.synced:
            workload.nodes.retry_now()

    async def ensure(self, cluster: Key) -> None:
        """Connect to the workload cluster, or reconnect when its kubeconfig changed; cheap when nothing did."""
        secret_key = kubeconfig_secret(cluster)
        owner, secret = self._clusters.get(*cluster), self._secrets.get(*secret_key)
        version = secret["metadata"]["resourceVersion"] if secret else ""
        if not version or self._versions.get(cluster) == version or owner is None:
            return
        async with self._locks.setdefault(cluster, asyncio.Lock()):
            if self._versions.get(cluster) == version:
                return
            try:
                full = await self._management.get(SECRETS, secret_key.name, secret_key.namespace)
            except NotFound:
                return
            reference = owner_reference(full, "Cluster", resources.CLUSTER_API_GROUP)
            if reference and reference.get("uid") != uid_of(owner):
                return  # of a deleted Cluster with the same name; the garbage collector deletes it
            access = await _access(cluster, full)
            current = self._clusters.get(*cluster)
            if current is None or uid_of(current) != uid_of(owner):
                return  # deleted meanwhile
            if access:
                self._open(cluster, access)
            self._versions[cluster] = version

    def forget(self, cluster: Key) -> None:
        """Close the connection to a deleted cluster, and forget its Nodes at once: its name may be used again."""
        self._versions.pop(cluster, None)
        self._locks.pop(cluster, None)
        self._close(cluster)

    async def close(self) -> None:
        """Close all connections."""
        for cluster in list(self._workloads):
            self.forget(cluster)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _close(self, cluster: Key) -> None:
        """Close a connection without waiting: neither a cancellation nor `forget` comes before what replaces it."""
        workload = self._workloads.pop(cluster, None)
        if workload:
            task = asyncio.create_task(workload.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self, cluster: Key, access: Kubeconfig) -> None:
        known = self._workloads.get(cluster)
        if known and known.fingerprint == access.fingerprint:
            return
        try:
            client = access.client(self._check_address, name="workload", timeout=10, fence=self._fence, opaque=True)
        except KubeconfigError as error:
            log.warning(_INVALID, cluster, error)
            return
        client.on_limit = functools.partial(self._reached, cluster)
        self._close(cluster)
        contacted = False

        def on_contact() -> None:
            nonlocal contacted
            if not contacted:
                contacted = True
                self._reached(cluster)

        nodes = Informer(
            client, NODES, transform=_slim, on_contact=on_contact, max_backoff=_BACKOFF, patience=_BOOT_SECONDS
        )
        nodes.add_handler(lambda change: self._changed(cluster, change))
        self._workloads[cluster] = _Workload(client, nodes, nodes.start(cluster=str(cluster)), access.fingerprint)


async def _access(cluster: Key, secret: Obj) -> Kubeconfig | None:
    """Return the kubeconfig in a Secret; None for an invalid one, which is logged."""
    try:
        raw = base64.b64decode((secret.get("data") or {}).get("value") or "")
        return await off_loop(len(raw), lambda: parse_kubeconfig(raw))
    except (KubeconfigError, binascii.Error) as error:
        log.warning(_INVALID, cluster, error)
        return None


def _slim(node: Obj) -> Obj:
    metadata: dict[str, Any] = node["metadata"]
    kept = ("name", "uid", "resourceVersion", "creationTimestamp", "labels", "deletionTimestamp")
    spec, info = node.get("spec") or {}, (node.get("status") or {}).get("nodeInfo") or {}
    return {
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {name: spec[name] for name in ("providerID", "taints") if name in spec},
        "status": {"nodeInfo": {"systemUUID": info.get("systemUUID", "")}},
    }
