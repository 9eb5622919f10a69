"""Check the connection to the Harvester of a cluster, and ensure the target namespace."""

from __future__ import annotations

from caphv.api import clusterapi
from caphv.api.identities import identity_of, is_cluster_identity
from caphv.api.names import ConditionType, Reason
from caphv.api.object import NAMESPACES, Key, at, being_deleted, key_of, text_at
from caphv.runtime.errors import (
    AddressRefused,
    AlreadyExists,
    NotFound,
    ServerFault,
    TooManyRequests,
    Unreachable,
    lacks_namespace,
)
from reconciler import triggers
from reconciler.blocked import Blocked, Cause
from reconciler.cluster.identity import connection_failure, secret_text
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import Trigger, Watched

_CONNECTION = ConditionType.HARVESTER_CONNECTION_READY


async def ensure_connection(scope: ClusterScope) -> None:
    """Ensure that Harvester answers, is still the same, and has its Deployment available.

    Raises `Blocked` for the first check that fails. The contract requires the Deployment.
    """
    _require_answers(scope)
    _require_caches(scope)
    _require_same_harvester(scope)
    _require_deployment(scope)
    scope.draft.set_true(_CONNECTION)


def _require_answers(scope: ClusterScope) -> None:
    """Raise `Blocked` while requests to Harvester fail."""
    session = scope.require_session()
    error = session.error
    if session.is_unauthorized:
        _replace_rejected_token(scope)
        raise report_rejection(scope)

    if isinstance(error, AddressRefused):
        message = (
            f"Harvester {error}: loopback, link-local and metadata addresses and those of "
            "the management cluster's API server are refused; correct server and proxy-url in "
            "the kubeconfig, or have the operator of the management cluster allow the network "
            "(--allow-harvester-cidr)"
        )
        raise connection_failure(message, Watched.CONNECTION)

    if isinstance(error, Unreachable):
        # The message counts the machines that were last ready, because their state is unknown now.
        raise Blocked(
            _CONNECTION,
            Reason.HARVESTER_UNREACHABLE,
            f"Harvester is unreachable: {error}{_last_known(scope)}",
            Watched.SECRET,
            Watched.SELF,
            Watched.CONNECTION,
            warn=True,
            cause=Cause.UNKNOWN,
        )

    if error:
        is_outage = isinstance(error, (ServerFault, TooManyRequests))
        cause = Cause.OUTAGE if is_outage else Cause.MISSING
        message = f"Harvester at {session.server} refuses: {error}"
        raise connection_failure(message, Watched.CONNECTION, cause=cause)


def _require_caches(scope: ClusterScope) -> None:
    """Raise `Blocked` until the cluster-wide caches of the session are filled."""
    session = scope.require_session()
    with scope.subscribe(triggers.caches(session.fingerprint)) as caches:
        if not session.is_settled:
            # Until all caches are settled, the first error depends on the order of answers, so that
            # the message would differ after each restart.
            raise Blocked(
                _CONNECTION,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                f"connecting to {session.server}",
                caches,
                cause=Cause.UNKNOWN,
            )
        if session.synced:
            return

        if session.missing_kind:
            message = (
                f"{session.server} is not a Harvester: it does not serve {session.missing_kind}; "
                f"put a kubeconfig of Harvester into {secret_text(scope.obj)}"
            )
        else:
            message = f"Harvester at {session.server} cannot be read: {session.sync_error}"
        raise connection_failure(message, caches)


def _require_deployment(scope: ClusterScope) -> None:
    """Raise `Blocked` while Harvester's Deployment is not available, or does not exist."""
    session = scope.require_session()
    if session.available:
        return
    if session.deployment_object is None:
        problem = f"does not exist on {session.server}"
        cause = Cause.MISSING
    else:
        problem = "on Harvester is not available"
        cause = Cause.OUTAGE  # also during an upgrade of Harvester
    message = f"Deployment harvester-system/harvester {problem}"
    raise connection_failure(message, Watched.CONNECTION, cause=cause)


async def ensure_namespace(scope: ClusterScope) -> None:
    """Ensure that the target namespace exists, and that its caches are filled (contract)."""
    if scope.memory.namespace_lost or not scope.draft.is_true(ConditionType.TARGET_NAMESPACE_READY):
        await _create_namespace(scope)
        scope.memory.namespace_lost = False
    scope.namespace()
    scope.draft.set_true(ConditionType.TARGET_NAMESPACE_READY)


