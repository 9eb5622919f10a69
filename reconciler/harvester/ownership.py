"""Owner records: which object of which management cluster an object on Harvester belongs to.

The Go provider adopted and deleted objects by name alone, so two HarvesterMachines of one name could share a VM. Every
object that this provider creates carries annotations with its owner.
"""

from dataclasses import dataclass, replace
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of, uid_of


@dataclass(frozen=True)
class Owner:
    """An object of the management cluster; `management_cluster` is the uid of kube-system there."""

    kind: str
    namespace: str
    name: str
    uid: str
    management_cluster: str


class Ownership(Enum):
    """How the record on an object relates to an owner."""

    OURS = "ours"
    UNRECORDED = "unrecorded"
    """No record: created by the Go provider or by hand."""
    FOREIGN = "foreign"


def record(owner: Owner) -> dict[str, str]:
    """Return the annotations that record `owner`."""
    return {
        names.OWNER_CLUSTER_ANNOTATION: owner.management_cluster,
        names.OWNER_ANNOTATION: f"{owner.kind}/{owner.namespace}/{owner.name}",
        names.OWNER_UID_ANNOTATION: owner.uid,
    }


def recorded_owner(obj: Obj) -> Owner | None:
    """Return the owner that the record on `obj` names; None without a complete one."""
    annotations = annotations_of(obj)
    kind, _, place = annotations.get(names.OWNER_ANNOTATION, "").partition("/")
    namespace, _, name = place.partition("/")
    cluster, uid = annotations.get(names.OWNER_CLUSTER_ANNOTATION, ""), annotations.get(names.OWNER_UID_ANNOTATION, "")
    return Owner(kind, namespace, name, uid, cluster) if all((kind, namespace, name, uid, cluster)) else None


def ownership_of(obj: Obj, owner: Owner) -> Ownership:
    """Compare the record on `obj` with `owner`."""
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    expected = record(owner)
    found = {key: annotations[key] for key in expected if key in annotations}
    if not found:
        return Ownership.UNRECORDED
    return Ownership.OURS if found == expected else Ownership.FOREIGN


def names_vm(machine: Obj, vm: Obj, owner: Owner) -> bool:
    """Whether a HarvesterMachine, `owner`, carries the uid of a VM, which a move and a backup preserve.

    It proves that the VM is the machine's although its record has other uids. A providerID carries it, unless it is the
    Node's own or that of a VM that was replaced; then an annotation does. The annotation can be edited, so it proves
    nothing if the record names another machine: for that, there is `caphv.io/adopt`.
    """
    uid = uid_of(vm)
    if not uid:
        return False
    if (machine.get("spec") or {}).get("providerID") == f"{names.PROVIDER_ID_PREFIX}{uid}":
        return True
    return annotations_of(machine).get(names.VM_UID_ANNOTATION) == uid and same_name(vm, owner)


def former_owner(own: Obj, owner: Owner) -> Owner | None:
    """Who `own`, an object of the management cluster, was before `caphv restore` created it again; None for others."""
    cluster, _, uid = annotations_of(own).get(names.FORMER_OWNER_ANNOTATION, "").partition("/")
    return replace(owner, management_cluster=cluster, uid=uid) if cluster and uid else None


def formerly_owned(obj: Obj, own: Obj, owner: Owner) -> bool:
    """Whether the record on `obj` is that of `own` before it was restored, with its former uid."""
    former = former_owner(own, owner)
    return former is not None and ownership_of(obj, former) is Ownership.OURS


def same_name(obj: Obj, owner: Owner) -> bool:
    """Whether `obj` has no record, or one with this kind, namespace and name; uids may differ.

    After a move between management clusters, uids differ until the object is adopted.
    """
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    expected = record(owner)[names.OWNER_ANNOTATION]
    return bool(annotations.get(names.OWNER_ANNOTATION, expected) == expected)


def wants_adoption(obj: Obj) -> bool:
    """Whether annotation `caphv.io/adopt` of an object allows it to adopt objects of other owners."""
    return ((obj.get("metadata") or {}).get("annotations") or {}).get(names.ADOPT_ANNOTATION) == "true"
