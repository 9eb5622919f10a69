"""Writes the capacity of a machine to the status of its HarvesterMachineTemplate.

The cluster autoscaler reads it to scale up from zero (contract of infrastructure providers: `status.capacity` and
`status.nodeInfo`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, being_deleted, key_of, labels_of
from caphv.runtime.errors import NotFound
from reconciler.context import Context
from reconciler.machine.validation import is_size

ARCHITECTURE = "kubernetes.io/arch"
# Those that the schema knows, and Kubernetes runs on.
_ARCHITECTURES = {"amd64", "arm64", "s390x", "ppc64le"}


class MachineTemplateReconciler:
    """`reconcile` takes the key of a HarvesterMachineTemplate."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def reconcile(self, key: Key) -> None:
        """Write what differs. Raises `ApiError`, `Unreachable` for a retry."""
        informer = self._context.caches.harvester_machine_templates
        obj = informer.get(*key)
        if obj is None or being_deleted(obj):
            return
        cluster = self._context.caches.cluster_of(obj)
        if clusterapi.paused(cluster, obj):
            return
        # A template without a spec may be stored: the CRD does not demand one.
        spec = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
        status = obj.get("status") or {}
        hosts = self._hosts(cluster)
        # What was known stays while the hosts are unknown.
        platform = node_info(hosts) if hosts or not status.get("nodeInfo") else status["nodeInfo"]
        patch = changes(status, capacity(spec), platform)
        if patch:
            with contextlib.suppress(NotFound):
                informer.observe(
                    await self._context.client.patch(
                        informer.resource, key.name, key.namespace, {"status": patch}, subresource="status"
                    )
                )

    def _hosts(self, cluster: Obj | None) -> list[Obj]:
        """Hosts of the cluster's Harvester; none while it is unknown."""
        harvester_cluster = self._context.caches.harvester_cluster_of(cluster) if cluster else None
        session = self._context.sessions.of(key_of(harvester_cluster)) if harvester_cluster else None
        return list(session.hosts.store) if session else []


def capacity(spec: Obj) -> dict[str, str]:
    """Resources of a machine with this spec; invalid sizes are omitted."""
    volumes = spec.get("volumes") or [{}]
    boot = min(volumes, key=lambda volume: volume.get("bootOrder") or len(volumes) + 1)
    found = {
        "cpu": spec.get("cpu"),
        "memory": spec.get("memory"),
        "ephemeral-storage": boot.get("volumeSize"),
    }
    return {name: str(value) for name, value in found.items() if is_size(value)}


def node_info(hosts: Iterable[Obj]) -> dict[str, str]:
    """Platform of the nodes; guests have the architecture of their host, which is omitted if hosts differ."""
    architectures = {labels_of(host).get(ARCHITECTURE, "") for host in hosts}
    if len(architectures) == 1 and architectures <= _ARCHITECTURES:
        return {"architecture": architectures.pop(), "operatingSystem": "linux"}
    return {"operatingSystem": "linux"}


def changes(status: Obj, new_capacity: dict[str, str], new_node_info: dict[str, str]) -> Obj:
    """Merge patch for a status, empty if nothing differs."""
    wanted = {"capacity": new_capacity, "nodeInfo": new_node_info}
    return {
        field: {**dict.fromkeys(status.get(field) or ()), **value}
        for field, value in wanted.items()
        if (status.get(field) or {}) != value
    }
