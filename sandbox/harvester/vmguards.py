"""The finalizer of Harvester's load balancer controller, which every VM has since 1.8.

The controller adds it when it sees a VM, and removes it when the VM is deleted: without the controller, no VM of any
user leaves. Sources: docs/simulators.md.
"""

from __future__ import annotations

import contextlib

from caphv.api.object import Key, Obj, being_deleted, key_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds
from sandbox.harvester.informers import Informers


def balancers_run(informers: Informers) -> bool:
    """Whether the load balancer controller runs: its Deployment has replicas."""
    deployment = informers.deployments.get(kinds.SYSTEM, kinds.BALANCER_CONTROLLER)
    return deployment is None or deployment["spec"].get("replicas", 1) > 0


class VmGuards:
    """Adds the finalizer to VMs, and removes it from those that are being deleted."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._controller = Controller("vmguards", self._reconcile, concurrency=8)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.vms.add_handler(self._changed)
        self._informers.deployments.add_handler(self._deployment_changed)
        await self._controller.run()

    def _changed(self, change: Change) -> None:
        if change.new is not None and being_deleted(change.new) == _is_guarded(change.new):
            self._controller.enqueue(change.key)

    def _deployment_changed(self, _change: Change) -> None:
        for vm in self._informers.vms.store:
            self._controller.enqueue(key_of(vm))

    async def _reconcile(self, key: Key) -> None:
        vm = self._informers.vms.get(*key)
        if vm is None or being_deleted(vm) != _is_guarded(vm) or not balancers_run(self._informers):
            return

        finalizers = [name for name in vm["metadata"].get("finalizers") or () if name != kinds.VM_GUARD]
        if not being_deleted(vm):
            finalizers.append(kinds.VM_GUARD)
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": vm["metadata"]["resourceVersion"]}}
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(kinds.VIRTUAL_MACHINES, key.name, key.namespace, patch)


def _is_guarded(vm: Obj) -> bool:
    return kinds.VM_GUARD in (vm["metadata"].get("finalizers") or ())
