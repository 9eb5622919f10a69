"""Ask Harvester to which management cluster the VMs of moved machines belong.

What cannot be read proves nothing: such a VM counts as one that was not adopted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from caphv.api import names, resources
from caphv.api.clusterapi import cluster_name
from caphv.api.object import Key, Obj, annotations_of, at, key_of, owner_reference, text_at, uid_of
from caphv.runtime.client import ApiClient
from operations.backup.files import Backup
from operations.backup.movedobjects import of_kind
from operations.read.harvester import Harvesters, read_harvesters
from operations.read.objects import HarvesterObjects, by_key

_READ = (resources.VIRTUAL_MACHINES, resources.VIRTUAL_MACHINE_INSTANCES)


@dataclass(frozen=True, slots=True)
class VirtualMachineState:
    """A VM on Harvester and who owns it.

    `uid` changes when the VM is replaced, `instance` when it is restarted.
    """

    management_cluster: str
    uid: str
    instance: str


@dataclass(slots=True)
class VirtualMachines:
    """The VMs of machines that have a providerID, by `namespace/name` of the machine."""

    states: dict[str, VirtualMachineState] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """Machines whose VM does not exist on the Harvester that was read."""
    unread: set[str] = field(default_factory=set)
    """Machines whose VM is unknown: their Harvester, or its namespace, could not be read."""

    def unadopted_vms(self, before: VirtualMachines, management_cluster: str) -> list[str]:
        """Return machines whose VM is not known to belong to a management cluster.

        A machine whose VM was absent before does not count.
        """
        others = {
            name
            for name, state in self.states.items()
            if state.management_cluster != management_cluster
        }
        return sorted(others | self.unread | self.absent - before.absent)

    def changed_vms(self, before: VirtualMachines) -> list[str]:
        """Return machines whose VM was replaced or restarted."""
        names = []
        for name, new in self.states.items():
            old = before.states.get(name)
            if old is not None and (new.uid, new.instance) != (old.uid, old.instance):
                names.append(name)
        return sorted(names)


async def read_vms(client: ApiClient, backup: Backup) -> VirtualMachines:
    """Ask Harvesters for the VMs of machines, by the identities on a management cluster.

    Never raises: machines whose VM cannot be read are `unread`.
    """
    clusters = {_cluster_of(obj): obj for obj in of_kind(backup, names.GROUP, "HarvesterCluster")}
    harvesters = await read_harvesters(client, clusters.values())
    # Machines of one Harvester share its indexes.
    indexes = {
        id(objects): (by_key(objects.vms), by_key(objects.instances))
        for objects in harvesters.all()
    }

    answer = VirtualMachines()
    for obj in of_kind(backup, names.GROUP, "HarvesterMachine"):
        # Without a providerID, the VM may not have been created yet.
        if not at(obj, "spec", "providerID"):
            continue

        machine = str(key_of(obj))
        cluster = clusters.get(Key(key_of(obj).namespace, cluster_name(obj)))
        target = text_at(cluster, "spec", "targetNamespace")
        harvester = _readable_harvester(harvesters, cluster, target)
        if harvester is None:
            answer.unread.add(machine)
            continue

        vms, instances = indexes[id(harvester)]
        key = Key(target, key_of(obj).name)
        if key not in vms:
            answer.absent.add(machine)
            continue

        owner = annotations_of(vms[key]).get(names.OWNER_CLUSTER_ANNOTATION, "")
        instance = uid_of(instances[key]) if key in instances else ""
        answer.states[machine] = VirtualMachineState(owner, uid_of(vms[key]), instance)
    return answer


def _readable_harvester(
    harvesters: Harvesters, cluster: Obj | None, namespace: str
) -> HarvesterObjects | None:
    """Return the Harvester of a HarvesterCluster, if all VMs in the namespace could be read."""
    harvester = harvesters.of(cluster) if cluster else None
    if harvester is None or namespace not in harvester.namespaces:
        return None

    # A server that does not serve these kinds is not a Harvester.
    for kind in _READ:
        if not harvester.sees(f"{kind} of namespace {namespace}"):
            return None
        if str(kind) in harvester.unserved:
            return None
    return harvester


def _cluster_of(harvester_cluster: Obj) -> Key:
    """Return the Cluster that owns a HarvesterCluster, else the Cluster of the same name."""
    owner = owner_reference(harvester_cluster, "Cluster", resources.CLUSTER_API_GROUP)
    namespace, name = key_of(harvester_cluster)
    return Key(namespace, str(owner["name"]) if owner else name)
