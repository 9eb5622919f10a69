"""The instances of VMs and their status, as KubeVirt writes them. Pure.

Each function returns an instance, or a merge patch for one.
"""

from __future__ import annotations

import copy
import hashlib
import uuid

from caphv.api.conditions import current_time
from caphv.api.object import Obj, text_at, uid_of
from sandbox.harvester import disks, hotplug, kinds, migration
from sandbox.harvester.mutations import interfaces_of

# Namespace of the UUIDs that KubeVirt derives from names.
LEGACY_UUIDS = uuid.UUID("6a1a24a1-4061-4607-8bf4-a3963d0c5895")


def phase_of(vmi: Obj) -> str:
    """Return the phase of an instance."""
    return text_at(vmi, "status", "phase")


def host_of(vmi: Obj) -> str:
    """Return the host of an instance; empty before it has one."""
    return text_at(vmi, "status", "nodeName")


def target_of(vmi: Obj) -> str:
    """Return the host to which an instance is migrating; empty if it is not."""
    state = vmi["status"].get("migrationState") or {}
    return "" if state.get("endTimestamp") else str(state.get("targetNode") or "")


def instance_of(vm: Obj, host: str) -> Obj:
    """Return a new instance of a VM. It runs on `host` unless `host` is empty."""
    metadata = vm["metadata"]
    template_metadata = vm["spec"]["template"].get("metadata") or {}
    owner = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "name": metadata["name"],
        "uid": uid_of(vm),
        "controller": True,
        "blockOwnerDeletion": True,
    }

    # Also record the phases that have passed before this write.
    phases = ["Pending", *(["Scheduling", "Scheduled"] if host else [])]
    status: Obj = {
        "phase": phases[-1],
        "phaseTransitionTimestamps": [_phase_transition(phase) for phase in phases],
    }
    if host:
        status["nodeName"] = host

    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": template_metadata.get("labels") or {},
            "annotations": template_metadata.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": _instance_spec(vm),
        "status": status,
    }


def waiting_patch(vmi: Obj, message: str, *, exists: bool) -> Obj:
    """Return the patch for an instance whose Pod waits for a claim or a host.

    :param exists: whether the Pod exists, which requires that all claims exist
    """
    unscheduled = kinds.condition("PodScheduled", False, "Unschedulable", message)
    conditions = [
        entry for entry in kinds.with_condition(vmi, unscheduled) if entry["type"] != "Synchronized"
    ]
    if not exists:
        conditions.append(kinds.condition("Synchronized", False, "FailedPvcNotFound", message))
    return {"status": {"phase": "Scheduling" if exists else "Pending", "conditions": conditions}}


def describe_refusal(devices: list[str]) -> str:
    """Return the reason why KubeVirt creates no Pod: its configuration lacks these devices.

    Modelled after `validatePermittedHostDevices` in pkg/virt-controller/services/renderresources.go
    of kubevirt v1.8.3.
    """
    reasons = " ".join(
        f"HostDevice {name} is not permitted in permittedHostDevices configuration"
        for name in devices
    )
    return f"failed to render launch manifest: {reasons}"


def refused_patch(vmi: Obj, message: str) -> Obj:
    """Return the patch for an instance for which KubeVirt creates no Pod."""
    refused = kinds.condition("Synchronized", False, "FailedCreate", message)
    conditions = [
        entry for entry in kinds.with_condition(vmi, refused) if entry["type"] != "PodScheduled"
    ]
    return {"status": {"phase": "Pending", "conditions": conditions}}


def scheduled_patch(vmi: Obj, host: str) -> Obj:
    """Return the patch for an instance whose Pod has got a host."""
    not_ready = kinds.condition(
        "Ready", False, "GuestNotRunning", "Guest VM is not reported as running"
    )
    return _phase_patch(vmi, "Scheduled", [not_ready], nodeName=host)


