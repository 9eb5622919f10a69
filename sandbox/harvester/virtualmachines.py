"""KubeVirt: the lifecycle of a VM's instance, and the VM's status.

Each step makes at most one write, and delays are timers of this process, because a thousand VMs
share a core with API servers.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from caphv.api.object import Key, Obj, annotations_of, at, being_deleted, key_of, labels_of, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import NotFound
from sandbox.harvester import (
    disks,
    hostlabels,
    hotplug,
    instances,
    kinds,
    migration,
    quantities,
    quotas,
    scheduling,
)
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers, claims_of
from sandbox.harvester.volumes import Pending, Volumes

# Values of `printableStatus` in the VM's status.
STARTING, RUNNING, MIGRATING = "Starting", "Running", "Migrating"
STOPPING, STOPPED = "Stopping", "Stopped"
UNSCHEDULABLE, NO_CLAIM = "ErrorUnschedulable", "ErrorPvcNotFound"

# A reason of kube-scheduler for which a Pod waits.
UNBOUND_CLAIMS = (
    "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
)

# A shorter start or migration is not worth a status write.
UNREPORTED_SECONDS = 1.0


class VirtualMachines:
    """The controller of all VMs on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._volumes = Volumes(informers, config)
        self._controller = Controller("virtualmachines", self._reconcile, concurrency=32)

        # The capacity that VMs use, by their keys. It is more recent than the cache.
        self._placements: dict[Key, scheduling.Placement] = {}
        # The time (monotonic) at which a step of an instance ends, by step and uid.
        self._deadlines: dict[tuple[str, str], float] = {}
        # VMs that wait for capacity on a host or for a claim. A change of either enqueues them.
        self._waiting: set[Key] = set()

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        # Record the running instances before handlers enqueue VMs that need a host.
        for vmi in self._informers.vmis.store:
            self._record_placement(key_of(vmi), vmi, instances.host_of(vmi))

        self._informers.vms.add_handler(lambda change: self._controller.enqueue(change.key))
        self._informers.vmis.add_handler(self._observe_instance)
        for informer in (
            self._informers.hosts,
            self._informers.images,
            self._informers.claims,
            self._informers.data_volumes,
            self._informers.storage_classes,
        ):
            informer.add_handler(self._enqueue_waiting)
        self._informers.hosts.add_handler(self._enqueue_on_failed_host)
        await self._controller.run()

    # What to reconcile

    def _observe_instance(self, change: Change) -> None:
        self._controller.enqueue(change.key)
        if change.new is None:
            self._placements.pop(change.key, None)
            self._enqueue_waiting(change)
            return

        # A live migration frees capacity on the host that it leaves.
        host = instances.host_of(change.new)
        if change.old is not None and instances.host_of(change.old) not in ("", host):
            self._record_placement(change.key, change.new, host)

    def _enqueue_on_failed_host(self, change: Change) -> None:
        if change.new is None or not scheduling.is_ready(change.new):
            for vmi in self._informers.vmis.store:
                if instances.host_of(vmi) == change.key.name:
                    self._controller.enqueue(key_of(vmi))

    def _enqueue_waiting(self, _change: Change) -> None:
        for key in self._waiting:
            self._controller.enqueue(key)

    # Reconcile

    async def _reconcile(self, key: Key) -> Result | None:
        vm, vmi = self._informers.vms.get(*key), self._informers.vmis.get(*key)
        self._waiting.discard(key)

        if vmi is not None and self._is_lost(vmi):
            vmi = await self._patch_instance(vmi, instances.failed_patch(vmi))
        if vm is None:
            if vmi is not None:
                await self._delete_instance(vmi)
            return None

        if being_deleted(vm):
            return await self._finish_deletion(vm, vmi)
        if not _wants_to_run(vm, vmi):
            return await self._halt(vm, vmi)
        return await self._keep_running(vm, vmi)

    def _is_lost(self, vmi: Obj) -> bool:
        """Return whether the instance's host has failed."""
        name = instances.host_of(vmi)
        if not name or instances.phase_of(vmi) in kinds.ENDED_PHASES:
            return False
        host = self._informers.hosts.get("", name)
        return host is None or not scheduling.is_ready(host)

    def _remaining(self, step: str, vmi: Obj, seconds: float) -> float:
        """Return the seconds until a step of this instance ends. The first call starts the step."""
        time_now = time.monotonic()
        return self._deadlines.setdefault((step, uid_of(vmi)), time_now + seconds) - time_now

    # Start

    async def _keep_running(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Take the next step of a VM that shall run.

        An instance that has ended is deleted. Its deletion enqueues the VM again, and a new
        instance starts.
        """
        if vmi is None:
            shortage = quotas.cpu_or_memory_shortage(vm, self._informers)
            if shortage:
                await self._halt_over_quota(vm, shortage)
                return None
            vmi = await self._create_instance(vm)
        elif instances.phase_of(vmi) in kinds.ENDED_PHASES:
            await self._delete_instance(vmi)
            return None
        elif _is_restart_requested(vm, vmi):
            return await self._stop_for_restart(vm, vmi)

        if not instances.host_of(vmi):
            if pending := await self._volumes.ensure(vm):
                return await self._wait_for_volumes(vm, vmi, pending)
            host = self._place(vm)
            if not host:
                await self._wait_for_host(vm, vmi)
                return None
            vmi = await self._patch_instance(vmi, instances.scheduled_patch(vmi, host))
        return await self._start(vm, vmi)

    async def _wait_for_host(self, vm: Obj, vmi: Obj) -> None:
        """Report why no host can run a VM, or why KubeVirt creates no Pod for it."""
        self._waiting.add(key_of(vm))
        hosts = list(self._informers.hosts.store)
        if refused := scheduling.unpermitted_devices(vm, hosts):
            message = instances.describe_refusal(refused)
            conditions = at(vmi, "status", "conditions") or ()
            if message not in [entry.get("message") for entry in conditions]:
                await self._patch_instance(vmi, instances.refused_patch(vmi, message))
            await self._report(vm, STARTING)
            return
        reason = scheduling.explain_no_host(vm, hosts, self._placements.values())
        await self._report_waiting(vm, vmi, UNSCHEDULABLE, reason)

    async def _halt_over_quota(self, vm: Obj, shortage: str) -> None:
        """Halt a VM permanently, as Harvester does.

        Modelled after `stopVM` in harvester's pkg/controller/master/virtualmachine.
        """
        metadata = {
            "annotations": {kinds.INSUFFICIENT_QUOTA: shortage},
            "resourceVersion": vm["metadata"]["resourceVersion"],
        }
        patch = {"metadata": metadata, "spec": {"runStrategy": "Halted"}}
        await self._informers.patch(self._informers.vms, key_of(vm), patch)

    async def _wait_for_volumes(self, vm: Obj, vmi: Obj, pending: Pending) -> Result | None:
        """Report why the Pod of an instance waits, unless the wait is about to end."""
        self._waiting.add(key_of(vm))
        delay = pending.retry_after
        result = None if delay is None else Result(requeue_after=delay)
        if delay is not None and delay <= UNREPORTED_SECONDS:
            return result

        if pending.missing:
            message = (
                f"PVC {key_of(vm).namespace}/{pending.missing[0]} does not exist, waiting for it "
                "to appear"
            )
            await self._report_waiting(vm, vmi, NO_CLAIM, message)
        elif pending.unbound:
            await self._report_waiting(vm, vmi, UNSCHEDULABLE, UNBOUND_CLAIMS)
        else:
            # KubeVirt creates no Pod before CDI has filled the disks.
            await self._report(vm, STARTING)
        return result

    async def _start(self, vm: Obj, vmi: Obj) -> Result | None:
        """Bring up an instance that has a host, and let it migrate if it has to."""
        is_running = instances.phase_of(vmi) == "Running"
        wait = 0.0 if is_running else self._remaining("start", vmi, self._config.start_seconds)
        await self._update_instance(vm, vmi, runs=wait <= 0)
        if wait > 0:
            if self._config.start_seconds > UNREPORTED_SECONDS:
                await self._report(vm, STARTING)
            return Result(requeue_after=wait)

        # The VM runs, so the annotation of an earlier halt is out of date.
        if kinds.INSUFFICIENT_QUOTA in annotations_of(vm):
            await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES,
                key_of(vm).name,
                key_of(vm).namespace,
                {"metadata": {"annotations": {kinds.INSUFFICIENT_QUOTA: None}}},
            )

        wait = await self._continue_migration(vm)
        if wait > 0:
            if self._config.migrate_seconds > UNREPORTED_SECONDS:
                await self._report(vm, MIGRATING)
            return Result(requeue_after=wait)
        vmi = self._informers.vmis.get(*key_of(vm)) or vmi
        if patch := hotplug.request_patch(vm, vmi):
            vmi = await self._patch_instance(vmi, patch)
        wait = await self._update_disks(vm, vmi)
        await self._migrate(vm)
        await self._report(vm, RUNNING)
        return Result(requeue_after=wait) if wait > 0 else None

    async def _update_disks(self, vm: Obj, vmi: Obj) -> float:
        """Let disks of a running VM grow, and attach others; return the seconds until a next step.

        A claim that is deleted under a running VM is not created again.
        """
        attached = {status["name"]: status for status in vmi["status"].get("volumeStatus") or ()}
        hotplugged = (
            volume
            for volume in at(vm, "spec", "template", "spec", "volumes") or ()
            if at(volume, "persistentVolumeClaim", "hotpluggable")
        )
        incomplete = any(
            at(attached.get(volume["name"]), "phase") != "Ready" for volume in hotplugged
        )
        pending = await self._volumes.ensure(vm) if incomplete else Pending()
        await self._volumes.enlarge(vm)

        claims = {claim["metadata"]["name"]: claim for claim in self._claims(vm)}
        if patch := disks.instance_patch(vm, vmi, claims, self._config.release):
            await self._patch_instance(vmi, patch)
        return pending.retry_after or 0

    async def _update_instance(self, vm: Obj, vmi: Obj, *, runs: bool) -> None:
        """Bring labels, annotations and phase of an instance up to date, in one write."""
        patch: Obj = {}

        # Harvester copies labels of the template, and removes others (`SyncLabelsToVmi`).
        labels = at(vm, "spec", "template", "metadata", "labels") or {}
        if labels_of(vmi) != labels:
            removed = dict.fromkeys(labels_of(vmi).keys() - labels.keys())
            patch["metadata"] = {"labels": {**labels, **removed}}

        host = self._informers.hosts.get("", instances.host_of(vmi))
        if topology := hostlabels.topology_changes(vmi, labels, host):
            patch.setdefault("metadata", {})["annotations"] = topology

        if runs and instances.phase_of(vmi) != "Running":
            patch |= instances.running_patch(vmi, self._claims(vm))
        if patch:
            await self._patch_instance(vmi, patch)

    def _claims(self, vm: Obj) -> list[Obj]:
        namespace = vm["metadata"]["namespace"]
        claims = (self._informers.claims.get(namespace, name) for name in claims_of(vm))
        return [claim for claim in claims if claim is not None]

    # Migrate

    async def _continue_migration(self, vm: Obj) -> float:
        """Complete a migration that has begun; return the seconds until it ends."""
        key = key_of(vm)
        vmi = self._informers.vmis.get(*key)
        target = instances.target_of(vmi) if vmi is not None else ""
        if vmi is None or not target:
            return 0

        remaining = self._remaining("migrate", vmi, self._config.migrate_seconds)
        if remaining <= 0:
            self._deadlines.pop(("migrate", uid_of(vmi)), None)
            self._record_placement(key, vmi, target)
            await self._patch_instance(vmi, instances.migrated_patch(vmi, target))
        return remaining

    async def _migrate(self, vm: Obj) -> None:
        """Migrate an instance that was evicted or gets other sizes.

        Like KubeVirt's evacuation controller and workload updater, retry when a host changes.
        """
        key = key_of(vm)
        vmi = self._informers.vmis.get(*key)
        if vmi is None or not _has_to_migrate(vmi):
            return

        source = instances.host_of(vmi)
        others = [placement for other, placement in self._placements.items() if other != key]
        hosts = [host for host in self._informers.hosts.store if host["metadata"]["name"] != source]
        target = scheduling.choose_host(vm, hosts, others)
        if not target:
            self._waiting.add(key)
            return

        # Use the capacity of the target at once, so that no other VM gets it.
        self._record_placement(key, vmi, target)
        await self._patch_instance(vmi, instances.migrating_patch(vmi, target))

    # Stop

    async def _halt(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Stop a VM that shall not run."""
        # With `RerunOnFailure`, an instance that has ended stays and prevents a new start. With
        # `Halted`, no instance stays (`syncRunStrategy` in pkg/virt-controller/watch/vm/vm.go of
        # kubevirt).
        has_ended = vmi is not None and instances.phase_of(vmi) == "Succeeded"
        if vmi is None or (has_ended and _run_strategy(vm) != "Halted"):
            await self._report(vm, STOPPED)
            return None

        wait = 0.0 if has_ended else self._remaining("stop", vmi, self._config.stop_seconds)
        if wait > 0:
            await self._report(vm, STOPPING)
            return Result(requeue_after=wait)
        await self._delete_instance(vmi)
        return None

    async def _stop_for_restart(self, vm: Obj, vmi: Obj) -> Result | None:
        wait = self._remaining("stop", vmi, self._config.stop_seconds)
        if wait > 0:
            await self._report(vm, STOPPING)
            return Result(requeue_after=wait)

        # Remove the request last, because without it nothing would delete the instance.
        await self._delete_instance(vmi)
        status = {"printableStatus": STOPPED, "ready": False, "stateChangeRequests": None}
        await self._informers.patch(
            self._informers.vms, key_of(vm), {"status": status}, subresource="status"
        )
        return None

    async def _finish_deletion(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Stop the instance, delete the claims that the VM lists, and remove the finalizer."""
        if vmi is not None:
            wait = self._remaining("stop", vmi, self._config.stop_seconds)
            if wait > 0:
                return Result(requeue_after=wait)
            # The deletion of the instance enqueues the VM again.
            await self._delete_instance(vmi)
            return None

        finalizers = kinds.finalizers_of(vm)
        if kinds.VM_FINALIZER not in finalizers:
            return None
        await self._volumes.remove(vm)

        key = key_of(vm)
        others = [name for name in finalizers if name != kinds.VM_FINALIZER]
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES, key.name, key.namespace, kinds.finalizers_patch(vm, others)
            )
        return None

    # Placements

    def _place(self, vm: Obj) -> str:
        host = scheduling.choose_host(vm, self._informers.hosts.store, self._placements.values())
        # Record the placement before the write, so that two VMs do not get the same capacity.
        self._record_placement(key_of(vm), instances.instance_of(vm, host), host)
        return host

    def _record_placement(self, key: Key, vmi: Obj, host: str) -> None:
        if host:
            cpu, memory = quantities.demand(vmi["spec"])
            self._placements[key] = scheduling.Placement(
                host,
                key.namespace,
                labels_of(vmi),
                cpu,
                memory,
                devices=quantities.devices(vmi["spec"]),
            )

    # Writes

    async def _create_instance(self, vm: Obj) -> Obj:
        # KubeVirt reports a new VM as stopped until it has seen the instance that it creates.
        if self._config.claim_seconds > UNREPORTED_SECONDS and not vm.get("status"):
            await self._report(vm, STOPPED)

        host = self._place(vm) if self._volumes.are_bound(vm) else ""
        try:
            vmi = instances.instance_of(vm, host)
            return await self._informers.create(self._informers.vmis, vmi)
        except BaseException:
            # Free the capacity, even if the simulator is cancelled during the write.
            self._placements.pop(key_of(vm), None)
            raise

    async def _patch_instance(self, vmi: Obj, patch: Obj) -> Obj:
        return await self._informers.patch(self._informers.vmis, key_of(vmi), patch)

    async def _delete_instance(self, vmi: Obj) -> None:
        for step in ("start", "stop", "migrate"):
            self._deadlines.pop((step, uid_of(vmi)), None)

        # Name the uid, because another instance may already have the same name.
        key = key_of(vmi)
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(
                kinds.INSTANCES, key.name, key.namespace, uid=uid_of(vmi)
            )

    async def _report_waiting(self, vm: Obj, vmi: Obj, printable: str, message: str) -> None:
        """Report why the Pod of an instance waits, in the instance and in the VM."""
        conditions = at(vmi, "status", "conditions") or ()
        if message not in [entry.get("message") for entry in conditions]:
            has_claims = printable != NO_CLAIM
            patch = instances.waiting_patch(vmi, message, exists=has_claims)
            await self._patch_instance(vmi, patch)
        await self._report(vm, printable, message)

    async def _report(self, vm: Obj, printable: str, message: str = "") -> None:
        runs = printable in (RUNNING, MIGRATING)
        status: dict[str, Any] = {
            "printableStatus": printable,
            "created": printable != STOPPED,
            "ready": runs,
        }
        if all(at(vm, "status", name) == value for name, value in status.items()):
            return

        if runs:
            reason = ""
        elif printable == UNSCHEDULABLE:
            reason = "Unschedulable"
        else:
            reason = "GuestNotRunning"
        status["conditions"] = [kinds.condition("Ready", runs, reason, message)]
        with contextlib.suppress(NotFound):
            await self._informers.patch(
                self._informers.vms, key_of(vm), {"status": status}, subresource="status"
            )


def _has_to_migrate(vmi: Obj) -> bool:
    if hotplug.is_changing(vmi):
        return migration.is_migratable(vmi)
    is_evicted = instances.host_of(vmi) == vmi["status"].get("evacuationNodeName")
    return is_evicted and migration.eviction_of(vmi) is migration.Eviction.MIGRATE


def _wants_to_run(vm: Obj, vmi: Obj | None) -> bool:
    strategy = _run_strategy(vm)
    if strategy == "RerunOnFailure":
        return vmi is None or instances.phase_of(vmi) != "Succeeded"
    # With `Manual`, an instance that a user has started keeps running.
    return strategy == "Always" or (strategy == "Manual" and vmi is not None)


def _run_strategy(vm: Obj) -> str:
    # `running` is the older form of the field.
    fallback = "Always" if vm["spec"].get("running") else "Halted"
    return str(vm["spec"].get("runStrategy") or fallback)


def _is_restart_requested(vm: Obj, vmi: Obj) -> bool:
    requests = at(vm, "status", "stateChangeRequests") or ()
    return any((entry["action"], entry.get("uid")) == ("Stop", uid_of(vmi)) for entry in requests)
