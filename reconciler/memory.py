"""Memory of reconciles between runs. A restart loses it, so correctness must not depend on it.

Each field documents the cost of its loss: an additional request, delay, or status write.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from caphv.api.object import Key, Obj, key_of, uid_of
from caphv.api.ownership import Owner
from caphv.api.vmbackup import BackupsCheck
from reconciler.harvester.storageclasses import StorageClasses
from reconciler.harvester.storageprofiles import StorageProfiles
from reconciler.machine.vmpolicy import VmClock

GRACE_SECONDS = 15.0
"""Seconds for which a state may be unknown before conditions report it as unknown.

States are unknown after a start of the provider, and while Harvester is unreachable.
"""

# Seconds between two writes of transient states. A new VM on a busy Harvester has a new one every
# few seconds: its volumes do not exist, are pending, it is scheduled, it has no address.
_NEXT_TRANSIENT_SECONDS = 5.0
# The first and the longest wait before a failed attempt is repeated for which nothing waits.
_FIRST_RETRY_SECONDS = 60.0
_MAX_RETRY_SECONDS = 600.0


class Grace:
    """Start times of the periods in which states behind conditions are unknown.

    Without it, a restart begins a new grace period.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def remaining(self, condition: str) -> float:
        """Return the seconds until the grace period of a condition ends, 0 once it has ended.

        The first call begins the period.
        """
        current_time = time.monotonic()
        since = self._since.setdefault(condition, current_time)
        return max(0.0, since + GRACE_SECONDS - current_time)

    def mark_known(self, *conditions: str) -> None:
        """Record that the states behind these conditions (default: all conditions) are known."""
        for condition in conditions or tuple(self._since):
            self._since.pop(condition, None)


class Repeated:
    """Start time of a series of equal failures. Without it, the next attempt comes sooner."""

    def __init__(self) -> None:
        self._kind = ""
        self._since = 0.0

    def retry_after(self, kind: str) -> float:
        """Return the seconds until the next attempt, after an attempt has failed in this way.

        The wait is as long as the failure has already lasted, within limits.
        """
        current_time = time.monotonic()
        if kind != self._kind:
            self._kind = kind
            self._since = current_time
        lasted = current_time - self._since
        return min(max(lasted, _FIRST_RETRY_SECONDS), _MAX_RETRY_SECONDS)

    def reset(self) -> None:
        """Record that the last attempt has succeeded, or that no attempt is due."""
        self._kind = ""


@dataclass(slots=True)
class MachineMemory:
    """Memory of one HarvesterMachine, until it is deleted. Times come from the monotonic clock."""

    uid: str
    # When this process had the VM deleted. Without it, leftover disks are deleted without a delay.
    vm_deleted_at: float | None = None
    # Owner in the record of that VM. Without it, the cloud-init Secret of a VM that was not adopted
    # yet stays.
    deleted_vm_owner: Owner | None = None
    # When this process created the VM. Without it, the duration is missing in the metric.
    vm_created_at: float | None = None
    # When the deletion was first seen. Without it, an etcd that does not answer delays it again.
    deletion_seen_at: float | None = None
    # When the deletion began to wait for another control plane machine. Without it, the wait begins
    # again.
    handover_since: float | None = None
    # When writes to the Node began to fail. Without it, a lasting failure is reported later.
    node_unreached_since: float | None = None
    # When a VM in deletion was found without an instance. Without it, the VM is halted later.
    vm_stopped_at: float | None = None
    # Failed starts of the VM since a quota halted it. Without it, the next start comes sooner.
    quota_starts: int = 0
    # When the VM was found halted again after the last start. Without it, the next start comes
    # sooner.
    quota_halted_at: float | None = None
    # Whether the backup of the replaced VM has ended. Without it, the Event about it is repeated.
    backup_ended: bool = False
    # When Harvester last answered about the backup, and since when it does so without an outage.
    # Without them, the wait for the backup lasts some minutes longer.
    backup_answered_at: float | None = None
    backup_answers_since: float = 0.0
    # Uid of the backup. Without it, an unfinished one that cannot be read stays.
    backup_uid: str = ""
    # Whether the etcd member was removed while the deletion continues. Without it, the members are
    # listed again.
    member_removed: bool = False
    # When the present transient state began. Without it, the status reports the state later.
    transient_since: float | None = None
    # Whether a transient state was written since the last lasting state. Without it, the next
    # transient state is written sooner.
    transient_written: bool = False
    # When an annotation with the VM's uid is due. Without it, another random moment is chosen.
    proof_due: float | None = None
    # What a comparison of VM and machine depended on, and its result. Without it, they are compared
    # again.
    drift: tuple[Hashable, str] | None = None
    # Uid of the instance and host that were last observed. Without it, a restart is reported again
    # until it is written to the status.
    placed: tuple[str, str] | None = None
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

    def debounce(self, lasting: float) -> float:
        """Return the seconds until a transient state has to be written, 0 if that is now.

        :param lasting: seconds for which a state must last before it is written
        """
        # A machine passes through half a dozen such states within seconds. Writing each of them
        # would take half of all requests. So only a state that lasts is written, and further states
        # less often.
        current_time = time.monotonic()
        if self.transient_written:
            lasting = max(lasting, _NEXT_TRANSIENT_SECONDS)
        if self.transient_since is None:
            self.transient_since = current_time

        remaining = self.transient_since + lasting - current_time
        if remaining <= 0:
            self.transient_since = current_time
            self.transient_written = True
        return max(0.0, remaining)

    def end_transient(self) -> None:
        """Record that the machine is in a lasting state."""
        self.transient_since = None
        self.transient_written = False


