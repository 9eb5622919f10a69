"""The model of a cluster that all day-2 commands show: frozen data, and its form as JSON.

Times are those of the API server (RFC 3339 text), so that a form for people and one for programs can differ.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from caphv.api.object import Key


class State(StrEnum):
    """How a cluster is, in one word."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    """It works, and something is wrong."""
    UNREACHABLE = "Unreachable"
    """Its Harvester does not answer: the machines are as they were last seen."""
    FAILED = "Failed"
    """It is not available, and will not become so without help."""
    PAUSED = "Paused"
    DELETING = "Deleting"


class Severity(StrEnum):
    """How much a problem matters."""

    ERROR = "error"
    WARNING = "warning"
    WAITING = "waiting"
    """Needs no action yet."""
    NOTE = "note"
    """Works as it is, and may be intended."""

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return self in (Severity.ERROR, Severity.WARNING)

    @property
    def rank(self) -> int:
        """Position in a list that shows first what matters most."""
        return list(Severity).index(self)


# Conditions that say something is wrong, or under way, when they are true.
_NEGATIVE = frozenset({"Paused", "Deleting", "RollingOut", "ScalingUp", "ScalingDown", "Remediating", "Updating"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object; the type of one of a HarvesterMachine, among those of its Machine, has a prefix."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: str = ""

    @property
    def bare_type(self) -> str:
        """The type without a prefix."""
        return self.type.rpartition(":")[2]

    @property
    def negative(self) -> bool:
        """Whether its being true says that something is wrong, or under way."""
        return self.bare_type in _NEGATIVE

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return self.status == ("False" if self.negative else "True")


@dataclass(frozen=True, slots=True)
class Problem:
    """One cause, with what to do next; `objects` are all that it concerns, `since` the earliest time it was seen.

    `consequences` are further objects whose conditions only repeat it.
    """

    severity: Severity
    objects: tuple[str, ...]
    reason: str
    cause: str
    next_step: str
    since: str = ""
    consequences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedCause:
    """A problem that several clusters have in common, as they use one Harvester or one identity."""

    severity: Severity
    subject: str
    reason: str
    cause: str
    next_step: str
    since: str
    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Machines that are wanted, exist, work, and are as the spec says."""

    desired: int = 0
    current: int = 0
    available: int = 0
    up_to_date: int = 0

    def __str__(self) -> str:
        return f"{self.available}/{self.desired}"

    @property
    def complete(self) -> bool:
        """Whether all is as it should be."""
        return self.desired == self.current == self.available == self.up_to_date


@dataclass(frozen=True, slots=True)
class Disk:
    """A PersistentVolumeClaim of a VM on Harvester."""

    name: str
    size: str = ""
    storage_class: str = ""
    phase: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """A VM on Harvester, as Harvester itself reports it."""

    namespace: str
    name: str
    status: str = ""
    host: str = ""
    created: str = ""
    disks: tuple[Disk, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A Node, from the workload cluster itself or as its Machine remembers it."""

    name: str
    ready: str = ""
    version: str = ""
    created: str = ""
    zone: str = ""
    provider_id: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A Machine with its HarvesterMachine; `vm` is there after a deep read only."""

    name: str
    control_plane: bool
    group: str
    phase: str
    ready: bool
    created: str = ""
    version: str = ""
    infrastructure: str = ""
    vm_namespace: str = ""
    host: str = ""
    zone: str = ""
    addresses: tuple[str, ...] = ()
    pool: str = ""
    allocated: str = ""
    cpu: int = 0
    memory: str = ""
    node: Node | None = None
    vm: VirtualMachine | None = None
    deleting: bool = False
    conditions: tuple[Condition, ...] = ()

    @property
    def owners(self) -> tuple[str, ...]:
        """The objects that its conditions are of, as problems name them."""
        return (f"Machine/{self.name}", *([f"HarvesterMachine/{self.infrastructure}"] if self.infrastructure else ()))


@dataclass(frozen=True, slots=True)
class Group:
    """A control plane or a MachineDeployment with its machines."""

    kind: str
    name: str
    replicas: Replicas
    version: str = ""
    machines: tuple[Machine, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster on Harvester with all that belongs to it."""

    namespace: str
    name: str
    state: State
    created: str = ""
    phase: str = ""
    class_name: str = ""
    version: str = ""
    versions: tuple[str, ...] = ()
    """Versions that its machines have, oldest first; more than one while an upgrade is under way."""
    endpoint: str = ""
    harvester: str = ""
    target_namespace: str = ""
    identity: str = ""
    infrastructure: str = ""
    control_plane: Replicas = Replicas()
    workers: Replicas = Replicas()
    groups: tuple[Group, ...] = ()
    bundles: Condition | None = None
    problems: tuple[Problem, ...] = ()
    conditions: tuple[Condition, ...] = ()
    infrastructure_conditions: tuple[Condition, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return Key(self.namespace, self.name)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Machines of all groups."""
        return tuple(machine for group in self.groups for machine in group.machines)

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return any(problem.severity.wrong for problem in self.problems)


@dataclass(frozen=True, slots=True)
class Pool:
    """An IPPool on a Harvester; `free` is None when its ranges cannot be understood."""

    harvester: str
    name: str
    total: int
    free: int | None
    allocated: int = 0


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider, by its Lease; `since` is when that was renewed last."""

    lease: str
    silent: bool = False
    since: str = ""
    cause: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """What a management cluster has on Harvester, as far as the user may see."""

    server: str
    clusters: tuple[Cluster, ...] = ()
    pools: tuple[Pool, ...] = ()
    unseen: tuple[str, ...] = ()
    provider: Provider | None = None
    """None where nothing says whether it is at work."""
    causes: tuple[SharedCause, ...] = ()
    """What several clusters have in common, in addition to the problems of each."""

    @property
    def wrong(self) -> bool:
        """Whether any of the clusters needs action, or the provider."""
        return self.silent or any(cluster.wrong for cluster in self.clusters)

    @property
    def silent(self) -> bool:
        """Whether no provider is at work, so that all else may be outdated."""
        return self.provider is not None and self.provider.silent


def as_json(value: Any) -> Any:
    """Return data of this module in camel case, as Kubernetes writes fields, without what is unknown."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if hasattr(value, "wrong"):
            fields["wrong"] = value.wrong
        return {_camel(name): as_json(each) for name, each in fields.items() if each != "" and each is not None}
    if isinstance(value, (tuple, list)):
        return [as_json(each) for each in value]
    if isinstance(value, StrEnum):
        return str(value)
    return value


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
