"""Reads clusters from files, folders and streams, and remembers their places for findings.

Unreadable files are reported and do not stop the others. But then the list of clusters is
incomplete, so nothing may be removed because of such an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from caphv.api.object import Key, Obj, at
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import FieldPath, Finding
from caphv.validation.yaml.loader import Source, read_all
from caphv.validation.yaml.tree import Document
from packager.addons.cluster_objects import facts_of
from packager.addons.facts import ClusterFacts
from packager.addons.gather import object_of_field


class _Place(NamedTuple):
    """Where an object was read: the file, its document, and the path of the object in it."""

    source: Source
    document: Document
    base: FieldPath

    def line(self, path: FieldPath) -> str:
        """Return file and line of a field of the object."""
        return f"{self.source.name}:{self.document.position((*self.base, *path)).line}"


@dataclass(frozen=True)
class Input:
    """Clusters by namespace and name, and messages about files that could not be read."""

    clusters: tuple[ClusterFacts, ...]
    unreadable: tuple[str, ...] = ()
    _places: Mapping[int, _Place] = field(default_factory=dict, repr=False)

    def place(self, cluster: Key, finding: Finding, number: int = 0) -> str:
        """Return file and line (`cluster.yaml:12`) of a finding about a cluster, empty without one.

        `number` chooses among several clusters with the same key.
        """
        named = [facts for facts in self.clusters if facts.key == cluster]
        if number >= len(named):
            return ""
        place = self._places.get(id(object_of_field(finding.path, named[number])))
        if place is None:
            # The object is in no file, because a ClusterClass creates it, or it was derived.
            return ""
        return place.line(finding.path)


def read_files(paths: Sequence[str], stdin: BinaryIO) -> Input:
    """Read all clusters of files and folders; `-` is the stream. Reports faults of files."""
    objects: list[tuple[Obj, _Place]] = []
    sources, unreadable = read_all(paths, stdin)
    for source in sources:
        problems = [*source.problems]
        for document in source.documents:
            problems += document.problems
            objects += ((obj, _Place(source, document, base)) for obj, base in document.objects())
        unreadable += (
            f"{source.name}:{problem.place.line}: {problem.finding.detail}"
            for problem in problems
            if not problem.finding.advice
        )
    unreadable += tuple(_report_nameless(objects))

    clusters = facts_of(obj for obj, _ in objects)
    # Use identities as keys, because objects are not hashable and the facts hold the same objects.
    places = {id(obj): place for obj, place in objects}
    return Input(tuple(clusters), tuple(unreadable), places)


def _report_nameless(objects: Sequence[tuple[Obj, _Place]]) -> Iterator[str]:
    """Yield a message for each Cluster whose name an API server would reject."""
    for obj, place in objects:
        is_cluster = obj.get("kind") == "Cluster" and str(obj.get("apiVersion")).startswith(
            f"{CLUSTER_API_GROUP}/"
        )
        name = at(obj, "metadata", "name")
        # YAML reads an unquoted 12 or yes as a number or a boolean.
        if is_cluster and not (isinstance(name, str) and name):
            yield (
                f"{place.line(('metadata', 'name'))}: metadata.name must be text: quote numbers, "
                "and words such as true"
            )