async def _create_namespace(scope: ClusterScope) -> None:
    """Create the target namespace if it does not exist."""
    client = scope.require_session().client
    name = scope.target_namespace
    try:
        await client.get(NAMESPACES, name)
        return
    except NotFound:
        pass

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    try:
        await client.create(NAMESPACES, namespace)
    except AlreadyExists:
        return  # another cluster with the same target namespace was faster
    scope.event("TargetNamespaceCreated", f"created namespace {name} on Harvester")


def note_lost_namespace(scope: ClusterScope, error: Exception) -> None:
    """Have the next reconcile create the target namespace, if an error shows its deletion."""
    # While the condition is true, no reconcile reads the namespace, to save a request.
    if lacks_namespace(error, scope.target_namespace):
        scope.draft.set_false(
            ConditionType.TARGET_NAMESPACE_READY,
            Reason.TARGET_NAMESPACE_NOT_READY,
            f"namespace {scope.target_namespace} was deleted on Harvester",
        )


def report_rejection(scope: ClusterScope, *sources: Trigger) -> Blocked:
    """Report that Harvester answers 401, and return the `Blocked` of the cluster."""
    message = (
        f"Harvester rejects the credentials in {secret_text(scope.obj)} (401): "
        "the token may have expired or been revoked; put a new kubeconfig into the Secret"
    )
    reason = Reason.HARVESTER_AUTHENTICATION_FAILED
    scope.draft.set_false(ConditionType.IDENTITY_UP_TO_DATE, reason, message)
    return Blocked(
        _CONNECTION, reason, message, Watched.CONNECTION, *sources, warn=True, cause=Cause.OUTAGE
    )


def _replace_rejected_token(scope: ClusterScope) -> None:
    """Have the token of the cluster's identity replaced, if the provider renews it."""
    if not is_cluster_identity(identity_of(scope.obj)):
        return
    renewed = scope.context.cluster_identities.renewed
    namespace, _, secret = scope.context.sessions.identity_of(scope.key).partition("/")
    if name := renewed.identity_of(Key(namespace, secret)):
        renewed.rejected[name] = scope.require_session().fingerprint
        scope.context.queues.renewals.add(Key("", name))


def _last_known(scope: ClusterScope) -> str:
    """Count the machines that were ready when Harvester last answered; empty without machines."""
    counts = []
    machines = scope.context.caches.machines_of(scope.cluster)
    for role, is_control_plane in (("control plane machines", True), ("workers", False)):
        group = [
            obj
            for obj in machines
            if clusterapi.is_control_plane(obj, scope.cluster) is is_control_plane
        ]
        ready = sum(bool(at(obj, "status", "ready")) for obj in group)
        if group:
            counts.append(f"{ready} of {len(group)} {role}")
    return f"; last known to be ready: {', '.join(counts)}" if counts else ""


def _require_same_harvester(scope: ClusterScope) -> None:
    """Write the Harvester into the status. Raises `Blocked` if machines run on another one."""
    # On another Harvester, all machines would seem to be lost, and their deletion would delete
    # nothing.
    session = scope.require_session()
    uid = session.uid
    former_uid = text_at(scope.draft.fields, "harvester", "uid")

    if former_uid and uid and former_uid != uid:
        machines = scope.context.caches.machines_of(scope.cluster)
        if machines or being_deleted(scope.obj):
            raise Blocked(
                _CONNECTION,
                Reason.ANOTHER_HARVESTER,
                f"{session.server} is not the Harvester of this cluster: its kube-system has uid "
                f"{uid}, not {former_uid}; put a kubeconfig of the previous Harvester into "
                f"{secret_text(scope.obj)}, or delete the machines first",
                Watched.SECRET,
                Watched.MACHINES,
                warn=True,
            )
        # The namespace has to be created on the new Harvester, too.
        scope.draft.set_false(
            ConditionType.TARGET_NAMESPACE_READY, Reason.TARGET_NAMESPACE_CHECKING
        )
        scope.warning_event(
            "HarvesterChanged",
            f"now on Harvester {uid}; objects on Harvester {former_uid} were not deleted",
        )

    if uid or former_uid:
        scope.draft.fields["harvester"] = {"uid": uid or former_uid}
    # Machines may use the session from now on.
    if scope.context.sessions.accept(scope.key):
        for machine in scope.context.caches.machines_of(scope.cluster):
            scope.context.queues.machines.add(key_of(machine))
