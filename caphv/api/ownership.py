"""Owner records name the object of a management cluster to which an object on Harvester belongs.

The Go provider adopted and deleted objects by name alone, so two HarvesterMachines of one name
could share a VM. Every object that this provider creates carries annotations with its owner.
"""

from dataclasses import dataclass, replace
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of, at, dict_at, uid_of


@dataclass(frozen=True)
class Owner:
    """An object of a management cluster; `management_cluster` is the uid of its kube-system."""

    kind: str
    namespace: str
    name: str
    uid: str
    management_cluster: str


class Ownership(Enum):
    """How the record on an object relates to an owner."""

    OURS = "ours"
    UNRECORDED = "unrecorded"
    """The object has no record, because the Go provider or a user has created it."""
    FOREIGN = "foreign"


def record(owner: Owner) -> dict[str, str]:
    """Return the annotations that record `owner`."""
    return {
        names.OWNER_CLUSTER_ANNOTATION: owner.management_cluster,
        names.OWNER_ANNOTATION: f"{owner.kind}/{owner.namespace}/{owner.name}",
        names.OWNER_UID_ANNOTATION: owner.uid,
    }


def recorded_owner(obj: Obj) -> Owner | None:
    """Return the owner that the record on `obj` names, None without a complete record."""
    annotations = annotations_of(obj)
    kind, _, place = annotations.get(names.OWNER_ANNOTATION, "").partition("/")
    namespace, _, name = place.partition("/")
    cluster = annotations.get(names.OWNER_CLUSTER_ANNOTATION, "")
    uid = annotations.get(names.OWNER_UID_ANNOTATION, "")
    if not all((kind, namespace, name, uid, cluster)):
        return None
    return Owner(kind, namespace, name, uid, cluster)


def ownership_of(obj: Obj, owner: Owner) -> Ownership:
    """Compare the record on `obj` with `owner`."""
    annotations = dict_at(obj, "metadata", "annotations")
    expected = record(owner)
    recorded = {key: annotations[key] for key in expected if key in annotations}
    if not recorded:
        return Ownership.UNRECORDED
    return Ownership.OURS if recorded == expected else Ownership.FOREIGN


def names_vm(machine: Obj, vm: Obj, owner: Owner) -> bool:
    """Return whether a HarvesterMachine carries the uid of a VM.

    A move and a backup preserve the uid. It proves that the VM belongs to the machine although the
    record of the VM has other uids.

    :param owner: the owner record of the machine
    """
    uid = uid_of(vm)
    if not uid:
        return False

    # The providerID carries the uid, unless the Node had its own providerID or the VM was replaced.
    # Then an annotation carries it. Users can edit the annotation, so it proves nothing if the
    # record names another machine. For that case there is `caphv.io/adopt`.
    if at(machine, "spec", "providerID") == f"{names.PROVIDER_ID_PREFIX}{uid}":
        return True
    return annotations_of(machine).get(names.VM_UID_ANNOTATION) == uid and same_name(vm, owner)


def former_owner(ours: Obj, owner: Owner) -> Owner | None:
    """Return the owner record that an object had before `caphv restore` recreated it, or None."""
    cluster, _, uid = annotations_of(ours).get(names.FORMER_OWNER_ANNOTATION, "").partition("/")
    return replace(owner, management_cluster=cluster, uid=uid) if cluster and uid else None


def has_former_owner(obj: Obj, ours: Obj, owner: Owner) -> bool:
    """Return whether an object on Harvester carries the former record of a restored object.

    :param obj: the object on Harvester
    :param ours: the restored object of the management cluster
    :param owner: the present owner record of the restored object
    """
    former = former_owner(ours, owner)
    return former is not None and ownership_of(obj, former) is Ownership.OURS


def same_name(obj: Obj, owner: Owner) -> bool:
    """Return whether an object has no record, or a record with this kind, namespace and name."""
    # Uids are not compared, because after a move between management clusters they differ until the
    # object is adopted.
    annotations = dict_at(obj, "metadata", "annotations")
    expected = record(owner)[names.OWNER_ANNOTATION]
    return bool(annotations.get(names.OWNER_ANNOTATION, expected) == expected)


def wants_adoption(obj: Obj) -> bool:
    """Return whether annotation `caphv.io/adopt` lets an object adopt objects of other owners."""
    return at(obj, "metadata", "annotations", names.ADOPT_ANNOTATION) == "true"
