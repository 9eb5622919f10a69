"""Write the capacity of a machine to the status of its HarvesterMachineTemplate.

The cluster autoscaler reads it to scale up from zero (contract of infrastructure providers:
`status.capacity` and `status.nodeInfo`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from caphv.api import clusterapi
from caphv.api.hostresources import node_resources
from caphv.api.object import Key, Obj, being_deleted, dict_at, key_of, labels_of
from caphv.runtime.errors import NotFound
from reconciler.context import Context
from reconciler.machine.validation import is_size

ARCHITECTURE = "kubernetes.io/arch"
# Architectures that the schema allows and on which Kubernetes runs.
_ARCHITECTURES = {"amd64", "arm64", "s390x", "ppc64le"}


class MachineTemplateReconciler:
    """Reconcile HarvesterMachineTemplates, one key at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def reconcile(self, key: Key) -> None:
        """Write capacity and platform where they differ from the status.

        Raises `ApiError`, `Unreachable` for a retry.
        """
        informer = self._context.caches.harvester_machine_templates
        obj = informer.get(*key)
        if obj is None or being_deleted(obj):
            return
        cluster = self._context.caches.cluster_of(obj)
        if clusterapi.paused(cluster, obj):
            return

        # A template may lack a spec, because the CRD does not require one.
        spec = dict_at(obj, "spec", "template", "spec")
        status = obj.get("status") or {}
        hosts = self._hosts(cluster)
        platform = node_info(hosts)
        # The recorded platform stays while the hosts are unknown.
        if not hosts and status.get("nodeInfo"):
            platform = status["nodeInfo"]

        patch = changes(status, capacity(spec), platform)
        if not patch:
            return
        with contextlib.suppress(NotFound):
            patched = await self._context.client.patch(
                informer.resource,
                key.name,
                key.namespace,
                {"status": patch},
                subresource="status",
            )
            informer.observe(patched)

    def _hosts(self, cluster: Obj | None) -> list[Obj]:
        """Return the hosts of the cluster's Harvester, none while it is unknown."""
        harvester_cluster = self._context.caches.harvester_cluster_of(cluster) if cluster else None
        if not harvester_cluster:
            return []
        session = self._context.sessions.of(key_of(harvester_cluster))
        return list(session.hosts.store) if session else []


def capacity(spec: Obj) -> dict[str, str]:
    """Return the resources of a machine with this spec; invalid sizes are omitted.

    Devices count by what the Node offers, because that is what Pods request.
    """
    volumes = spec.get("volumes") or [{}]
    boot_volume = min(volumes, key=lambda volume: volume.get("bootOrder") or len(volumes) + 1)
    sizes = {
        "cpu": spec.get("cpu"),
        "memory": spec.get("memory"),
        "ephemeral-storage": boot_volume.get("volumeSize"),
    }
    valid_sizes = {name: str(size) for name, size in sizes.items() if is_size(size)}
    return {**node_resources(spec), **valid_sizes}


def node_info(hosts: Iterable[Obj]) -> dict[str, str]:
    """Return the platform of the nodes.

    Guests have the architecture of their host. The architecture is omitted if hosts differ.
    """
    architectures = {labels_of(host).get(ARCHITECTURE, "") for host in hosts}
    if len(architectures) == 1 and architectures <= _ARCHITECTURES:
        return {"architecture": architectures.pop(), "operatingSystem": "linux"}
    return {"operatingSystem": "linux"}


def changes(status: Obj, new_capacity: dict[str, str], new_node_info: dict[str, str]) -> Obj:
    """Return the merge patch for a status, empty if nothing differs."""
    patch = {}
    for field, intended in (("capacity", new_capacity), ("nodeInfo", new_node_info)):
        present = status.get(field) or {}
        if present != intended:
            # A merge patch removes only keys whose value is null.
            patch[field] = {**dict.fromkeys(present), **intended}
    return patch
