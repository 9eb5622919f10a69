"""The status of a TalosControlPlane, of contract v1beta1. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.api.object import Obj, at, being_deleted, key_of
from sandbox.capi.resources import (
    condition,
    false_condition,
    true_condition,
    with_transition_times,
)
from sandbox.capi.status import lowest_version

# The conditions behind `Ready`, in their order.
_SUMMARIZED = ("MachinesCreated", "Resized", "MachinesReady", "Available", "MachinesBootstrapped")


@dataclass(frozen=True)
class Observation:
    """The objects of a control plane and the state of its workload cluster.

    `answers` says whether the workload API has been read, and `ready_nodes` is the number of ready
    control plane Nodes. `bootstrap_problem` says why no machine could be asked to create the
    cluster.
    """

    cluster: str
    control_plane: Obj
    machines: Sequence[Obj]
    bootstrapped: bool = False
    bootstrap_problem: str = ""
    etcd_problem: str = ""
    answers: bool = False
    ready_nodes: int = 0
    outdated: int = 0

    @property
    def replicas(self) -> int:
        """Return the desired number of machines."""
        return int(self.control_plane["spec"].get("replicas", 1))


def talos_status(observation: Observation) -> Obj:
    """Return the status. Fields that Go leaves out at 0 are None, so that a patch removes them."""
    before = observation.control_plane.get("status") or {}
    count = len(observation.machines)
    ready = min(observation.ready_nodes, count)
    if being_deleted(observation.control_plane):
        ready = 0
    status: Obj = {
        "selector": f"{CLUSTER_NAME_LABEL}={observation.cluster},{CONTROL_PLANE_LABEL}=",
        "replicas": count or None,
        "readyReplicas": ready or None,
        "unavailableReplicas": count - ready or None,
        "ready": bool(ready),
        "initialized": observation.answers or bool(before.get("initialized")),
        "bootstrapped": observation.bootstrapped,
        "observedGeneration": observation.control_plane["metadata"].get("generation", 0),
        "conditions": with_transition_times(observation.control_plane, _conditions(observation)),
    }
    if observation.machines:
        status["version"] = lowest_version(observation.machines)
    return {**before, **status}


def _conditions(observation: Observation) -> list[Obj]:
    conditions = [
        *_size_conditions(observation),
        _machines_ready(observation.machines),
        _available(observation),
        _bootstrapped(observation),
        _etcd(observation.etcd_problem),
    ]
    if observation.outdated:
        message = (
            f"Rolling {observation.outdated} replicas with outdated spec "
            f"({len(observation.machines) - observation.outdated} replicas up to date)"
        )
        conditions.append(
            false_condition("MachinesSpecUpToDate", "Warning", "RollingUpdateInProgress", message)
        )

    # The summary copies the first condition that is not true.
    summary = true_condition("Ready")
    for entry in conditions:
        if entry["type"] in _SUMMARIZED and entry["status"] != "True":
            summary = {**entry, "type": "Ready"}
            break
    return [summary, *conditions]


def _size_conditions(observation: Observation) -> list[Obj]:
    count = len(observation.machines)
    if being_deleted(observation.control_plane):
        return [false_condition("Resized", "Info", "Deleting")]
    if count == observation.replicas:
        return [true_condition("MachinesCreated"), true_condition("Resized")]
    direction = "up" if count < observation.replicas else "down"
    message = (
        f"Scaling {direction} control plane to {observation.replicas} replicas (actual {count})"
    )
    return [false_condition("Resized", "Warning", f"Scaling{direction.title()}", message)]


def _machines_ready(machines: Sequence[Obj]) -> Obj:
    for machine in machines:
        if condition(machine, "Ready") != "True":
            reason = f"NotReady @ Machine/{key_of(machine).name}"
            return false_condition("MachinesReady", "Info", reason)
    return true_condition("MachinesReady")


def _available(observation: Observation) -> Obj:
    if observation.answers or at(observation.control_plane, "status", "initialized"):
        return true_condition("Available")
    return false_condition("Available", "Info", "WaitingForTalosBoot")


def _bootstrapped(observation: Observation) -> Obj:
    kind = "MachinesBootstrapped"
    if observation.bootstrapped:
        return true_condition(kind)
    if observation.bootstrap_problem:
        problem = observation.bootstrap_problem
        return false_condition(kind, "Info", "WaitingForTalosBoot", problem)
    return false_condition(kind, "Info", "WaitingForMachines")


def _etcd(problem: str) -> Obj:
    if problem:
        return false_condition(
            "EtcdClusterHealthyCondition", "Warning", "EtcdClusterUnhealthy", problem
        )
    return true_condition("EtcdClusterHealthyCondition")
