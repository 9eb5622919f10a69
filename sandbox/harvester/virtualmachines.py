"""KubeVirt: the lifecycle of a VM's instance.

Each step makes at most one write, and delays are timers of this process, because a thousand VMs
share a core with API servers.
"""

from __future__ import annotations

import contextlib

from caphv.api.hosts import is_ready
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import Invalid, NotFound
from sandbox.harvester import (
    hotplug,
    instances,
    kinds,
    quotas,
    runstrategy,
    scheduling,
    vmstatus,
)
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.deadlines import Deadlines
from sandbox.harvester.informers import Informers
from sandbox.harvester.placements import Placements
from sandbox.harvester.runninginstances import RunningInstances
from sandbox.harvester.volumes import Pending, Volumes

# A reason of kube-scheduler for which a Pod waits.
UNBOUND_CLAIMS = (
    "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
)


class VirtualMachines:
    """The controller of all VMs on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._volumes = Volumes(informers, config)
        self._placements = Placements(informers)
        self._deadlines = Deadlines()
        self._running = RunningInstances(
            informers=informers,
            config=config,
            volumes=self._volumes,
            placements=self._placements,
            deadlines=self._deadlines,
        )
        self._controller = Controller("virtualmachines", self._reconcile, concurrency=32)

        # VMs that wait for capacity on a host or for a claim. A change of either enqueues them.
        self._waiting: set[Key] = set()

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        # Record the running instances before handlers enqueue VMs that need a host.
        for vmi in self._informers.vmis.store:
            self._placements.record(key_of(vmi), vmi, instances.host_of(vmi))

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
            self._placements.free(change.key)
            self._enqueue_waiting(change)
            return

        # A live migration frees capacity on the host that it leaves.
        host = instances.host_of(change.new)
        if change.old is not None and instances.host_of(change.old) not in ("", host):
            self._placements.record(change.key, change.new, host)

    def _enqueue_on_failed_host(self, change: Change) -> None:
        if change.new is None or not is_ready(change.new):
            for vmi in self._informers.vmis.store:
                if instances.host_of(vmi) == change.key.name:
                    self._controller.enqueue(key_of(vmi))

    def _enqueue_waiting(self, _change: Change) -> None:
        for key in self._waiting:
            self._controller.enqueue(key)

    # Reconcile

    async def _reconcile(self, key: Key) -> Result | None:
        vm = self._informers.vms.get(*key)
        vmi = self._informers.vmis.get(*key)
        self._waiting.discard(key)

        if vmi is not None and self._is_lost(vmi):
            vmi = await self._patch_instance(vmi, instances.failed_patch(vmi))
        if vm is None:
            if vmi is not None:
                await self._delete_instance(vmi)
            return None

        if being_deleted(vm):
            return await self._finish_deletion(vm, vmi)
        vm = await self._record_run_strategy(vm)
        if not runstrategy.wants_to_run(vm, vmi):
            return await self._halt(vm, vmi)
        return await self._keep_running(vm, vmi)

    async def _record_run_strategy(self, vm: Obj) -> Obj:
        """Record the strategy of a VM that is not Halted, and return the VM as it is stored.

        Harvester's mutator starts a Halted VM with this strategy. Modelled after `StoreRunStrategy`
        in harvester's pkg/controller/master/virtualmachine.
        """
        strategy = runstrategy.run_strategy_of(vm)
        if strategy in ("Halted", annotations_of(vm).get(kinds.RUN_STRATEGY)):
            return vm

        # An older strategy must not replace the one that a user has written meanwhile.
        metadata = {
            "annotations": {kinds.RUN_STRATEGY: strategy},
            "resourceVersion": vm["metadata"]["resourceVersion"],
        }
        try:
            return await self._informers.patch(
                self._informers.vms, key_of(vm), {"metadata": metadata}
            )
        except (Invalid, NotFound):
            # Admission refuses each update of such a VM. KubeVirt runs it all the same.
            return vm

    def _is_lost(self, vmi: Obj) -> bool:
        """Return whether the instance's host has failed."""
        name = instances.host_of(vmi)
        if not name or instances.phase_of(vmi) in kinds.ENDED_PHASES:
            return False
        host = self._informers.hosts.get("", name)
        return host is None or not is_ready(host)

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
        elif runstrategy.is_restart_requested(vm, vmi):
            return await self._stop_for_restart(vm, vmi)

        if not instances.host_of(vmi):
            if pending := await self._volumes.ensure(vm):
                return await self._wait_for_volumes(vm, vmi, pending)
            host = self._placements.place(vm)
            if not host:
                await self._wait_for_host(vm, vmi)
                return None
            vmi = await self._patch_instance(vmi, instances.scheduled_patch(vmi, host))
        return await self._start(vm, vmi)

    async def _wait_for_host(self, vm: Obj, vmi: Obj) -> None:
        """Report why no host can run a VM, or why KubeVirt creates no Pod for it."""
        self._waiting.add(key_of(vm))
        if refused := scheduling.unpermitted_devices(vm, self._informers.hosts.store):
            message = instances.describe_refusal(refused)
            await vmstatus.report_refused(self._informers, vm, vmi, message)
            return
        reason = self._placements.explain_no_host(vm)
        await vmstatus.report_waiting(self._informers, vm, vmi, vmstatus.UNSCHEDULABLE, reason)

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
        if delay is not None and delay <= vmstatus.UNREPORTED_SECONDS:
            return result

        if pending.missing:
            message = (
                f"PVC {key_of(vm).namespace}/{pending.missing[0]} does not exist, waiting for it "
                "to appear"
            )
            await vmstatus.report_waiting(self._informers, vm, vmi, vmstatus.NO_CLAIM, message)
        elif pending.unbound:
            await vmstatus.report_waiting(
                self._informers, vm, vmi, vmstatus.UNSCHEDULABLE, UNBOUND_CLAIMS
            )
        else:
            # KubeVirt creates no Pod before CDI has filled the disks.
            await vmstatus.report(self._informers, vm, vmstatus.STARTING)
        return result

    async def _start(self, vm: Obj, vmi: Obj) -> Result | None:
        """Bring up an instance that has a host, and let it migrate if it has to."""
        is_running = instances.phase_of(vmi) == "Running"
        wait = (
            0.0
            if is_running
            else self._deadlines.remaining("start", vmi, self._config.start_seconds)
        )
        await self._running.update(vm, vmi, runs=wait <= 0)
        if wait > 0:
            if self._config.start_seconds > vmstatus.UNREPORTED_SECONDS:
                await vmstatus.report(self._informers, vm, vmstatus.STARTING)
            return Result(requeue_after=wait)

        # The VM runs, so the annotation of an earlier halt is out of date.
        if kinds.INSUFFICIENT_QUOTA in annotations_of(vm):
            await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES,
                key_of(vm).name,
                key_of(vm).namespace,
                {"metadata": {"annotations": {kinds.INSUFFICIENT_QUOTA: None}}},
            )

        wait = await self._running.continue_migration(vm)
        if wait > 0:
            if self._config.migrate_seconds > vmstatus.UNREPORTED_SECONDS:
                await vmstatus.report(self._informers, vm, vmstatus.MIGRATING)
            return Result(requeue_after=wait)
        vmi = self._informers.vmis.get(*key_of(vm)) or vmi
        if patch := hotplug.request_patch(vm, vmi):
            vmi = await self._patch_instance(vmi, patch)
        wait = await self._running.update_disks(vm, vmi)
        if not await self._running.migrate(vm):
            self._waiting.add(key_of(vm))
        await vmstatus.report(self._informers, vm, vmstatus.RUNNING)
        return Result(requeue_after=wait) if wait > 0 else None

    # Stop

    async def _halt(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Stop a VM that shall not run."""
        has_ended = vmi is not None and instances.phase_of(vmi) == "Succeeded"
        if vmi is None or (has_ended and runstrategy.keeps_ended_instance(vm)):
            await vmstatus.report(self._informers, vm, vmstatus.STOPPED)
            return None

        wait = (
            0.0 if has_ended else self._deadlines.remaining("stop", vmi, self._config.stop_seconds)
        )
        if wait > 0:
            await vmstatus.report(self._informers, vm, vmstatus.STOPPING)
            return Result(requeue_after=wait)
        await self._delete_instance(vmi)
        return None

    async def _stop_for_restart(self, vm: Obj, vmi: Obj) -> Result | None:
        wait = self._deadlines.remaining("stop", vmi, self._config.stop_seconds)
        if wait > 0:
            await vmstatus.report(self._informers, vm, vmstatus.STOPPING)
            return Result(requeue_after=wait)

        # Remove the request last, because without it nothing would delete the instance.
        await self._delete_instance(vmi)
        status = {"printableStatus": vmstatus.STOPPED, "ready": False, "stateChangeRequests": None}
        await self._informers.patch(
            self._informers.vms, key_of(vm), {"status": status}, subresource="status"
        )
        return None

    async def _finish_deletion(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Stop the instance, delete the claims that the VM lists, and remove the finalizers.

        KubeVirt removes its finalizer once the instance has stopped. Harvester keeps its own while
        the deletion of a claim is refused, because another VM uses the claim.
        """
        if vmi is not None:
            wait = self._deadlines.remaining("stop", vmi, self._config.stop_seconds)
            if wait > 0:
                return Result(requeue_after=wait)
            # The deletion of the instance enqueues the VM again.
            await self._delete_instance(vmi)
            return None

        if not {kinds.VM_FINALIZER, kinds.VM_CLEANUP}.intersection(kinds.finalizers_of(vm)):
            return None
        try:
            await self._volumes.remove(vm)
        except Invalid:
            await self._remove_finalizers(vm, kinds.VM_FINALIZER)
            raise
        await self._remove_finalizers(vm, kinds.VM_FINALIZER, kinds.VM_CLEANUP)
        return None

    # Writes

    async def _remove_finalizers(self, vm: Obj, *names: str) -> None:
        key = key_of(vm)
        finalizers = kinds.finalizers_of(vm)
        others = [name for name in finalizers if name not in names]
        if others == finalizers:
            return
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES, key.name, key.namespace, kinds.finalizers_patch(vm, others)
            )

    async def _create_instance(self, vm: Obj) -> Obj:
        # KubeVirt reports a new VM as stopped until it has seen the instance that it creates.
        if self._config.claim_seconds > vmstatus.UNREPORTED_SECONDS and not vm.get("status"):
            await vmstatus.report(self._informers, vm, vmstatus.STOPPED)

        host = self._placements.place(vm) if self._volumes.are_bound(vm) else ""
        try:
            vmi = instances.instance_of(vm, host)
            return await self._informers.create(self._informers.vmis, vmi)
        except BaseException:
            # Free the capacity, even if the simulator is cancelled during the write.
            self._placements.free(key_of(vm))
            raise

    async def _patch_instance(self, vmi: Obj, patch: Obj) -> Obj:
        return await self._informers.patch(self._informers.vmis, key_of(vmi), patch)

    async def _delete_instance(self, vmi: Obj) -> None:
        self._deadlines.forget(vmi)

        # Name the uid, because another instance may already have the same name.
        key = key_of(vmi)
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(
                kinds.INSTANCES, key.name, key.namespace, uid=uid_of(vmi)
            )
