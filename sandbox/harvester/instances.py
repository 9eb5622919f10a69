"""What KubeVirt writes into the instances of VMs. Pure.

Each function returns an instance, or the change of one as a merge patch.
"""

from __future__ import annotations

import copy
import hashlib
import uuid
from string import ascii_lowercase

from caphv.api.object import Obj, uid_of
from sandbox.harvester import kinds, migration
from sandbox.harvester.mutations import interfaces_of

# Namespace of the UUIDs that KubeVirt derives from names.
LEGACY_UUIDS = uuid.UUID("6a1a24a1-4061-4607-8bf4-a3963d0c5895")


def phase_of(vmi: Obj) -> str:
    """The phase of an instance."""
    return str(vmi.get("status", {}).get("phase", ""))


def host_of(vmi: Obj) -> str:
    """The host of an instance, empty before it has one."""
    return str(vmi.get("status", {}).get("nodeName", ""))


def instance_of(vm: Obj, host: str) -> Obj:
    """A new instance of a VM; on `host`, unless that is empty."""
    template, metadata = vm["spec"]["template"], vm["metadata"]
    meta = template.get("metadata") or {}
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": metadata["name"], "uid": uid_of(vm)}
    passed = ["Pending", *(["Scheduling", "Scheduled"] if host else [])]
    vmi: Obj = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": _spec(vm),
        "status": {"phase": passed[-1], "phaseTransitionTimestamps": [_passed(phase) for phase in passed]},
    }
    if host:
        vmi["status"]["nodeName"] = host
    return vmi


def _spec(vm: Obj) -> Obj:
    spec = _with_macs(vm["spec"]["template"]["spec"], vm)
    return {**spec, "domain": _domain(spec["domain"], vm["metadata"]["name"])}


def _with_macs(spec: Obj, vm: Obj) -> Obj:
    """The spec of an instance, whose interfaces have MAC addresses: KubeVirt gives them those that the VM lacks.

    They are the same after each restart, as Harvester writes them back to the VM.
    """
    if all(nic.get("macAddress") for nic in interfaces_of(spec)):
        return spec
    spec = copy.deepcopy(spec)
    for nic in interfaces_of(spec):
        digest = hashlib.sha256(f"{uid_of(vm)}/{nic['name']}".encode()).digest()
        nic.setdefault("macAddress", ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5])))
    return spec


def _domain(domain: Obj, name: str) -> Obj:
    """The domain with a UUID of its firmware: without one of its own, KubeVirt up to 1.5 derives it from the name."""
    firmware = domain.get("firmware") or {}
    return {**domain, "firmware": {"uuid": str(uuid.uuid5(LEGACY_UUIDS, name)), **firmware}}


def waiting(vmi: Obj, message: str, *, exists: bool) -> Obj:
    """The change of an instance whose Pod does not exist without its claims, or finds no host without volumes."""
    conditions = kinds.with_condition(vmi, kinds.condition("PodScheduled", False, "Unschedulable", message))
    conditions = [entry for entry in conditions if entry["type"] != "Synchronized"]
    if not exists:
        conditions.append(kinds.condition("Synchronized", False, "FailedPvcNotFound", message))
    return {"status": {"phase": "Scheduling" if exists else "Pending", "conditions": conditions}}


def _passed(phase: str) -> Obj:
    return {"phase": phase, "phaseTransitionTimestamp": kinds.now()}


def scheduled(vmi: Obj, host: str) -> Obj:
    """The change of an instance whose Pod has found a host."""
    times = [*vmi["status"].get("phaseTransitionTimestamps", ()), _passed("Scheduled")]
    conditions = [kinds.condition("Ready", False, "GuestNotRunning", "Guest VM is not reported as running")]
    status = {"phase": "Scheduled", "nodeName": host, "conditions": conditions, "phaseTransitionTimestamps": times}
    return {"status": status}


def migrating(vmi: Obj, target: str) -> Obj:
    """The change of an instance that begins to migrate."""
    state = {"sourceNode": vmi["status"]["nodeName"], "targetNode": target, "startTimestamp": kinds.now()}
    # Nothing of an earlier migration remains.
    return {"status": {"migrationState": {**state, "completed": None, "endTimestamp": None}}}


def target_of(vmi: Obj) -> str:
    """The host to which an instance is migrating, empty if it is not."""
    state = vmi["status"].get("migrationState") or {}
    return "" if state.get("endTimestamp") else str(state.get("targetNode") or "")


def migrated(vmi: Obj, target: str) -> Obj:
    """The change of an instance that has migrated.

    Its guest does not notice; the new virt-launcher knows only the domain's interfaces until the guest agent answers.
    """
    source = vmi["status"]["nodeName"]
    state = {"sourceNode": source, "targetNode": target, "completed": True, "endTimestamp": kinds.now()}
    changed = {"nodeName": target, "migrationState": state, "evacuationNodeName": None}
    return {"status": {**changed, **without_agent(vmi)}}


def without_agent(vmi: Obj) -> Obj:
    """The part of an instance's status that the guest agent reports, while it is silent (kubevirt: `updateStatus`)."""
    kept = ("name", "mac")
    interfaces = [
        {**{name: entry[name] for name in kept if name in entry}, "infoSource": "domain"}
        for entry in vmi["status"].get("interfaces") or ()
        if entry.get("name")
    ]
    conditions = [entry for entry in vmi["status"].get("conditions") or () if entry["type"] != "AgentConnected"]
    return {"interfaces": interfaces, "conditions": conditions}


def running(vmi: Obj, claims: list[Obj]) -> Obj:
    """The change of an instance whose guest boots; `claims` are its disks."""
    times = [*vmi["status"].get("phaseTransitionTimestamps", ()), _passed("Running")]
    conditions = kinds.with_condition(vmi, kinds.condition("Ready", True))
    conditions = [entry for entry in conditions if entry["type"] != migration.MIGRATABLE]
    conditions.append(migration.migratable_condition(vmi, claims))
    # Guests see the disks in this order.
    disks = [disk["name"] for disk in vmi["spec"]["domain"]["devices"].get("disks") or ()]
    volumes = [{"name": name, "target": f"vd{letter}"} for name, letter in zip(disks, ascii_lowercase, strict=False)]
    status = {"phase": "Running", "conditions": conditions, "phaseTransitionTimestamps": times, "volumeStatus": volumes}
    return {"status": status}


def failed(vmi: Obj) -> Obj:
    """The change of an instance whose host has failed."""
    times = [*vmi["status"].get("phaseTransitionTimestamps", ()), _passed("Failed")]
    conditions = kinds.with_condition(vmi, kinds.condition("Ready", False, "NodeUnresponsive"))
    return {"status": {"phase": "Failed", "conditions": conditions, "phaseTransitionTimestamps": times}}
