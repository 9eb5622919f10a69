"""The status of a control plane, as the providers of RKE2 and K3s report it. Pure.

The core's topology controller waits for some of its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caphv.api.object import Obj, being_deleted, key_of
from sandbox.capi.plan import Delete, Member, Step
from sandbox.capi.resources import condition, merged_conditions

_NOT_PROVISIONED = "Waiting for Cluster status.infrastructureReady to be true"
_NOT_INITIALIZED = "Waiting for Cluster control plane to be initialized"
# Fields that Go leaves out at 0.
_OMITTED = ("readyReplicas", "replicas", "unavailableReplicas", "updatedReplicas")


@dataclass(frozen=True)
class Observation:
    """What a status is made of: the control plane's objects, and what the workload cluster says.

    `joinable`: its API has a ready control plane Node; `ready_nodes` counts those. `addresses` are those where RKE2's
    nodes join.
    """

    control_plane: Obj
    machines: Sequence[Obj]
    members: Sequence[Member]
    step: Step
    provisioned: bool = True
    joinable: bool = False
    ready_nodes: int = 0
    addresses: Sequence[str] = ()

    @property
    def desired(self) -> int:
        """How many machines there should be."""
        return 0 if being_deleted(self.control_plane) else int(self.control_plane["spec"].get("replicas", 1))

    @property
    def initialized(self) -> bool:
        """Whether the control plane is initialized; it remains so."""
        before = self.control_plane.get("status") or {}
        was = before.get("initialized") or (before.get("initialization") or {}).get("controlPlaneInitialized")
        return self.joinable or bool(was)

    @property
    def outdated(self) -> int:
        """How many machines do not match the spec."""
        return sum(not member.current for member in self.members)


def rke2_status(seen: Observation) -> Obj:
    """The status of an RKE2ControlPlane of contract v1beta2, merged into the previous one."""
    found: Obj = {
        "replicas": len(seen.machines),
        "readyReplicas": _count(seen.machines, "Ready"),
        "availableReplicas": _count(seen.machines, "Available"),
        "upToDateReplicas": _count(seen.machines, "UpToDate"),
        "observedGeneration": seen.control_plane["metadata"].get("generation", 0),
        "conditions": merged_conditions(seen.control_plane, _rke2_conditions(seen)),
    }
    if seen.initialized:
        found["initialization"] = {"controlPlaneInitialized": True}
        if found["readyReplicas"]:
            found |= {"availableServerIPs": list(seen.addresses)} if seen.addresses else {}
            found["version"] = lowest_version(seen.machines)
    return {**(seen.control_plane.get("status") or {}), **found}


def v1beta1_status(seen: Observation) -> Obj:
    """The status of an RKE2ControlPlane of contract v1beta1."""
    found = rke2_status(seen)
    initialization = found.pop("initialization", None) or {}
    available, up_to_date = found.pop("availableReplicas"), found.pop("upToDateReplicas")
    return {
        **found,
        "initialized": bool(initialization.get("controlPlaneInitialized")),
        "ready": condition({"status": found}, "Available") == "True",
        "updatedReplicas": up_to_date,
        "unavailableReplicas": max(0, found["replicas"] - available),
    }


def k3s_status(seen: Observation) -> Obj:
    """The status of a KThreesControlPlane; fields that it leaves out at 0 are None, so that a patch removes them."""
    deleting = being_deleted(seen.control_plane)
    ready = 0 if deleting else seen.ready_nodes
    replicas = len(seen.machines)
    numbers = {
        "replicas": replicas,
        "readyReplicas": ready,
        "unavailableReplicas": replicas - ready,
        "updatedReplicas": replicas - seen.outdated,
    }
    found: Obj = {
        **{name: numbers[name] or None for name in _OMITTED},
        "observedGeneration": seen.control_plane["metadata"].get("generation", 0),
        "conditions": merged_conditions(seen.control_plane, _k3s_conditions(seen)),
    }
    if seen.initialized:
        found["initialized"] = True
    if ready:
        found |= {"ready": True, "version": lowest_version(seen.machines)}
    return {**(seen.control_plane.get("status") or {}), **found}


def lowest_version(machines: Iterable[Obj]) -> str:
    """The lowest Kubernetes version of machines."""
    return str(min((machine["spec"]["version"] for machine in machines), key=version_order))


def version_order(version: str) -> tuple[int, ...]:
    """Orders `v1.36.3+rke2r1` and the like."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _rke2_conditions(seen: Observation) -> list[Obj]:
    replicas, desired, deleting = len(seen.machines), seen.desired, being_deleted(seen.control_plane)
    unhealthy = any(member.unhealthy for member in seen.members)
    remediating = unhealthy or (isinstance(seen.step, Delete) and seen.step.remediation)
    found = [_flag("Initialized", seen.initialized)]
    if seen.provisioned:
        found.insert(0, _condition("CertificatesAvailable", "True", "Available"))
    if seen.initialized:
        found.append(_available(seen))
    for kind, own in (("EtcdClusterHealthy", "EtcdMemberHealthy"), ("ControlPlaneComponentsHealthy", "AgentHealthy")):
        found.append(_health(seen, kind, own))
    change = f"from {replicas} to {desired} replicas"
    found += [
        _flag("Remediating", remediating),
        _flag("RollingOut", bool(seen.outdated), f"Rolling out {seen.outdated} not up-to-date replicas"),
        _flag("ScalingDown", replicas > desired, f"Scaling down {change}"),
        _flag("ScalingUp", replicas < desired, f"Scaling up {change}"),
        _aggregate(seen.machines, "MachinesReady", "Ready", "Ready"),
        _aggregate(
            [machine for machine in seen.machines if condition(machine, "UpToDate")],
            "MachinesUpToDate",
            "UpToDate",
            "UpToDate",
        ),
    ]
    if deleting:
        message = "Waiting for control plane Machines to be deleted"
        found.append(_condition("Deleting", "True", "WaitingForMachineDeletion", message))
    else:
        found.append(_condition("Deleting", "False", "NotDeleting"))
    return found


