"""Decide what guests that no longer exist have left on Harvester. No I/O.

Load balancers of their Services and volumes of their Pods have no owner record. While the VMs of a
guest exist and prove it, the provider marks these objects with the guest's HarvesterCluster.
Without this mark, they are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api import names, resources
from caphv.api.guestparts import (
    belongs_to_others,
    guest_name,
    may_serve,
    recorded_guest,
    why_kept,
)
from caphv.api.object import (
    PERSISTENT_VOLUME_CLAIMS,
    Key,
    Obj,
    Resource,
    annotations_of,
    key_of,
)
from caphv.api.ownership import Owner, recorded_owner
from operations.capacity.addresspools import Judgement, Verdict
from operations.leftovers.records import check_management_cluster, check_owner, has_record
from operations.read.owners import OwnerObjects

_KINDS = (PERSISTENT_VOLUME_CLAIMS, resources.LOAD_BALANCERS)


def is_of_guest(resource: Resource, obj: Obj) -> bool:
    """Return whether an object has no owner record, but the mark of a guest."""
    has_mark = names.GUEST_OF_ANNOTATION in annotations_of(obj)
    return resource in _KINDS and has_mark and not has_record(obj)


def owner_of(obj: Obj) -> Owner | None:
    """Return the owner of an object, or the HarvesterCluster of the only guest that has had it."""
    return recorded_owner(obj) or recorded_guest(obj)


def check_guest_object(resource: Resource, obj: Obj, owners: OwnerObjects) -> Judgement:
    """Return the judgement on an object by the mark of its guest. If in doubt, it is kept.

    The caller checks what uses the object.

    :param resource: LoadBalancers or PersistentVolumeClaims
    :param obj: an object with the mark of a guest
    :param owners: possible owners on the management cluster
    """
    if belongs_to_others(obj):
        why = "guests or VMs of several owners have had it: delete it by hand"
        return Judgement(Verdict.UNKNOWN, why)
    owner = recorded_guest(obj)
    if owner is None:
        why = "its proof is that of another object, of which it is a copy"
        return Judgement(Verdict.UNRECORDED, why)

    judgement = check_management_cluster(owner.management_cluster, owners)
    judgement = judgement or check_owner(owner, owners)
    if judgement is None:
        # A recreated guest of the same name may have taken over the object.
        why = "its HarvesterCluster was created again: delete it by hand"
        return Judgement(Verdict.UNKNOWN, why)
    if judgement.verdict is Verdict.LEAKED and (reason := _why_kept(resource, obj, owner)):
        return Judgement(Verdict.UNKNOWN, f"{reason}: delete it by hand")
    return judgement


def balancer_user(obj: Obj, vms: Iterable[Obj]) -> str:
    """Return a VM whose guest may use a LoadBalancer; empty if there is none.

    :param obj: a LoadBalancer with the mark of a guest
    :param vms: VMs on this Harvester, without those that are deleted before
    """
    name = guest_name(obj)
    namespace = key_of(obj).namespace
    for vm in vms:
        if key_of(vm).namespace == namespace and may_serve(vm, name):
            return f"{resources.VIRTUAL_MACHINES.kind} {key_of(vm)}"
    return ""


def describe_owner(obj: Obj) -> str:
    """Return the text of an object's owner; empty without a record."""
    owner = owner_of(obj)
    if owner is None:
        return ""
    text = f"{owner.kind} {Key(owner.namespace, owner.name)}"
    return text if recorded_owner(obj) else f"guest of {text}"


def _why_kept(resource: Resource, obj: Obj, owner: Owner) -> str:
    """Return why an object of a deleted guest must stay; empty if it may be deleted."""
    if resource is PERSISTENT_VOLUME_CLAIMS:
        return why_kept(obj, owner, ())
    return "" if guest_name(obj) else "no longer names its guest"
