"""Conditions of Machines that RKE2's control plane provider sets. K3s's sets none. Pure."""

from __future__ import annotations

from collections.abc import Collection

from caphv.api.object import Obj, being_deleted, key_of
from sandbox.capi.resources import NOT_INITIALIZED, new_condition
from sandbox.capi.state import node_name

_ETCD = "EtcdMemberHealthy"
_AGENT = "AgentHealthy"
_METADATA = "NodeMetadataUpToDate"


def conditions_of(
    machine: Obj,
    *,
    current: bool,
    initialized: bool,
    provisioning: bool,
    nodes: Collection[str],
    ready: Collection[str],
) -> list[Obj]:
    """Return the conditions of a Machine, without times.

    :param current: whether the machine matches the spec of its control plane
    :param initialized: whether the workload cluster can be asked
    :param provisioning: whether any machine of the control plane has no Node yet
    :param nodes: names of all control plane Nodes
    :param ready: names of the control plane Nodes that are ready
    """
    if not initialized:
        return [new_condition(_ETCD, "Unknown", "InspectionFailed", NOT_INITIALIZED)]

    node = node_name(machine)
    name = key_of(machine).name
    exists = bool(node) and node in nodes

    up_to_date = new_condition("UpToDate", str(current), "UpToDate" if current else "NotUpToDate")
    metadata = new_condition(_METADATA, "True", "UpToDate")
    if not exists:
        metadata = new_condition(
            _METADATA, "Unknown", "NodePatchFailed", f"node {node or name} not found"
        )

    # While any machine waits for its Node, a machine without a Node is unknown. Later it is
    # unhealthy.
    if exists and being_deleted(machine):
        etcd = new_condition(_ETCD, "False", "Healthy", f"Machine {name} is deleting")
        agent = new_condition(_AGENT, "False", "Deleting", "Machine is deleting")
    elif exists:
        etcd = new_condition(_ETCD, "True", "Healthy")
        agent = new_condition(_AGENT, "True", "Healthy")
        if node not in ready:
            agent = new_condition(_AGENT, "False", "PodFailed", f"Node {node} is not ready")
    elif provisioning:
        reason = "InspectionFailed"
        message = "Waiting for node to be provisioned"
        etcd, agent = (new_condition(kind, "Unknown", reason, message) for kind in (_ETCD, _AGENT))
    else:
        etcd = new_condition(_ETCD, "False", "Healthy", "Node does not exist")
        agent = new_condition(_AGENT, "False", "PodFailed", "Node does not exist")
    return [up_to_date, etcd, agent, metadata]
