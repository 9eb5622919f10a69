"""KubeVirt: the lifecycle of a VM's instance, and the VM's status.

Each step is at most one write, and delays are timers of this process: a thousand VMs share a core with API servers.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, labels_of, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import NotFound
from sandbox.harvester import hostlabels, instances, kinds, migration, quantities, quotas, scheduling
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers, claims_of
from sandbox.harvester.volumes import Pending, Volumes

log = logging.getLogger(__name__)

# Values of `printableStatus` in the VM's status.
STARTING, RUNNING, STOPPING, STOPPED, MIGRATING = "Starting", "Running", "Stopping", "Stopped", "Migrating"
# A shorter start or migration is not worth a status write.
UNREPORTED_SECONDS = 1.0
UNSCHEDULABLE, NO_CLAIM = "ErrorUnschedulable", "ErrorPvcNotFound"
NO_HOST = "no host matches the node affinity and has enough CPU and memory"
UNBOUND_CLAIMS = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
_ENDED = ("Failed", "Succeeded")  # phases of an instance


class VirtualMachines:
    """The controller of all VMs on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._volumes = Volumes(informers, config)
        self._controller = Controller("virtualmachines", self._reconcile, concurrency=32)
        self._placed: dict[Key, scheduling.Placed] = {}
        self._deadlines: dict[tuple[str, str], float] = {}
        # VMs that wait for capacity on a host or for a claim; they are retried when either changes.
        self._waiting: set[Key] = set()

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        for vmi in self._informers.vmis.store:
            self._remember(key_of(vmi), vmi, instances.host_of(vmi))
        self._informers.vms.add_handler(self._changed)
        self._informers.vmis.add_handler(self._changed)
        classes = self._informers.storage_classes
        volumes = (self._informers.claims, self._informers.data_volumes)
        for informer in (self._informers.hosts, self._informers.images, *volumes, classes):
            informer.add_handler(self._retry_waiting)
        self._informers.hosts.add_handler(self._host_changed)
        await self._controller.run()

    def _changed(self, change: Change) -> None:
        self._controller.enqueue(change.key)
        if change.resource is not kinds.INSTANCES:
            return
        if change.new is None:
            self._placed.pop(change.key, None)
            self._retry_waiting(change)
        elif change.old is not None and instances.host_of(change.old) not in ("", instances.host_of(change.new)):
            self._remember(change.key, change.new, instances.host_of(change.new))  # a live migration

    def _host_changed(self, change: Change) -> None:
        if change.new is None or not scheduling.is_ready(change.new):
            for vmi in self._informers.vmis.store:
                if instances.host_of(vmi) == change.key.name:
                    self._controller.enqueue(key_of(vmi))

    def _retry_waiting(self, _change: Change) -> None:
        for key in self._waiting:
            self._controller.enqueue(key)

    async def _reconcile(self, key: Key) -> Result | None:
        vm, vmi = self._informers.vms.get(*key), self._informers.vmis.get(*key)
        self._waiting.discard(key)
        if vmi is not None and self._is_lost(vmi):
            vmi = await self._patch_instance(vmi, instances.failed(vmi))
        if vm is None:
            await self._remove_instance(vmi)
            return None
        if being_deleted(vm):
            return await self._finish(vm, vmi)
        if not _wants_to_run(vm, vmi):
            return await self._halt(vm, vmi)
        return await self._keep_running(vm, vmi)

    def _is_lost(self, vmi: Obj) -> bool:
        """Whether the instance's host has failed."""
        host = self._informers.hosts.get("", instances.host_of(vmi))
        alive = host is not None and scheduling.is_ready(host)
        return bool(instances.host_of(vmi)) and not alive and instances.phase_of(vmi) not in _ENDED

    # Life

    async def _keep_running(self, vm: Obj, vmi: Obj | None) -> Result | None:
        if vmi is not None and instances.phase_of(vmi) in _ENDED:
            await self._remove_instance(vmi)  # its deletion enqueues the VM again, and a new instance starts
            return None
        if vmi is not None and _restart_requested(vm, vmi):
            return await self._end_for_restart(vm, vmi)
        if vmi is None:
            if lacking := quotas.lacks_cpu_or_memory(vm, self._informers):
                await self._stop(vm, lacking)
                return None
            if self._config.claim_seconds > UNREPORTED_SECONDS and not vm.get("status"):
                await self._report(vm, STOPPED)  # until KubeVirt has seen the instance that it creates
            vmi = await self._create_instance(vm)
        if not vmi["status"].get("nodeName"):
            if pending := await self._volumes.ensure(vm):
                return await self._wait_for_volumes(vm, vmi, pending)
            host = self._place(vm)
            vmi = await self._patch_instance(vmi, instances.scheduled(vmi, host)) if host else vmi
        if not vmi["status"].get("nodeName"):
            self._waiting.add(key_of(vm))
            await self._report_waiting(vm, vmi, UNSCHEDULABLE, NO_HOST)
            return None
        return await self._start(vm, vmi)

    async def _start(self, vm: Obj, vmi: Obj) -> Result | None:
        """Bring up an instance that has a host; afterwards it may have to move."""
        wait = self._remaining("start", vmi, self._config.start_seconds) if instances.phase_of(vmi) != "Running" else 0
        await self._bring_up(vm, vmi, runs=wait <= 0)
        if wait > 0:
            if self._config.start_seconds > UNREPORTED_SECONDS:
                await self._report(vm, STARTING)
            return Result(requeue_after=wait)
        return await self._move_if_asked(vm)

    async def _move_if_asked(self, vm: Obj) -> Result | None:
        """Continue the migration of a VM that runs, or begin it when the VM has to leave its host."""
        remaining = await self._migrate(vm)
        if remaining <= 0:
            await self._evacuate(vm)
            await self._report(vm, RUNNING)
            return None
        if self._config.migrate_seconds > UNREPORTED_SECONDS:
            await self._report(vm, MIGRATING)
        return Result(requeue_after=remaining)

    async def _end_for_restart(self, vm: Obj, vmi: Obj) -> Result | None:
        """Stop an instance; its deletion enqueues the VM again, and a new instance starts."""
        wait = self._remaining("stop", vmi, self._config.stop_seconds)
        if wait > 0:
            await self._report(vm, STOPPING)
            return Result(requeue_after=wait)
        await self._remove_instance(vmi)
        key, done = key_of(vm), {"status": {"printableStatus": STOPPED, "ready": False, "stateChangeRequests": None}}
        answer = await self._informers.client.patch(
            kinds.VIRTUAL_MACHINES, key.name, key.namespace, done, subresource="status"
        )
        self._informers.vms.observe(answer)
        return None

    async def _wait_for_volumes(self, vm: Obj, vmi: Obj, pending: Pending) -> Result | None:
        """Report what the Pod of an instance waits for, unless it is about to end."""
        self._waiting.add(key_of(vm))
        retry = None if pending.retry_after is None else Result(requeue_after=pending.retry_after)
        if pending.retry_after is not None and pending.retry_after <= UNREPORTED_SECONDS:
            return retry
        if pending.missing:
            message = f"PVC {key_of(vm).namespace}/{pending.missing[0]} does not exist, waiting for it to appear"
            await self._report_waiting(vm, vmi, NO_CLAIM, message)
        elif pending.unfilled and not pending.unbound:
            # KubeVirt creates no Pod before.
            await self._report(vm, STARTING)
        else:
            await self._report_waiting(vm, vmi, UNSCHEDULABLE, UNBOUND_CLAIMS)
        return retry

    async def _report_waiting(self, vm: Obj, vmi: Obj, printable: str, message: str) -> None:
        if message not in [entry.get("message") for entry in vmi["status"].get("conditions") or ()]:
            await self._patch_instance(vmi, instances.waiting(vmi, message, exists=printable != NO_CLAIM))
        await self._report(vm, printable, message)

    async def _stop(self, vm: Obj, lacking: str) -> None:
        """Halt a VM permanently because of a quota (harvester: pkg/controller/master/virtualmachine, `stopVM`)."""
        key = key_of(vm)
        metadata = {
            "annotations": {kinds.INSUFFICIENT_QUOTA: lacking},
            "resourceVersion": vm["metadata"]["resourceVersion"],
        }
        patch = {"metadata": metadata, "spec": {"runStrategy": "Halted"}}
        answer = await self._informers.client.patch(kinds.VIRTUAL_MACHINES, key.name, key.namespace, patch)
        self._informers.vms.observe(answer)

    async def _bring_up(self, vm: Obj, vmi: Obj, *, runs: bool) -> None:
        patch: Obj = {}
        template = (vm["spec"]["template"].get("metadata") or {}).get("labels") or {}
        if labels_of(vmi) != template:
            gone = dict.fromkeys(labels_of(vmi).keys() - template.keys())
            patch["metadata"] = {"labels": {**template, **gone}}
        if topology := hostlabels.copied(vmi, template, self._informers.hosts.get("", instances.host_of(vmi))):
            patch.setdefault("metadata", {})["annotations"] = topology
        if runs and instances.phase_of(vmi) != "Running":
            patch |= instances.running(vmi, self._claims(vm))
        if patch:
            await self._patch_instance(vmi, patch)
        if runs and kinds.INSUFFICIENT_QUOTA in annotations_of(vm):
            gone = {"metadata": {"annotations": {kinds.INSUFFICIENT_QUOTA: None}}}
            await self._informers.client.patch(kinds.VIRTUAL_MACHINES, key_of(vm).name, key_of(vm).namespace, gone)

    async def _migrate(self, vm: Obj) -> float:
        """Complete a migration that has begun; return the seconds that it still takes."""
        vmi = self._informers.vmis.get(*key_of(vm))
        target = instances.target_of(vmi) if vmi is not None else ""
        if vmi is None or not target:
            return 0
        remaining = self._remaining("migrate", vmi, self._config.migrate_seconds)
        if remaining <= 0:
            self._deadlines.pop(("migrate", uid_of(vmi)), None)
            self._remember(key_of(vm), vmi, target)
            await self._patch_instance(vmi, instances.migrated(vmi, target))
        return remaining

    async def _evacuate(self, vm: Obj) -> None:
        """Migrate an evicted instance, like KubeVirt's evacuation controller; retried when a host becomes free."""
        vmi = self._informers.vmis.get(*key_of(vm))
        if vmi is None or instances.host_of(vmi) != vmi["status"].get("evacuationNodeName"):
            return
        if migration.eviction_of(vmi) is not migration.Eviction.MIGRATE:
            return
        key, source = key_of(vm), instances.host_of(vmi)
        others = [placed for other, placed in self._placed.items() if other != key]
        hosts = [host for host in self._informers.hosts.store if host["metadata"]["name"] != source]
        target = scheduling.place(vm, hosts, others)
        if not target:
            self._waiting.add(key)
            return
        self._remember(key, vmi, target)
        await self._patch_instance(vmi, instances.migrating(vmi, target))

    def _claims(self, vm: Obj) -> list[Obj]:
        namespace = vm["metadata"]["namespace"]
        found = (self._informers.claims.get(namespace, name) for name in claims_of(vm))
        return [claim for claim in found if claim is not None]

    async def _halt(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Stop a VM. An instance that ended stays with `RerunOnFailure`: it is why the VM does not start.

        With `Halted` there is none in any phase (kubevirt: pkg/virt-controller/watch/vm/vm.go, `syncRunStrategy`).
        """
        ended = vmi is not None and instances.phase_of(vmi) == "Succeeded"
        if vmi is None or (ended and _strategy(vm) != "Halted"):
            await self._report(vm, STOPPED)
            return None
        wait = 0 if ended else self._remaining("stop", vmi, self._config.stop_seconds)
        if wait > 0:
            await self._report(vm, STOPPING)
            return Result(requeue_after=wait)
        await self._remove_instance(vmi)
        return None

    async def _finish(self, vm: Obj, vmi: Obj | None) -> Result | None:
        """Finish the deletion of a VM: stop its instance, delete the listed claims, remove the finalizer."""
        if vmi is not None:
            wait = self._remaining("stop", vmi, self._config.stop_seconds)
            if wait > 0:
                return Result(requeue_after=wait)
            await self._remove_instance(vmi)  # its deletion enqueues the VM again
            return None
        finalizers = vm["metadata"].get("finalizers") or []
        if kinds.VM_FINALIZER not in finalizers:
            return None
        await self._volumes.remove(vm)
        left = [name for name in finalizers if name != kinds.VM_FINALIZER]
        patch = {"metadata": {"finalizers": left, "resourceVersion": vm["metadata"]["resourceVersion"]}}
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES, vm["metadata"]["name"], key_of(vm).namespace, patch
            )
        return None

    def _remaining(self, what: str, vmi: Obj, seconds: float) -> float:
        """Seconds until a step of this instance ends; the first call starts it."""
        now = time.monotonic()
        return self._deadlines.setdefault((what, uid_of(vmi)), now + seconds) - now

    # Instances

    def _place(self, vm: Obj) -> str:
        host = scheduling.place(vm, self._informers.hosts.store, self._placed.values())
        # Recorded before the write, so that two concurrent VMs do not get the same capacity.
        self._remember(key_of(vm), instances.instance_of(vm, host), host)
        return host

    def _remember(self, key: Key, vmi: Obj, host: str) -> None:
        if host:
            cpu, memory = quantities.demand(vmi["spec"])
            self._placed[key] = scheduling.Placed(host, key.namespace, labels_of(vmi), cpu, memory)

    async def _create_instance(self, vm: Obj) -> Obj:
        key = key_of(vm)
        vmi = instances.instance_of(vm, self._place(vm) if self._volumes.are_bound(vm) else "")
        try:
            answer = await self._informers.client.create(kinds.INSTANCES, vmi)
        except BaseException:
            self._placed.pop(key, None)
            raise
        self._informers.vmis.observe(answer)
        return answer

    async def _patch_instance(self, vmi: Obj, patch: Obj) -> Obj:
        key = key_of(vmi)
        answer = await self._informers.client.patch(kinds.INSTANCES, key.name, key.namespace, patch)
        self._informers.vmis.observe(answer)
        return answer

    async def _remove_instance(self, vmi: Obj | None) -> None:
        if vmi is None:
            return
        for what in ("start", "stop", "migrate"):
            self._deadlines.pop((what, uid_of(vmi)), None)
        key = key_of(vmi)
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(kinds.INSTANCES, key.name, key.namespace, uid=uid_of(vmi))

    async def _report(self, vm: Obj, printable: str, message: str = "") -> None:
        runs = printable in (RUNNING, MIGRATING)
        status: dict[str, Any] = {
            "printableStatus": printable,
            "created": printable != STOPPED,
            "ready": runs,
        }
        if {name: vm.get("status", {}).get(name) for name in status} == status:
            return
        reason = "" if runs else {UNSCHEDULABLE: "Unschedulable"}.get(printable, "GuestNotRunning")
        status["conditions"] = [kinds.condition("Ready", runs, reason, message)]
        key = key_of(vm)
        with contextlib.suppress(NotFound):
            answer = await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES, key.name, key.namespace, {"status": status}, subresource="status"
            )
            self._informers.vms.observe(answer)


def _wants_to_run(vm: Obj, vmi: Obj | None) -> bool:
    strategy = _strategy(vm)
    if strategy == "RerunOnFailure":
        return vmi is None or instances.phase_of(vmi) != "Succeeded"
    return strategy == "Always" or (strategy == "Manual" and vmi is not None)


def _restart_requested(vm: Obj, vmi: Obj) -> bool:
    requests = (vm.get("status") or {}).get("stateChangeRequests") or ()
    return any((entry["action"], entry.get("uid")) == ("Stop", uid_of(vmi)) for entry in requests)


def _strategy(vm: Obj) -> str:
    return str(vm["spec"].get("runStrategy") or ("Always" if vm["spec"].get("running") else "Halted"))
