"""Match the members of etcd with machines, and decide which members may be removed: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from caphv.api import remedies, resources
from caphv.api.names import RKE2_HOOK
from caphv.api.object import Key, Obj, annotations_of, being_deleted, text_at
from caphv.runtime.etcd import Member, members_of
from operations.change.changes import ChangeError
from operations.read.objects import ManagementObjects, Unseen, condition_of
from operations.status.check import Check, Result, ok
from operations.status.model import Cluster, Machine


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """A member of etcd, with its machine.

    `state` is `healthy`, `unhealthy` (its Node is not ready), `learner`, `unstarted` or `stale`. A
    stale member has no machine. It counts for the quorum, but never answers.
    """

    id: str
    name: str
    state: str
    machine: str = ""
    peer: str = ""

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return self.state in ("stale", "unhealthy", "unstarted")


def unreleased_machines(
    machines: Iterable[Obj], nodes: Collection[str], members: Iterable[EtcdMember]
) -> tuple[str, ...]:
    """Return the Machines that RKE2's provider does not release although nothing needs them.

    The provider learns from the Node that the etcd member was removed. If the Node was deleted
    first, the deletion of the Machine waits forever.

    :param machines: Machines of the cluster
    :param nodes: the names of Nodes in the workload cluster
    :param members: the members of etcd with their machines
    """
    in_etcd = {member.machine for member in members}
    unreleased = []
    for machine in machines:
        name = str(machine["metadata"]["name"])
        node = text_at(machine, "status", "nodeRef", "name")
        waits = condition_of(machine, "Deleting").get("reason") == "WaitingForPreTerminateHook"
        hooked = being_deleted(machine) and waits and RKE2_HOOK in annotations_of(machine)
        if hooked and node and node not in nodes and name not in in_etcd:
            unreleased.append(name)
    return tuple(sorted(unreleased))


def unseen_machines(objects: ManagementObjects) -> list[Unseen]:
    """Return the kinds needed to match members that could not be read, with reasons."""
    kinds = {f"machines.{resources.CLUSTER_API_GROUP}", str(resources.HARVESTER_MACHINES)}
    return [unseen for unseen in objects.unseen if unseen.what in kinds]


def members_with_machines(cluster: Cluster, members: Collection[Member]) -> tuple[EtcdMember, ...]:
    """Return the members, by name, with the machine of each."""
    machines = [machine for machine in cluster.machines if machine.etcd]
    names = {name for machine in machines for name in _names(machine)}

    # A member has the name of its Node, with or without a suffix. So the name of another machine,
    # which may be longer, is excluded: it would match as a name with a suffix.
    owners: dict[int, Machine] = {}
    for machine in machines:
        for name in _names(machine):
            others = names - {name}
            owners |= {member.id: machine for member in members_of(name, members, others)}

    etcd_members = []
    for member in members:
        owner = owners.get(member.id)
        etcd_members.append(
            EtcdMember(
                f"{member.id:x}",
                member.name,
                _state(member, owner),
                owner.name if owner else "",
                member.peer,
            )
        )
    return tuple(sorted(etcd_members, key=lambda member: (member.name, member.id)))


def choose_members(members: Sequence[EtcdMember], names: Sequence[str]) -> tuple[EtcdMember, ...]:
    """Return the members with these names or ids; without names, the stale members.

    Raises `ChangeError` for a name that no member has.
    """
    if not names:
        return tuple(member for member in members if member.state == "stale")

    existing = {name for member in members for name in (member.id, member.name)}
    unknown = [name for name in names if name not in existing]
    if unknown:
        listed = ", ".join(f"{member.name} ({member.id})" for member in members)
        raise ChangeError([f"etcd has no member {name}; there are {listed}" for name in unknown])
    return tuple(member for member in members if {member.id, member.name} & set(names))


def removal_checks(
    cluster: Key, members: Sequence[EtcdMember], removed: Sequence[EtcdMember]
) -> list[Check]:
    """Check that no machine uses the removed members, and that etcd keeps its quorum."""
    subject = f"Cluster {cluster}"
    checks = []
    for member in removed:
        if not member.machine:
            continue
        message = f"member {member.name} belongs to Machine {member.machine}, which exists"
        command = remedies.DELETE_MACHINE(machine=member.machine, namespace=cluster.namespace)
        remedy = f"Delete the machine instead, its member is removed with it: {command}"
        checks.append(Check("machine", subject, Result.ERROR, message, remedy))

    # Learners do not vote.
    voting = [member for member in members if member.state != "learner"]
    staying = [member for member in voting if member not in removed]
    healthy = sum(member.state == "healthy" for member in staying)
    message = f"{healthy} of {len(staying)} remaining members are healthy"
    if staying and 2 * healthy > len(staying):
        checks.append(ok("quorum", subject, message))
    else:
        message = f"{message}: etcd would have no quorum"
        remedy = "Start the others first, or restore a snapshot of etcd"
        checks.append(Check("quorum", subject, Result.ERROR, message, remedy))
    return checks


def _state(member: Member, machine: Machine | None) -> str:
    """Return the state of a member by its machine, as `EtcdMember` describes it."""
    if member.learner:
        return "learner"
    # etcd learns the name of a member when it starts.
    if machine is None:
        return "stale" if member.name else "unstarted"
    ready = machine.node.ready if machine.node else ""
    return "healthy" if ready == "True" else "unhealthy"


def _names(machine: Machine) -> set[str]:
    """Return the possible names of the Node, after which RKE2 names the member.

    The Node is not known until `nodeRef` is set. VM and Node have the name of the HarvesterMachine,
    which may differ from the name of the Machine.
    """
    names = {machine.infrastructure or machine.name}
    if machine.node:
        names.add(machine.node.name)
    return names - {""}
