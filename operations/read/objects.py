"""Hold plain objects as they were read, and the reasons why others could not be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, at, dict_at, key_of, list_at

ObjectsByCluster = dict[Key, list[Obj]]


@dataclass(frozen=True, slots=True)
class Unseen:
    """A thing that could not be read, and why.

    `forbidden` tells a missing right, and `not_found` a missing kind, from an outage.
    """

    what: str
    why: str
    forbidden: bool = False
    not_found: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(slots=True)
class ManagementObjects:
    """The objects of one management cluster, with kind and version.

    `uid` is the uid of namespace `kube-system`, by which objects on Harvester name this management
    cluster. It is empty when it may not be read.
    """

    server: str = ""
    uid: str = ""
    clusters: list[Obj] = field(default_factory=list)
    machines: list[Obj] = field(default_factory=list)
    machine_deployments: list[Obj] = field(default_factory=list)
    control_planes: list[Obj] = field(default_factory=list)
    harvester_clusters: list[Obj] = field(default_factory=list)
    harvester_machines: list[Obj] = field(default_factory=list)
    machine_health_checks: list[Obj] = field(default_factory=list)
    events: list[Obj] = field(default_factory=list)
    """Events of these objects. Only the live page reads Events and health checks."""
    unseen: list[Unseen] = field(default_factory=list)

    def sees(self, what: str) -> bool:
        """Whether a collection could be read, so that absence from it means something."""
        return all(unseen.what != what for unseen in self.unseen)


@dataclass(slots=True)
class HarvesterObjects:
    """The objects of one Harvester, as far as its accounts see them.

    `namespaces` names the namespaces that were read.
    """

    server: str = ""
    version: str = ""
    hosts: list[Obj] = field(default_factory=list)
    vms: list[Obj] = field(default_factory=list)
    instances: list[Obj] = field(default_factory=list)
    claims: list[Obj] = field(default_factory=list)
    load_balancers: list[Obj] = field(default_factory=list)
    services: list[Obj] = field(default_factory=list)
    pools: list[Obj] = field(default_factory=list)
    images: list[Obj] = field(default_factory=list)
    key_pairs: list[Obj] = field(default_factory=list)
    networks: list[Obj] = field(default_factory=list)
    settings: list[Obj] = field(default_factory=list)
    namespaces: frozenset[str] = frozenset()
    unseen: list[Unseen] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    """Kinds that the server does not have. A server without VM images is not a Harvester."""

    def sees(self, what: str) -> bool:
        """Whether a collection could be read, so that absence from it means something."""
        return all(unseen.what != what for unseen in self.unseen)


def target_namespaces(harvester_clusters: Iterable[Obj]) -> frozenset[str]:
    """Return the namespaces on Harvester that HarvesterClusters name.

    An object that is older than the CRD's rules may name none.
    """
    targets = (at(obj, "spec", "targetNamespace") for obj in harvester_clusters)
    return frozenset(str(target) for target in targets if target)


def by_cluster(objs: Iterable[Obj]) -> ObjectsByCluster:
    """Group objects by namespace and Cluster API's label."""
    groups: ObjectsByCluster = defaultdict(list)
    for obj in objs:
        if name := clusterapi.cluster_name(obj):
            groups[Key(key_of(obj).namespace, name)].append(obj)
    return groups


def by_key(objs: Iterable[Obj]) -> dict[Key, Obj]:
    """Index objects by namespace and name."""
    return {key_of(obj): obj for obj in objs}


def conditions_of(obj: Obj | None) -> Iterator[Obj]:
    """Yield conditions in the form of metav1.Condition, else in Cluster API's deprecated form."""
    # Objects of v1beta1 have both forms, the new one below `status.v1beta2`.
    status = dict_at(obj, "status")
    for condition in list_at(status, "v1beta2", "conditions") or list_at(status, "conditions"):
        if isinstance(condition, dict) and condition.get("type"):
            yield condition


def condition_of(obj: Obj | None, kind: str) -> Obj:
    """Return the condition of a type, empty when the object has none."""
    return next((condition for condition in conditions_of(obj) if condition["type"] == kind), {})


def time_of(value: object) -> datetime | None:
    """Parse a time as API servers write it; return None for another value or an absent field."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    # The format `date-time` of a CRD allows a time without a zone, which is in UTC.
    return time if time.tzinfo else time.replace(tzinfo=UTC)
