"""Checks that Harvester answers, that it is the Harvester of this cluster, and that the target namespace exists."""

from __future__ import annotations

from caphv.api import clusterapi
from caphv.api.names import ConditionType, Reason
from caphv.api.object import NAMESPACES, being_deleted, key_of
from caphv.runtime.errors import AddressRefused, AlreadyExists, NotFound, ServerFault, TooManyRequests, Unreachable
from reconciler import triggers
from reconciler.cluster.identity import failed, secret_of
from reconciler.cluster.scope import ClusterScope
from reconciler.status import Blocked
from reconciler.triggers import Trigger, Watched

_CONNECTION = ConditionType.HARVESTER_CONNECTION_READY


async def ensure_connection(scope: ClusterScope) -> None:
    """Ensure that Harvester answers, is the same as before, and that its Deployment is available (contract)."""
    session = scope.connected()
    if session.unauthorized:
        raise refused(scope)
    if isinstance(session.error, AddressRefused):
        raise failed(
            f"Harvester {session.error}: loopback, link-local and metadata addresses and those of the management "
            "cluster's API server are refused; correct server and proxy-url in the kubeconfig, or have the operator of "
            "the management cluster allow the network (--allow-harvester-cidr)",
            Watched.CONNECTION,
        )
    if isinstance(session.error, Unreachable):
        raise _unreachable(scope, session.error)
    if session.error:
        outage = isinstance(session.error, (ServerFault, TooManyRequests))
        message = f"Harvester at {session.server} refuses: {session.error}"
        raise failed(message, Watched.CONNECTION, outage=outage)
    with scope.subscribe(triggers.caches(session.fingerprint)) as caches:
        if not session.settled:
            # What fails first depends on the order of answers: the message would differ after each restart.
            raise Blocked(
                _CONNECTION,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                f"connecting to {session.server}",
                caches,
                unknown=True,
            )
        if not session.synced and session.missing_kind:
            raise failed(
                f"{session.server} is not a Harvester: it does not serve {session.missing_kind}; put a kubeconfig of "
                f"Harvester into identity Secret {secret_of(scope.obj)}",
                caches,
            )
        if not session.synced:
            raise failed(f"Harvester at {session.server} cannot be read: {session.sync_error}", caches)
    _ensure_same_harvester(scope)
    if not session.available:
        problem = "on Harvester is not available" if session.deployed else f"does not exist on {session.server}"
        # Also while Harvester is upgraded.
        outage = session.deployed is not None
        raise failed(f"Deployment harvester-system/harvester {problem}", Watched.CONNECTION, outage=outage)
    warning = ""
    if session.any_address:
        warning = (
            f"the address of {session.server} is refused for new clusters, and in the next version for this one, too: "
            "have the operator of the management cluster allow the network (--allow-harvester-cidr)"
        )
        if not scope.draft.has_message(_CONNECTION, warning):
            scope.warning_event("HarvesterAddressNotAllowed", warning)
    scope.draft.set_true(_CONNECTION, warning)


async def ensure_namespace(scope: ClusterScope) -> None:
    """Ensure that the target namespace exists; create it if not (contract)."""
    if not scope.draft.is_true(ConditionType.TARGET_NAMESPACE_READY):
        client, name = scope.connected().client, scope.target_namespace
        try:
            await client.get(NAMESPACES, name)
        except NotFound:
            try:
                await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
                scope.event("TargetNamespaceCreated", f"created namespace {name} on Harvester")
            except AlreadyExists:
                pass
    scope.namespace()
    scope.draft.set_true(ConditionType.TARGET_NAMESPACE_READY)


def note_lost_namespace(scope: ClusterScope, error: Exception) -> None:
    """Have the next reconcile create the target namespace again, if an error says that it was deleted."""
    lost = {"kind": "namespaces", "name": scope.target_namespace}
    if isinstance(error, NotFound) and lost.items() <= error.details.items():
        scope.draft.set_false(
            ConditionType.TARGET_NAMESPACE_READY,
            Reason.TARGET_NAMESPACE_NOT_READY,
            f"namespace {scope.target_namespace} was deleted on Harvester",
        )


def refused(scope: ClusterScope, *sources: Trigger) -> Blocked:
    """What to report after Harvester answered 401."""
    message = (
        f"Harvester rejects the credentials in identity Secret {secret_of(scope.obj)} (401): "
        "the token may have expired; put a new kubeconfig into the Secret"
    )
    scope.draft.set_false(ConditionType.IDENTITY_UP_TO_DATE, Reason.HARVESTER_AUTHENTICATION_FAILED, message)
    reason = Reason.HARVESTER_AUTHENTICATION_FAILED
    return Blocked(_CONNECTION, reason, message, Watched.CONNECTION, *sources, warn=True, outage=True)


def _unreachable(scope: ClusterScope, error: Unreachable) -> Blocked:
    """What to report while Harvester does not answer: what is known of the cluster is that of the time before."""
    message = f"Harvester is unreachable: {error}{_last_known(scope)}"
    sources = (Watched.SECRET, Watched.SELF, Watched.CONNECTION)
    return Blocked(_CONNECTION, Reason.HARVESTER_UNREACHABLE, message, *sources, warn=True, unknown=True)


def _last_known(scope: ClusterScope) -> str:
    """Count the machines that were ready when Harvester last answered; empty for a cluster that has none."""
    counts = []
    machines = scope.context.caches.machines_of(scope.cluster)
    for what, is_control_plane in (("control plane machines", True), ("workers", False)):
        group = [obj for obj in machines if clusterapi.is_control_plane(obj) is is_control_plane]
        ready = sum(bool((obj.get("status") or {}).get("ready")) for obj in group)
        if group:
            counts.append(f"{ready} of {len(group)} {what}")
    return f"; last known to be ready: {', '.join(counts)}" if counts else ""


def _ensure_same_harvester(scope: ClusterScope) -> None:
    """Remember the Harvester, and refuse another one, on which all machines would seem to be lost."""
    session = scope.connected()
    uid = session.uid
    known = str((scope.draft.fields.get("harvester") or {}).get("uid") or "")
    if known and uid and known != uid:
        machines = scope.context.caches.machines_of(scope.cluster)
        if machines or being_deleted(scope.obj):
            raise Blocked(
                _CONNECTION,
                Reason.ANOTHER_HARVESTER,
                f"{session.server} is not the Harvester of this cluster: its kube-system has uid {uid}, not {known}; "
                f"put a kubeconfig of the previous Harvester into identity Secret {secret_of(scope.obj)}, or delete "
                "the machines first",
                Watched.SECRET,
                Watched.MACHINES,
                warn=True,
            )
        scope.draft.set_false(ConditionType.TARGET_NAMESPACE_READY, Reason.TARGET_NAMESPACE_CHECKING)
        scope.warning_event(
            "HarvesterChanged", f"now on Harvester {uid}; objects on Harvester {known} were not deleted"
        )
    recorded = {"uid": uid or known, "addressChecked": not session.any_address}
    if any(recorded.values()):
        scope.draft.fields["harvester"] = {name: value for name, value in recorded.items() if value}
    if scope.context.sessions.accept(scope.key):
        for machine in scope.context.caches.machines_of(scope.cluster):
            scope.context.queues.machines.add(key_of(machine))
