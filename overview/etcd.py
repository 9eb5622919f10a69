"""Members of a cluster's etcd against its machines, and which of them may be removed: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from caphv.api import remedies, resources
from caphv.api.names import RKE2_HOOK
from caphv.api.object import Key, Obj, annotations_of, being_deleted
from caphv.runtime.etcd import Member, members_of
from overview.changes import ChangeError
from overview.doctor.model import Check, Result, ok
from overview.model import Cluster, Machine
from overview.objects import ManagementObjects, Unseen, condition_of


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """A member; `state` is `healthy`, `unhealthy` (its Node is not ready), `learner`, `unstarted` or `stale`.

    A stale member has no machine: it counts for the quorum and never answers.
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
    """Return the Machines whose deletion waits for nothing any more, but that RKE2's provider does not release.

    It reads from the Node that the etcd member was removed; if the Node was deleted first, it waits without end.

    :param machines: Machines of the cluster
    :param nodes: names of the Nodes that the workload cluster has
    :param members: the members of etcd with their machines
    """
    in_etcd = {member.machine for member in members if member.machine}
    found = []
    for machine in machines:
        name = str(machine["metadata"]["name"])
        node = str(((machine.get("status") or {}).get("nodeRef") or {}).get("name") or "")
        waits = condition_of(machine, "Deleting").get("reason") == "WaitingForPreTerminateHook"
        hooked = being_deleted(machine) and waits and RKE2_HOOK in annotations_of(machine)
        if hooked and node and node not in nodes and name not in in_etcd:
            found.append(name)
    return tuple(sorted(found))


def unseen_machines(found: ManagementObjects) -> list[Unseen]:
    """Return why Machines or HarvesterMachines could not be read, by which members are matched; empty if they were."""
    kinds = {f"machines.{resources.CLUSTER_API_GROUP}", str(resources.HARVESTER_MACHINES)}
    return [unseen for unseen in found.unseen if unseen.what in kinds]


def members_with_machines(cluster: Cluster, found: Iterable[Member]) -> tuple[EtcdMember, ...]:
    """Return the members, by name, with the control plane machine of each."""
    found = list(found)
    machines = [machine for machine in cluster.machines if machine.control_plane]
    names = {name for machine in machines for name in _names(machine)}
    owners: dict[int, Machine] = {}
    for machine in machines:
        for name in _names(machine):
            owners |= {member.id: machine for member in members_of(name, found, names - {name})}
    return tuple(
        sorted(
            (
                EtcdMember(
                    f"{member.id:x}",
                    member.name,
                    _state(member, owners.get(member.id)),
                    owners[member.id].name if member.id in owners else "",
                    member.peer,
                )
                for member in found
            ),
            key=lambda member: (member.name, member.id),
        )
    )


def chosen(members: Sequence[EtcdMember], wanted: Iterable[str]) -> tuple[EtcdMember, ...]:
    """Return the members of these names or ids, by default those that are stale. Raises `ChangeError`."""
    names = list(wanted)
    if not names:
        return tuple(member for member in members if member.state == "stale")
    unknown = [name for name in names if not any(name in (each.id, each.name) for each in members)]
    if unknown:
        known = ", ".join(f"{member.name} ({member.id})" for member in members)
        raise ChangeError([f"etcd has no member {name}; there are {known}" for name in unknown])
    return tuple(member for member in members if {member.id, member.name} & set(names))


def removal_checks(cluster: Key, members: Sequence[EtcdMember], removed: Sequence[EtcdMember]) -> list[Check]:
    """Say what speaks against removing members: machines that still use them, and the quorum."""
    subject = f"Cluster {cluster}"
    found = []
    for member in removed:
        if member.machine:
            message = f"member {member.name} belongs to Machine {member.machine}, which exists"
            command = remedies.DELETE_MACHINE(machine=member.machine, namespace=cluster.namespace)
            remedy = f"Delete the machine instead, its member is removed with it: {command}"
            found.append(Check("machine", subject, Result.ERROR, message, remedy))
    voting = [member for member in members if member.state != "learner"]
    staying = [member for member in voting if member not in removed]
    healthy = sum(member.state == "healthy" for member in staying)
    message = f"{healthy} of {len(staying)} remaining members are healthy"
    if not staying or 2 * healthy <= len(staying):
        remedy = "Start the others first, or restore a snapshot of etcd"
        found.append(Check("quorum", subject, Result.ERROR, f"{message}: etcd would have no quorum", remedy))
    else:
        found.append(ok("quorum", subject, message))
    return found


def _state(member: Member, machine: Machine | None) -> str:
    if member.learner:
        return "learner"
    if machine is None:
        return "stale" if member.name else "unstarted"
    ready = machine.node.ready if machine.node else ""
    return "healthy" if ready == "True" else "unhealthy"


def _names(machine: Machine) -> set[str]:
    """Names that the Node may have: RKE2 names the member after it, and until `nodeRef` is set it is not known.

    VM and Node have the name of the HarvesterMachine, which control plane providers do not name like the Machine.
    """
    return {machine.infrastructure or machine.name, machine.node.name if machine.node else ""} - {""}