def _available(seen: Observation) -> Obj:
    if _count(seen.machines, "Ready"):
        return _condition("Available", "True", "Available")
    if condition(seen.control_plane, "Available") == "True":
        # The provider ends without a word when no machine is ready any more.
        return _condition("Available", "True", "Available")
    name = key_of(seen.control_plane).name
    message = f"Waiting for at least one machine to be ready for control plane {name}"
    return _condition("Available", "False", "WaitingForRKE2Server", message)


def _health(seen: Observation, kind: str, own: str) -> Obj:
    """What the Machines' conditions say together."""
    if not seen.provisioned:
        return _condition(kind, "Unknown", "InspectionFailed", _NOT_PROVISIONED)
    if not seen.initialized:
        return _condition(kind, "Unknown", "InspectionFailed", _NOT_INITIALIZED)
    statuses = {key_of(machine).name: condition(machine, own) for machine in seen.machines}
    for status, reason in (("False", "NotHealthy"), ("Unknown", "HealthUnknown")):
        names = [name for name, found in statuses.items() if found == status]
        if names:
            messages = [
                f"* Machine {key_of(machine).name}:\n  * {own}: {condition(machine, own, 'message')}"
                for machine in seen.machines
                if key_of(machine).name in names
            ]
            return _condition(kind, status, reason, "\n".join(messages))
    return _condition(kind, "True", "Healthy")


def _aggregate(machines: Sequence[Obj], kind: str, own: str, good: str) -> Obj:
    if not machines:
        return _condition(kind, "True", "NoReplicas")
    for status, reason in (("False", f"Not{good}"), ("", f"{good}Unknown"), ("Unknown", f"{good}Unknown")):
        affected = [machine for machine in machines if condition(machine, own) == status]
        if affected:
            texts = [
                f"* Machine {key_of(machine).name}:"
                + (f" Condition {own} not yet reported" if not status else f"\n{condition(machine, own, 'message')}")
                for machine in affected
            ]
            return _condition(kind, status or "Unknown", reason, "\n".join(texts))
    return _condition(kind, "True", good)


def _k3s_conditions(seen: Observation) -> list[Obj]:
    replicas, desired, ready = len(seen.machines), seen.desired, _count(seen.machines, "Ready")
    found = [{"type": "CertificatesAvailable", "status": "True"}, {"type": "TokenAvailable", "status": "True"}]
    if seen.ready_nodes:
        # The provider asks the etcd and the Nodes of a cluster that it can reach.
        kinds = ("Available", "ControlPlaneComponentsHealthy", "EtcdClusterHealthyCondition")
        found += [{"type": kind, "status": "True"} for kind in kinds]
    elif not seen.initialized:
        found.append(_severe("Available", "Info", "WaitingForKthreesServer"))
    if ready == replicas:
        found.append({"type": "MachinesReady", "status": "True"})
    else:
        names = [key_of(machine).name for machine in seen.machines if condition(machine, "Ready") != "True"]
        found.append(_severe("MachinesReady", "Info", f"NotReady @ Machine/{names[0]}"))
    if seen.outdated:
        message = (
            f"Rolling {seen.outdated} replicas with outdated spec ({replicas - seen.outdated} replicas up to date)"
        )
        found.append(_severe("MachinesSpecUpToDate", "Warning", "RollingUpdateInProgress", message))
    if being_deleted(seen.control_plane):
        found.append(_severe("Resized", "Info", "Deleting"))
    elif replicas != desired:
        reason, direction = ("ScalingUp", "up") if replicas < desired else ("ScalingDown", "down")
        message = f"Scaling {direction} control plane to {desired} replicas (actual {replicas})"
        found.append(_severe("Resized", "Warning", reason, message))
    elif ready == replicas:
        found.append({"type": "Resized", "status": "True"})
    worst = next((entry for entry in found if entry["status"] != "True"), None)
    summary = {**worst, "type": "Ready"} if worst else {"type": "Ready", "status": "True"}
    return [summary, *found]


def _count(machines: Sequence[Obj], kind: str) -> int:
    return sum(condition(machine, kind) == "True" for machine in machines)


def _flag(kind: str, holds: bool, message: str = "") -> Obj:
    return _condition(kind, str(holds), kind if holds else f"Not{kind}", message if holds else "")


def _condition(kind: str, status: str, reason: str, message: str = "") -> Obj:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _severe(kind: str, severity: str, reason: str, message: str = "") -> Obj:
    return {"type": kind, "status": "False", "severity": severity, "reason": reason, "message": message}
