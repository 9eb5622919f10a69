"""Memory of one HarvesterCluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from caphv.api.vmbackup import BackupsCheck
from reconciler.memory.periods import Grace, OutageClock, Repeated


class VerifiedObject(NamedTuple):
    """Version of a delivered object, empty for one without a version, and hash of its inputs."""

    version: str
    inputs: str


class StageRecord(NamedTuple):
    """Stage of a machine that is being evacuated, and since when."""

    name: str
    since: float


class Review(NamedTuple):
    """When it was last checked whether a machine would find another host, and why it would not."""

    reviewed_at: float
    obstacle: str


class RefusedStep(NamedTuple):
    """When Harvester last refused to change the VM of a machine, and a message about that."""

    refused_at: float
    message: str


class RefusedDeletion(NamedTuple):
    """Since when Harvester refuses to delete a volume, and its last message."""

    since: float
    message: str


@dataclass(slots=True)
class GuestMemory:
    """Memory of the credentials that guests use on Harvester, and of their delivery."""

    # Kubeconfig that guests find in a file. Without it, the provider builds it again from the token
    # Secret on Harvester.
    kubeconfig: str | None = field(default=None, repr=False)
    # What was verified, by delivery. Without it, the object is read again.
    verified: dict[str, VerifiedObject] = field(default_factory=dict)
    # Whether the account was deleted on Harvester. Without it, the next check finds out.
    account_lost: bool = False
    # When the account was last seen on Harvester. Without it, the account is read again.
    account_checked_at: float | None = None
    # The last report about the credentials. Without it, an Event is repeated for a paused cluster.
    expiry_reported: str = ""
    # When the Secret in the workload cluster was written. Without it, a rewrite does not wait.
    secret_written_at: float | None = None


@dataclass(slots=True)
class VolumesMemory:
    """Memory of the volumes that the guest created, while their cluster is being deleted."""

    # What the guest created is recorded. Without it, VMs are deleted after the next reconcile of
    # the cluster.
    recorded: bool = False
    # Refused deletions by uid. Without it, they get the time again.
    refused: dict[str, RefusedDeletion] = field(default_factory=dict)
    # Claims on Harvester whose last record failed, so that it may name a former reclaim policy.
    # Without it, they are known again as soon as the workload cluster answers.
    unrecorded_claims: set[str] = field(default_factory=set)


@dataclass(slots=True)
class BackupsMemory:
    """Memory of the backups of replaced machines."""

    # The last check of the backups. Without it, they are listed again.
    check: BackupsCheck | None = None
    # Why the VM of a replaced machine was deleted without a backup. Without it, the condition does
    # not name the machine.
    failure: str = ""
    # Since when Harvester fails to delete the backups with the cluster. Without it, the deletion
    # waits for them again.
    faults_since: float | None = None


@dataclass(slots=True)
class ParkingMemory:
    """Memory of a cluster that is parked or resumed."""

    # Since when its workers are drained. Without it, the drain begins again.
    drain_since: float | None = None
    # Nodes that could not be marked, by name. Without it, the next attempt finds out.
    refused_nodes: dict[str, str] = field(default_factory=dict)
    # When VMs were last started. Without it, one that a quota halted is started again.
    started_at: dict[str, float] = field(default_factory=dict)
    # Why Harvester has refused their last start, by name. Without it, they are started again.
    refused_starts: dict[str, str] = field(default_factory=dict)
    # Since when it waits to be resumed. Without it, the condition gives its advice later.
    resume_since: float | None = None
    # Since when all its Nodes are ready again. Without it, the pause ends some seconds later.
    returned_since: float | None = None
    # Why its schedule is not followed. Without it, the Event about it is repeated.
    schedule_problem: str = ""


@dataclass(slots=True)
class EvacuationMemory:
    """Memory of machines that leave hosts."""

    # By name of the machine. Without it, the stage gets its whole time again.
    stages: dict[str, StageRecord] = field(default_factory=dict)
    # Since when machines are on hosts that Harvester drains, by the names of both. Without it, they
    # are kept from remediation for the whole time again.
    drained_since: dict[tuple[str, str], float] = field(default_factory=dict)
    # By name of the machine. Without it, the machine is reviewed at once.
    reviews: dict[str, Review] = field(default_factory=dict)
    # By name of the machine. Without it, its step is tried again at once.
    refusals: dict[str, RefusedStep] = field(default_factory=dict)
    # Why devices that VMs of other namespaces use were not counted then. Without it, the condition
    # says so after the next check.
    uncounted: str = ""


@dataclass(slots=True)
class ClusterMemory:
    """Memory of one HarvesterCluster, until it is deleted."""

    uid: str
    guest: GuestMemory = field(default_factory=GuestMemory)
    volumes: VolumesMemory = field(default_factory=VolumesMemory)
    backups: BackupsMemory = field(default_factory=BackupsMemory)
    parking: ParkingMemory = field(default_factory=ParkingMemory)
    evacuation: EvacuationMemory = field(default_factory=EvacuationMemory)

    # Grace of conditions that gate machines. All of them are known once the infrastructure is.
    grace: Grace = field(default_factory=Grace)
    # Grace of conditions that gate nothing. Each of them becomes known independently.
    additional_grace: Grace = field(default_factory=Grace)
    # Why there is no session. Without it, a forced deletion of machines waits for the next attempt
    # to connect.
    connection_error: str = ""
    # Since when its deletion has no connection.
    outage: OutageClock = field(default_factory=OutageClock)
    # Whether a machine has found the target namespace deleted. Without it, its next attempt does.
    namespace_lost: bool = False
    # Whether the workload cluster has its add-ons. Without it, two requests look for them again.
    addons_found: bool = False
    # Value of annotation `caphv.io/reconcile-at` at the last attempt to import images. Without it,
    # refused imports are tried again.
    images_tried_at: str = ""
    # Attempts to reserve the address of the control plane again.
    reservation: Repeated = field(default_factory=Repeated)
    # Since when an initialized control plane does not answer at its external endpoint. Without it,
    # the outage is reported later.
    unanswered_since: float | None = None
