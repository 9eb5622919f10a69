"""Asks Harvester to whom the VMs of moved machines belong: what cannot be read proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from caphv.api import names, resources
from caphv.api.clusterapi import cluster_name
from caphv.api.object import Key, Obj, annotations_of, key_of, owner_reference, uid_of
from caphv.runtime.client import ApiClient
from overview.backup.files import Backup
from overview.backup.moving import of_kind
from overview.harvester import Harvesters, read_harvesters
from overview.objects import HarvesterObjects, by_key

_READ = (resources.VIRTUAL_MACHINES, resources.VIRTUAL_MACHINE_INSTANCES)


@dataclass(frozen=True, slots=True)
class VirtualMachineState:
    """A VM on Harvester: who owns it, and what changes when it is replaced (`uid`) or restarted (`instance`)."""

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

    def not_adopted(self, before: VirtualMachines, management_cluster: str) -> list[str]:
        """Machines whose VM is not known to belong to a management cluster; those `absent` before do not count."""
        others = {name for name, state in self.states.items() if state.management_cluster != management_cluster}
        return sorted(others | self.unread | self.absent - before.absent)

    def changed(self, before: VirtualMachines) -> list[str]:
        """Machines whose VM was replaced or restarted."""
        return sorted(
            name
            for name, now in self.states.items()
            if name in before.states
            and (now.uid, now.instance) != (before.states[name].uid, before.states[name].instance)
        )


async def read_vms(client: ApiClient, backup: Backup) -> VirtualMachines:
    """Ask Harvesters, by the identities on a management cluster, for the VMs of machines. Never raises."""
    clusters = {_cluster_of(obj): obj for obj in of_kind(backup, names.GROUP, "HarvesterCluster")}
    harvesters = await read_harvesters(client, clusters.values())
    indexes = {id(each): (by_key(each.vms), by_key(each.instances)) for each in harvesters.all()}
    answer = VirtualMachines()
    for obj in of_kind(backup, names.GROUP, "HarvesterMachine"):
        if not (obj.get("spec") or {}).get("providerID"):
            continue
        machine, cluster = str(key_of(obj)), clusters.get(Key(key_of(obj).namespace, cluster_name(obj)))
        target = str(((cluster or {}).get("spec") or {}).get("targetNamespace") or "")
        found = _readable(harvesters, cluster, target)
        if found is None:
            answer.unread.add(machine)
            continue
        vms, instances = indexes[id(found)]
        key = Key(target, key_of(obj).name)
        if key not in vms:
            answer.absent.add(machine)
            continue
        owner = annotations_of(vms[key]).get(names.OWNER_CLUSTER_ANNOTATION, "")
        instance = uid_of(instances[key]) if key in instances else ""
        answer.states[machine] = VirtualMachineState(owner, uid_of(vms[key]), instance)
    return answer


def _readable(harvesters: Harvesters, cluster: Obj | None, namespace: str) -> HarvesterObjects | None:
    """The Harvester of a HarvesterCluster, if all VMs and instances in the namespace could be read."""
    found = harvesters.of(cluster) if cluster else None
    if found is None or namespace not in found.namespaces:
        return None
    seen = all(found.sees(f"{each} of namespace {namespace}") and str(each) not in found.unserved for each in _READ)
    return found if seen else None


def _cluster_of(harvester_cluster: Obj) -> Key:
    """The Cluster that owns a HarvesterCluster; one of its name as long as it has no owner."""
    owner = owner_reference(harvester_cluster, "Cluster", resources.CLUSTER_API_GROUP)
    namespace, name = key_of(harvester_cluster)
    return Key(namespace, str(owner["name"]) if owner else name)
