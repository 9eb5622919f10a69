"""Maintenance mode of hosts: Harvester's action with its checks, the drain, and the end of it.

Modelled after Harvester's `pkg/api/node/formatter.go` (actions `enableMaintenanceMode` and
`disableMaintenanceMode`), `nodedrain_controller.go` and `maintain_controller.go`, and the upgrade
of a host after `package/upgrade/upgrade_node.sh` (`command_pre_drain`) and
`pkg/upgradehelper/vmlivemigratedetector/detector.go`. Not modelled: strategies by label
`maintain-mode-strategy`, the time-out of a drain, Longhorn's replicas, and the reboot of a host.
"""

from __future__ import annotations

import contextlib

from caphv.api.object import NODES, Key, Obj, annotations_of, at, key_of, list_at
from caphv.runtime.cache import Change
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from sandbox.harvester import instances, kinds, migration, scheduling
from sandbox.harvester.informers import Informers
from sandbox.harvester.migration import Eviction

DRAIN_REQUESTED = "harvesterhci.io/drain-requested"
DRAIN_FORCED = "harvesterhci.io/drain-forced"
STATUS = "harvesterhci.io/maintain-status"
RUNNING = "running"
COMPLETED = "completed"
HALTED = "Halted"
# The taint from `upgrade_node.sh`, with which KubeVirt migrates VMs from a host.
DRAIN_TAINT = {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}
# Asks this simulator to halt VMs as the job `pre-drain` of an upgrade does.
UPGRADE_REQUESTED = "simulator.caphv.io/upgrade"


class MaintenanceError(Exception):
    """Harvester refuses maintenance mode. The message is Harvester's own."""


async def enable(client: ApiClient, host: str, *, force: bool = False) -> None:
    """Ask for maintenance mode, as Harvester's UI does. Raise MaintenanceError, NotFound."""
    await client.get(NODES, host)

    hosts = (await client.list(NODES))["items"]
    if not any(
        other["metadata"]["name"] != host and scheduling.is_usable(other) for other in hosts
    ):
        raise MaintenanceError(
            f"enabling maintenance mode is impossible. {host} is the last usable host"
        )

    vmis = (await client.list(kinds.INSTANCES))["items"]
    blocking = migration.non_migratable(host, vmis, hosts)
    if blocking and not force:
        details = "; ".join(
            f"{reason}: {', '.join(names)}" for reason, names in sorted(blocking.items())
        )
        raise MaintenanceError(
            f"enabling maintenance mode is impossible. Non-migratable VMs found: {details}"
        )

    annotations = {DRAIN_REQUESTED: "true"}
    if force:
        annotations[DRAIN_FORCED] = "true"
    await client.patch(NODES, host, "", {"metadata": {"annotations": annotations}})


async def disable(client: ApiClient, host: str) -> None:
    """End maintenance mode: the host takes VMs again."""
    annotations = dict.fromkeys((DRAIN_REQUESTED, DRAIN_FORCED, STATUS))
    patch = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": None}}
    await client.patch(NODES, host, "", patch)


async def begin_upgrade(client: ApiClient, host: str) -> None:
    """Drain a host as the upgrade of Harvester does."""
    await client.patch(NODES, host, "", {"metadata": {"annotations": {UPGRADE_REQUESTED: "true"}}})


async def end_upgrade(client: ApiClient, host: str) -> None:
    """Complete the upgrade of a host: it takes VMs again, and starts none that it has halted."""
    node = await client.get(NODES, host)
    taints = [taint for taint in list_at(node, "spec", "taints") if taint != DRAIN_TAINT]
    annotations = {UPGRADE_REQUESTED: None}
    patch = {"metadata": {"annotations": annotations}, "spec": {"taints": taints or None}}
    await client.patch(NODES, host, "", patch)


