"""The inventory of all objects in a set of files, and the findings of rules about several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from caphv.api.names import CLUSTER_NAME_LABEL, GROUP
from caphv.api.object import Obj
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import LocatedFinding, did_you_mean
from caphv.validation.rule import Rule
from webhooks.rules.model import MACHINE_TEMPLATE, Field

BOOTSTRAP_GROUP = "bootstrap.cluster.x-k8s.io"
CONTROL_PLANE_GROUP = "controlplane.cluster.x-k8s.io"
POOL_GROUP = "loadbalancer.harvesterhci.io"
STORAGE_GROUP = "storage.k8s.io"


class ApiVersion(NamedTuple):
    """Field `apiVersion` of an object; both parts are empty for an object without the field."""

    group: str
    version: str


@dataclass(frozen=True, eq=False)
class Entry:
    """One object of the set.

    :param index: index of the object in the set, -1 for a ClusterClass that caphv ships
    """

    index: int
    obj: Obj

    @cached_property
    def field(self) -> Field:
        """The object as a field, from which paths begin."""
        return Field(self.obj, ())

    @cached_property
    def spec(self) -> Field:
        """The spec of the object, or of its machines for a HarvesterMachineTemplate."""
        path = ("spec", "template", "spec") if self.kind == MACHINE_TEMPLATE else ("spec",)
        return self.field.at(*path)

    @cached_property
    def api(self) -> ApiVersion:
        """Group and version."""
        # The core group has neither name nor slash: `v1`.
        group, _, version = self.field.at("apiVersion").text.rpartition("/")
        return ApiVersion(group, version)

    @property
    def group(self) -> str:
        """API group."""
        return self.api.group

    @cached_property
    def kind(self) -> str:
        """Kind."""
        return self.field.at("kind").text

    @cached_property
    def name(self) -> str:
        """Name, empty if the API server generates it."""
        return self.field.at("metadata", "name").text

    @cached_property
    def namespace(self) -> str:
        """Namespace, empty if the user who applies the file chooses it."""
        return self.field.at("metadata", "namespace").text

    @cached_property
    def cluster_name(self) -> str:
        """Name of the Cluster of this object, by its own name, a field or a label."""
        if (self.group, self.kind) == (CLUSTER_API_GROUP, "Cluster"):
            return self.name
        # Cluster API sets the label on all objects of a cluster.
        labels = self.field.at("metadata", "labels").mapping
        return self.field.at("spec", "clusterName").text or str(labels.get(CLUSTER_NAME_LABEL, ""))

    def __str__(self) -> str:
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {name}"


Located = LocatedFinding[Entry]
"""Result of a check over several objects: an object, its finding, and the other object."""


class ClusterPair(NamedTuple):
    """A Cluster on Harvester and its HarvesterCluster."""

    cluster: Entry
    infrastructure: Entry


class Inventory:
    """All objects, with the lookups that references need."""

    def __init__(self, objects: Sequence[Obj]) -> None:
        self.entries = [Entry(index, obj) for index, obj in enumerate(objects)]
        self._of_kind: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self._named: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            self._of_kind[entry.group, entry.kind].append(entry)
            self._named[entry.group, entry.kind, entry.name].append(entry)

    def of_kind(self, kind: str, group: str = GROUP) -> list[Entry]:
        """Return all objects of a kind."""
        return self._of_kind.get((group, kind), [])

    def find(self, kind: str, namespace: str, name: str, group: str = GROUP) -> Entry | None:
        """Return the object with a name, None if it is not in the inventory.

        An object without a namespace matches any namespace, but the same namespace matches better.
        """
        named = self._named.get((group, kind, name), [])
        in_namespace = (entry for entry in named if entry.namespace == namespace)
        in_any = (entry for entry in named if not entry.namespace or not namespace)
        return next(in_namespace, None) or next(in_any, None)

    def near(self, kind: str, name: str, group: str = GROUP) -> str:
        """Suggest the object with the most similar name. Return an empty text for none."""
        return did_you_mean(name, (entry.name for entry in self.of_kind(kind, group)))

    @cached_property
    def clusters(self) -> list[ClusterPair]:
        """Each Cluster whose HarvesterCluster is in the inventory."""
        pairs = []
        for cluster in self.of_kind("Cluster", CLUSTER_API_GROUP):
            ref = cluster.field.at("spec", "infrastructureRef")
            if ref.at("kind").text != "HarvesterCluster":
                continue

            namespace = ref.at("namespace").text or cluster.namespace
            if infrastructure := self.find("HarvesterCluster", namespace, ref.at("name").text):
                pairs.append(ClusterPair(cluster, infrastructure))
        return pairs

    @cached_property
    def _by_cluster(self) -> dict[tuple[str, str], Entry]:
        """HarvesterClusters by namespace and name of their Cluster."""
        by_cluster = {}
        for infrastructure in self.of_kind("HarvesterCluster"):
            by_cluster[infrastructure.namespace, infrastructure.cluster_name] = infrastructure
        # The reference of a Cluster takes precedence over a label.
        for cluster, infrastructure in self.clusters:
            by_cluster[cluster.namespace, cluster.name] = infrastructure
        return by_cluster

    def infrastructure(self, entry: Entry) -> Entry | None:
        """Return the HarvesterCluster of an object's cluster, None if it is not known."""
        if not entry.cluster_name:
            return None
        return self._by_cluster.get((entry.namespace, entry.cluster_name))


def locate(rule: Rule, inventory: Inventory) -> Iterator[LocatedFinding[int]]:
    """Run a rule over all objects, and yield its findings with the indexes of the objects."""
    if rule.check is None:
        return
    for located in rule.check(inventory):
        other = located.other.index if located.other else None
        if other is not None and other < 0:
            other = None  # a ClusterClass that caphv ships is not among the objects
        yield LocatedFinding(located.place.index, rule.sign(located.finding), other)
