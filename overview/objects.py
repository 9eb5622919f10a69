"""Plain objects as they were read, and what could not be: what I/O hands to assembly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, key_of

ObjectsByCluster = dict[Key, list[Obj]]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that could not be read: what, and why. `forbidden` separates a missing right from an outage."""

    what: str
    why: str
    forbidden: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(slots=True)
class ManagementObjects:
    """What one management cluster holds. Lists have kind and version filled in; what was not read is in `unseen`.

    `uid` is that of namespace `kube-system`, by which Harvester's objects name this management cluster; empty when it
    may not be read.
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
    """Events of the above. These and health checks are read for the live page only."""
    unseen: list[Unseen] = field(default_factory=list)

    def sees(self, what: str) -> bool:
        """Whether a collection could be read, so that absence from it means something."""
        return all(unseen.what != what for unseen in self.unseen)


@dataclass(slots=True)
class HarvesterObjects:
    """What one Harvester holds, as far as the identity may see; `namespaces` are those that were read."""

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
    """Kinds that the server does not have: without VM images it is no Harvester."""

    def sees(self, what: str) -> bool:
        """Whether a collection could be read, so that absence from it means something."""
        return all(unseen.what != what for unseen in self.unseen)


def by_cluster(objs: Iterable[Obj]) -> ObjectsByCluster:
    """Group objects by namespace and Cluster API's label."""
    found: ObjectsByCluster = defaultdict(list)
    for obj in objs:
        if name := clusterapi.cluster_name(obj):
            found[Key(key_of(obj).namespace, name)].append(obj)
    return found


def by_key(objs: Iterable[Obj]) -> dict[Key, Obj]:
    """Index objects by namespace and name."""
    return {key_of(obj): obj for obj in objs}


def conditions_of(obj: Obj | None) -> Iterator[Obj]:
    """Conditions in the form of metav1.Condition; those of Cluster API's deprecated form have a severity."""
    status = (obj or {}).get("status") or {}
    found = (status.get("v1beta2") or {}).get("conditions") or status.get("conditions") or ()
    yield from (condition for condition in found if isinstance(condition, dict) and condition.get("type"))


def condition_of(obj: Obj | None, kind: str) -> Obj:
    """The condition of a type, empty when the object has none."""
    return next((condition for condition in conditions_of(obj) if condition["type"] == kind), {})
