"""The finalizer of Harvester's load balancer controller, which every VM has since 1.8.

The controller adds the finalizer to each VM, and removes it when the VM is deleted. Without the
controller, no VM of any user can be deleted. docs/simulators.md has the sources.
"""

from __future__ import annotations

import contextlib

from caphv.api.object import Key, Obj, at, being_deleted, key_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds
from sandbox.harvester.informers import Informers


def is_balancer_controller_running(informers: Informers) -> bool:
    """Return whether the load balancer controller runs, which requires replicas."""
    deployment = informers.deployments.get(kinds.SYSTEM, kinds.BALANCER_CONTROLLER)
    replicas = at(deployment, "spec", "replicas")
    # A Deployment without the field has one replica. Without a Deployment, it also runs.
    return replicas is None or replicas > 0


class VmGuards:
    """Adds the finalizer to VMs, and removes it from VMs that are being deleted."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._controller = Controller("vmguards", self._reconcile, concurrency=8)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.vms.add_handler(self._enqueue_vm)
        # VMs that were deleted while the controller was stopped wait for its start.
        self._informers.deployments.add_handler(self._enqueue_all)
        await self._controller.run()

    def _enqueue_vm(self, change: Change) -> None:
        if change.new is not None and _needs_change(change.new):
            self._controller.enqueue(change.key)

    def _enqueue_all(self, _change: Change) -> None:
        for vm in self._informers.vms.store:
            self._controller.enqueue(key_of(vm))

    async def _reconcile(self, key: Key) -> None:
        vm = self._informers.vms.get(*key)
        if (
            vm is None
            or not _needs_change(vm)
            or not is_balancer_controller_running(self._informers)
        ):
            return

        finalizers = [name for name in kinds.finalizers_of(vm) if name != kinds.VM_GUARD]
        if not being_deleted(vm):
            finalizers.append(kinds.VM_GUARD)
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(
                kinds.VIRTUAL_MACHINES,
                key.name,
                key.namespace,
                kinds.finalizers_patch(vm, finalizers),
            )


def _needs_change(vm: Obj) -> bool:
    """Return whether a VM lacks the finalizer, or has it while it is being deleted."""
    return being_deleted(vm) == (kinds.VM_GUARD in kinds.finalizers_of(vm))
