"""The memory of all objects."""

from __future__ import annotations

from caphv.api.object import Key, Obj, key_of, uid_of
from reconciler.harvester.storageclasses import StorageClasses
from reconciler.harvester.storageprofiles import StorageProfiles
from reconciler.memory.cluster import ClusterMemory
from reconciler.memory.machine import MachineMemory
from reconciler.memory.quotas import QuotaGate


class Memory:
    """Memory of all objects by key; a recreated object starts with an empty one."""

    def __init__(self) -> None:
        self._machines: dict[Key, MachineMemory] = {}
        self._clusters: dict[Key, ClusterMemory] = {}
        self.quotas = QuotaGate()
        self.storage_profiles = StorageProfiles()
        self.storage_classes = StorageClasses()

    def machine(self, obj: Obj) -> MachineMemory:
        """Return the memory of a HarvesterMachine."""
        key = key_of(obj)
        uid = uid_of(obj)
        memory = self._machines.get(key)
        if memory is None or memory.uid != uid:
            # Keep the labels, because the series of the former machine has yet to be removed.
            labels = memory.metric_labels if memory else None
            memory = MachineMemory(uid, metric_labels=labels)
            self._machines[key] = memory
        return memory

    def cluster(self, obj: Obj) -> ClusterMemory:
        """Return the memory of a HarvesterCluster."""
        key = key_of(obj)
        uid = uid_of(obj)
        memory = self._clusters.get(key)
        if memory is None or memory.uid != uid:
            memory = ClusterMemory(uid)
            self._clusters[key] = memory
        return memory

    def forget_machine(self, key: Key) -> MachineMemory | None:
        """Drop the memory of a deleted HarvesterMachine, and return it."""
        return self._machines.pop(key, None)

    def forget_cluster(self, key: Key) -> None:
        """Drop the memory of a deleted HarvesterCluster."""
        self._clusters.pop(key, None)
