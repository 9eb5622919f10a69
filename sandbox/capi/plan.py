"""What a control plane does next: one step at a time, from what stands now. Pure.

The order is the one that keeps etcd's quorum: nothing while a machine goes, then broken machines, then the roll-out of
a change, then the wanted number. A machine is made or deleted only while all others work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# So many members of etcd can do without one.
_SPARING = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A Machine of the control plane.

    `created` orders members by age. `joined`: its Node has been seen; `ready`: its Node is ready now; `settled`: the
    core sees that, too, which can take it half a minute; `unhealthy`: a MachineHealthCheck has marked it; `current`: it
    is what the control plane's spec would make today.
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
    """Make one more machine, in a failure domain if the cluster has any."""

    failure_domain: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a machine; `remediation` when it is because it was marked as unhealthy."""

    name: str
    remediation: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes; `reason` is for people, empty when all is as it should be."""

    reason: str = ""


Step = Create | Delete | Wait


def next_step(members: Sequence[Member], replicas: int, max_surge: int, failure_domains: Sequence[str]) -> Step:
    """The next step towards `replicas` machines that are all current.

    `max_surge` (0 or 1) is how many machines over `replicas` a roll-out may have; below three machines it is 1, as etcd
    could not spare one.
    """
    deleting = [member.name for member in members if member.deleting]
    if deleting:
        return Wait(f"{', '.join(deleting)} is being deleted")
    unhealthy = sorted((member for member in members if member.unhealthy), key=lambda member: member.created)
    if unhealthy:
        return _remediate(unhealthy[0], members)
    outdated = [member for member in members if not member.current]
    # A roll-out replaces machines in pairs of steps: one more, then the oldest outdated one less.
    surge = max_surge if replicas >= _SPARING else 1
    wanted = replicas + surge if outdated else replicas
    if len(members) < wanted:
        waiting = _not_ready(members)
        return Wait(waiting) if waiting else Create(_emptiest(members, failure_domains))
    if len(members) > replicas or outdated:
        leaving = _leaving(outdated or members, members, failure_domains)
        staying = [member for member in members if member is not leaving]
        waiting = _not_ready(staying) or _not_settled(staying)
        return Wait(waiting) if waiting else Delete(leaving.name)
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
    return f"the core has not seen that {', '.join(names)} is ready" if names else ""


def _emptiest(members: Sequence[Member], failure_domains: Sequence[str]) -> str:
    """The failure domain with the fewest machines that will stay, then with the fewest at all."""
    if not failure_domains:
        return ""
    staying = Counter(member.failure_domain for member in members if member.current)
    everything = Counter(member.failure_domain for member in members)
    return min(failure_domains, key=lambda domain: (staying[domain], everything[domain], domain))


def _leaving(candidates: Sequence[Member], members: Sequence[Member], failure_domains: Sequence[str]) -> Member:
    """Who goes: one in a failure domain that is no more, one that does not work, one of a crowd, the oldest."""
    crowd = Counter(member.failure_domain for member in members)

    def order(member: Member) -> tuple[bool, bool, int, str, str]:
        gone = bool(failure_domains) and member.failure_domain not in failure_domains
        return (not gone, member.ready, -crowd[member.failure_domain], member.created, member.name)

    return min(candidates, key=order)
