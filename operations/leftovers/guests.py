"""What guests that no longer exist left on Harvester: pure decisions.

Load balancers of their Services and volumes of their Pods have no owner record. The provider has
written on them which HarvesterCluster's guest had them, while its VMs proved it. Without this
proof, they are not touched.
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
from operations.capacity.addresspools import Verdict
from operations.leftovers.records import check_management_cluster, check_owner, has_record
from operations.read.owners import OwnerObjects

_KINDS = (PERSISTENT_VOLUME_CLAIMS, resources.LOAD_BALANCERS)


def is_of_guest(resource: Resource, obj: Obj) -> bool:
    """Whether an object has no owner record, and a mark of the guest that had it."""
    has_mark = names.GUEST_OF_ANNOTATION in annotations_of(obj)
    return resource in _KINDS and has_mark and not has_record(obj)


def owner_of(obj: Obj) -> Owner | None:
    """Return the owner of an object, or the HarvesterCluster whose guest alone has had it."""
    return recorded_owner(obj) or recorded_guest(obj)


def check_guest_object(resource: Resource, obj: Obj, owners: OwnerObjects) -> tuple[Verdict, str]:
    """Return what the proof on an object says, and why: in doubt, it is kept.

    What uses it is not decided here.

    :param resource: LoadBalancers or PersistentVolumeClaims
    :param obj: an object with the mark of a guest
    :param owners: what the management cluster has
    """
    if belongs_to_others(obj):
        return Verdict.UNKNOWN, "guests or VMs of several owners have had it: delete it by hand"
    owner = recorded_guest(obj)
    if owner is None:
        return Verdict.UNRECORDED, "its proof is that of another object, of which it is a copy"

    # A guest may have the name of the former one, and then has taken over its objects.
    recreated = (Verdict.UNKNOWN, "its HarvesterCluster was created again: delete it by hand")
    verdict, detail = (
        check_management_cluster(owner.management_cluster, owners)
        or check_owner(owner, owners)
        or recreated
    )
    if verdict is Verdict.LEAKED and (reason := _why_kept(resource, obj, owner)):
        return Verdict.UNKNOWN, f"{reason}: delete it by hand"
    return verdict, detail


def balancer_user(obj: Obj, vms: Iterable[Obj]) -> str:
    """Return a VM whose guest may have a LoadBalancer; empty if there is none.

    :param obj: a LoadBalancer with the mark of a guest
    :param vms: VMs on this Harvester, without those that are deleted before
    """
    name, namespace = guest_name(obj), key_of(obj).namespace
    for vm in vms:
        if key_of(vm).namespace == namespace and may_serve(vm, name):
            return f"{resources.VIRTUAL_MACHINES.kind} {key_of(vm)}"
    return ""


def describe_owner(obj: Obj) -> str:
    """Return the owner of an object for a list; empty without a record."""
    owner = owner_of(obj)
    if owner is None:
        return ""
    text = f"{owner.kind} {Key(owner.namespace, owner.name)}"
    return text if recorded_owner(obj) else f"guest of {text}"


def _why_kept(resource: Resource, obj: Obj, owner: Owner) -> str:
    """Return why an object of a lost guest is not deleted; empty if it may be."""
    if resource is PERSISTENT_VOLUME_CLAIMS:
        return why_kept(obj, owner, ())
    return "" if guest_name(obj) else "does not name its guest any more"
