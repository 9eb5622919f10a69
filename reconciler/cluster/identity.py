"""From the identity Secret to a session, a checked connection and the target namespace."""

from __future__ import annotations

import base64
import binascii

from caphv.api.names import ConditionType, Reason
from caphv.runtime.access import Access, KubeconfigError, parse_kubeconfig
from caphv.runtime.errors import AlreadyExists, NotFound
from caphv.runtime.resource import NAMESPACES, SECRETS, Obj
from reconciler.cluster.scope import ClusterScope
from reconciler.flow import Blocked

_CONNECTION = ConditionType.HARVESTER_CONNECTION_READY


class Identities:
    """Identity Secrets that were read: by the version of the Secret, so that each version is read once."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], tuple[str, Access]] = {}

    def known(self, namespace: str, name: str, version: str) -> Access | None:
        """Credentials read from this version of the Secret."""
        read = self._read.get((namespace, name))
        return read[1] if read and read[0] == version else None

    def remember(self, secret: Obj, access: Access) -> None:
        """Keep the credentials of a Secret until it changes."""
        metadata = secret["metadata"]
        self._read[metadata["namespace"], metadata["name"]] = (metadata["resourceVersion"], access)

    def forget(self, namespace: str, name: str) -> None:
        """Nobody uses the Secret any more."""
        self._read.pop((namespace, name), None)


async def ensure_session(scope: ClusterScope, identities: Identities) -> None:
    """Read the identity and give the cluster its session; `spec.server` follows the kubeconfig (contract)."""
    access = await _read_identity(scope, identities)
    try:
        scope.session = await scope.context.sessions.assign(scope.key, access, scope.target_namespace)
    except KubeconfigError as error:
        raise _failed(f"{_where(scope)}: {error}") from None
    if scope.obj["spec"].get("server") != access.server and "deletionTimestamp" not in scope.obj["metadata"]:
        await scope.patch_spec({"server": access.server})


async def ensure_connection(scope: ClusterScope) -> None:
    """Harvester answers and its own Deployment is available (contract)."""
    session = scope.connected()
    if session.unauthorized:
        raise Blocked(
            _CONNECTION,
            Reason.HARVESTER_AUTHENTICATION_FAILED,
            f"Harvester refuses the credentials in {_where(scope)} (401): the token may have expired; "
            "put a new kubeconfig into the Secret",
            warn=True,
        )
    if session.error:
        raise _failed(f"Harvester at {session.server} cannot be reached: {session.error}")
    if not session.synced:
        raise Blocked(
            _CONNECTION, Reason.HARVESTER_CONNECTION_IN_PROGRESS, f"connecting to {session.server}", after=0.2
        )
    if not session.available:
        raise _failed("Deployment harvester-system/harvester on Harvester is not available")
    scope.draft.set_true(_CONNECTION)


async def ensure_namespace(scope: ClusterScope) -> None:
    """The target namespace exists; a missing one is created (contract)."""
    if not scope.draft.is_true(ConditionType.TARGET_NAMESPACE_READY):
        client, name = scope.connected().client, scope.target_namespace
        try:
            await client.get(NAMESPACES, name)
        except NotFound:
            try:
                await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
                scope.tell("TargetNamespaceCreated", f"created namespace {name} on Harvester")
            except AlreadyExists:
                pass
    scope.namespace()
    scope.draft.set_true(ConditionType.TARGET_NAMESPACE_READY)


async def _read_identity(scope: ClusterScope, identities: Identities) -> Access:
    reference = scope.obj["spec"].get("identitySecret") or {}
    namespace, name = reference.get("namespace", ""), reference.get("name", "")
    listed = scope.context.secrets.get(namespace, name)
    if listed:
        known = identities.known(namespace, name, listed["metadata"]["resourceVersion"])
        if known:
            return known
    try:
        secret = await scope.context.client.get(SECRETS, name, namespace)
    except NotFound:
        raise _failed(f"{_where(scope)}: not found; create it with key kubeconfig") from None
    value = (secret.get("data") or {}).get("kubeconfig")
    if not value:
        raise _failed(f"{_where(scope)}: has no key kubeconfig; put the kubeconfig of Harvester under that key")
    try:
        access = parse_kubeconfig(base64.b64decode(value))
    except (KubeconfigError, binascii.Error) as error:
        raise _failed(f"{_where(scope)}: {error}") from None
    identities.remember(secret, access)
    return access


def _where(scope: ClusterScope) -> str:
    reference = scope.obj["spec"].get("identitySecret") or {}
    return f"identity Secret {reference.get('namespace')}/{reference.get('name')}"


def _failed(message: str) -> Blocked:
    return Blocked(_CONNECTION, Reason.HARVESTER_CONNECTION_FAILED, message, warn=True)
