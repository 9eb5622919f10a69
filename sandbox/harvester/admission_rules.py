"""Admission rules of Harvester. Each returns a denial, or None to allow.

Like Harvester, they allow a missing SSH key and a missing image. Most denials have status 500
InternalError: Harvester's webhooks return plain errors, and only an `AdmitError` has a status of
its own (harvester: pkg/webhook/types/admission.go, pkg/webhook/error/error.go; harvester/webhook:
pkg/server/admission/admission.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.object import Obj, at, being_deleted, dict_at, key_of, list_at, uid_of
from sandbox.harvester import guestbalancers, ippools, quotas
from sandbox.harvester.informers import Informers, claim_templates, claims_of
from sandbox.harvester.mutations import (
    MIN_MEMORY,
    MutationSettings,
    guest_memory,
    interfaces_of,
    needs_resources,
)
from sandbox.harvester.releases import Release
from sandbox.harvester.runstrategy import run_strategy_of

# NVIDIA names the types of vGPUs after the card, the GiB of memory, and a letter for their use, for
# example NVIDIA_A10-4Q.
_VGPU = re.compile(r"-[0-9]+[A-Z]$")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Denial:
    """A denied request: the message, and HTTP code and reason of the Status."""

    message: str
    code: int = 500
    reason: str = "InternalError"


def check_virtual_machine(
    vm: Obj, before: Obj | None, informers: Informers, settings: MutationSettings
) -> Denial | None:
    """Deny a VirtualMachine that cannot run with its present spec.

    Such a VM has a volume of another VM, a missing network or too little memory, or exceeds a
    quota. Harvester checks each update, also an update that changes only annotations or finalizers
    (`Update` in pkg/webhook/resources/virtualmachine/validator.go).

    :param before: the VM before an update, None for a new one
    """
    # For a VM that is being deleted, Harvester skips only the mutator, which looks up the networks
    # (`Update` in mutator.go; harvester#9685). So nothing can remove the finalizer of the VM while
    # the quota is full, unless the VM is Halted.
    if not being_deleted(vm):
        # The mutator looks up bare names in the namespace of the VM. For new interfaces, the
        # validator looks them up in `default` (mutator.go and validator.go of
        # pkg/webhook/resources/virtualmachine in harvester).
        namespaces = [vm["metadata"]["namespace"]]
        if before is None or _interfaces(before) != _interfaces(vm):
            namespaces.append("default")
        denial = _check_memory(vm, before, settings) or _check_networks(vm, namespaces, informers)
        if denial:
            return denial

    denial = (
        _check_templates(vm)
        or _check_claims(vm, informers)
        or _check_devices(vm, informers, settings.release)
    )
    if denial:
        return denial
    shortage = quotas.storage_shortage(vm, before, informers) or quotas.start_shortage(
        vm, informers
    )
    if shortage:
        return Denial(shortage)
    return check_stop(vm, before, informers) if before is not None else None


def check_stop(vm: Obj, before: Obj, informers: Informers) -> Denial | None:
    """Deny to stop or restart a VM of which a backup is not ready or has failed.

    Harvester also checks updates of the status, where KubeVirt requests a restart
    (`checkVMStoppingStatus` and `checkVMBackup` in validator.go).
    """
    strategies = (run_strategy_of(before), run_strategy_of(vm))
    requests = list_at(vm, "status", "stateChangeRequests")
    is_stopped = strategies == ("Always", "Halted")
    if not is_stopped and not (requests and requests[0].get("action") == "Stop"):
        return None

    for backup in informers.vm_backups.store:
        status = dict_at(backup, "status")
        is_complete = status.get("readyToUse") and not status.get("error")
        if status.get("sourceUID") == uid_of(vm) and not is_complete:
            message = (
                f"there is vmbackup in progress for vm {key_of(vm)}, please wait for the vmbackup "
                "or remove it before stop/restart the vm"
            )
            return Denial(message, 400, "BadRequest")
    return None


def check_claim_deletion(claim: Obj, informers: Informers) -> Denial | None:
    """Deny the deletion of a PersistentVolumeClaim that a VM uses, unless the VM is being deleted.

    Harvester 1.8 denies with 409, earlier versions with 422
    (pkg/webhook/resources/persistentvolumeclaim/validator.go).
    """
    for vm in informers.vms.store.by_index("claim", str(key_of(claim))):
        if not being_deleted(vm):
            message = (
                f"PersistentVolumeClaim {key_of(claim)} is used by VirtualMachine {key_of(vm)}"
            )
            return Denial(message, 409, "Conflict")
    return None


def check_image(image: Obj, informers: Informers) -> Denial | None:
    """Deny a new image with the display name of another one in its namespace.

    Also deny a display name that no label can hold (harvester v1.9.0-rc6: `CheckDisplayName` in
    pkg/image/common/validator.go). Earlier releases accept such a name, and never import the image.
    """
    name = str(image["spec"]["displayName"])
    if not _LABEL_VALUE.fullmatch(name):
        message = f"displayName is not a valid Kubernetes label value: {name}"
        return Denial(message, 422, "Invalid")
    namespace = image["metadata"]["namespace"]
    for other in informers.images.store:
        if other["metadata"]["namespace"] == namespace and other["spec"]["displayName"] == name:
            return Denial("A resource with the same name exists", 409, "Conflict")
    return None


def check_pool_deletion(pool: Obj) -> Denial | None:
    """Deny the deletion of an IPPool with allocated addresses."""
    allocated = dict_at(pool, "status", "allocated")
    if not allocated:
        return None

    # Three examples are enough to recognize the holders.
    examples = ", ".join(f"{ip} by {holder}" for ip, holder in list(allocated.items())[:3])
    return Denial(f"IPPool {pool['metadata']['name']} has allocated addresses: {examples}")


def check_pool(pool: Obj, informers: Informers) -> Denial | None:
    """Deny an IPPool that is invalid, has a missing network, or overlaps another IPPool."""
    name = pool["metadata"]["name"]
    others = (other for other in informers.pools.store if other["metadata"]["name"] != name)
    reason = _check_pool_network(pool, informers) or ippools.validate(pool, others)
    return Denial(f"IPPool {name}: {reason}") if reason else None


def check_load_balancer(
    new: Obj, old: Obj | None, informers: Informers, release: Release
) -> Denial | None:
    """Deny equal listeners, a change of the IPAM, and LoadBalancers of guests without VMs.

    Modelled after `pkg/webhook/loadbalancer/validator.go`.
    """
    if being_deleted(new):
        return None

    reason = _find_equal_listeners(new["spec"].get("listeners") or ())
    if not reason and old is not None and _uses_dhcp(old) != _uses_dhcp(new):
        reason = f"can't change the IPAM to {new['spec'].get('ipam')}"
    if not reason and old is None:
        vms = informers.vms.store.by_index("namespace", new["metadata"]["namespace"])
        reason = guestbalancers.denial_reason(new, vms, release)
    return Denial(f"LoadBalancer {key_of(new)}: {reason}") if reason else None


def _find_equal_listeners(listeners: Iterable[Obj]) -> str:
    seen: set[tuple[str, ...]] = set()
    for listener in listeners:
        protocol = listener["protocol"]
        # Each protocol may use a port once. A name may be used only once.
        for field, scope in (("name", ""), ("port", protocol), ("backendPort", protocol)):
            value = (field, scope, str(listener[field]))
            if value in seen:
                return f"listener {listener['name']} has duplicate {field} {listener[field]}"
            seen.add(value)
    return ""


def _uses_dhcp(load_balancer: Obj) -> bool:
    return load_balancer["spec"].get("ipam") == "dhcp"


def _check_memory(vm: Obj, before: Obj | None, settings: MutationSettings) -> Denial | None:
    memory = guest_memory(vm, settings)
    if memory is None or memory >= MIN_MEMORY or not needs_resources(vm, before):
        return None
    return Denial(f"guest memory is under the minimum requirement (10 Mi), final: {memory}")


def _check_networks(vm: Obj, namespaces: list[str], informers: Informers) -> Denial | None:
    """Deny a network that does not exist; a bare name must exist in all these namespaces."""
    for network in vm["spec"]["template"].get("spec", {}).get("networks") or ():
        name = at(network, "multus", "networkName")
        if not name:
            continue
        prefix, _, bare = name.rpartition("/")
        if any(informers.networks.get(prefix or space, bare) is None for space in namespaces):
            return Denial(f"spec.template.spec.networks: network {name} not found")
    return None


def _interfaces(vm: Obj) -> list[Obj]:
    return interfaces_of(vm["spec"]["template"].get("spec") or {})


def _check_templates(vm: Obj) -> Denial | None:
    """Deny claim templates that cannot be parsed or have no name."""
    try:
        named = all(template["metadata"]["name"] for template in claim_templates(vm))
        reason = "" if named else "PVC name is required"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error)
    if not reason:
        return None
    # The typo is Harvester's.
    return Denial(f"the volumeClaimTemplates annotaion is invalid: {reason}", 422, "Invalid")


def _check_claims(vm: Obj, informers: Informers) -> Denial | None:
    """Deny a volume that another VM already uses (`checkOccupiedPVCs` in validator.go).

    Harvester 1.7 and later allow this for ReadWriteMany volumes that are not from Longhorn. All
    volumes of the sandbox are from Longhorn.
    """
    namespace = vm["metadata"]["namespace"]
    for name in claims_of(vm):
        for other in informers.vms.store.by_index("claim", f"{namespace}/{name}"):
            if key_of(other) != key_of(vm):
                message = f"the volume {name} is already used by VM {key_of(other)}"
                return Denial(message, 422, "Invalid")
    return None


def _check_devices(vm: Obj, informers: Informers, release: Release) -> Denial | None:
    """Deny a device that no PCIDevice and no USBDevice has (pcidevices `validateHostDevices`).

    The sandbox has none of these objects, so the resources of hosts stand for them. Before
    Harvester 1.8, vGPUs are no PCIDevices, and are only among the `gpus` of a VM
    (`validateVGPUDevice`).
    """
    domain = dict_at(vm, "spec", "template", "spec", "domain")
    for device in list_at(domain, "devices", "hostDevices"):
        name = device.get("deviceName")
        is_vgpu = _VGPU.search(str(name)) is not None and not release.moves_gpus
        if is_vgpu or not any(
            name in dict_at(host, "status", kind)
            for host in informers.hosts.store
            for kind in ("capacity", "allocatable")
        ):
            return Denial(
                f"hostdevice {device.get('name')}: resource name {name} not found in pcidevice "
                "and usbdevice cache"
            )
    return None


def _check_pool_network(pool: Obj, informers: Informers) -> str:
    """Return the reason why the network of an IPPool is invalid; empty if it is valid."""
    name = at(pool, "spec", "selector", "network")
    if not name:
        return ""

    # The mutator of IPPools looks up the network, and refuses a bare name (pkg/utils/vid.go in
    # load-balancer-harvester).
    namespace, _, bare = name.partition("/")
    if not namespace or not bare or "/" in bare:
        return f"spec.selector.network: invalid network {name}"
    if not informers.networks.get(namespace, bare):
        return f"spec.selector.network: network {name} not found"
    return ""
