"""Decide which objects on a Harvester have no owner, and which of them may be deleted. No I/O.

An object is a leftover only if its record names this management cluster and an owner that no longer
exists, if the provider would give this name to an object of that owner, and if nothing else uses
it. Objects of other management clusters or of people are listed with their records, and stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from caphv.api import names, resources
from caphv.api.counting import name_some
from caphv.api.guestparts import recorded_guest
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    at,
    being_deleted,
    key_of,
    uid_of,
)
from caphv.api.virtualmachine import claims_of, secrets_of
from caphv.api.vmbackup import is_retained
from operations.capacity.addresspools import Entry, Judgement, PoolReport, Verdict
from operations.leftovers.clusterusers import cluster_user, target_namespaces
from operations.leftovers.guests import (
    balancer_user,
    check_guest_object,
    describe_owner,
    is_of_guest,
    owner_of,
)
from operations.leftovers.naming import check_origin
from operations.leftovers.records import (
    ReferencedVMs,
    find_owner,
    has_record,
    pool_users,
    referenced_vms,
)
from operations.read.owners import OwnerObjects

VMS = resources.VIRTUAL_MACHINES
CLAIMS = PERSISTENT_VOLUME_CLAIMS
POOLS = resources.IP_POOLS
KINDS = (
    VMS,
    CLAIMS,
    SECRETS,
    resources.LOAD_BALANCERS,
    SERVICES,
    resources.VM_BACKUPS,
    CLUSTER_ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    POOLS,
)
"""Kinds in the order of deletion, each after the kinds that use it."""
ADDRESS = "address"
"""Used as the kind of an entry in an IPPool."""
_STOPPED = "Stopped"
"""The `printableStatus` of a VM that does not run. VMs with other values may be in use."""
_UNREAD_VMS = "VMs that may use it or prove its owner are not seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """An object on Harvester, or an address of a pool, with the verdict on it.

    :param pool: the IPPool of an address; empty for other kinds
    :param owner: the owner that the record names
    :param management_cluster: the uid of the management cluster that the record names
    :param created: when the object was created
    :param detail: the reason for the verdict
    """

    kind: str
    name: str
    verdict: Verdict
    namespace: str = ""
    pool: str = ""
    owner: str = ""
    management_cluster: str = ""
    created: str = ""
    detail: str = ""
    uid: str = ""

    @property
    def subject(self) -> str:
        """Return kind, namespace and name."""
        if self.pool:
            return f"{self.kind} {self.name} of IPPool {self.pool}"
        return f"{self.kind} {Key(self.namespace, self.name)}"


@dataclass(frozen=True, slots=True)
class LeftoverReport:
    """Objects on one Harvester that have no owner on this management cluster.

    :param objects: these objects, leftovers first
    :param pools: IPPools whose counts or marks are wrong
    """

    harvester: str
    objects: tuple[OwnedObject, ...] = ()
    pools: tuple[PoolReport, ...] = ()

    @property
    def leaked(self) -> tuple[OwnedObject, ...]:
        """Leftovers of this management cluster, in the order in which they can be deleted."""
        return tuple(obj for obj in self.objects if obj.verdict is Verdict.LEAKED)

    @property
    def in_use(self) -> tuple[OwnedObject, ...]:
        """Objects that have no owner but are still needed."""
        return tuple(obj for obj in self.objects if obj.verdict is Verdict.IN_USE)

    @property
    def wrong(self) -> bool:
        """Whether there is something to delete or to correct."""
        return bool(self.leaked or self.pools)


@dataclass(frozen=True)
class HarvesterState:
    """Objects on one Harvester by kind, and the owners on the management cluster.

    :param vm_namespaces: namespaces whose VMs were read; None for all
    :param include_running: VMs that are not stopped, or are parked, may also be leftovers
    """

    harvester: str
    owners: OwnerObjects
    objects: Mapping[Resource, list[Obj]] = field(default_factory=dict)
    pools: tuple[PoolReport, ...] = ()
    vm_namespaces: frozenset[str] | None = None
    include_running: bool = False

    @cached_property
    def referenced_vms(self) -> ReferencedVMs:
        """VMs whose uid a HarvesterMachine refers to."""
        return referenced_vms(self.of(VMS), self.owners)

    @cached_property
    def vm_verdicts(self) -> Mapping[Key, Verdict]:
        """The verdict on each VM, by namespace and name."""
        return {key_of(vm): check_vm(self, vm).verdict for vm in self.of(VMS)}

    @cached_property
    def remaining_vms(self) -> list[Obj]:
        """VMs that are not leftovers."""
        return [vm for vm in self.of(VMS) if self.vm_verdicts[key_of(vm)] is not Verdict.LEAKED]

    @cached_property
    def balancers(self) -> frozenset[Key]:
        """Namespaces and names of load balancers."""
        return frozenset(map(key_of, self.of(resources.LOAD_BALANCERS)))

    @cached_property
    def vms_by_used_object(self) -> Mapping[tuple[Resource, Key], list[Obj]]:
        """VMs that use a PersistentVolumeClaim or a Secret."""
        users: dict[tuple[Resource, Key], list[Obj]] = defaultdict(list)
        for vm in self.of(VMS):
            namespace = key_of(vm).namespace
            for name in claims_of(vm):
                users[CLAIMS, Key(namespace, name)].append(vm)
            for name in secrets_of(vm):
                users[SECRETS, Key(namespace, name)].append(vm)
        return users

    @cached_property
    def pool_users(self) -> Mapping[str, str]:
        """For each IPPool, a HarvesterCluster or HarvesterMachine that refers to it."""
        return pool_users(self.owners)

    def has_read_vms(self, namespace: str) -> bool:
        """Return whether VMs of a namespace were read; of all namespaces if it is empty."""
        return self.vm_namespaces is None or namespace in self.vm_namespaces

    def of(self, resource: Resource) -> list[Obj]:
        """Return the objects of a kind that were read."""
        return self.objects.get(resource, [])


def examine(state: HarvesterState) -> LeftoverReport:
    """Return the objects without an owner here, leftovers first and in the order of deletion."""
    objects = [
        check_object(state, resource, obj)
        for resource in KINDS
        if resource is not POOLS
        for obj in sorted(state.of(resource), key=key_of)
        if _is_listed(state, resource, obj)
    ]
    leaked = {obj.subject for obj in objects if obj.verdict is Verdict.LEAKED}
    for report in state.pools:
        objects += (_address(entry, leaked) for entry in report.entries)
    objects += (check_pool(state, pool, leaked) for pool in sorted(state.of(POOLS), key=key_of))

    without_owner = [obj for obj in objects if obj.verdict is not Verdict.HELD]
    order = (Verdict.LEAKED, Verdict.IN_USE, Verdict.UNKNOWN, Verdict.FOREIGN, Verdict.UNRECORDED)
    without_owner.sort(key=lambda obj: order.index(obj.verdict))  # stable: kinds stay in order
    pools = tuple(
        report
        for report in state.pools
        if report.error or report.stray_marks or report.available != report.expected
    )
    return LeftoverReport(state.harvester, tuple(without_owner), pools)


def check_object(state: HarvesterState, resource: Resource, obj: Obj) -> OwnedObject:
    """Return an object other than an IPPool with the verdict on it.

    :param state: the Harvester of the object, and the owners on the management cluster
    :param resource: the kind of the object
    """
    if resource is VMS:
        return _owned(resource, obj, check_vm(state, obj))
    return _owned(resource, obj, _check_other_object(state, resource, obj))


def _check_other_object(state: HarvesterState, resource: Resource, obj: Obj) -> Judgement:
    """Return the judgement on an object that is neither a VM nor an IPPool."""
    if is_of_guest(resource, obj):
        origin = check_guest_object(resource, obj, state.owners)
    else:
        origin = check_origin(resource, obj, state.owners, state.referenced_vms)

    user = _user(state, resource, obj)
    if origin.verdict is not Verdict.LEAKED:
        return Judgement(origin.verdict, f"{user} uses it" if user else origin.detail)
    if _depends_on_unread_vms(state, resource, obj):
        return Judgement(Verdict.UNKNOWN, _UNREAD_VMS)
    if resource is resources.VM_BACKUPS and is_retained(obj):
        return Judgement(Verdict.IN_USE, "outlives its cluster (deletionPolicy: Retain)")
    if user:
        return Judgement(Verdict.IN_USE, f"its owner no longer exists, but {user} uses it")
    if being_deleted(obj):
        return Judgement(Verdict.LEAKED, "is being deleted")
    return origin


def check_vm(state: HarvesterState, vm: Obj) -> Judgement:
    """Return the judgement on a VM. A VM that may be in use is not a leftover.

    A management cluster that was moved, or restored to an older state, may lack the owners of VMs
    that serve their users.
    """
    origin = check_origin(VMS, vm, state.owners, state.referenced_vms)
    if origin.verdict is not Verdict.LEAKED:
        return origin
    if _depends_on_unread_vms(state, VMS, vm):
        return Judgement(Verdict.UNKNOWN, _UNREAD_VMS)
    if being_deleted(vm):
        return Judgement(Verdict.LEAKED, "is being deleted")

    # A VM of a parked cluster has data that its users need again.
    if names.PARKED_STRATEGY_ANNOTATION in annotations_of(vm) and not state.include_running:
        remedy = "adopt it, or delete it with --running"
        return Judgement(Verdict.IN_USE, f"{origin.detail}, but it is parked: {remedy}")
    status = str(at(vm, "status", "printableStatus") or "of unknown state")
    if status != _STOPPED and not state.include_running:
        remedy = "adopt it, or stop it, or delete it with --running"
        return Judgement(Verdict.IN_USE, f"{origin.detail}, but it is {status}: {remedy}")
    return Judgement(Verdict.LEAKED, f"{origin.detail}; {status}")


def check_pool(
    state: HarvesterState, pool: Obj, leaked: Collection[str] = frozenset()
) -> OwnedObject:
    """Return an IPPool with the verdict on it. A pool with addresses in use is not a leftover.

    :param state: the Harvester of the pool, and the owners on the management cluster
    :param leaked: kinds and names of leftovers, whose addresses are released with them
    """
    judgement = check_origin(POOLS, pool, state.owners, state.referenced_vms)
    if judgement.verdict is Verdict.LEAKED:
        judgement = _check_use_of_pool(state, pool, leaked) or judgement
    return _owned(POOLS, pool, judgement)


def _check_use_of_pool(
    state: HarvesterState, pool: Obj, leaked: Collection[str]
) -> Judgement | None:
    """Return why a pool without an owner is not a leftover; None if it is one."""
    if state.owners.namespaces is not None:
        return Judgement(Verdict.UNKNOWN, "HarvesterClusters of all namespaces are not seen")
    if user := state.pool_users.get(key_of(pool).name):
        return Judgement(Verdict.IN_USE, f"its owner no longer exists, but {user} refers to it")
    if user := cluster_user(POOLS, pool, state.remaining_vms, state.vm_verdicts, state.owners):
        return Judgement(Verdict.IN_USE, f"its owner no longer exists, but {user} may need it")

    report = next((report for report in state.pools if report.name == key_of(pool).name), None)
    if report is None:
        return Judgement(Verdict.UNKNOWN, "its addresses are not seen")
    holders = [
        entry.owner or entry.id
        for entry in report.entries
        if _address(entry, leaked).verdict is not Verdict.LEAKED
    ]
    if holders:
        return Judgement(Verdict.IN_USE, f"{name_some(holders, 1)} uses one of its addresses")
    return None


def _owned(resource: Resource, obj: Obj, judgement: Judgement) -> OwnedObject:
    """Return an object with the verdict on it, and with what its record says."""
    key = key_of(obj)
    guest = recorded_guest(obj)
    recorded = annotations_of(obj).get(names.OWNER_CLUSTER_ANNOTATION, "")
    return OwnedObject(
        kind=resource.kind,
        name=key.name,
        verdict=judgement.verdict,
        namespace=key.namespace,
        owner=describe_owner(obj),
        management_cluster=recorded or (guest.management_cluster if guest else ""),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        detail=judgement.detail,
        uid=uid_of(obj),
    )


def _address(entry: Entry, leaked: Collection[str]) -> OwnedObject:
    """Return an allocated address with the verdict on it.

    An address that a leftover holds is also a leftover.
    """
    address = OwnedObject(
        kind=ADDRESS,
        name=entry.address,
        verdict=entry.verdict,
        pool=entry.pool,
        owner=entry.id,
        detail=f"{entry.owner} uses it" if entry.owner else entry.detail,
    )
    # An instance has the name of its VM.
    holder = entry.owner.replace("VirtualMachineInstance", VMS.kind)
    if entry.verdict in (Verdict.HELD, Verdict.IN_USE) and holder in leaked:
        return replace(address, verdict=Verdict.LEAKED, detail=f"is released after {holder}")
    return address


def _depends_on_unread_vms(state: HarvesterState, resource: Resource, obj: Obj) -> bool:
    """Return whether VMs that could not be read may use an object, or prove its owner."""
    namespaces = target_namespaces(resource, obj)
    if all(map(state.has_read_vms, ("",) if namespaces is None else namespaces)):
        return False
    owner = owner_of(obj)
    is_recreated = owner is not None and find_owner(owner, state.owners) is not None
    is_of_cluster = owner is not None and owner.kind == resources.HARVESTER_CLUSTERS.kind
    return is_recreated or is_of_cluster or resource in (CLAIMS, SECRETS)


def _user(state: HarvesterState, resource: Resource, obj: Obj) -> str:
    """Return a VM that uses an object and is not a leftover itself; empty if there is none."""
    for vm in state.vms_by_used_object.get((resource, key_of(obj)), ()):
        if state.vm_verdicts[key_of(vm)] is not Verdict.LEAKED:
            return f"{VMS.kind} {key_of(vm)}"
    return cluster_of_object(state, resource, obj, state.remaining_vms)


def cluster_of_object(
    state: HarvesterState, resource: Resource, obj: Obj, vms: Collection[Obj]
) -> str:
    """Return a VM that may belong to the cluster or guest of an object; empty if there is none.

    :param state: the Harvester, with the verdicts on its VMs
    :param resource: the kind of the object
    :param obj: an object on Harvester
    :param vms: VMs that are not deleted before the object
    """
    user = cluster_user(resource, obj, vms, state.vm_verdicts, state.owners)
    if not user and resource is resources.LOAD_BALANCERS and is_of_guest(resource, obj):
        user = balancer_user(obj, vms)
    return user


def _is_listed(state: HarvesterState, resource: Resource, obj: Obj) -> bool:
    """Return whether an object has a record, or may have been created by the provider.

    Harvester has many other Secrets, Services and accounts.
    """
    if has_record(obj):
        return True
    key = key_of(obj)
    if resource is SECRETS:
        return key.name.endswith("-cloud-init")
    if resource is SERVICES:
        # Harvester creates one for each of its load balancers.
        return key not in state.balancers
    if resource is CLUSTER_ROLE_BINDINGS:
        return at(obj, "roleRef", "name") == names.CLOUD_PROVIDER_ROLE
    # Users back up VMs, too.
    return resource not in (SERVICE_ACCOUNTS, resources.VM_BACKUPS)
