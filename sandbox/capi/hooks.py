"""The pre-terminate hook of a control plane machine: what a provider does next with it. Pure.

The servers of RKE2 and K3s remove an etcd member on an annotation of its Node, and answer with another one.
"""

from __future__ import annotations

from enum import StrEnum

from caphv.api.object import Obj, annotations_of, being_deleted
from sandbox.capi.distribution import Distribution
from sandbox.capi.resources import condition
from sandbox.capi.state import node_name

_READY_FOR_HOOK = "WaitingForPreTerminateHook"
# Set by RKE2's provider when it removes its hook: a Node without etcd cannot be drained any more.
EXCLUDED = {
    "machine.cluster.x-k8s.io/exclude-node-draining": "true",
    "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach": "true",
}


class HookStep(StrEnum):
    """Wait; request the removal of the etcd member; remove the hook."""

    WAIT = "wait"
    REQUEST = "request"
    REMOVE = "remove"


def needs_node(machine: Obj, count: int) -> bool:
    """Whether the removal of a member decides about the hook: not without a Node, nor for the only machine."""
    return bool(node_name(machine)) and count > 1


def next_hook_step(machine: Obj, distribution: Distribution, count: int, removed: bool | None) -> HookStep:
    """Return what the provider does with the hook of a machine.

    RKE2's waits without end for a Node that was deleted; K3s's takes it for a removed member.

    :param machine: the Machine, with its status
    :param distribution: whose provider it is
    :param count: how many machines the control plane has
    :param removed: whether the servers have removed the member of its Node, None if there is no such Node
    """
    if not is_awaited(machine, distribution):
        return HookStep.WAIT
    if not needs_node(machine, count) or removed:
        return HookStep.REMOVE
    if removed is None:
        return HookStep.REMOVE if distribution.is_k3s else HookStep.WAIT
    return HookStep.REQUEST


def is_awaited(machine: Obj, distribution: Distribution) -> bool:
    """Whether the deletion of a machine has come to the hook."""
    hooked = being_deleted(machine) and distribution.hook in annotations_of(machine)
    return hooked and condition(machine, "Deleting", "reason") == _READY_FOR_HOOK


def removal(distribution: Distribution) -> dict[str, str | None]:
    """Annotations by which a provider removes its hook."""
    return {distribution.hook: None, **({} if distribution.is_k3s else EXCLUDED)}
