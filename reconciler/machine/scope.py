"""Scope of one reconcile of one HarvesterMachine: its objects and the results of its steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from caphv.api import clusterapi, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, at, key_of, list_at
from caphv.api.ownership import Owner
from caphv.runtime.errors import NotFound, Unreachable
from reconciler import triggers
from reconciler.blocked import Blocked, Cause
from reconciler.context import Context
from reconciler.harvester.rights import command_for
from reconciler.harvester.session import Session
from reconciler.harvester.topology import unpublished_domains
from reconciler.harvester.views import TargetNamespace
from reconciler.memory.machine import MachineMemory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Subscription, Trigger, Watched


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a session with an error cannot be used, as all conditions of machines say it."""

    reason: Reason
    message: str


def outage_of(session: Session) -> Outage:
    """Return the outage of a session with an error."""
    failure = "refuses requests"
    reason = Reason.HARVESTER_CONNECTION_FAILED
    if session.is_unauthorized:
        failure = "rejects the credentials"
        reason = Reason.HARVESTER_AUTHENTICATION_FAILED
    elif isinstance(session.error, Unreachable):
        failure = "is unreachable"
        reason = Reason.HARVESTER_UNREACHABLE
    return Outage(reason, f"Harvester at {session.server} {failure}")


@dataclass(slots=True)
class MachineScope:
    """Objects and findings of one reconcile of a HarvesterMachine.

    :param obj: the HarvesterMachine
    :param machine: the Machine; like the next two, it may be missing while a machine is deleted
        (see `ProvisioningScope`)
    :param cluster: the Cluster of the machine
    :param harvester_cluster: the HarvesterCluster of the Cluster
    :param draft: the status that the reconcile writes at its end
    :param requeue_after: delay in seconds, set by a step that has to be tried again although the
        reconcile continues
    """

    context: Context
    obj: Obj
    machine: Obj | None
    cluster: Obj | None
    harvester_cluster: Obj | None
    draft: StatusDraft
    requeue_after: float | None = None

    key: Key = field(init=False)
    """Key of the HarvesterMachine."""
    name: str = field(init=False)
    """Name of machine, VM, host and Node (contract)."""
    memory: MachineMemory = field(init=False)
    """Memory of earlier reconciles of this machine."""
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
        """Id under which pools hold the machine's address.

        It is `<HarvesterMachine namespace>/<name>` (contract).
        """
        return f"{self.key.namespace}/{self.name}"

    @property
    def control_plane(self) -> bool:
        """Whether the machine serves the workload API."""
        objs = filter(None, (self.obj, self.machine))
        return any(clusterapi.is_control_plane(obj, self.cluster) for obj in objs)

    @property
    def rancher_etcd(self) -> bool:
        """Whether Rancher gives the machine the role etcd."""
        objs = filter(None, (self.obj, self.machine))
        return any(clusterapi.has_rancher_etcd(obj, self.cluster) for obj in objs)

    @property
    def failure_domain(self) -> str:
        """Domain that the machine has to run in, empty for any.

        The domain of the Machine comes before the domain of the HarvesterMachine, as in the Go
        provider.
        """
        chosen = clusterapi.failure_domain(self.machine) if self.machine else ""
        return chosen or str(self.spec.get("failureDomain") or "")

    @property
    def failure_domains(self) -> Sequence[Obj]:
        """Domains that a failure domain may name; may raise `Blocked` as `session` does.

        If Cluster API takes domains from the HarvesterCluster, only published domains are valid.
        """
        if self.context.caches.publishes_failure_domains:
            return list_at(self.harvester_cluster, "status", "failureDomains")
        return unpublished_domains(self.session().hosts.store)

    def subscribe(self, *topics: Hashable) -> Subscription:
        """Requeue the machine when one of these topics changes.

        Call this before reading the state behind the topics, so that no change is missed.
        """
        return self.context.topics.subscribe(self.context.queues.machines, self.key, *topics)

    def session(self) -> Session:
        """Return the session of the cluster, or raise `Blocked` while Harvester does not answer.

        It is also raised before the first connection, and while the credentials are rejected.
        """
        session = None
        if self.harvester_cluster:
            session = self.context.sessions.of(key_of(self.harvester_cluster))
        if session is None:
            raise Blocked(
                ConditionType.VM_PROVISIONING_READY,
                Reason.VM_PROVISIONING_IN_PROGRESS,
                "waiting for the HarvesterCluster to connect to Harvester",
                Watched.CONNECTION,
                cause=Cause.UNKNOWN,
            )
        if not session.error:
            return session

        outage = outage_of(session)
        raise Blocked(
            ConditionType.VM_PROVISIONING_READY,
            outage.reason,
            f"{outage.message}; see the HarvesterCluster's conditions",
            Watched.CONNECTION,
            cause=Cause.UNKNOWN,
        )

    def namespace(self) -> TargetNamespace:
        """Return the caches of the target namespace, or raise `Blocked` until they are filled.

        Raises `Blocked` without a session, too.
        """
        session = self.session()
        namespace = session.watch_namespace(self.target_namespace)
        # This subscribes only if needed. No change can be missed meanwhile, because nothing is
        # awaited before the subscription.
        if not namespace.synced or not session.synced:
            filled = self.subscribe(triggers.caches(session.fingerprint))
            raise self._caches_not_ready(namespace, filled)
        return namespace

    def require_current_namespace(self) -> TargetNamespace:
        """Return the caches of the target namespace, or raise `Blocked` while one is not current.

        Steps that cannot be undone must not rely on the old state of a watch that is not connected.
        A watch that has just connected may lag behind for a moment, so read objects that must not
        be missed from Harvester.
        """
        namespace = self.namespace()
        session = self.session()
        if not namespace.current or not session.pools.current:
            connected = self.subscribe(triggers.caches(session.fingerprint))
            raise self._caches_not_ready(namespace, connected)
        return namespace

    async def live_vm(self) -> Obj | None:
        """Read the VM from Harvester. Return None if it does not exist."""
        # The cache may lack a VM: the response to its creation may have been lost, or the watch may
        # have connected just now.
        try:
            vm = await self.session().client.get(
                resources.VIRTUAL_MACHINES, self.name, self.target_namespace
            )
        except NotFound:
            return None
        self.namespace().vms.observe(vm)
        return vm

    def read_refusal(self) -> Blocked | None:
        """Return why the account may not read objects, so that a deletion cannot find them.

        Returns None if the account may read them, or while that is not known.
        """
        try:
            self.require_current_namespace()
        except Blocked as blocked:
            return blocked if blocked.reason == Reason.TARGET_NAMESPACE_NOT_READY else None
        return None

    def _caches_not_ready(self, namespace: TargetNamespace, source: Subscription) -> Blocked:
        """Return the `Blocked` of a machine whose caches are empty or not connected."""
        session = self.session()
        place = f"namespace {self.target_namespace} on Harvester"
        reason = Reason.VM_PROVISIONING_IN_PROGRESS
        message = namespace.sync_error or session.sync_error or f"reading {place}"

        refusal = session.refusal(namespace, session.pools)
        if refusal:
            reason = Reason.TARGET_NAMESPACE_NOT_READY
            message = f"{place} cannot be read: {refusal}{command_for(self.target_namespace)}"
        return Blocked(
            ConditionType.VM_PROVISIONING_READY, reason, message, source, cause=Cause.UNKNOWN
        )

    def instance(self) -> Obj | None:
        """Return the instance of the VM, None for none, or raise `Blocked` as `namespace` does."""
        return self.namespace().instances.get(self.target_namespace, self.name)

    def host_of(self, vmi: Obj) -> Obj | None:
        """Return the host on which an instance runs, None for none, or raise `Blocked`.

        Raises it as `session` does.
        """
        name = at(vmi, "status", "nodeName")
        return self.session().hosts.get("", name) if name else None

    def in_progress(
        self, message: str, source: Trigger, *others: Trigger, warn: bool = False
    ) -> Blocked:
        """Return a `Blocked` for provisioning that waits for something temporary.

        :param warn: see `Blocked`
        """
        condition = ConditionType.VM_PROVISIONING_READY
        reason = Reason.VM_PROVISIONING_IN_PROGRESS
        return Blocked(condition, reason, message, source, *others, warn=warn)

    def failure(
        self,
        message: str,
        *sources: Trigger,
        reason: Reason = Reason.VM_PROVISIONING_FAILED,
        warn: bool = True,
    ) -> Blocked:
        """Return a `Blocked` for provisioning that fails until a user corrects something.

        :param sources: triggers that, in addition to a change of the machine, may end the failure
        :param reason: the reason of the condition
        :param warn: see `Blocked`
        """
        condition = ConditionType.VM_PROVISIONING_READY
        return Blocked(condition, reason, message, Watched.SELF, *sources, warn=warn)

    def requeue_in(self, seconds: float | None) -> None:
        """Requeue the machine after this time at the latest, although the reconcile continues.

        Does nothing for None.
        """
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
        self.obj = await self.context.client.patch(
            informer.resource, self.name, self.key.namespace, patch
        )
        informer.observe(self.obj)
        self.draft.rebase(self.obj)


@dataclass(slots=True)
class ProvisioningScope(MachineScope):
    """Scope of a machine that is not being deleted, and whose Machine and Cluster exist."""

    machine: Obj
    cluster: Obj
    cluster_key: Key = field(init=False)
