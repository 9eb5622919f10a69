"""What is on a Harvester without an owner, and what of it may be deleted: pure decisions.

An object is a leftover only if its record names this management cluster and an owner that no longer
exists, if that owner makes objects of this name, and if nothing else uses it. What other management
clusters or people made is listed, with what is known of it, and stays.
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
from operations.capacity.addresspools import Entry, PoolReport, Verdict
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
    NamedVMs,
    find_owner,
    has_record,
    named_vms,
    pool_users,
)
from operations.read.owners import OwnerObjects

VMS, CLAIMS, POOLS = resources.VIRTUAL_MACHINES, PERSISTENT_VOLUME_CLAIMS, resources.IP_POOLS
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
"""In the order of deletion: each after what uses it."""
ADDRESS = "address"
"""Stands for the kind of an entry in an IPPool."""
_STOPPED = "Stopped"
"""The only `printableStatus` of a VM that does no work."""


@dataclass(frozen=True, slots=True)
class OwnedObject:
    """An object on Harvester, or an address of a pool, and what is known of its owner.

    `owner` is the one that its record names, `created` the time of the object itself.
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
    """What is on one Harvester without an owner here.

    `pools` are those whose counts or marks are wrong.
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
        """What has no owner, and is still needed."""
        return tuple(obj for obj in self.objects if obj.verdict is Verdict.IN_USE)

    @property
    def wrong(self) -> bool:
        """Whether there is something to delete or to correct."""
        return bool(self.leaked or self.pools)


@dataclass(frozen=True)
class HarvesterState:
    """Objects on one Harvester by kind, and the owners on the management cluster."""

    harvester: str
    owners: OwnerObjects
    objects: Mapping[Resource, list[Obj]] = field(default_factory=dict)
    pools: tuple[PoolReport, ...] = ()
    vm_namespaces: frozenset[str] | None = None
    """Namespaces whose VMs were read, None for all."""
    include_running: bool = False
    """Whether VMs that are not stopped, or are parked, may be leftovers, too."""

    @cached_property
    def named_vms(self) -> NamedVMs:
        """VMs that HarvesterMachines name by their uids."""
        return named_vms(self.of(VMS), self.owners)

    @cached_property
    def vm_verdicts(self) -> Mapping[Key, Verdict]:
        """What is known of each VM, by namespace and name."""
        return {key_of(vm): check_vm(self, vm)[0] for vm in self.of(VMS)}

    @cached_property
    def lasting_vms(self) -> list[Obj]:
        """VMs that are no leftovers."""
        return [vm for vm in self.of(VMS) if self.vm_verdicts[key_of(vm)] is not Verdict.LEAKED]

    @cached_property
    def balancers(self) -> frozenset[Key]:
        """Namespaces and names of load balancers."""
        return frozenset(map(key_of, self.of(resources.LOAD_BALANCERS)))

    @cached_property
    def users(self) -> Mapping[tuple[Resource, Key], list[Obj]]:
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
        """The HarvesterCluster or HarvesterMachine that refers to a pool."""
        return pool_users(self.owners)

    def sees_vms(self, namespace: str) -> bool:
        """Whether VMs of a namespace were read, of all namespaces if it is empty."""
        return self.vm_namespaces is None or namespace in self.vm_namespaces

    def of(self, resource: Resource) -> list[Obj]:
        """Return the objects of a kind, as far as they were read."""
        return self.objects.get(resource, [])


def examine(state: HarvesterState) -> LeftoverReport:
    """Return what has no owner here, leftovers first and in the order of deletion."""
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
    """Return what is known of an object, other than an IPPool.

    :param state: what uses it, and what the management cluster has
    :param resource: its kind
    :param obj: the object
    """
    if resource is VMS:
        return _owned(resource, obj, *check_vm(state, obj))

    if is_of_guest(resource, obj):
        verdict, detail = check_guest_object(resource, obj, state.owners)
    else:
        verdict, detail = check_origin(resource, obj, state.owners, state.named_vms)
    user = _user(state, resource, obj)
    if verdict is Verdict.LEAKED and _needs_unseen_vms(state, resource, obj):
        verdict, detail = Verdict.UNKNOWN, "VMs that may use it or prove its owner are not seen"
    elif verdict is Verdict.LEAKED and resource is resources.VM_BACKUPS and is_retained(obj):
        verdict, detail = Verdict.IN_USE, "outlives its cluster (deletionPolicy: Retain)"
    elif verdict is Verdict.LEAKED and user:
        verdict, detail = Verdict.IN_USE, f"its owner no longer exists, but {user} uses it"
    elif verdict is Verdict.LEAKED and being_deleted(obj):
        detail = "is being deleted"
    elif user:
        detail = f"{user} uses it"
    return _owned(resource, obj, verdict, detail)


def check_vm(state: HarvesterState, vm: Obj) -> tuple[Verdict, str]:
    """Return what is known of a VM, and why: one that may be at work is no leftover.

    A management cluster that was restored to an older state, or moved, does not have the owners of
    VMs that serve their users.
    """
    verdict, detail = check_origin(VMS, vm, state.owners, state.named_vms)
    if verdict is not Verdict.LEAKED:
        return verdict, detail
    if _needs_unseen_vms(state, VMS, vm):
        return Verdict.UNKNOWN, "VMs that may use it or prove its owner are not seen"
    if being_deleted(vm):
        return verdict, "is being deleted"

    # A VM of a parked cluster has data that its users need again.
    if names.PARKED_STRATEGY_ANNOTATION in annotations_of(vm) and not state.include_running:
        return Verdict.IN_USE, f"{detail}, but it is parked: adopt it, or delete it with --running"
    status = str(at(vm, "status", "printableStatus") or "of unknown state")
    if status != _STOPPED and not state.include_running:
        remedy = "adopt it, or stop it, or delete it with --running"
        return Verdict.IN_USE, f"{detail}, but it is {status}: {remedy}"
    return verdict, f"{detail}; {status}"


def check_pool(
    state: HarvesterState, pool: Obj, leaked: Collection[str] = frozenset()
) -> OwnedObject:
    """Return what is known of an IPPool: it is no leftover while another holder has an address.

    :param state: what holds its addresses, and what the management cluster has
    :param pool: the IPPool
    :param leaked: kinds and names of leftovers, whose addresses are released with them
    """
    verdict, detail = check_origin(POOLS, pool, state.owners, state.named_vms)
    if verdict is not Verdict.LEAKED:
        return _owned(POOLS, pool, verdict, detail)

    name = key_of(pool).name
    if state.owners.namespaces is not None:
        verdict, detail = Verdict.UNKNOWN, "HarvesterClusters of all namespaces are not seen"
    elif user := state.pool_users.get(name):
        verdict, detail = Verdict.IN_USE, f"its owner no longer exists, but {user} refers to it"
    elif user := cluster_user(POOLS, pool, state.lasting_vms, state.vm_verdicts, state.owners):
        verdict, detail = Verdict.IN_USE, f"its owner no longer exists, but {user} may need it"
    else:
        entries = {report.name: report.entries for report in state.pools}.get(name)
        holders = [
            entry.owner or entry.id
            for entry in entries or ()
            if _address(entry, leaked).verdict is not Verdict.LEAKED
        ]
        if entries is None:
            verdict, detail = Verdict.UNKNOWN, "its addresses are not seen"
        elif holders:
            verdict, detail = Verdict.IN_USE, f"{name_some(holders, 1)} has an address of it"
    return _owned(POOLS, pool, verdict, detail)


def _owned(resource: Resource, obj: Obj, verdict: Verdict, detail: str) -> OwnedObject:
    key, guest = key_of(obj), recorded_guest(obj)
    recorded = annotations_of(obj).get(names.OWNER_CLUSTER_ANNOTATION, "")
    return OwnedObject(
        kind=resource.kind,
        name=key.name,
        verdict=verdict,
        namespace=key.namespace,
        owner=describe_owner(obj),
        management_cluster=recorded or (guest.management_cluster if guest else ""),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        detail=detail,
        uid=uid_of(obj),
    )


def _address(entry: Entry, leaked: Collection[str]) -> OwnedObject:
    """Return what is known of an allocated address.

    One that a leftover holds is a leftover, too.
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


