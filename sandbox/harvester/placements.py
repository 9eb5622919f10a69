"""The hosts on which VMs use capacity."""

from __future__ import annotations

from caphv.api.object import Key, Obj, key_of, labels_of
from sandbox.harvester import instances, quantities, scheduling
from sandbox.harvester.informers import Informers


class Placements:
    """The capacity that VMs use, which is more recent than the cache of instances."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._by_vm: dict[Key, scheduling.Placement] = {}

    def record(self, key: Key, vmi: Obj, host: str) -> None:
        """Record the host of an instance; nothing if `host` is empty."""
        if host:
            cpu, memory = quantities.demand(vmi["spec"])
            self._by_vm[key] = scheduling.Placement(
                host=host,
                namespace=key.namespace,
                labels=labels_of(vmi),
                cpu=cpu,
                memory=memory,
                devices=quantities.devices(vmi["spec"]),
            )

    def free(self, key: Key) -> None:
        """Free the capacity of a VM."""
        self._by_vm.pop(key, None)

    def place(self, vm: Obj) -> str:
        """Choose a host for a VM and use its capacity at once. Return "" if no host fits."""
        host = scheduling.choose_host(vm, self._informers.hosts.store, self._by_vm.values())
        # Record the placement before the write, so that two VMs do not get the same capacity.
        self.record(key_of(vm), instances.instance_of(vm, host), host)
        return host

    def place_elsewhere(self, vm: Obj, vmi: Obj) -> str:
        """Choose another host for a running VM, and use its capacity instead of the old at once.

        Return "" if no host fits.
        """
        key = key_of(vm)
        source = instances.host_of(vmi)
        others = [placement for other, placement in self._by_vm.items() if other != key]
        hosts = [host for host in self._informers.hosts.store if host["metadata"]["name"] != source]
        target = scheduling.choose_host(vm, hosts, others)
        self.record(key, vmi, target)
        return target

    def explain_no_host(self, vm: Obj) -> str:
        """Return the reason why no host can run a VM, as kube-scheduler reports it."""
        hosts = list(self._informers.hosts.store)
        return scheduling.explain_no_host(vm, hosts, self._by_vm.values())
