"""The next step of a Talos control plane. Pure.

Modelled after `reconcileMachines` of `controllers/taloscontrolplane_controller.go`, `scale.go` and
`upgrade.go` of the provider. Unlike the providers of RKE2 and K3s, it creates machines without
waiting for others, tells a machine to create the cluster once all machines exist, and replaces no
machine that a MachineHealthCheck has marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.capi.plan import Create, Delete, Wait

NO_LAST = "Cannot scale down control plane nodes to 0"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Tell one machine to create etcd, unless a machine has it."""


Step = Create | Delete | Bootstrap | Wait


@dataclass(frozen=True, slots=True)
class Member:
    """A Machine of the control plane.

    `preferred` is set by the annotation that asks for its deletion. `current` machines match the
    spec of the control plane.
    """

    name: str
    created: str = ""
    joined: bool = True
    current: bool = True
    preferred: bool = False
    deleting: bool = False


def next_step(
    members: Sequence[Member],
    replicas: int,
    max_surge: int,
    *,
    bootstrapped: bool,
    etcd_problem: str,
) -> Step:
    """Return the next step towards `replicas` current machines.

    :param bootstrapped: whether a machine has been asked to create the cluster
    :param etcd_problem: what is wrong with etcd, empty if nothing is
    """
    outdated = [member for member in members if not member.current and not member.deleting]
    limit = replicas + max_surge if outdated else replicas
    if len(members) < limit:
        return Create()
    if outdated or len(members) > replicas:
        return _scale_down(members, outdated, etcd_problem)
    return Wait() if bootstrapped else Bootstrap()


def _scale_down(members: Sequence[Member], outdated: Sequence[Member], etcd_problem: str) -> Step:
    if len(members) == 1:
        return Wait(NO_LAST)
    if etcd_problem:
        return Wait(etcd_problem)

    deleting = [member.name for member in members if member.deleting]
    if deleting:
        return Wait(f"{', '.join(deleting)} is being deleted")
    without_node = [member.name for member in members if not member.joined]
    if without_node:
        return Wait(f"{', '.join(without_node)} has no node")

    groups = (
        [member for member in outdated if member.preferred],
        [member for member in members if member.preferred],
        outdated,
        members,
    )
    candidates = next(group for group in groups if group)
    return Delete(min(candidates, key=lambda member: (member.created, member.name)).name)
