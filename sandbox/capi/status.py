"""The status of a control plane, as the providers of RKE2 and K3s report it. Pure.

The core's topology controller waits for some of its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caphv.api.object import Obj, at, being_deleted, key_of
from sandbox.capi.plan import Delete, Member, Step
from sandbox.capi.resources import (
    NOT_INITIALIZED,
    condition,
    false_condition,
    new_condition,
    true_condition,
    with_transition_times,
)

_NOT_PROVISIONED = "Waiting for Cluster status.infrastructureReady to be true"
# Fields that Go leaves out at 0.
_OMITTED = ("readyReplicas", "replicas", "unavailableReplicas", "updatedReplicas")


@dataclass(frozen=True)
class Observation:
    """The objects of a control plane and the state of its workload cluster, which give its status.

    Nodes can join (`joinable`) when the workload API has a ready control plane Node. `ready_nodes`
    is the number of these Nodes. RKE2's nodes join at `addresses`.
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
    def desired_replicas(self) -> int:
        """Return the desired number of machines."""
        if being_deleted(self.control_plane):
            return 0
        return int(self.control_plane["spec"].get("replicas", 1))

    @property
    def is_initialized(self) -> bool:
        """Return whether the control plane is or was initialized."""
        # The contracts v1beta1 and v1beta2 have different fields.
        before = self.control_plane.get("status") or {}
        was_initialized = before.get("initialized") or at(
            before, "initialization", "controlPlaneInitialized"
        )
        return self.joinable or bool(was_initialized)

    @property
    def outdated_count(self) -> int:
        """Return the number of machines that do not match the spec."""
        return sum(not member.current for member in self.members)


def rke2_status(observation: Observation) -> Obj:
    """Return the status of an RKE2ControlPlane of contract v1beta2, with its earlier fields."""
    status: Obj = {
        "replicas": len(observation.machines),
        "readyReplicas": _count_true(observation.machines, "Ready"),
        "availableReplicas": _count_true(observation.machines, "Available"),
        "upToDateReplicas": _count_true(observation.machines, "UpToDate"),
        "observedGeneration": observation.control_plane["metadata"].get("generation", 0),
        "conditions": with_transition_times(
            observation.control_plane, _rke2_conditions(observation)
        ),
    }

    if observation.is_initialized:
        status["initialization"] = {"controlPlaneInitialized": True}
        # Both fields stay unchanged while no machine is ready.
        if status["readyReplicas"]:
            if observation.addresses:
                status["availableServerIPs"] = list(observation.addresses)
            status["version"] = lowest_version(observation.machines)
    return {**(observation.control_plane.get("status") or {}), **status}


def v1beta1_status(observation: Observation) -> Obj:
    """Return the status of an RKE2ControlPlane of contract v1beta1."""
    status = rke2_status(observation)
    initialization = status.pop("initialization", None) or {}
    available = status.pop("availableReplicas")
    up_to_date = status.pop("upToDateReplicas")
    return {
        **status,
        "initialized": bool(initialization.get("controlPlaneInitialized")),
        "ready": condition({"status": status}, "Available") == "True",
        "updatedReplicas": up_to_date,
        "unavailableReplicas": max(0, status["replicas"] - available),
    }


def k3s_status(observation: Observation) -> Obj:
    """Return the status of a KThreesControlPlane.

    Fields that the provider leaves out at 0 are None, so that a patch removes them.
    """
    ready = 0 if being_deleted(observation.control_plane) else observation.ready_nodes
    replicas = len(observation.machines)
    numbers = {
        "replicas": replicas,
        "readyReplicas": ready,
        "unavailableReplicas": replicas - ready,
        "updatedReplicas": replicas - observation.outdated_count,
    }

    status: Obj = {
        **{name: numbers[name] or None for name in _OMITTED},
        "observedGeneration": observation.control_plane["metadata"].get("generation", 0),
        "conditions": with_transition_times(
            observation.control_plane, _k3s_conditions(observation)
        ),
    }
    if observation.is_initialized:
        status["initialized"] = True
    if ready:
        status |= {"ready": True, "version": lowest_version(observation.machines)}
    return {**(observation.control_plane.get("status") or {}), **status}


def lowest_version(machines: Iterable[Obj]) -> str:
    """Return the lowest Kubernetes version of machines."""
    return str(min((machine["spec"]["version"] for machine in machines), key=version_order))


