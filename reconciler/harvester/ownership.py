"""Owner records: which object of which management cluster an object on Harvester belongs to.

The Go provider adopted and deleted objects by name alone, so two HarvesterMachines of one name could share a VM. Every
object that this provider creates carries annotations with its owner.
"""

from dataclasses import dataclass, replace
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of


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


def ownership_of(obj: Obj, owner: Owner, *, provider_id: str = "") -> Ownership:
    """Compare the record on `obj` with `owner`.

    `provider_id` is the owner's `spec.providerID`: if it carries the uid of `obj`, it proves ownership although the
    record names another management cluster or uid, as after a move or a restored backup.
    """
    metadata = obj.get("metadata") or {}
    uid = metadata.get("uid")
    if uid and provider_id == f"{names.PROVIDER_ID_PREFIX}{uid}":
        return Ownership.OURS
    annotations = metadata.get("annotations") or {}
    expected = record(owner)
    found = {key: annotations[key] for key in expected if key in annotations}
    if not found:
        return Ownership.UNRECORDED
    return Ownership.OURS if found == expected else Ownership.FOREIGN


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