def _needs_unseen_vms(state: HarvesterState, resource: Resource, obj: Obj) -> bool:
    """Whether VMs that could not be read may use an object, or prove who its owner is."""
    namespaces = target_namespaces(resource, obj)
    if all(map(state.sees_vms, ("",) if namespaces is None else namespaces)):
        return False
    owner = owner_of(obj)
    is_recreated = owner is not None and find_owner(owner, state.owners) is not None
    is_of_cluster = owner is not None and owner.kind == resources.HARVESTER_CLUSTERS.kind
    return is_recreated or is_of_cluster or resource in (CLAIMS, SECRETS)


def _user(state: HarvesterState, resource: Resource, obj: Obj) -> str:
    """Return a VM that uses an object and is no leftover itself, empty if there is none."""
    for vm in state.users.get((resource, key_of(obj)), ()):
        if state.vm_verdicts[key_of(vm)] is not Verdict.LEAKED:
            return f"{VMS.kind} {key_of(vm)}"
    return cluster_of_object(state, resource, obj, state.lasting_vms)


def cluster_of_object(
    state: HarvesterState, resource: Resource, obj: Obj, vms: Collection[Obj]
) -> str:
    """Return a VM that may belong to the cluster or guest of an object, empty if there is none.

    :param state: what is known of the VMs
    :param resource: the kind of the object
    :param obj: an object on Harvester
    :param vms: VMs that are not deleted before the object
    """
    user = cluster_user(resource, obj, vms, state.vm_verdicts, state.owners)
    if not user and resource is resources.LOAD_BALANCERS and is_of_guest(resource, obj):
        user = balancer_user(obj, vms)
    return user


def _is_listed(state: HarvesterState, resource: Resource, obj: Obj) -> bool:
    """Whether an object is of interest without a record: Harvester has many that are not.

    Of Secrets, Services and accounts, these are such as the provider makes.
    """
    if has_record(obj):
        return True
    key = key_of(obj)
    if resource is SECRETS:
        return key.name.endswith("-cloud-init")
    if resource is SERVICES:
        # Harvester makes one for each of its load balancers.
        return key not in state.balancers
    if resource is CLUSTER_ROLE_BINDINGS:
        return at(obj, "roleRef", "name") == names.CLOUD_PROVIDER_ROLE
    # Users back up VMs, too.
    return resource not in (SERVICE_ACCOUNTS, resources.VM_BACKUPS)