@dataclass(slots=True)
class ClusterMemory:
    """Memory of one HarvesterCluster, until it is deleted. Times come from the monotonic clock."""

    uid: str
    # Kubeconfig that guests find in a file. Without it, the provider builds it again from the token
    # Secret on Harvester.
    guest_kubeconfig: str | None = field(default=None, repr=False)
    # Grace of conditions that gate machines. All of them are known once the infrastructure is.
    grace: Grace = field(default_factory=Grace)
    # Grace of conditions that gate nothing. Each of them becomes known independently.
    additional_grace: Grace = field(default_factory=Grace)
    # Why there is no session. Without it, a forced deletion of machines waits for the next attempt
    # to connect.
    connection_error: str = ""
    # Version of the verified object and hash of its inputs, by delivery. Without it, the object is
    # read again.
    verified_cloud_configs: dict[str, tuple[str, str]] = field(default_factory=dict)
    # Whether the workload cluster has its add-ons. Without it, two requests look for them again.
    addons_found: bool = False
    # Whether the guests' account was deleted on Harvester. Without it, the next check finds out.
    account_lost: bool = False
    # When the guests' account was last seen on Harvester. Without it, the account is read again.
    account_checked_at: float | None = None
    # Value of annotation `caphv.io/reconcile-at` at the last attempt to import images. Without it,
    # refused imports are tried again.
    images_tried_at: str = ""
    # The last check of the backups of replaced machines. Without it, they are listed again.
    backups: BackupsCheck | None = None
    # Why the VM of a replaced machine was deleted without a backup. Without it, the condition does
    # not name the machine.
    backup_failure: str = ""
    # Since when Harvester fails to delete the backups with the cluster. Without it, the deletion
    # waits for them again.
    backup_faults_since: float | None = None
    # The last report about the guests' credentials. Without it, an Event is repeated for a paused
    # cluster.
    expiry_reported: str = ""
    # Attempts to reserve the address of the control plane again.
    reservation: Repeated = field(default_factory=Repeated)
    # Since when an initialized control plane does not answer at its external endpoint. Without it,
    # the outage is reported later.
    unanswered_since: float | None = None
    # Since when its workers are drained to be parked. Without it, the drain begins again.
    drain_since: float | None = None
    # Nodes that could not be marked, by name. Without it, the next attempt finds out.
    refused_nodes: dict[str, str] = field(default_factory=dict)
    # When VMs were started to resume it. Without it, one that a quota refused is started again.
    started_at: dict[str, float] = field(default_factory=dict)
    # Since when it waits to be resumed. Without it, the condition gives its advice later.
    resume_since: float | None = None
    # Since when all its Nodes are ready again. Without it, the pause ends some seconds later.
    returned_since: float | None = None
    # Why its schedule is not followed. Without it, the Event about it is repeated.
    schedule_problem: str = ""
    # The machines that are being evacuated, each with its stage, and since when. Without it, the
    # stage gets its whole time again.
    evacuation_stages: dict[str, tuple[str, float]] = field(default_factory=dict)
    # Since when machines are on hosts that Harvester drains, by the names of both. Without it, they
    # are kept from remediation for the whole time again.
    drained_since: dict[tuple[str, str], float] = field(default_factory=dict)
    # When it was last checked whether these machines would find another host, and why they would
    # not. Without it, that is checked at once.
    evacuation_reviews: dict[str, tuple[float, str]] = field(default_factory=dict)
    # Why devices that VMs of other namespaces use were not counted then. Without it, the condition
    # says so after the next check.
    evacuation_uncounted: str = ""
    # When the Secret in the workload cluster was written. Without it, a rewrite does not wait.
    cloud_config_written_at: float | None = None
    # What the guest created is recorded, and its cluster is being deleted. Without it, VMs are
    # deleted after the next reconcile of the cluster.
    guest_recorded: bool = False
    # Since when Harvester refuses to delete volumes, and its last message, by uid. Without it, they
    # get that time again.
    refused_volumes: dict[str, tuple[float, str]] = field(default_factory=dict)
    # Claims on Harvester whose last record failed, so that it may name a former reclaim policy.
    # Without it, they are known again as soon as the workload cluster answers.
    unrecorded_claims: set[str] = field(default_factory=set)


