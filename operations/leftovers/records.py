"""Whether the owner that a record on Harvester names still exists: pure decisions.

Only an object whose record names this management cluster, and an owner there that does not exist,
may be a leftover. An owner of the same name with another uid counts as existing if the provider
would let it adopt the object, as after a move or a restored backup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caphv.api import clusterapi, names, resources
from caphv.api.ippool import referenced_pools
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, uid_of
from caphv.api.ownership import Owner, former_owner, recorded_owner, wants_adoption
from operations.capacity.addresspools import Verdict
from operations.read.owners import OwnerObjects

_RECORD = (
    names.OWNER_CLUSTER_ANNOTATION,
    names.OWNER_ANNOTATION,
    names.OWNER_UID_ANNOTATION,
)


@dataclass(frozen=True, slots=True)
class NamedVMs:
    """VMs that HarvesterMachines name by uid, whatever the records on them say.

    `owners` are the owners that those records name: the provider adopts disks and Secret with the
    VM. `clusters` are the clusters of those machines, by namespace and name.
    """

    uids: frozenset[str] = frozenset()
    owners: frozenset[Owner] = frozenset()
    clusters: frozenset[Key] = frozenset()


def named_vms(vms: Iterable[Obj], owners: OwnerObjects) -> NamedVMs:
    """Return which of these VMs HarvesterMachines name."""
    machines = {
        uid: machine for machine in owners.machines.values() for uid in _named_uids(machine)
    }
    named = {uid_of(vm): vm for vm in vms if uid_of(vm) in machines}
    return NamedVMs(
        frozenset(named),
        frozenset(owner for vm in named.values() if (owner := recorded_owner(vm))),
        frozenset(_cluster_of(machines[uid]) for uid in named),
    )


def check_record(obj: Obj, owners: OwnerObjects, named: NamedVMs) -> tuple[Verdict, str]:
    """Return what the record on an object says, and why: held, leaked, or not decidable here.

    :param obj: an object on Harvester
    :param owners: what the management cluster has
    :param named: VMs on this Harvester that its machines name
    """
    owner = recorded_owner(obj)
    cluster = annotations_of(obj).get(names.OWNER_CLUSTER_ANNOTATION, "")
    if cluster and (elsewhere := check_management_cluster(cluster, owners)):
        return elsewhere
    if owner is None or "/" in owner.name:
        return Verdict.UNRECORDED, "its record is incomplete" if has_record(obj) else ""

    if uid_of(obj) in named.uids or owner in named.owners:
        return Verdict.HELD, "a HarvesterMachine names the VirtualMachine by its uid"
    return check_owner(owner, owners) or _check_successor(owner, owners, named)


def check_management_cluster(uid: str, owners: OwnerObjects) -> tuple[Verdict, str] | None:
    """Return why owners on a management cluster are not among `owners`; None if they may be."""
    if not owners.management_cluster:
        why = "the uid of this management cluster, of namespace kube-system, is not seen"
        return Verdict.UNKNOWN, why
    if uid != owners.management_cluster:
        return Verdict.FOREIGN, f"of management cluster {uid}"
    return None


def check_owner(owner: Owner, owners: OwnerObjects) -> tuple[Verdict, str] | None:
    """Return whether an owner on this management cluster exists, and why it is not known.

    None if it was created again: the caller decides whether that one takes its place.
    """
    if owner.kind not in (resources.HARVESTER_MACHINES.kind, resources.HARVESTER_CLUSTERS.kind):
        return Verdict.UNKNOWN, f"owners of kind {owner.kind} are not known to this release"
    if not owners.sees(owner.namespace):
        return Verdict.UNKNOWN, f"{owner.kind} objects of namespace {owner.namespace} are not seen"

    namesake = find_owner(owner, owners)
    if namesake is None:
        return Verdict.LEAKED, "its owner no longer exists"
    return (Verdict.HELD, "") if uid_of(namesake) == owner.uid else None


def _check_successor(owner: Owner, owners: OwnerObjects, named: NamedVMs) -> tuple[Verdict, str]:
    """Return whether an owner that was created again adopts what the former one had."""
    successor = find_owner(owner, owners)
    if successor is not None and _may_adopt(successor, owner, named):
        return Verdict.HELD, "its owner was created again, and adopts it"
    return Verdict.LEAKED, "its owner was created again, with another uid"


def pool_users(owners: OwnerObjects) -> Mapping[str, str]:
    """Return the HarvesterCluster or HarvesterMachine that refers to a pool, by its name."""
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
    """Whether an object has a record, or a part of one."""
    return any(name in annotations_of(obj) for name in _RECORD)


def find_owner(owner: Owner, owners: OwnerObjects) -> Obj | None:
    """Return the object of the management cluster that has kind and name of an owner."""
    objs = {
        resources.HARVESTER_MACHINES.kind: owners.machines,
        resources.HARVESTER_CLUSTERS.kind: owners.clusters,
    }
    return objs.get(owner.kind, {}).get(Key(owner.namespace, owner.name))


def _may_adopt(successor: Obj, owner: Owner, named: NamedVMs) -> bool:
    """Whether the provider may let an owner of the same name adopt what a record gives another.

    It may on request, after `caphv restore`, and for a cluster whose machines have their VMs.
    """
    if wants_adoption(successor) or former_owner(successor, owner) == owner:
        return True
    return owner.kind == resources.HARVESTER_CLUSTERS.kind and bool(
        {_cluster_of(successor), Key(owner.namespace, owner.name)} & named.clusters
    )


def _named_uids(machine: Obj) -> Iterable[str]:
    """Yield the uids by which a machine names its VM."""
    provider_id = str(at(machine, "spec", "providerID") or "")
    if provider_id.startswith(names.PROVIDER_ID_PREFIX):
        yield provider_id.removeprefix(names.PROVIDER_ID_PREFIX)
    if uid := annotations_of(machine).get(names.VM_UID_ANNOTATION):
        yield uid


def _cluster_of(obj: Obj) -> Key:
    """Return the Cluster of an object; without a label, what has its name."""
    metadata = obj["metadata"]
    return Key(metadata.get("namespace", ""), clusterapi.cluster_name(obj) or metadata["name"])
