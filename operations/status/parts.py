"""Group the objects of one cluster, and derive commands and remedies from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from caphv.api import clusterapi
from caphv.api.identities import identity_of
from caphv.api.object import Key, Obj, at, being_deleted, dict_at, key_of
from operations.status.healthchecks import is_marked, is_unhealthy
from operations.status.remedies import Subject, resume_command


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects of one cluster.

    `complete` says that absent objects of the provider do not exist, `sees_machines` that absent
    Machines do not.
    """

    cluster: Obj
    harvester_cluster: Obj | None = None
    control_plane: Obj | None = None
    machines: list[Obj] = field(default_factory=list)
    harvester_machines: dict[Key, Obj] = field(default_factory=dict)
    complete: bool = True
    sees_machines: bool = True

    @property
    def key(self) -> Key:
        """Namespace and name of the Cluster."""
        return key_of(self.cluster)

    def machine_of(self, harvester_machine: Obj) -> Obj | None:
        """Return the Machine of a HarvesterMachine, whose name may differ."""
        key = key_of(harvester_machine)
        for machine in self.machines:
            _, name = clusterapi.infrastructure_ref(machine)
            if Key(key_of(machine).namespace, name) == key:
                return machine
        return None

    def harvester_machine_of(self, machine: Obj) -> Obj | None:
        """Return the HarvesterMachine of a Machine."""
        _, name = clusterapi.infrastructure_ref(machine)
        return self.harvester_machines.get(Key(key_of(machine).namespace, name))


def identity_text(harvester_cluster: Obj | None) -> str:
    """Return the identity of a HarvesterCluster as a text, empty if it names none."""
    identity = identity_of(harvester_cluster or {})
    return str(identity) if identity.name else ""


def is_paused(parts: Parts) -> bool:
    """Whether reconciliation of the cluster is suspended."""
    return bool(resume_commands(parts))


def resume_commands(parts: Parts) -> str:
    """Return the commands that resume a paused cluster, for a shell; empty if it is not paused."""
    objects = [parts.cluster]
    if parts.harvester_cluster:
        objects.append(parts.harvester_cluster)
    return " && ".join(filter(None, map(resume_command, objects)))


def remedy_subject(parts: Parts, obj: Obj, kind: str) -> Subject:
    """Return the names that a remedy for an object of a cluster may contain."""
    machine = None
    if kind == "Machine":
        machine = obj
    elif kind == "HarvesterMachine":
        machine = parts.machine_of(obj)

    harvester_machine = parts.harvester_machine_of(machine) if machine else None
    spec = dict_at(parts.harvester_cluster, "spec")
    return Subject(
        *parts.key,
        kind,
        obj["metadata"]["name"],
        identity=identity_text(parts.harvester_cluster),
        target=str(spec.get("targetNamespace") or ""),
        machine=key_of(machine).name if machine else "",
        unowned=machine is None and parts.sees_machines,
        deleting=machine is not None and being_deleted(machine),
        topology=bool(at(parts.cluster, "spec", "topology")),
        ran=bool(at(harvester_machine, "status", "initialization", "provisioned")),
        only=machine is not None and _has_only_etcd(parts, machine),
        unmarked=machine is not None and is_unhealthy(machine) and not is_marked(machine),
    )


def is_of_rancher(parts: Parts) -> bool:
    """Return whether Rancher provisions a cluster, and reverts changes of its objects."""
    return clusterapi.is_of_rancher(parts.cluster)


def _has_only_etcd(parts: Parts, machine: Obj) -> bool:
    """Return whether a Machine is the only one with the etcd of an initialized cluster."""
    if not clusterapi.has_etcd(machine, parts.cluster):
        return False
    if not clusterapi.control_plane_initialized(parts.cluster):
        return False

    # A machine without a Node has not joined etcd, and one that is being deleted leaves it.
    return not any(
        clusterapi.has_etcd(other, parts.cluster)
        and at(other, "status", "nodeRef")
        and not being_deleted(other)
        for other in parts.machines
        if other is not machine
    )
