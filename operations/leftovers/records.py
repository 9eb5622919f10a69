"""Decide whether the owner that a record on Harvester names still exists. No I/O.

An object may be a leftover only if its record names this management cluster and an owner that does
not exist there. An owner of the same name with another uid counts as existing if the provider would
let it adopt the object, as after a move or a restored backup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caphv.api import clusterapi, names, resources
from caphv.api.ippool import referenced_pools
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, uid_of
from caphv.api.ownership import Owner, former_owner, recorded_owner, wants_adoption
from operations.capacity.addresspools import Judgement, Verdict
from operations.read.owners import OwnerObjects

_RECORD = (
    names.OWNER_CLUSTER_ANNOTATION,
    names.OWNER_ANNOTATION,
    names.OWNER_UID_ANNOTATION,
)


@dataclass(frozen=True, slots=True)
class ReferencedVMs:
    """VMs whose uid a HarvesterMachine refers to, no matter what the records on the VMs say.

    :param uids: the uids of these VMs
    :param owners: the owners in the records of these VMs. Their other objects are no leftovers
        either, because the provider adopts disks and Secret together with the VM.
    :param clusters: the clusters of the HarvesterMachines, by namespace and name
    """

    uids: frozenset[str] = frozenset()
    owners: frozenset[Owner] = frozenset()
    clusters: frozenset[Key] = frozenset()


def referenced_vms(vms: Iterable[Obj], owners: OwnerObjects) -> ReferencedVMs:
    """Return the VMs whose uid a HarvesterMachine refers to."""
    machines = {uid: machine for machine in owners.machines.values() for uid in _vm_uids(machine)}
    referenced = {uid_of(vm): vm for vm in vms if uid_of(vm) in machines}
    return ReferencedVMs(
        uids=frozenset(referenced),
        owners=frozenset(owner for vm in referenced.values() if (owner := recorded_owner(vm))),
        clusters=frozenset(_cluster_of(machines[uid]) for uid in referenced),
    )


def check_record(obj: Obj, owners: OwnerObjects, referenced: ReferencedVMs) -> Judgement:
    """Return the judgement on an object by its record alone.

    :param obj: an object on Harvester
    :param owners: possible owners on the management cluster
    :param referenced: VMs on this Harvester that HarvesterMachines refer to
    """
    owner = recorded_owner(obj)
    cluster = annotations_of(obj).get(names.OWNER_CLUSTER_ANNOTATION, "")
    if cluster and (elsewhere := check_management_cluster(cluster, owners)):
        return elsewhere
    if owner is None or "/" in owner.name:
        detail = "its record is incomplete" if has_record(obj) else ""
        return Judgement(Verdict.UNRECORDED, detail)

    if uid_of(obj) in referenced.uids or owner in referenced.owners:
        detail = "a HarvesterMachine names the VirtualMachine by its uid"
        return Judgement(Verdict.HELD, detail)
    return check_owner(owner, owners) or _check_successor(owner, owners, referenced)


def check_management_cluster(uid: str, owners: OwnerObjects) -> Judgement | None:
    """Return the judgement on an object of another management cluster; None if it is of this one.

    :param uid: the uid of the management cluster in the record
    """
    if not owners.management_cluster:
        why = "the uid of this management cluster, of namespace kube-system, is not seen"
        return Judgement(Verdict.UNKNOWN, why)
    if uid != owners.management_cluster:
        return Judgement(Verdict.FOREIGN, f"of management cluster {uid}")
    return None


def check_owner(owner: Owner, owners: OwnerObjects) -> Judgement | None:
    """Return the judgement on an object by whether its owner exists on this management cluster.

    None if the owner was recreated. The caller then decides whether the new one adopts the object.
    """
    if owner.kind not in (resources.HARVESTER_MACHINES.kind, resources.HARVESTER_CLUSTERS.kind):
        detail = f"owners of kind {owner.kind} are not known to this release"
        return Judgement(Verdict.UNKNOWN, detail)
    if not owners.sees(owner.namespace):
        detail = f"{owner.kind} objects of namespace {owner.namespace} are not seen"
        return Judgement(Verdict.UNKNOWN, detail)

    namesake = find_owner(owner, owners)
    if namesake is None:
        return Judgement(Verdict.LEAKED, "its owner no longer exists")
    return Judgement(Verdict.HELD) if uid_of(namesake) == owner.uid else None


def _check_successor(owner: Owner, owners: OwnerObjects, referenced: ReferencedVMs) -> Judgement:
    """Return the judgement on an object whose owner was recreated."""
    successor = find_owner(owner, owners)
    if successor is not None and _may_adopt(successor, owner, referenced):
        return Judgement(Verdict.HELD, "its owner was created again, and adopts it")
    return Judgement(Verdict.LEAKED, "its owner was created again, with another uid")


def pool_users(owners: OwnerObjects) -> Mapping[str, str]:
    """Return for each IPPool a HarvesterCluster or HarvesterMachine that refers to it."""
    users = {}
    for kind, objs in (
        (resources.HARVESTER_MACHINES.kind, owners.machines),
        (resources.HARVESTER_CLUSTERS.kind, owners.clusters),
    ):
        for key, obj in objs.items():
            for config in ("vmNetworkConfig", "loadBalancerConfig"):
                for name in referenced_pools(dict_at(obj, "spec", config)):
                    users[name] = f"{kind} {key}"
    return users


def has_record(obj: Obj) -> bool:
    """Return whether an object has a record, or a part of one."""
    return any(name in annotations_of(obj) for name in _RECORD)


def find_owner(owner: Owner, owners: OwnerObjects) -> Obj | None:
    """Return the object of the management cluster with the kind and name of an owner."""
    objs = {
        resources.HARVESTER_MACHINES.kind: owners.machines,
        resources.HARVESTER_CLUSTERS.kind: owners.clusters,
    }
    return objs.get(owner.kind, {}).get(Key(owner.namespace, owner.name))


def _may_adopt(successor: Obj, owner: Owner, referenced: ReferencedVMs) -> bool:
    """Return whether a recreated owner may adopt the objects of its predecessor.

    It may on request, after `caphv restore`, and for a cluster whose machines refer to their VMs.

    :param successor: the object of the same name
    :param owner: the owner in the record
    """
    if wants_adoption(successor) or former_owner(successor, owner) == owner:
        return True
    return owner.kind == resources.HARVESTER_CLUSTERS.kind and bool(
        {_cluster_of(successor), Key(owner.namespace, owner.name)} & referenced.clusters
    )


def _vm_uids(machine: Obj) -> Iterable[str]:
    """Yield the uids by which a machine refers to its VM."""
    provider_id = str(at(machine, "spec", "providerID") or "")
    if provider_id.startswith(names.PROVIDER_ID_PREFIX):
        yield provider_id.removeprefix(names.PROVIDER_ID_PREFIX)
    if uid := annotations_of(machine).get(names.VM_UID_ANNOTATION):
        yield uid


def _cluster_of(obj: Obj) -> Key:
    """Return the Cluster of an object; without a label, the Cluster with the object's name."""
    metadata = obj["metadata"]
    return Key(metadata.get("namespace", ""), clusterapi.cluster_name(obj) or metadata["name"])
