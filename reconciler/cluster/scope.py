"""One reconcile of one HarvesterCluster: the objects it is about and what its phases found out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from caphv.api.names import ConditionType, Reason
from caphv.runtime.resource import Key, Obj, key_of, uid_of
from reconciler import resources
from reconciler.context import Context, with_kind
from reconciler.flow import Blocked, StatusDraft
from reconciler.harvester.ownership import Owner
from reconciler.harvester.session import Session, TargetNamespace

_MAX_NAME = 63


@dataclass(slots=True)
class ClusterScope:
    """`obj` is the HarvesterCluster, `cluster` its Cluster; the session is there after the identity phase."""

    context: Context
    obj: Obj
    cluster: Obj
    draft: StatusDraft
    session: Session | None = None

    @property
    def key(self) -> Key:
        """Key of the HarvesterCluster."""
        return key_of(self.obj)

    @property
    def cluster_key(self) -> Key:
        """Key of the Cluster."""
        return key_of(self.cluster)

    @property
    def target_namespace(self) -> str:
        """Namespace on Harvester for everything that is namespaced."""
        return str(self.obj["spec"]["targetNamespace"])

    @property
    def owner(self) -> Owner:
        """Record on what is made for this cluster on Harvester."""
        return self.context.owner(resources.HARVESTER_CLUSTERS.kind, self.obj)

    @property
    def load_balancer_name(self) -> str:
        """Name of LoadBalancer and placeholder Service."""
        return load_balancer_name(self.obj)

    @property
    def reservation(self) -> str:
        """Id under which pools hold the address of the control plane (contract: `<targetNamespace>/<lb name>`)."""
        return f"{self.target_namespace}/{self.load_balancer_name}"

    def connected(self) -> Session:
        """The session. Raises `Blocked` while there is none."""
        if self.session is None:
            raise Blocked(
                ConditionType.HARVESTER_CONNECTION_READY,
                Reason.HARVESTER_CONNECTION_IN_PROGRESS,
                "waiting for the identity to be read",
            )
        return self.session

    def namespace(self) -> TargetNamespace:
        """Caches of the target namespace. Raises `Blocked` until they are filled."""
        namespace = self.connected().watch_namespace(self.target_namespace)
        if not namespace.synced:
            raise Blocked(
                ConditionType.TARGET_NAMESPACE_READY,
                Reason.TARGET_NAMESPACE_CHECKING,
                f"reading what exists in namespace {self.target_namespace} on Harvester",
                after=0.2,
            )
        return namespace

    def warn(self, reason: str, message: str) -> None:
        """Event for an operator: something is wrong."""
        self.context.events.event(with_kind(resources.HARVESTER_CLUSTERS, self.obj), "Warning", reason, message)

    def tell(self, reason: str, message: str) -> None:
        """Event for an operator: something went well."""
        self.context.events.event(with_kind(resources.HARVESTER_CLUSTERS, self.obj), "Normal", reason, message)

    async def patch_spec(self, spec: dict[str, object]) -> None:
        """Merge fields into the spec of the HarvesterCluster."""
        self.obj = await self.context.patch_spec(self.context.harvester_clusters, self.obj, spec)
        self.draft.moved_to(self.obj)


def load_balancer_name(obj: Obj) -> str:
    """RFC 1035 name from `<ns>-<HarvesterCluster>-lb`, cut at 63 characters (contract)."""
    metadata = obj["metadata"]
    return rfc1035(f"{metadata['namespace']}-{metadata['name']}-lb")


def rfc1035(text: str) -> str:
    """Lower case, other characters to `-`, trimmed, `a-` before a digit, at most 63 characters."""
    name = re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")
    if name[:1].isdigit():
        name = f"a-{name}"
    return name[:_MAX_NAME].rstrip("-")


def pool_name(obj: Obj, suffix: str) -> str:
    """Name of a pool that is made for a cluster, RFC 1035 of `<ns>-<HarvesterCluster>-<suffix>`.

    Pools are cluster-scoped on Harvester: a name that has to be cut ends in a hash, so that two never meet.
    """
    metadata = obj["metadata"]
    full = f"{metadata['namespace']}-{metadata['name']}-{suffix}"
    if len(full) <= _MAX_NAME:
        return rfc1035(full)
    digest = hashlib.sha256(uid_of(obj).encode()).hexdigest()[:8]
    return f"{rfc1035(full[: _MAX_NAME - len(suffix) - 10])}-{digest}-{suffix}"
