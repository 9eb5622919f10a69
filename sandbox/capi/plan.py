"""The next step of a control plane, from its current state. Pure.

The order preserves etcd's quorum: wait for deletions, then replace unhealthy machines, then roll out changes, then
scale. A machine is created or deleted only while all others are ready.
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

    `created` orders members by age. `joined`: its Node exists or existed; `ready`: its Node is ready now; `settled`:
    the core sees it ready too, which can take half a minute; `unhealthy`: marked by a MachineHealthCheck; `current`:
    matches the control plane's spec.
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
    """Delete a machine; `remediation` if it is unhealthy."""

    name: str
    remediation: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes; `reason` is for people, empty if the control plane is converged."""

    reason: str = ""


Step = Create | Delete | Wait


def next_step(members: Sequence[Member], replicas: int, max_surge: int, failure_domains: Sequence[str]) -> Step:
    """The next step towards `replicas` current machines.

    `max_surge` (0 or 1) is the number of extra machines during a rollout; below three machines it is 1, because etcd
    would not tolerate the loss of a member.
    """
    deleting = [member.name for member in members if member.deleting]
    if deleting:
        return Wait(f"{', '.join(deleting)} is being deleted")
    unhealthy = sorted((member for member in members if member.unhealthy), key=lambda member: member.created)
    if unhealthy:
        return _remediate(unhealthy[0], members)
    outdated = [member for member in members if not member.current]
    # A rollout alternates: create a machine, delete the oldest outdated one.
    surge = max_surge if replicas >= _TOLERATES_LOSS else 1
    wanted = replicas + surge if outdated else replicas
    if len(members) < wanted:
        waiting = _not_ready(members)
        return Wait(waiting) if waiting else Create(_emptiest(members, failure_domains))
    if len(members) > replicas or outdated:
        chosen = _to_delete(outdated or members, members, failure_domains)
        staying = [member for member in members if member is not chosen]
        waiting = _not_ready(staying) or _not_settled(staying)
        return Wait(waiting) if waiting else Delete(chosen.name)
    return Wait(_not_ready(members))


def _remediate(broken: Member, members: Sequence[Member]) -> Step:
    others = [member for member in members if member is not broken]
    if not broken.joined:
        return Delete(broken.name, remediation=True)
    left = [member for member in others if member.joined]
    working = [member for member in left if member.ready and not member.unhealthy]
    if not left:
        return Wait(f"{broken.name} is unhealthy, but it is the only member of etcd")
    if len(working) < len(left) // 2 + 1:
        return Wait(f"{broken.name} is unhealthy, but without it {len(working)} of {len(left)} members are no quorum")
    return Delete(broken.name, remediation=True)


def _not_ready(members: Iterable[Member]) -> str:
    names = [member.name for member in members if not member.ready]
    return f"{', '.join(names)} is not ready" if names else ""


def _not_settled(members: Iterable[Member]) -> str:
    names = [member.name for member in members if not member.settled]
    return f"the core has not seen {', '.join(names)} ready" if names else ""


def _emptiest(members: Sequence[Member], failure_domains: Sequence[str]) -> str:
    """The failure domain with the fewest current machines, then with the fewest machines."""
    if not failure_domains:
        return ""
    staying = Counter(member.failure_domain for member in members if member.current)
    everything = Counter(member.failure_domain for member in members)
    return min(failure_domains, key=lambda domain: (staying[domain], everything[domain], domain))


def _to_delete(candidates: Sequence[Member], members: Sequence[Member], failure_domains: Sequence[str]) -> Member:
    """The machine to delete: in a removed failure domain, not ready, in the fullest failure domain, the oldest."""
    population = Counter(member.failure_domain for member in members)

    def order(member: Member) -> tuple[bool, bool, int, str, str]:
        removed = bool(failure_domains) and member.failure_domain not in failure_domains
        return (not removed, member.ready, -population[member.failure_domain], member.created, member.name)

    return min(candidates, key=order)
