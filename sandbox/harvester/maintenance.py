"""Maintenance mode of hosts: Harvester's action with its checks, the drain, and the end of it.

Modelled after Harvester's `pkg/api/node/formatter.go` (actions `enableMaintenanceMode` and `disableMaintenanceMode`),
`nodedrain_controller.go` and `maintain_controller.go`. Not modelled: strategies by label `maintain-mode-strategy`, the
time-out of a drain, and Longhorn's replicas.
"""

from __future__ import annotations

import contextlib

from caphv.api.object import NODES, Key, Obj, annotations_of, key_of
from caphv.runtime.cache import Change
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds, migration, scheduling
from sandbox.harvester.informers import Informers
from sandbox.harvester.migration import Eviction

DRAIN_REQUESTED = "harvesterhci.io/drain-requested"
DRAIN_FORCED = "harvesterhci.io/drain-forced"
STATUS = "harvesterhci.io/maintain-status"
RUNNING, COMPLETED = "running", "completed"


class MaintenanceError(Exception):
    """Harvester refuses maintenance mode; the message says why, in its words."""


async def enable(client: ApiClient, host: str, *, force: bool = False) -> None:
    """Ask for maintenance mode, as Harvester's UI does. Raises MaintenanceError, NotFound."""
    await client.get(NODES, host)
    hosts = (await client.list(NODES))["items"]
    if not any(other["metadata"]["name"] != host and scheduling.is_usable(other) for other in hosts):
        raise MaintenanceError(f"enabling maintenance mode is impossible. {host} is the last usable host")
    blocking = migration.non_migratable(host, (await client.list(kinds.INSTANCES))["items"], hosts)
    if blocking and not force:
        names = "; ".join(f"{reason}: {', '.join(found)}" for reason, found in sorted(blocking.items()))
        raise MaintenanceError(f"enabling maintenance mode is impossible. Non-migratable VMs found: {names}")
    annotations = {DRAIN_REQUESTED: "true", **({DRAIN_FORCED: "true"} if force else {})}
    await client.patch(NODES, host, "", {"metadata": {"annotations": annotations}})


async def disable(client: ApiClient, host: str) -> None:
    """End maintenance mode: the host takes VMs again."""
    patch = {"metadata": {"annotations": dict.fromkeys((DRAIN_REQUESTED, DRAIN_FORCED, STATUS))}}
    await client.patch(NODES, host, "", {**patch, "spec": {"unschedulable": None}})


class Maintenance:
    """The controller that drains hosts and completes their maintenance mode."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._controller = Controller("maintenance", self._reconcile, concurrency=2)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.hosts.add_handler(lambda change: self._controller.enqueue(change.key))
        self._informers.vmis.add_handler(self._instance_changed)
        await self._controller.run()

    def _instance_changed(self, change: Change) -> None:
        for vmi in (change.old, change.new):
            host = str((vmi or {}).get("status", {}).get("nodeName", ""))
            if host:
                self._controller.enqueue(Key("", host))

    async def _reconcile(self, key: Key) -> None:
        host = self._informers.hosts.get(*key)
        if host is None:
            return
        here = [vmi for vmi in self._informers.vmis.store if vmi.get("status", {}).get("nodeName") == key.name]
        if DRAIN_REQUESTED in annotations_of(host):
            await self._drain(host, here)
        elif annotations_of(host).get(STATUS) == RUNNING and not here:
            await self._patch(key.name, {"metadata": {"annotations": {STATUS: COMPLETED}}})

    async def _drain(self, host: Obj, here: list[Obj]) -> None:
        """Cordon the host and evict each instance once; what is refused or waits keeps the drain open."""
        name = host["metadata"]["name"]
        if not host.get("spec", {}).get("unschedulable"):
            await self._patch(name, {"spec": {"unschedulable": True}})
        forced = DRAIN_FORCED in annotations_of(host)
        for vmi in here:
            await self._evict(vmi, forced=forced)
        if all(migration.eviction_of(vmi) not in (Eviction.REFUSE, Eviction.WAIT) for vmi in here) or forced:
            annotations = {DRAIN_REQUESTED: None, DRAIN_FORCED: None, STATUS: RUNNING}
            await self._patch(name, {"metadata": {"annotations": annotations}})

    async def _evict(self, vmi: Obj, *, forced: bool) -> None:
        status, key = vmi["status"], key_of(vmi)
        if status.get("evacuationNodeName") or status.get("phase") in ("Failed", "Succeeded"):
            return
        patch: Obj
        match migration.eviction_of(vmi):
            case Eviction.MIGRATE | Eviction.WAIT if not forced:
                patch = {"evacuationNodeName": status["nodeName"]}
            case Eviction.REFUSE if not forced:
                return
            case _:
                conditions = kinds.with_condition(vmi, kinds.condition("Ready", False, "PodTerminating"))
                patch = {"phase": "Failed", "conditions": conditions}
        with contextlib.suppress(NotFound):
            answer = await self._informers.client.patch(kinds.INSTANCES, key.name, key.namespace, {"status": patch})
            self._informers.vmis.observe(answer)

    async def _patch(self, host: str, patch: Obj) -> None:
        self._informers.hosts.observe(await self._informers.client.patch(NODES, host, "", patch))
