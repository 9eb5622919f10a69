"""Conditions of Machines that RKE2's control plane provider sets. K3s's sets none. Pure."""

from __future__ import annotations

from collections.abc import Collection

from caphv.api.object import Obj, being_deleted, key_of
from sandbox.capi.state import node_name

_ETCD, _AGENT, _METADATA = "EtcdMemberHealthy", "AgentHealthy", "NodeMetadataUpToDate"
TYPES = ("UpToDate", _ETCD, _AGENT, _METADATA)
_NOT_INITIALIZED = "Waiting for Cluster control plane to be initialized"


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
        return [_condition(_ETCD, "Unknown", "InspectionFailed", _NOT_INITIALIZED)]

    node, name = node_name(machine), key_of(machine).name
    exists = bool(node) and node in nodes

    up_to_date = _condition("UpToDate", str(current), "UpToDate" if current else "NotUpToDate")
    metadata = _condition(_METADATA, "True", "UpToDate")
    if not exists:
        metadata = _condition(
            _METADATA, "Unknown", "NodePatchFailed", f"node {node or name} not found"
        )

    # While any machine waits for its Node, a machine without a Node is unknown. Later it is
    # unhealthy.
    if exists and being_deleted(machine):
        etcd = _condition(_ETCD, "False", "Healthy", f"Machine {name} is deleting")
        agent = _condition(_AGENT, "False", "Deleting", "Machine is deleting")
    elif exists:
        etcd = _condition(_ETCD, "True", "Healthy")
        agent = _condition(_AGENT, "True", "Healthy")
        if node not in ready:
            agent = _condition(_AGENT, "False", "PodFailed", f"Node {node} is not ready")
    elif provisioning:
        reason, message = "InspectionFailed", "Waiting for node to be provisioned"
        etcd, agent = (_condition(kind, "Unknown", reason, message) for kind in (_ETCD, _AGENT))
    else:
        etcd = _condition(_ETCD, "False", "Healthy", "Node does not exist")
        agent = _condition(_AGENT, "False", "PodFailed", "Node does not exist")
    return [up_to_date, etcd, agent, metadata]


def _condition(kind: str, status: str, reason: str, message: str = "") -> Obj:
    return {"type": kind, "status": status, "reason": reason, "message": message}
