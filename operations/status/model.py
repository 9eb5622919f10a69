"""The model of a cluster that all day-2 commands show: frozen data, and its form as JSON.

Times stay text as API servers write them (RFC 3339), which JSON output repeats. Tables show ages.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from caphv.api.object import Key


class State(StrEnum):
    """State of a cluster, in one word."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    """The cluster works, but something is wrong."""
    UNREACHABLE = "Unreachable"
    """Harvester does not answer, so that the state of machines may be outdated."""
    FAILED = "Failed"
    """The cluster is not available, and needs help to become available."""
    PARKED = "Parked"
    """Its VMs are stopped on request: nothing that follows from it is a problem."""
    PAUSED = "Paused"
    DELETING = "Deleting"


class Severity(StrEnum):
    """The importance of a problem."""

    ERROR = "error"
    WARNING = "warning"
    WAITING = "waiting"
    """Needs no action yet."""
    NOTE = "note"
    """The cluster works, and the state may be intended."""

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return self in (Severity.ERROR, Severity.WARNING)

    @property
    def rank(self) -> int:
        """Position in a list that shows the most important problem first."""
        return list(Severity).index(self)


# Conditions of negative polarity. A status of True means that something is wrong, or in progress.
_NEGATIVE = frozenset(
    {
        "Paused",
        "Parked",
        "Deleting",
        "RollingOut",
        "ScalingUp",
        "ScalingDown",
        "Remediating",
        "Updating",
    }
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object.

    A Machine also lists the conditions of its HarvesterMachine, with a prefix before their type.
    """

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
        """Whether a status of True means that something is wrong, or in progress."""
        return self.bare_type in _NEGATIVE

    @property
    def good(self) -> bool:
        """Whether the condition has its normal status."""
        return self.status == ("False" if self.negative else "True")


@dataclass(frozen=True, slots=True)
class Problem:
    """One cause, with what to do next.

    `objects` names all affected objects, `since` is the earliest time at which the problem was
    seen, and `consequences` names further objects whose conditions only repeat it.
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
    """A problem of several clusters, which use one Harvester, one identity or one packager."""

    severity: Severity
    subject: str
    reason: str
    cause: str
    next_step: str
    since: str
    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Numbers of machines: desired by the spec, existing, available, and with the newest spec."""

    desired: int = 0
    current: int = 0
    available: int = 0
    up_to_date: int = 0

    def __str__(self) -> str:
        return f"{self.available}/{self.desired}"

    @property
    def complete(self) -> bool:
        """Whether all desired machines exist, are available and have the newest spec."""
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
    """A Node, from the workload cluster itself or from its Machine."""

    name: str
    ready: str = ""
    version: str = ""
    created: str = ""
    zone: str = ""
    provider_id: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A Machine with its HarvesterMachine; only a deep read sets `vm`.

    A machine of the control plane serves the API and has a member of etcd. In a cluster that
    Rancher provisions, it may do one of them.
    """

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
    etcd: bool = False

    @property
    def owners(self) -> tuple[str, ...]:
        """The names by which problems refer to the objects that report its conditions."""
        machine = f"Machine/{self.name}"
        if not self.infrastructure:
            return (machine,)
        return (machine, f"HarvesterMachine/{self.infrastructure}")


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
    """A cluster on Harvester with its groups of machines, problems and conditions."""

    namespace: str
    name: str
    state: State
    created: str = ""
    phase: str = ""
    class_name: str = ""
    version: str = ""
    versions: tuple[str, ...] = ()
    """Versions of its machines, oldest first; more than one while an upgrade is under way."""
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
class AddressPool:
    """An IPPool on a Harvester; `free` is None when its ranges are invalid."""

    harvester: str
    name: str
    total: int
    free: int | None
    allocated: int = 0


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider, by its Lease; `since` is the time of the last renewal.

    If there is none, `lease` is empty, and `since` is the age of the oldest object that waits.
    """

    lease: str
    silent: bool = False
    since: str = ""
    cause: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The clusters that a management cluster has on Harvester, as far as the user may see them."""

    server: str
    clusters: tuple[Cluster, ...] = ()
    pools: tuple[AddressPool, ...] = ()
    unseen: tuple[str, ...] = ()
    provider: Provider | None = None
    """None if no Lease says whether a provider is at work."""
    causes: tuple[SharedCause, ...] = ()
    """Causes that several clusters share, in addition to the problems of each cluster."""

    @property
    def wrong(self) -> bool:
        """Whether a cluster or the provider needs action."""
        return self.silent or any(cluster.wrong for cluster in self.clusters)

    @property
    def silent(self) -> bool:
        """Whether no provider is at work, so that everything else may be outdated."""
        return self.provider is not None and self.provider.silent


def as_json(value: Any) -> Any:
    """Return data of this module as Kubernetes writes it: in camel case, without empty fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        # Programs that read the JSON need not know which severities and states need action.
        if hasattr(value, "wrong"):
            fields["wrong"] = value.wrong

        return {
            re.sub(r"_([a-z])", lambda match: match[1].upper(), name): as_json(content)
            for name, content in fields.items()
            if content != "" and content is not None
        }

    if isinstance(value, dict):
        return {name: as_json(content) for name, content in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    return value
