"""The next step of a control plane, from its current state. Pure.

The order of the steps preserves etcd's quorum. The plan waits for deletions, then replaces
unhealthy machines, then rolls out changes, and then scales. A machine is created or deleted only
while all others are ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# With this many members, etcd tolerates the loss of one.
_TOLERATES_LOSS = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A Machine of the control plane.

    `created` orders members by age. A member has `joined` if its Node exists or existed, and is
    `ready` if its Node is ready now. It is `settled` if the core also sees it ready, which can take
    half a minute. It is `current` if it matches the control plane's spec, and `unhealthy` if a
    MachineHealthCheck has marked it.
    """

    name: str
    created: str = ""
    failure_domain: str = ""
    joined: bool = True
    ready: bool = True
    settled: bool = True
    current: bool = True
    unhealthy: bool = False
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a machine, in a failure domain if the cluster has any."""

    failure_domain: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a machine. `remediation` says whether it is deleted because it is unhealthy."""

    name: str
    remediation: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes.

    `reason` is a text for users, empty if the control plane has converged.
    """

    reason: str = ""


Step = Create | Delete | Wait


def next_step(
    members: Sequence[Member], replicas: int, max_surge: int, failure_domains: Sequence[str]
) -> Step:
    """Return the next step towards `replicas` current machines.

    :param members: the machines that exist
    :param replicas: the desired number of machines
    :param max_surge: the number of extra machines during a rollout (0 or 1); below three machines
        it is 1, because etcd would not tolerate the loss of a member
    :param failure_domains: the failure domains for machines; empty if the cluster has none
    """
    deleting = [member.name for member in members if member.deleting]
    if deleting:
        return Wait(f"{', '.join(deleting)} is being deleted")

    unhealthy = [member for member in members if member.unhealthy]
    if unhealthy:
        return _remediate(min(unhealthy, key=lambda member: member.created), members)

    # A rollout alternately creates a machine and deletes the oldest outdated one.
    outdated = [member for member in members if not member.current]
    surge = max_surge if replicas >= _TOLERATES_LOSS else 1
    target = replicas + surge if outdated else replicas
    if len(members) < target:
        obstacle = _describe_unready(members)
        return Wait(obstacle) if obstacle else Create(_emptiest_domain(members, failure_domains))

    if len(members) > replicas or outdated:
        victim = _choose_victim(outdated or members, members, failure_domains)
        others = [member for member in members if member is not victim]
        obstacle = _describe_unready(others) or _describe_unsettled(others)
        return Wait(obstacle) if obstacle else Delete(victim.name)
    return Wait(_describe_unready(members))


def _remediate(broken: Member, members: Sequence[Member]) -> Step:
    # A machine that never joined is not a member of etcd, so its deletion does no harm.
    if not broken.joined:
        return Delete(broken.name, remediation=True)

    others = [member for member in members if member is not broken and member.joined]
    working = [member for member in others if member.ready and not member.unhealthy]
    if not others:
        return Wait(f"{broken.name} is unhealthy, but it is the only member of etcd")
    if len(working) < len(others) // 2 + 1:
        return Wait(
            f"{broken.name} is unhealthy, but without it {len(working)} of {len(others)} members "
            "are no quorum"
        )
    return Delete(broken.name, remediation=True)


def _describe_unready(members: Iterable[Member]) -> str:
    names = [member.name for member in members if not member.ready]
    return f"{', '.join(names)} is not ready" if names else ""


def _describe_unsettled(members: Iterable[Member]) -> str:
    names = [member.name for member in members if not member.settled]
    return f"the core has not seen {', '.join(names)} ready" if names else ""


def _emptiest_domain(members: Sequence[Member], failure_domains: Sequence[str]) -> str:
    """Return the failure domain with the fewest current machines, then with the fewest machines."""
    if not failure_domains:
        return ""
    # A rollout deletes outdated machines, so only the current ones must be spread evenly.
    current = Counter(member.failure_domain for member in members if member.current)
    total = Counter(member.failure_domain for member in members)
    return min(failure_domains, key=lambda domain: (current[domain], total[domain], domain))


def _choose_victim(
    candidates: Sequence[Member], members: Sequence[Member], failure_domains: Sequence[str]
) -> Member:
    """Return the machine to delete.

    Prefer machines in a removed failure domain, then machines that are not ready, then machines in
    the fullest failure domain, then the oldest machine.
    """
    population = Counter(member.failure_domain for member in members)

    def order(member: Member) -> tuple[bool, bool, int, str, str]:
        is_removed = bool(failure_domains) and member.failure_domain not in failure_domains
        return (
            not is_removed,
            member.ready,
            -population[member.failure_domain],
            member.created,
            member.name,
        )

    return min(candidates, key=order)