def running_patch(vmi: Obj, claims: list[Obj]) -> Obj:
    """Return the patch for an instance whose guest boots. `claims` are the disks."""
    conditions = kinds.with_condition(vmi, kinds.condition("Ready", True))
    conditions = [entry for entry in conditions if entry["type"] != migration.MIGRATABLE]
    conditions.append(migration.migratable_condition(vmi, claims))

    by_name = {claim["metadata"]["name"]: claim for claim in claims}
    volumes = disks.volume_states(
        vmi["spec"].get("volumes") or (),
        vmi["spec"]["domain"]["devices"].get("disks") or (),
        by_name,
    )
    sizes = hotplug.current_sizes(vmi)
    return _phase_patch(vmi, "Running", conditions, volumeStatus=volumes, **sizes)


def failed_patch(vmi: Obj) -> Obj:
    """Return the patch for an instance whose host has failed."""
    unresponsive = kinds.condition("Ready", False, "NodeUnresponsive")
    return _phase_patch(vmi, "Failed", kinds.with_condition(vmi, unresponsive))


def migrating_patch(vmi: Obj, target: str) -> Obj:
    """Return the patch for an instance that begins to migrate to the host `target`."""
    state = {
        "sourceNode": vmi["status"]["nodeName"],
        "targetNode": target,
        "startTimestamp": current_time(),
        # Remove the result of an earlier migration.
        "completed": None,
        "endTimestamp": None,
    }
    return {"status": {"migrationState": state}}


def migrated_patch(vmi: Obj, target: str) -> Obj:
    """Return the patch for an instance that has migrated to the host `target`."""
    state = {
        "sourceNode": vmi["status"]["nodeName"],
        "targetNode": target,
        "completed": True,
        "endTimestamp": current_time(),
    }
    # The guest does not notice the migration. Until its agent answers, the new virt-launcher knows
    # only the interfaces of the domain.
    status = {
        "nodeName": target,
        "migrationState": state,
        "evacuationNodeName": None,
        # The new virt-launcher starts with the sizes in the spec.
        **hotplug.current_sizes(vmi),
    }
    silent = silent_agent_status(vmi)
    silent["conditions"] = hotplug.without_changes(silent["conditions"])
    return {"status": status | silent}


def silent_agent_status(vmi: Obj) -> Obj:
    """Return the interfaces and conditions of an instance while its guest agent is silent.

    Modelled after `updateStatus` of KubeVirt.
    """
    interfaces = []
    for nic in vmi["status"].get("interfaces") or ():
        if nic.get("name"):
            known_fields = {name: nic[name] for name in ("name", "mac") if name in nic}
            interfaces.append({**known_fields, "infoSource": "domain"})

    conditions = [
        entry
        for entry in vmi["status"].get("conditions") or ()
        if entry["type"] != "AgentConnected"
    ]
    return {"interfaces": interfaces, "conditions": conditions}


def _instance_spec(vm: Obj) -> Obj:
    spec = _add_macs(vm["spec"]["template"]["spec"], uid_of(vm))

    # If the VM's spec has no UUID, KubeVirt up to 1.5 derives it from the name. So the UUID stays
    # the same when a VM is recreated.
    firmware_uuid = str(uuid.uuid5(LEGACY_UUIDS, vm["metadata"]["name"]))
    firmware = {"uuid": firmware_uuid, **(spec["domain"].get("firmware") or {})}
    return {**spec, "domain": {**spec["domain"], "firmware": firmware}}


def _add_macs(spec: Obj, uid: str) -> Obj:
    """Return the spec with a MAC address for each interface, as KubeVirt assigns them."""
    if all(nic.get("macAddress") for nic in interfaces_of(spec)):
        return spec

    spec = copy.deepcopy(spec)
    for nic in interfaces_of(spec):
        # The address is the same after each restart, because Harvester writes it back to the VM.
        digest = hashlib.sha256(f"{uid}/{nic['name']}".encode()).digest()
        nic.setdefault("macAddress", ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5])))
    return spec


def _phase_patch(vmi: Obj, phase: str, conditions: list[Obj], **fields: object) -> Obj:
    """Return the patch for an instance that enters a phase, with the times of all its phases."""
    times = vmi["status"].get("phaseTransitionTimestamps", ())
    return {
        "status": {
            "phase": phase,
            "conditions": conditions,
            "phaseTransitionTimestamps": [*times, _phase_transition(phase)],
            **fields,
        }
    }


def _phase_transition(phase: str) -> Obj:
    return {"phase": phase, "phaseTransitionTimestamp": current_time()}
