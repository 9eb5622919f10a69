"""Who an object on Harvester belongs to.

The Go provider adopted and deleted objects by name alone, so two HarvesterMachines of one name could share a VM. Every
object of ours says in its annotations which object, of which management cluster, it was made for.
"""

from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj


@dataclass(frozen=True)
class Owner:
    """An object of the management cluster; `management_cluster` is the uid that tells management clusters apart."""

    kind: str
    namespace: str
    name: str
    uid: str
    management_cluster: str


class Ownership(Enum):
    """What the record on an object says about an owner."""

    OURS = "ours"
    UNRECORDED = "unrecorded"
    """No record: made by the Go provider or by hand."""
    FOREIGN = "foreign"


def record(owner: Owner) -> dict[str, str]:
    """Return the annotations that say an object belongs to `owner`."""
    return {
        names.OWNER_CLUSTER_ANNOTATION: owner.management_cluster,
        names.OWNER_ANNOTATION: f"{owner.kind}/{owner.namespace}/{owner.name}",
        names.OWNER_UID_ANNOTATION: owner.uid,
    }


def owned_by(obj: Obj, owner: Owner, *, provider_id: str = "") -> Ownership:
    """Judge the record on `obj`.

    `provider_id` is the owner's `spec.providerID`: where it carries the uid of `obj` it proves ownership even though
    the record names another management cluster or uid, as after a move or a restored backup.
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


def same_name(obj: Obj, owner: Owner) -> bool:
    """Whether the record on `obj` names an owner of this kind, namespace and name, of whatever uid; or there is none.

    So it is after a move of the management cluster: not yet ours, but nobody else's either.
    """
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    expected = record(owner)[names.OWNER_ANNOTATION]
    return bool(annotations.get(names.OWNER_ANNOTATION, expected) == expected)


def wants_adoption(obj: Obj) -> bool:
    """Whether annotation `caphv.io/adopt` on an object of the management cluster says that it takes over strangers."""
    return ((obj.get("metadata") or {}).get("annotations") or {}).get(names.ADOPT_ANNOTATION) == "true"