def version_order(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `v1.36.3+rke2r1`, by which versions are ordered."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _rke2_conditions(observation: Observation) -> list[Obj]:
    replicas = len(observation.machines)
    desired = observation.desired_replicas
    conditions = []
    if observation.provisioned:
        conditions.append(new_condition("CertificatesAvailable", "True", "Available"))
    conditions.append(_flag_condition("Initialized", observation.is_initialized))
    if observation.is_initialized:
        conditions.append(_available_condition(observation))
    conditions += [
        _health_condition(observation, "EtcdClusterHealthy", "EtcdMemberHealthy"),
        _health_condition(observation, "ControlPlaneComponentsHealthy", "AgentHealthy"),
    ]

    # A remediation lasts from the failed check until the step that deletes the machine.
    step = observation.step
    is_remediating = isinstance(step, Delete) and step.remediation
    has_unhealthy = any(member.unhealthy for member in observation.members)
    outdated = observation.outdated_count
    change = f"from {replicas} to {desired} replicas"
    conditions += [
        _flag_condition("Remediating", has_unhealthy or is_remediating),
        _flag_condition(
            "RollingOut", bool(outdated), f"Rolling out {outdated} not up-to-date replicas"
        ),
        _flag_condition("ScalingDown", replicas > desired, f"Scaling down {change}"),
        _flag_condition("ScalingUp", replicas < desired, f"Scaling up {change}"),
    ]

    # For `MachinesUpToDate`, only machines that have been compared with the spec count.
    compared = [machine for machine in observation.machines if condition(machine, "UpToDate")]
    conditions += [
        _aggregate_condition(observation.machines, "MachinesReady", "Ready"),
        _aggregate_condition(compared, "MachinesUpToDate", "UpToDate"),
    ]

    if being_deleted(observation.control_plane):
        message = "Waiting for control plane Machines to be deleted"
        conditions.append(new_condition("Deleting", "True", "WaitingForMachineDeletion", message))
    else:
        conditions.append(new_condition("Deleting", "False", "NotDeleting"))
    return conditions


def _available_condition(observation: Observation) -> Obj:
    # The provider reports an available control plane as available even if no machine is ready.
    was_available = condition(observation.control_plane, "Available") == "True"
    if _count_true(observation.machines, "Ready") or was_available:
        return new_condition("Available", "True", "Available")

    name = key_of(observation.control_plane).name
    message = f"Waiting for at least one machine to be ready for control plane {name}"
    return new_condition("Available", "False", "WaitingForRKE2Server", message)


def _health_condition(observation: Observation, kind: str, machine_kind: str) -> Obj:
    """Return a condition that summarizes a condition of the Machines."""
    if not observation.provisioned:
        return new_condition(kind, "Unknown", "InspectionFailed", _NOT_PROVISIONED)
    if not observation.is_initialized:
        return new_condition(kind, "Unknown", "InspectionFailed", NOT_INITIALIZED)

    # An unhealthy machine outweighs a machine whose health is unknown.
    for status, reason in (("False", "NotHealthy"), ("Unknown", "HealthUnknown")):
        messages = [
            f"* Machine {key_of(machine).name}:\n  * {machine_kind}: "
            f"{condition(machine, machine_kind, 'message')}"
            for machine in observation.machines
            if condition(machine, machine_kind) == status
        ]
        if messages:
            return new_condition(kind, status, reason, "\n".join(messages))
    return new_condition(kind, "True", "Healthy")


def _aggregate_condition(machines: Sequence[Obj], kind: str, machine_kind: str) -> Obj:
    """Return a condition that is true if a condition is true for all Machines."""
    if not machines:
        return new_condition(kind, "True", "NoReplicas")

    # The status of a missing condition is empty.
    for status, reason in (
        ("False", f"Not{machine_kind}"),
        ("", f"{machine_kind}Unknown"),
        ("Unknown", f"{machine_kind}Unknown"),
    ):
        messages = [
            _machine_message(machine, machine_kind)
            for machine in machines
            if condition(machine, machine_kind) == status
        ]
        if messages:
            return new_condition(kind, status or "Unknown", reason, "\n".join(messages))
    return new_condition(kind, "True", machine_kind)


def _machine_message(machine: Obj, kind: str) -> str:
    name = key_of(machine).name
    if not condition(machine, kind):
        return f"* Machine {name}: Condition {kind} not yet reported"
    return f"* Machine {name}:\n{condition(machine, kind, 'message')}"


def _k3s_conditions(observation: Observation) -> list[Obj]:
    machines = observation.machines
    desired = observation.desired_replicas
    replicas = len(machines)
    ready = _count_true(machines, "Ready")
    conditions = [true_condition("CertificatesAvailable"), true_condition("TokenAvailable")]

    if observation.ready_nodes:
        # The provider reads the state of etcd and of the Nodes only if it can reach the cluster.
        conditions += [
            true_condition("Available"),
            true_condition("ControlPlaneComponentsHealthy"),
            true_condition("EtcdClusterHealthyCondition"),
        ]
    elif not observation.is_initialized:
        conditions.append(false_condition("Available", "Info", "WaitingForKthreesServer"))

    if ready == replicas:
        conditions.append(true_condition("MachinesReady"))
    else:
        first = next(machine for machine in machines if condition(machine, "Ready") != "True")
        reason = f"NotReady @ Machine/{key_of(first).name}"
        conditions.append(false_condition("MachinesReady", "Info", reason))

    outdated = observation.outdated_count
    if outdated:
        message = (
            f"Rolling {outdated} replicas with outdated spec ({replicas - outdated} "
            "replicas up to date)"
        )
        conditions.append(
            false_condition("MachinesSpecUpToDate", "Warning", "RollingUpdateInProgress", message)
        )

    if being_deleted(observation.control_plane):
        conditions.append(false_condition("Resized", "Info", "Deleting"))
    elif replicas != desired:
        reason, direction = ("ScalingUp", "up") if replicas < desired else ("ScalingDown", "down")
        message = f"Scaling {direction} control plane to {desired} replicas (actual {replicas})"
        conditions.append(false_condition("Resized", "Warning", reason, message))
    elif ready == replicas:
        conditions.append(true_condition("Resized"))

    # The summary copies the first condition that is not true.
    summary = true_condition("Ready")
    for entry in conditions:
        if entry["status"] != "True":
            summary = {**entry, "type": "Ready"}
            break
    return [summary, *conditions]


def _count_true(machines: Sequence[Obj], kind: str) -> int:
    return sum(condition(machine, kind) == "True" for machine in machines)


def _flag_condition(kind: str, holds: bool, message: str = "") -> Obj:
    if holds:
        return new_condition(kind, "True", kind, message)
    return new_condition(kind, "False", f"Not{kind}")
