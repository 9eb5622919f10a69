"""The objects of several files as one set: who is who, and what a check over all of them is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from caphv.api.names import CLUSTER_NAME_LABEL, GROUP
from caphv.api.object import Obj
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import LocatedFinding, did_you_mean
from caphv.validation.rule import Rule
from webhooks.rules.model import Field

BOOTSTRAP_GROUP, CONTROL_PLANE_GROUP = "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
POOL_GROUP = "loadbalancer.harvesterhci.io"
STORAGE_GROUP = "storage.k8s.io"


@dataclass(frozen=True, eq=False)
class Entry:
    """One object of the set; `index` is its place in the list that was given."""

    index: int
    obj: Obj

    @cached_property
    def field(self) -> Field:
        """The whole object."""
        return Field(self.obj, ())

    @cached_property
    def api(self) -> tuple[str, str]:
        """Group and version, both empty when the object has none."""
        group, _, version = self.field.at("apiVersion").text.rpartition("/")
        return group, version

    @property
    def group(self) -> str:
        """API group."""
        return self.api[0]

    @cached_property
    def kind(self) -> str:
        """Kind."""
        return self.field.at("kind").text

    @cached_property
    def name(self) -> str:
        """Name, empty for one that is still to be generated."""
        return self.field.at("metadata", "name").text

    @cached_property
    def namespace(self) -> str:
        """Namespace, empty when the file leaves it to the user who applies it."""
        return self.field.at("metadata", "namespace").text

    @cached_property
    def cluster_name(self) -> str:
        """Name of the Cluster it belongs to: a Cluster's own, else by field or label."""
        if (self.group, self.kind) == (CLUSTER_API_GROUP, "Cluster"):
            return self.name
        labels = self.field.at("metadata", "labels").mapping
        return self.field.at("spec", "clusterName").text or str(labels.get(CLUSTER_NAME_LABEL, ""))

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


Located = LocatedFinding[Entry]
"""What a check over several objects yields: the object, what is wrong with it, and the other object it is about."""


class Inventory:
    """All objects, to be looked up as references look them up."""

    def __init__(self, objects: Sequence[Obj]) -> None:
        self.entries = [Entry(index, obj) for index, obj in enumerate(objects)]
        self._of_kind: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self._named: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            self._of_kind[entry.group, entry.kind].append(entry)
            self._named[entry.group, entry.kind, entry.name].append(entry)

    def of_kind(self, kind: str, group: str = GROUP) -> list[Entry]:
        """All objects of a kind."""
        return self._of_kind.get((group, kind), [])

    def find(self, kind: str, namespace: str, name: str, group: str = GROUP) -> Entry | None:
        """The object of a name. A namespace that a file leaves open fits any, but one that is set fits better."""
        named = self._named.get((group, kind, name), [])
        exact = (entry for entry in named if entry.namespace == namespace)
        loose = (entry for entry in named if not entry.namespace or not namespace)
        return next(exact, None) or next(loose, None)

    def near(self, kind: str, name: str, group: str = GROUP) -> str:
        """A sentence about an object whose name is nearly this one; empty when there is none."""
        return did_you_mean(name, (entry.name for entry in self.of_kind(kind, group)))

    @cached_property
    def clusters(self) -> list[tuple[Entry, Entry]]:
        """Each Cluster on Harvester, with its HarvesterCluster."""
        found = []
        for cluster in self.of_kind("Cluster", CLUSTER_API_GROUP):
            ref = cluster.field.at("spec", "infrastructureRef")
            if ref.at("kind").text == "HarvesterCluster":
                namespace = ref.at("namespace").text or cluster.namespace
                if infrastructure := self.find("HarvesterCluster", namespace, ref.at("name").text):
                    found.append((cluster, infrastructure))
        return found

    @cached_property
    def _by_cluster(self) -> dict[tuple[str, str], Entry]:
        found = {(entry.namespace, entry.cluster_name): entry for entry in self.of_kind("HarvesterCluster")}
        return found | {(cluster.namespace, cluster.name): entry for cluster, entry in self.clusters}

    def infrastructure(self, entry: Entry) -> Entry | None:
        """The HarvesterCluster of the cluster that an object belongs to, as far as it is among the objects."""
        return self._by_cluster.get((entry.namespace, entry.cluster_name)) if entry.cluster_name else None


def locate(rule: Rule, inventory: Inventory) -> Iterator[LocatedFinding[int]]:
    """Run a rule over all objects; yield its findings by the places of the objects."""
    if rule.check is not None:
        for found in rule.check(inventory):
            # An object of ours that is not among those given has no place.
            other = found.other.index if found.other and found.other.index >= 0 else None
            yield LocatedFinding(found.place.index, rule.signed(found.finding), other)
