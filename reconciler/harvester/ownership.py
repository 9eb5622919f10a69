"""Who an object on Harvester belongs to.

The Go provider adopted and deleted objects by name alone, so two HarvesterMachines of one name could share a VM. Every
object of ours says in its annotations which object, of which management cluster, it was made for.
"""

from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.runtime.resource import Obj


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
