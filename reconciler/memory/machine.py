"""Memory of one HarvesterMachine."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from caphv.api.ownership import Owner
from reconciler.machine.vmpolicy import VmClock
from reconciler.memory.periods import Debounce, OutageClock, Repeated


class Comparison(NamedTuple):
    """A comparison of VM and machine.

    :param version: everything that the comparison depends on
    :param difference: how the VM differs from the spec; empty if it does not
    """

    version: Hashable
    difference: str


class Placement(NamedTuple):
    """An instance of a VM, and the host on which it runs."""

    instance_uid: str
    host: str


@dataclass(slots=True)
class DeletionMemory:
    """Memory of the deletion of a machine."""

    # When the deletion was first seen. Without it, an etcd that does not answer delays it again.
    seen_at: float | None = None
    # When the deletion began to wait for another control plane machine. Without it, the wait begins
    # again.
    handover_since: float | None = None
    # Whether the etcd member was removed while the deletion continues. Without it, the members are
    # listed again.
    member_removed: bool = False
    # When the deletion began to wait for the instance to stop. Without it, an instance that stays
    # is reported later.
    vm_stopping_since: float | None = None
    # When a VM in deletion was found without an instance. Without it, the VM is halted later.
    vm_stopped_at: float | None = None
    # Whether this process had the VM deleted. Without it, Harvester is asked again whether VM and
    # instance exist, and leftover disks are deleted without a delay.
    vm_deletion_requested: bool = False
    # When VM and instance were found to be deleted. Without it, disks that stay are reported later.
    vm_absent_since: float | None = None
    # Owner in the record of the VM. Without it, the cloud-init Secret of a VM that was not adopted
    # yet stays.
    vm_owner: Owner | None = None
    outage: OutageClock = field(default_factory=OutageClock)


@dataclass(slots=True)
class BackupMemory:
    """Memory of the backup of a replaced VM."""

    # Whether the backup has ended. Without it, the Event about it is repeated.
    ended: bool = False
    # When Harvester last answered about the backup, and since when it does so without an outage.
    # Without them, the wait for the backup lasts some minutes longer.
    answered_at: float | None = None
    answers_since: float = 0.0
    # Uid of the backup. Without it, an unfinished one that cannot be read stays.
    uid: str = ""


@dataclass(slots=True)
class QuotaMemory:
    """Memory of the starts of a VM that a quota has halted. Without it, the next one is sooner."""

    # Failed starts of the VM since a quota halted it.
    starts: int = 0
    # When the VM was found halted again after the last start.
    halted_at: float | None = None


@dataclass(slots=True)
class MachineMemory:
    """Memory of one HarvesterMachine, until it is deleted."""

    uid: str
    deletion: DeletionMemory = field(default_factory=DeletionMemory)
    backup: BackupMemory = field(default_factory=BackupMemory)
    quota: QuotaMemory = field(default_factory=QuotaMemory)
    transient: Debounce = field(default_factory=Debounce)

    # When this process created the VM. Without it, the duration is missing in the metric.
    vm_created_at: float | None = None
    # When writes to the Node began to fail. Without it, a lasting failure is reported later.
    node_unreached_since: float | None = None
    # When an annotation with the VM's uid is due. Without it, another random moment is chosen.
    proof_due: float | None = None
    # The last comparison of VM and machine. Without it, they are compared again.
    drift: Comparison | None = None
    # Where the VM was last observed. Without it, a restart is reported again until it is written to
    # the status.
    placed: Placement | None = None
    # Why the machine could not adopt its VM while its cluster is parked. Without it, condition
    # Parked of the cluster says so later.
    adoption_refusal: str = ""
    # When the VM stopped running or its agent fell silent. Without it, a lasting state is reported
    # later.
    vm_clock: VmClock = field(default_factory=VmClock)
    # Facts about the VM that the log has. Without it, host and address are logged again.
    logged: set[str] = field(default_factory=set)
    # Attempts to reserve the address of the running VM again.
    reservation: Repeated = field(default_factory=Repeated)
    # Likewise for addresses of single interfaces.
    interface_reservation: Repeated = field(default_factory=Repeated)
    # Labels of the machine's series of `caphv_machine_status`, which is removed with the machine.
    metric_labels: tuple[str, str] | None = None
