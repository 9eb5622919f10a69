"""Scope of one reconcile of one HarvesterMachine: its objects and the findings of its phases."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from caphv.api import clusterapi, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, key_of
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from reconciler import triggers
from reconciler.context import Context
from reconciler.harvester.identityaccount import command_for
from reconciler.harvester.ownership import Owner
from reconciler.harvester.session import Session
from reconciler.harvester.topology import unpublished_domains
from reconciler.harvester.views import TargetNamespace
from reconciler.memory import MachineMemory
from reconciler.status import Blocked, StatusDraft
from reconciler.triggers import Subscription, Trigger, Watched


@dataclass(slots=True)
class MachineScope:
    """`obj` is the HarvesterMachine; the other three may be missing while a machine is deleted.

    `requeue_after` is a delay in seconds, set by a step that has to be tried again although the reconcile continues.
    `failure` is the error of such a step, raised after the status was written.
    """

    context: Context
    obj: Obj
    machine: Obj | None
    cluster: Obj | None
    harvester_cluster: Obj | None
    draft: StatusDraft
    requeue_after: float | None = None
    failure: ApiError | Unreachable | None = None

    key: Key = field(init=False)
    """Key of the HarvesterMachine."""
    name: str = field(init=False)
    """Name of machine, VM, host and Node (contract)."""
    memory: MachineMemory = field(init=False)
    """What earlier reconciles of this machine remembered."""
    cluster_key: Key | None = field(init=False)
    """Key of the Cluster."""
    cluster_spec: Obj = field(init=False)
    """The HarvesterCluster's spec, empty if it does not exist."""
    target_namespace: str = field(init=False)
    """Namespace of the VM on Harvester."""

    def __post_init__(self) -> None:
        self.key = key_of(self.obj)
        self.name = self.key.name
        self.memory = self.context.memory.machine(self.obj)
        self.cluster_key = key_of(self.cluster) if self.cluster else None
        self.cluster_spec = (self.harvester_cluster or {}).get("spec") or {}
        self.target_namespace = str(self.cluster_spec.get("targetNamespace") or "")

    @property
    def spec(self) -> Obj:
        """The HarvesterMachine's spec."""
        spec: Obj = self.obj.get("spec") or {}
        return spec

    @property
    def owner(self) -> Owner:
        """Owner record of the machine's objects on Harvester."""
        return self.context.owner(resources.HARVESTER_MACHINES.kind, self.obj)

    @property
    def reservation(self) -> str:
        """Id under which pools hold the machine's address (contract: `<HarvesterMachine namespace>/<name>`)."""
        return f"{self.key.namespace}/{self.name}"

    @property
    def control_plane(self) -> bool:
        """Whether the machine belongs to the control plane."""
        return clusterapi.is_control_plane(self.obj) or bool(self.machine and clusterapi.is_control_plane(self.machine))

    @property
    def failure_domain(self) -> str:
        """Domain that the machine has to run in: the Machine's first, as in Go, else its own; empty for any."""
        chosen = clusterapi.failure_domain(self.machine) if self.machine else ""
        return chosen or str(self.spec.get("failureDomain") or "")

    @property
    def failure_domains(self) -> Sequence[Obj]:
        """Domains that a failure domain may name: those that the HarvesterCluster publishes, if the core takes them."""
        if self.context.caches.failure_domains_published:
            return ((self.harvester_cluster or {}).get("status") or {}).get("failureDomains") or ()
        return unpublished_domains(self.session().hosts.store)

    def subscribe(self, *topics: Hashable) -> Subscription:
        """Requeue the machine when one of these topics changes; to be called before reading their state."""
        return self.context.topics.subscribe(self.context.queues.machines, self.key, *topics)

    def session(self) -> Session:
        """Session of the cluster. Raises `Blocked` while Harvester is unreachable."""
        session = self.context.sessions.of(key_of(self.harvester_cluster)) if self.harvester_cluster else None
        if session is None:
            raise Blocked(
                ConditionType.VM_PROVISIONING_READY,
                Reason.VM_PROVISIONING_IN_PROGRESS,
                "waiting for the HarvesterCluster to connect to Harvester",
                Watched.CONNECTION,
                unknown=True,
            )
        if session.error:
            how, reason = "refuses requests", Reason.HARVESTER_CONNECTION_FAILED
            if session.unauthorized:
                how, reason = "rejects the credentials", Reason.HARVESTER_AUTHENTICATION_FAILED
            elif isinstance(session.error, Unreachable):
                how, reason = "is unreachable", Reason.HARVESTER_UNREACHABLE
            raise Blocked(
                ConditionType.VM_PROVISIONING_READY,
                reason,
                f"Harvester at {session.server} {how}; see the HarvesterCluster's conditions",
                Watched.CONNECTION,
                unknown=True,
            )
        return session

    def namespace(self) -> TargetNamespace:
        """Caches of the target namespace. Raises `Blocked` until they have been filled."""
        session = self.session()
        namespace = session.watch_namespace(self.target_namespace)
        # Nothing is awaited before the subscription, so no change can be missed; most calls need none.
        if not namespace.synced or not session.synced:
            filled = self.subscribe(triggers.caches(session.fingerprint))
            raise self._caches_not_ready(namespace, filled)
        return namespace

    def current_namespace(self) -> TargetNamespace:
        """Caches of the target namespace in which absence means absence on Harvester, now.

        Raises `Blocked` while a watch is not connected: what cannot be undone must not follow from an old state.
        """
        namespace, session = self.namespace(), self.session()
        if not namespace.current or not session.pools.current:
            raise self._caches_not_ready(namespace, self.subscribe(triggers.caches(session.fingerprint)))
        return namespace

    async def live_vm(self) -> Obj | None:
        """Read the VM from Harvester; None if there is none.

        A creation whose response was lost is in no cache yet, and a provider that has restarted does not remember it.
        """
        try:
            vm = await self.session().client.get(resources.VIRTUAL_MACHINES, self.name, self.target_namespace)
        except NotFound:
            return None
        self.namespace().vms.observe(vm)
        return vm

    def refused(self) -> Blocked | None:
        """Why a deletion will never learn what exists: the account may not read it. None if it may, or that is open."""
        try:
            self.current_namespace()
        except Blocked as blocked:
            return blocked if blocked.reason == Reason.TARGET_NAMESPACE_NOT_READY else None
        return None

    def _caches_not_ready(self, namespace: TargetNamespace, source: Subscription) -> Blocked:
        session, where = self.session(), f"namespace {self.target_namespace} on Harvester"
        reason = Reason.VM_PROVISIONING_IN_PROGRESS
        message = namespace.sync_error or session.sync_error or f"reading {where}"
        refusal = session.refusal(namespace, session.pools)
        if refusal:
            reason = Reason.TARGET_NAMESPACE_NOT_READY
            message = f"{where} cannot be read: {refusal}{command_for(self.target_namespace)}"
        return Blocked(ConditionType.VM_PROVISIONING_READY, reason, message, source, unknown=True)

    def instance(self) -> Obj | None:
        """Instance of the VM, None while there is none."""
        return self.namespace().instances.get(self.target_namespace, self.name)

    def host_of(self, vmi: Obj) -> Obj | None:
        """Host of Harvester on which an instance runs, None while it does not."""
        name = vmi.get("status", {}).get("nodeName")
        return self.session().hosts.get("", name) if name else None

    def in_progress(self, message: str, source: Trigger, *, warn: bool = False) -> Blocked:
        """Provisioning waits for something temporary."""
        reason = Reason.VM_PROVISIONING_IN_PROGRESS
        return Blocked(ConditionType.VM_PROVISIONING_READY, reason, message, source, warn=warn)

    def failed(self, message: str, *sources: Trigger) -> Blocked:
        """Provisioning fails until a user corrects the machine, or something else that `sources` report."""
        reason = Reason.VM_PROVISIONING_FAILED
        return Blocked(ConditionType.VM_PROVISIONING_READY, reason, message, Watched.SELF, *sources, warn=True)

    def requeue_in(self, seconds: float | None) -> None:
        """Requeue the machine after this time at the latest, although the reconcile continues; None does nothing."""
        self.requeue_after = min(filter(None, (self.requeue_after, seconds)), default=None)

    def warning_event(self, reason: str, message: str) -> None:
        """Emit an Event of type Warning, and log it."""
        self.context.event(resources.HARVESTER_MACHINES, self.obj, "Warning", reason, message)
        self.draft.warned = message

    def event(self, reason: str, message: str) -> None:
        """Emit an Event of type Normal, and log it."""
        self.context.event(resources.HARVESTER_MACHINES, self.obj, "Normal", reason, message)

    async def patch(self, patch: Obj) -> None:
        """Merge a patch of metadata and spec into the HarvesterMachine."""
        informer = self.context.caches.harvester_machines
        self.obj = await self.context.client.patch(informer.resource, self.name, self.key.namespace, patch)
        informer.observe(self.obj)
        self.draft.moved_to(self.obj)
