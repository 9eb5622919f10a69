"""The pre-terminate hook of a control plane machine, and the provider's next step for it. Pure.

The servers of RKE2 and K3s remove an etcd member if its Node has an annotation, and answer with
another annotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from caphv.api.object import Obj, annotations_of, being_deleted
from sandbox.capi.distribution import Distribution
from sandbox.capi.resources import condition
from sandbox.capi.state import node_name

_READY_FOR_HOOK = "WaitingForPreTerminateHook"
# RKE2's provider sets these when it removes its hook, because a Node without etcd cannot be
# drained.
EXCLUDED = {
    "machine.cluster.x-k8s.io/exclude-node-draining": "true",
    "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach": "true",
}


class HookStep(StrEnum):
    """The steps of a provider: wait, request the removal of the member, or remove the hook."""

    WAIT = "wait"
    REQUEST = "request"
    REMOVE = "remove"


def handled_machines(machines: Iterable[Obj], distribution: Distribution) -> list[Obj]:
    """Return the machines in deletion whose hook the provider handles now.

    RKE2's provider handles one machine at a time: the one that was deleted first, once no machine
    without the hook is being deleted. Its hook comes after all other pre-terminate hooks
    (lifecycle_hook.go in controlplane/internal/controllers). K3s's provider handles each machine
    on its own.
    """
    deleting = [machine for machine in machines if being_deleted(machine)]
    if distribution.is_k3s:
        return deleting
    if not all(distribution.hook in annotations_of(machine) for machine in deleting):
        return []

    first = sorted(deleting, key=_deletion_order)[:1]
    prefix = distribution.hook.partition("/")[0]
    names = [name for machine in first for name in annotations_of(machine)]
    hooks = [name for name in names if name.startswith(prefix)]
    return first if hooks == [distribution.hook] else []


def needs_node(machine: Obj, count: int) -> bool:
    """Return whether the removal of an etcd member decides about the hook.

    It decides only if the machine has a Node and there are other machines.
    """
    return bool(node_name(machine)) and count > 1


def next_hook_step(
    machine: Obj, distribution: Distribution, count: int, removed: bool | None
) -> HookStep:
    """Return the next step of the provider for the hook of a machine.

    RKE2's provider waits without end for a Node that was deleted. K3s's provider takes its member
    for removed.

    :param machine: the Machine, with its status
    :param distribution: the distribution of the provider
    :param count: the number of machines in the control plane
    :param removed: whether the servers have removed the etcd member of the machine's Node, None if
        the Node does not exist
    """
    if not is_awaited(machine, distribution):
        return HookStep.WAIT
    if not needs_node(machine, count) or removed:
        return HookStep.REMOVE

    # Without a Node, nothing can be requested.
    if removed is None:
        return HookStep.REMOVE if distribution.is_k3s else HookStep.WAIT
    return HookStep.REQUEST


def is_awaited(machine: Obj, distribution: Distribution) -> bool:
    """Return whether the deletion of a machine has come to the hook."""
    # Before that, the core drains the Node, for which the etcd member must work.
    return (
        being_deleted(machine)
        and distribution.hook in annotations_of(machine)
        and condition(machine, "Deleting", "reason") == _READY_FOR_HOOK
    )


def removal_annotations(distribution: Distribution) -> dict[str, str | None]:
    """Return the annotations by which a provider removes its hook."""
    if distribution.is_k3s:
        return {distribution.hook: None}
    return {distribution.hook: None, **EXCLUDED}


def _deletion_order(machine: Obj) -> tuple[str, str]:
    return machine["metadata"]["deletionTimestamp"], machine["metadata"]["name"]
