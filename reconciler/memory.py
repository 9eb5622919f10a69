"""What reconciles remember between runs. A restart loses all of it, so correctness must not depend on it.

Each field documents what happens without it: an additional request, delay, or status write.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from caphv.api.object import Key, Obj, key_of, uid_of
from reconciler.harvester.storageprofiles import StorageProfiles
from reconciler.machine.vmpolicy import VmClock

GRACE_SECONDS = 15.0
"""How long a state may be unknown, after a start or while Harvester is unreachable, before conditions say so."""

# Seconds between writes of transient states.
_NEXT_TRANSIENT = 2.0
# Seconds until something that fails, and that nothing waits for, is tried again.
_FIRST_RETRY, _LAST_RETRY = 60.0, 600.0


class Grace:
    """Since when the states behind conditions are unknown. Without it: a restart begins a new grace period."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def remaining(self, condition: str) -> float:
        """Seconds until the grace period of a condition ends, 0 once it has; the first call begins it."""
        now = time.monotonic()
        return max(0.0, self._since.setdefault(condition, now) + GRACE_SECONDS - now)

    def known(self, *conditions: str) -> None:
        """The states behind these conditions are known, or those behind all."""
        for condition in conditions or tuple(self._since):
            self._since.pop(condition, None)


class Repeated:
    """Since when attempts fail in the same way. Without it: the next one comes sooner."""

    def __init__(self) -> None:
        self._kind = ""
        self._since = 0.0

    def retry_after(self, kind: str) -> float:
        """Seconds until the next attempt, after one that has failed in this way: as long as it lasts already."""
        now = time.monotonic()
        if kind != self._kind:
            self._kind, self._since = kind, now
        return min(max(now - self._since, _FIRST_RETRY), _LAST_RETRY)

    def ended(self) -> None:
        """It fails no more."""
        self._kind = ""


@dataclass(slots=True)
class MachineMemory:
    """Memory of one HarvesterMachine, until it was deleted."""

    uid: str
    vm_deleted_at: float | None = None
    """When (monotonic) this process had the VM deleted. Without it: leftover disks are deleted without a delay."""
    vm_created_at: float | None = None
    """When (monotonic) this process created the VM. Without it: the metric lacks how long that took."""
    deletion_seen_at: float | None = None
    """When (monotonic) its deletion was first seen. Without it: an etcd that does not answer delays it again."""
    handover_since: float | None = None
    """Since when (monotonic) its deletion waits for another control plane machine. Without it: it waits longer."""
    node_unreached_since: float | None = None
    """Since when (monotonic) its Node cannot be written. Without it: what lasts is reported later."""
    vm_stopped_at: float | None = None
    """When (monotonic) its VM that is being deleted was found without an instance. Without it: it is halted later."""
    quota_starts: int = 0
    """Failed starts of its VM since a quota halted it. Without it: the next start comes sooner."""
    quota_halted_at: float | None = None
    """When (monotonic) its VM was found halted again after the last start. Without it: it is started sooner."""
    member_removed: bool = False
    """The etcd member was removed while the deletion continues. Without it: the members are listed again."""
    transient_since: float | None = None
    """Since when (monotonic) a transient state lasts. Without it: it is written to the status a second later."""
    transient_written: bool = False
    """A transient state was written since the last one that stays. Without it: the next is written sooner."""
    proof_due: float | None = None
    """When (monotonic) an annotation with the VM's uid is due. Without it: another moment is drawn."""
    drift: tuple[Hashable, str] | None = None
    """Versions of machine and VM that were compared, and the result. Without it: they are compared again."""
    placed: tuple[str, str] | None = None
    """Uid of the instance and host that were last observed. Without it: a restart is reported until it is written."""
    vm_clock: VmClock = field(default_factory=VmClock)
    """Since when the VM does not run, or its agent is silent. Without it: what lasts is reported later."""
    logged: set[str] = field(default_factory=set)
    """What the log has reported about the VM. Without it: its host and address are logged again."""
    reservation: Repeated = field(default_factory=Repeated)
    """Attempts to reserve the address of its running VM again."""
    metric_labels: tuple[str, str] | None = None
    """Labels of its series of `caphv_machine_status`, to be removed with it."""

    def debounce(self, lasting: float) -> float:
        """Seconds until a transient state has lasted long enough to be written, 0 when it has.

        A machine goes through half a dozen of them within a few seconds: written one by one they would be half of all
        requests. What lasts is written, and further ones less often.
        """
        now = time.monotonic()
        if self.transient_written:
            lasting = max(lasting, _NEXT_TRANSIENT)
        if self.transient_since is None:
            self.transient_since = now
        left = self.transient_since + lasting - now
        if left <= 0:
            self.transient_since, self.transient_written = now, True
        return max(0.0, left)

    def settled(self) -> None:
        """Record that the machine is in a state that stays."""
        self.transient_since, self.transient_written = None, False


