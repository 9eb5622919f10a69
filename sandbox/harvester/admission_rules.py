"""What Harvester refuses at admission, as texts; an empty text accepts.

Not refused, because Harvester does not: a missing SSH key, a missing image.
"""

from __future__ import annotations

import json

from caphv.api.object import Obj, annotations_of, being_deleted, key_of, uid_of
from sandbox.harvester import ippools, kinds, quantities
from sandbox.harvester.informers import Stores


def virtual_machine(vm: Obj, stores: Stores) -> str:
    """Why a VirtualMachine is refused: a missing network or StorageClass, or a quota of its namespace."""
    return _missing_network(vm, stores) or _missing_storage_class(vm, stores) or _over_quota(vm, stores)


def claim_deletion(claim: Obj, stores: Stores) -> str:
    """Why the deletion of a PersistentVolumeClaim is refused: a VM uses it that is not being deleted."""
    for vm in stores.vms.store.by_index("claim", str(key_of(claim))):
        if not being_deleted(vm):
            return f"PersistentVolumeClaim {key_of(claim)} is used by VirtualMachine {key_of(vm)}"
    return ""


def pool_deletion(pool: Obj) -> str:
    """Why the deletion of an IPPool is refused: addresses of it are allocated."""
    allocated = pool.get("status", {}).get("allocated") or {}
    held = ", ".join(f"{ip} by {holder}" for ip, holder in list(allocated.items())[:3])
    return f"IPPool {pool['metadata']['name']} has allocated addresses: {held}" if allocated else ""


def pool(pool: Obj) -> str:
    """Why a new or changed IPPool is refused."""
    reason = ippools.refusal(pool)
    return f"IPPool {pool['metadata']['name']}: {reason}" if reason else ""


def _missing_network(vm: Obj, stores: Stores) -> str:
    for network in vm["spec"]["template"].get("spec", {}).get("networks") or ():
        name = (network.get("multus") or {}).get("networkName")
        if name:
            space, _, bare = name.rpartition("/")
            if stores.networks.get(space or vm["metadata"]["namespace"], bare) is None:
                return f"spec.template.spec.networks: network {name} not found"
    return ""


def _missing_storage_class(vm: Obj, stores: Stores) -> str:
    try:
        templates = json.loads(annotations_of(vm).get(kinds.CLAIM_TEMPLATES) or "[]")
        classes = [template["spec"].get("storageClassName") for template in templates]
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"metadata.annotations: {kinds.CLAIM_TEMPLATES} is not a JSON list of PersistentVolumeClaims"
    missing = [name for name in classes if name and stores.storage_classes.get("", name) is None]
    return f"metadata.annotations: StorageClass {missing[0]} not found" if missing else ""


def _over_quota(vm: Obj, stores: Stores) -> str:
    namespace = vm["metadata"]["namespace"]
    others = [other for other in stores.vms.store.by_index("namespace", namespace) if uid_of(other) != uid_of(vm)]
    for quota in stores.quotas.store.by_index("namespace", namespace):
        for name in ("cpu", "memory"):
            hard = (quota["spec"].get("hard") or {}).get(f"limits.{name}")
            if hard is not None and sum(_limit(each, name) for each in (*others, vm)) > quantities.number(hard):
                return f"limits.{name} of {key_of(vm)} exceed ResourceQuota {quota['metadata']['name']} ({hard})"
    return ""


def _limit(vm: Obj, name: str) -> float:
    resources = vm["spec"]["template"]["spec"]["domain"].get("resources") or {}
    return quantities.number((resources.get("limits") or {}).get(name))