class Maintenance:
    """The controller that drains hosts and completes their maintenance mode."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._controller = Controller("maintenance", self._reconcile, concurrency=2)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.hosts.add_handler(lambda change: self._controller.enqueue(change.key))
        self._informers.vmis.add_handler(self._enqueue_hosts)
        await self._controller.run()

    def _enqueue_hosts(self, change: Change) -> None:
        # Also enqueue the host that an instance leaves, because it may be empty afterwards.
        for vmi in (change.old, change.new):
            if vmi is not None and (host := instances.host_of(vmi)):
                self._controller.enqueue(Key("", host))

    async def _reconcile(self, key: Key) -> None:
        host = self._informers.hosts.get(*key)
        if host is None:
            return

        vmis = [vmi for vmi in self._informers.vmis.store if instances.host_of(vmi) == key.name]
        annotations = annotations_of(host)
        if UPGRADE_REQUESTED in annotations:
            await self._pre_drain(host, vmis)
        elif DRAIN_REQUESTED in annotations:
            await self._drain(host, vmis)
        elif annotations.get(STATUS) == RUNNING and not vmis:
            patch = {"metadata": {"annotations": {STATUS: COMPLETED}}}
            await self._informers.patch(self._informers.hosts, key, patch)

    async def _drain(self, host: Obj, vmis: list[Obj]) -> None:
        """Cordon the host and evict each of its instances once."""
        key = key_of(host)
        if not at(host, "spec", "unschedulable"):
            patch = {"spec": {"unschedulable": True}}
            await self._informers.patch(self._informers.hosts, key, patch)

        forced = DRAIN_FORCED in annotations_of(host)
        halted = await self._halt_non_migratable(key.name, vmis) if forced else set()
        others = [vmi for vmi in vmis if key_of(vmi) not in halted]
        for vmi in others:
            await self._evict(vmi)

        # An instance whose eviction is refused or waits keeps the drain open.
        blocked = any(
            migration.eviction_of(vmi) in (Eviction.REFUSE, Eviction.WAIT) for vmi in others
        )
        if forced or not blocked:
            annotations = {DRAIN_REQUESTED: None, DRAIN_FORCED: None, STATUS: RUNNING}
            await self._informers.patch(
                self._informers.hosts, key, {"metadata": {"annotations": annotations}}
            )

    async def _pre_drain(self, host: Obj, vmis: list[Obj]) -> None:
        """Halt VMs that cannot migrate, then mark the host, for KubeVirt to migrate the others."""
        taints = list_at(host, "spec", "taints")
        if DRAIN_TAINT not in taints:
            await self._halt_non_migratable(key_of(host).name, vmis)
            patch = {"spec": {"taints": [*taints, DRAIN_TAINT]}}
            await self._informers.patch(self._informers.hosts, key_of(host), patch)
        for vmi in vmis:
            if migration.eviction_of(vmi) is Eviction.MIGRATE:
                await self._evict(vmi)

    async def _halt_non_migratable(self, host: str, vmis: list[Obj]) -> set[Key]:
        """Halt the VMs that cannot leave a host, and return their keys. Nothing starts them again.

        Harvester's upgrade does the same before it marks the host with a taint.
        """
        hosts = list(self._informers.hosts.store)
        non_migratable = migration.non_migratable(host, vmis, hosts)
        names = {name for group in non_migratable.values() for name in group}
        halted = {key_of(vmi) for vmi in vmis if str(key_of(vmi)) in names}
        for key in halted:
            vm = self._informers.vms.get(*key)
            if vm is not None and vm["spec"].get("runStrategy") != HALTED:
                patch = {"spec": {"runStrategy": HALTED, "running": None}}
                await self._informers.patch(self._informers.vms, key, patch)
        return halted

    async def _evict(self, vmi: Obj) -> None:
        status = vmi["status"]
        if status.get("evacuationNodeName") or instances.phase_of(vmi) in kinds.ENDED_PHASES:
            return

        patch: Obj
        match migration.eviction_of(vmi):
            case Eviction.MIGRATE | Eviction.WAIT:
                # The controller of VMs, or one outside of KubeVirt, does the rest.
                patch = {"evacuationNodeName": status["nodeName"]}
            case Eviction.REFUSE:
                return
            case _:
                terminating = kinds.condition("Ready", False, "PodTerminating")
                conditions = kinds.with_condition(vmi, terminating)
                patch = {"phase": "Failed", "conditions": conditions}

        with contextlib.suppress(NotFound):
            await self._informers.patch(self._informers.vmis, key_of(vmi), {"status": patch})
