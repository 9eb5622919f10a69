"""Admission rules of Harvester. Each returns a denial, or None to allow.

Like Harvester, they allow a missing SSH key and a missing image. Most denials have status 500 InternalError:
Harvester's webhooks return plain errors, and only an `AdmitError` has a status of its own (harvester:
pkg/webhook/types/admission.go, pkg/webhook/error/error.go; harvester/webhook: pkg/server/admission/admission.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.object import Obj, being_deleted, key_of
from sandbox.harvester import guestbalancers, ippools, quotas
from sandbox.harvester.informers import Informers, claim_templates, claims_of
from sandbox.harvester.mutations import LEAST_MEMORY, MutationSettings, guest_memory, needs_resources
from sandbox.harvester.releases import Release


@dataclass(frozen=True, slots=True)
class Denial:
    """A denied request: the message, and HTTP code and reason of the Status."""

    message: str
    code: int = 500
    reason: str = "InternalError"


def virtual_machine(vm: Obj, before: Obj | None, informers: Informers, settings: MutationSettings) -> Denial | None:
    """Deny a VirtualMachine with a volume of another VM, a missing network, too little memory, or over a quota.

    `before` is the VM before an update, None for a new one. Harvester checks each update, also one of annotations or
    finalizers alone (`Update` in pkg/webhook/resources/virtualmachine/validator.go), and also of a VM that is being
    deleted: only its mutator, which looks up the networks, skips that (`Update` in mutator.go; harvester#9685). So the
    finalizer of a VM that is being deleted cannot be removed over a full quota, unless the VM is Halted.
    """
    if not being_deleted(vm):
        # The mutator looks bare names up in the namespace of the VM, the validator, for new interfaces, in `default`
        # (harvester: pkg/webhook/resources/virtualmachine/mutator.go and validator.go).
        namespaces = [vm["metadata"]["namespace"]]
        if before is None or _interfaces(before) != _interfaces(vm):
            namespaces.append("default")
        denial = _little_memory(vm, before, settings) or _missing_network(vm, namespaces, informers)
        if denial:
            return denial

    return _invalid_templates(vm) or _occupied_claim(vm, informers) or _over_quota(vm, before, informers)


def claim_deletion(claim: Obj, informers: Informers) -> Denial | None:
    """Deny the deletion of a PersistentVolumeClaim that a VM uses, unless the VM is being deleted.

    Harvester 1.8 denies with 409, earlier versions with 422 (pkg/webhook/resources/persistentvolumeclaim/validator.go).
    """
    for vm in informers.vms.store.by_index("claim", str(key_of(claim))):
        if not being_deleted(vm):
            message = f"PersistentVolumeClaim {key_of(claim)} is used by VirtualMachine {key_of(vm)}"
            return Denial(message, 409, "Conflict")
    return None


def pool_deletion(pool: Obj) -> Denial | None:
    """Deny the deletion of an IPPool with allocated addresses."""
    allocated = pool.get("status", {}).get("allocated") or {}
    held = ", ".join(f"{ip} by {holder}" for ip, holder in list(allocated.items())[:3])
    return Denial(f"IPPool {pool['metadata']['name']} has allocated addresses: {held}") if allocated else None


def pool(pool: Obj, informers: Informers) -> Denial | None:
    """Deny an invalid IPPool, one of a missing network, or one that overlaps another."""
    name = pool["metadata"]["name"]
    others = (other for other in informers.pools.store if other["metadata"]["name"] != name)
    reason = _missing_pool_network(pool, informers) or ippools.validate(pool, others)
    return Denial(f"IPPool {name}: {reason}") if reason else None


def load_balancer(new: Obj, old: Obj | None, informers: Informers, release: Release) -> Denial | None:
    """Deny equal listeners, a change of the IPAM, and LoadBalancers of guests without VMs.

    All are in `pkg/webhook/loadbalancer/validator.go`.
    """
    if being_deleted(new):
        return None
    reason = _equal_listeners(new["spec"].get("listeners") or ())
    if not reason and old is not None and _by_dhcp(old) != _by_dhcp(new):
        reason = f"can't change the IPAM to {new['spec'].get('ipam')}"
    if not reason and old is None:
        vms = informers.vms.store.by_index("namespace", new["metadata"]["namespace"])
        reason = guestbalancers.denial(new, vms, release)
    return Denial(f"LoadBalancer {key_of(new)}: {reason}") if reason else None


def _equal_listeners(listeners: Iterable[Obj]) -> str:
    seen: set[tuple[str, ...]] = set()
    for listener in listeners:
        protocol, name = listener["protocol"], listener["name"]
        for field, own in (("name", ""), ("port", protocol), ("backendPort", protocol)):
            value = (field, own, str(listener[field]))
            if value in seen:
                return f"listener {name} has duplicate {field} {listener[field]}"
            seen.add(value)
    return ""


def _by_dhcp(load_balancer: Obj) -> bool:
    return load_balancer["spec"].get("ipam") == "dhcp"


def _occupied_claim(vm: Obj, informers: Informers) -> Denial | None:
    """Deny a volume that another VM has, too (`checkOccupiedPVCs` in validator.go).

    Harvester 1.7 and later allow it for ReadWriteMany volumes that are not Longhorn's; the sandbox has only Longhorn's.
    """
    for name in claims_of(vm):
        for other in informers.vms.store.by_index("claim", f"{vm['metadata']['namespace']}/{name}"):
            if key_of(other) != key_of(vm):
                return Denial(f"the volume {name} is already used by VM {key_of(other)}", 422, "Invalid")
    return None


def _missing_network(vm: Obj, namespaces: list[str], informers: Informers) -> Denial | None:
    for network in vm["spec"]["template"].get("spec", {}).get("networks") or ():
        name = (network.get("multus") or {}).get("networkName")
        if name:
            space, _, bare = name.rpartition("/")
            if any(informers.networks.get(space or namespace, bare) is None for namespace in namespaces):
                return Denial(f"spec.template.spec.networks: network {name} not found")
    return None


def _interfaces(vm: Obj) -> object:
    return vm["spec"]["template"].get("spec", {}).get("domain", {}).get("devices", {}).get("interfaces")


def _missing_pool_network(pool: Obj, informers: Informers) -> str:
    """As the mutator of IPPools looks it up (load-balancer-harvester: pkg/utils/vid.go): a bare name is invalid."""
    name = (pool["spec"].get("selector") or {}).get("network")
    if not name:
        return ""
    space, _, bare = name.partition("/")
    if not space or not bare or "/" in bare:
        return f"spec.selector.network: invalid network {name}"
    return "" if informers.networks.get(space, bare) else f"spec.selector.network: network {name} not found"


def _invalid_templates(vm: Obj) -> Denial | None:
    """Deny claims that cannot be read or have no name. Their StorageClasses are not looked up."""
    try:
        reason = "" if all(template["metadata"]["name"] for template in claim_templates(vm)) else "PVC name is required"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error)
    return Denial(f"the volumeClaimTemplates annotaion is invalid: {reason}", 422, "Invalid") if reason else None


def _little_memory(vm: Obj, before: Obj | None, settings: MutationSettings) -> Denial | None:
    memory = guest_memory(vm, settings)
    if memory is None or memory >= LEAST_MEMORY or not needs_resources(vm, before):
        return None
    return Denial(f"guest memory is under the minimum requirement (10 Mi), final: {memory}")


def _over_quota(vm: Obj, before: Obj | None, informers: Informers) -> Denial | None:
    lacking = quotas.lacks_storage(vm, before, informers) or quotas.lacks_to_start(vm, informers)
    return Denial(lacking) if lacking else None