class QuotaGate:
    """Let one machine at a time try again in a namespace on Harvester whose quota is used up.

    Without it, each waiting machine would try every few seconds, and create a Secret and reserve an
    address each time.
    """

    def __init__(self) -> None:
        self._closed: dict[Hashable, tuple[str, float]] = {}
        self._ran: dict[Hashable, float] = {}

    def wait(self, namespace: Hashable, seconds: float) -> tuple[str, float] | None:
        """Return why no VM can be created or started there, and for how many seconds to wait.

        Returns None to the machine that has to try.

        :param seconds: for how long the other machines wait for the result of the attempt
        """
        message, until = self._closed.get(namespace, ("", 0.0))
        current_time = time.monotonic()
        if current_time < until:
            return message, until - current_time
        if message:
            self._closed[namespace] = (message, current_time + seconds)
        return None

    def close(self, namespace: Hashable, message: str, seconds: float) -> None:
        """Record that a quota refused a VM."""
        self._closed[namespace] = (message, time.monotonic() + seconds)

    def open(self, namespace: Hashable) -> None:
        """Record that a VM was created or started."""
        self._closed.pop(namespace, None)

    def record_running_vm(self, namespace: Hashable) -> None:
        """Record that a VM which a quota had halted runs again."""
        self.open(namespace)
        self._ran[namespace] = time.monotonic()

    def ran_since(self, namespace: Hashable, moment: float) -> bool:
        """Return whether a halted VM has begun to run since a moment of the monotonic clock."""
        return self._ran.get(namespace, moment) > moment


class Memory:
    """Memory of all objects by key; a recreated object starts with an empty one."""

    def __init__(self) -> None:
        self._machines: dict[Key, MachineMemory] = {}
        self._clusters: dict[Key, ClusterMemory] = {}
        self.quotas = QuotaGate()
        self.storage_profiles = StorageProfiles()
        self.storage_classes = StorageClasses()

    def machine(self, obj: Obj) -> MachineMemory:
        """Return the memory of a HarvesterMachine."""
        key = key_of(obj)
        uid = uid_of(obj)
        memory = self._machines.get(key)
        if memory is None or memory.uid != uid:
            # Keep the labels, because the series of the former machine has yet to be removed.
            labels = memory.metric_labels if memory else None
            memory = self._machines[key] = MachineMemory(uid, metric_labels=labels)
        return memory

    def cluster(self, obj: Obj) -> ClusterMemory:
        """Return the memory of a HarvesterCluster."""
        key = key_of(obj)
        uid = uid_of(obj)
        memory = self._clusters.get(key)
        if memory is None or memory.uid != uid:
            memory = self._clusters[key] = ClusterMemory(uid)
        return memory

    def forget_machine(self, key: Key) -> MachineMemory | None:
        """Drop the memory of a deleted HarvesterMachine, and return it."""
        return self._machines.pop(key, None)

    def forget_cluster(self, key: Key) -> None:
        """Drop the memory of a deleted HarvesterCluster."""
        self._clusters.pop(key, None)