@dataclass(slots=True)
class ClusterMemory:
    """Memory of one HarvesterCluster, until it was deleted."""

    uid: str
    guest_kubeconfig: str | None = field(default=None, repr=False)
    """Kubeconfig that guests find in a file. Without it: it is made from the token Secret on Harvester again."""
    grace: Grace = field(default_factory=Grace)
    references_before_the_rule: frozenset[str] | None = None
    """References that the rule about permissions tolerates. Without it: those at the time of a restart are."""
    connection_error: str = ""
    """Why there is no session. Without it: a forced deletion of machines waits for the next attempt to connect."""
    any_address_for: str = ""
    """Fingerprint of credentials whose server's address is not checked. Without it: one more refused connection."""
    verified_cloud_configs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By delivery: version of the verified object and hash of its inputs. Without it: the object is read again."""
    addons_found: bool = False
    """The workload cluster has its add-ons. Without it: two requests look for them again."""
    account_lost: bool = False
    """The guests' account was deleted on Harvester. Without it: the next check finds out again."""
    account_checked_at: float | None = None
    """When (monotonic) the guests' account was last seen on Harvester. Without it: it is read again."""
    expiry_reported: str = ""
    """What was reported of the guests' credentials, once. Without it: an Event is repeated for a paused cluster."""
    reservation: Repeated = field(default_factory=Repeated)
    """Attempts to reserve the address of the control plane again."""
    cloud_config_written_at: float | None = None
    """When (monotonic) the Secret in the workload cluster was written. Without it: a rewrite does not wait."""


class QuotaGate:
    """Namespaces on Harvester whose quota is used up: one machine at a time tries whether that is still so.

    Without it: each machine that waits tries again every few seconds, with a Secret and an address of its own.
    """

    def __init__(self) -> None:
        self._closed: dict[Hashable, tuple[str, float]] = {}
        self._ran: dict[Hashable, float] = {}

    def wait(self, namespace: Hashable, seconds: float) -> tuple[str, float] | None:
        """Why no VM can be created or started there, and for how many seconds; None for the machine that is to try."""
        message, until = self._closed.get(namespace, ("", 0.0))
        now = time.monotonic()
        if now < until:
            return message, until - now
        if message:
            self._closed[namespace] = (message, now + seconds)
        return None

    def close(self, namespace: Hashable, message: str, seconds: float) -> None:
        """Record that a quota refused a VM."""
        self._closed[namespace] = (message, time.monotonic() + seconds)

    def open(self, namespace: Hashable) -> None:
        """Record that a VM was created or started."""
        self._closed.pop(namespace, None)

    def runs(self, namespace: Hashable) -> None:
        """Record that a VM runs that a quota had halted."""
        self.open(namespace)
        self._ran[namespace] = time.monotonic()

    def ran_since(self, namespace: Hashable, moment: float) -> bool:
        """Whether such a VM has begun to run since then (monotonic)."""
        return self._ran.get(namespace, moment) > moment


class Memory:
    """Memory of all objects by key. An object that was recreated under the same name starts with an empty one."""

    def __init__(self) -> None:
        self._machines: dict[Key, MachineMemory] = {}
        self._clusters: dict[Key, ClusterMemory] = {}
        self.quotas = QuotaGate()
        self.storage_profiles = StorageProfiles()

    def machine(self, obj: Obj) -> MachineMemory:
        """Memory of a HarvesterMachine."""
        key, uid = key_of(obj), uid_of(obj)
        known = self._machines.get(key)
        if known is None or known.uid != uid:
            labels = known.metric_labels if known else None
            known = self._machines[key] = MachineMemory(uid, metric_labels=labels)
        return known

    def cluster(self, obj: Obj) -> ClusterMemory:
        """Memory of a HarvesterCluster."""
        key, uid = key_of(obj), uid_of(obj)
        known = self._clusters.get(key)
        if known is None or known.uid != uid:
            known = self._clusters[key] = ClusterMemory(uid)
        return known

    def forget_machine(self, key: Key) -> MachineMemory | None:
        """Drop what is known of a deleted HarvesterMachine, and return it."""
        return self._machines.pop(key, None)

    def forget_cluster(self, key: Key) -> None:
        """Drop what is known of a deleted HarvesterCluster."""
        self._clusters.pop(key, None)
