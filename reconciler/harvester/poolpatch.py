"""Merge patches of an IPPool. Each has the version of the pool as a precondition."""

import contextlib

from caphv.api import names
from caphv.api.ippool import InvalidPoolError, free_count, mark_name, pool_capacity
from caphv.api.object import Obj


def entries_patch(
    pool: Obj, *, allocated: Obj, history: Obj, change: int, last: str, marks: Obj
) -> Obj:
    """Return the merge patch of a pool for the entries of one plan.

    :param allocated: holders by address, None for an address that is released
    :param history: former holders by address, None for an entry that is removed from the history
    :param change: number by which the count of free addresses changes
    :param last: the address that was allocated last
    :param marks: management clusters by address, None to remove a mark
    """
    status = pool.get("status") or {}
    changed: Obj = {"allocated": allocated, "lastAllocated": last}

    # The CRD requires the counts as soon as there is a status, and a pool lacks them until
    # Harvester has counted. The counts of an invalid pool stay as they are, so that its addresses
    # can be released.
    available, total = status.get("available"), status.get("total")
    with contextlib.suppress(InvalidPoolError):
        free = available if isinstance(available, int) else free_count(pool)
        changed["available"] = free + change
        changed["total"] = total if isinstance(total, int) else pool_capacity(pool)
    if history:
        changed["allocatedHistory"] = history

    metadata: Obj = {"resourceVersion": pool["metadata"]["resourceVersion"]}
    if marks:
        metadata["annotations"] = {
            mark_name(address): cluster for address, cluster in marks.items()
        }
    return {"metadata": metadata, "status": changed}


def mark_patch(pool: Obj, address: str, cluster: str) -> Obj:
    """Return the patch that marks an entry with another management cluster."""
    version = pool["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": {mark_name(address): cluster}}}


def superseding_patch(version: str) -> Obj:
    """Return a patch that only changes the version of a pool.

    After this patch, no other patch that requires the same version takes effect.
    """
    return {
        "metadata": {
            "resourceVersion": version,
            "annotations": {names.SUPERSEDED_ANNOTATION: version},
        }
    }
