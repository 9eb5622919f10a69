"""Admission rules of Harvester. Each returns the reason for a denial, or an empty string to allow.

Like Harvester, they allow a missing SSH key and a missing image.
"""

from __future__ import annotations

import json

from caphv.api.object import Obj, annotations_of, being_deleted, key_of, uid_of
from sandbox.harvester import ippools, kinds, quantities
from sandbox.harvester.informers import Informers


def virtual_machine(vm: Obj, informers: Informers) -> str:
    """Deny a VirtualMachine with a missing network or StorageClass, or over the quota of its namespace."""
    return _missing_network(vm, informers) or _missing_storage_class(vm, informers) or _over_quota(vm, informers)


def claim_deletion(claim: Obj, informers: Informers) -> str:
    """Deny the deletion of a PersistentVolumeClaim that a VM uses, unless the VM is being deleted."""
    for vm in informers.vms.store.by_index("claim", str(key_of(claim))):
        if not being_deleted(vm):
            return f"PersistentVolumeClaim {key_of(claim)} is used by VirtualMachine {key_of(vm)}"
    return ""


def pool_deletion(pool: Obj) -> str:
    """Deny the deletion of an IPPool with allocated addresses."""
    allocated = pool.get("status", {}).get("allocated") or {}
    held = ", ".join(f"{ip} by {holder}" for ip, holder in list(allocated.items())[:3])
    return f"IPPool {pool['metadata']['name']} has allocated addresses: {held}" if allocated else ""


def pool(pool: Obj) -> str:
    """Deny an invalid IPPool."""
    reason = ippools.validate(pool)
    return f"IPPool {pool['metadata']['name']}: {reason}" if reason else ""


def _missing_network(vm: Obj, informers: Informers) -> str:
    for network in vm["spec"]["template"].get("spec", {}).get("networks") or ():
        name = (network.get("multus") or {}).get("networkName")
        if name:
            space, _, bare = name.rpartition("/")
            if informers.networks.get(space or vm["metadata"]["namespace"], bare) is None:
                return f"spec.template.spec.networks: network {name} not found"
    return ""


def _missing_storage_class(vm: Obj, informers: Informers) -> str:
    try:
        templates = json.loads(annotations_of(vm).get(kinds.CLAIM_TEMPLATES) or "[]")
        classes = [template["spec"].get("storageClassName") for template in templates]
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"metadata.annotations: {kinds.CLAIM_TEMPLATES} is not a JSON list of PersistentVolumeClaims"
    missing = [name for name in classes if name and informers.storage_classes.get("", name) is None]
    return f"metadata.annotations: StorageClass {missing[0]} not found" if missing else ""


def _over_quota(vm: Obj, informers: Informers) -> str:
    namespace = vm["metadata"]["namespace"]
    others = [other for other in informers.vms.store.by_index("namespace", namespace) if uid_of(other) != uid_of(vm)]
    for quota in informers.quotas.store.by_index("namespace", namespace):
        for name in ("cpu", "memory"):
            hard = (quota["spec"].get("hard") or {}).get(f"limits.{name}")
            if hard is not None and sum(_limit(each, name) for each in (*others, vm)) > quantities.number(hard):
                return f"limits.{name} of {key_of(vm)} exceed ResourceQuota {quota['metadata']['name']} ({hard})"
    return ""


def _limit(vm: Obj, name: str) -> float:
    resources = vm["spec"]["template"]["spec"]["domain"].get("resources") or {}
    return quantities.number((resources.get("limits") or {}).get(name))
