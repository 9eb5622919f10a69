"""Reads clusters from files, folders and streams, and remembers their places for findings.

Unreadable files are reported and do not stop the others. But then the list of clusters is incomplete, so nothing may
be removed because of such an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from caphv.api.object import Key, Obj
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import FieldPath, Finding
from caphv.validation.yaml.loader import Source, read_all
from caphv.validation.yaml.tree import Document
from packager.addons.gather import holder
from packager.addons.merge import at
from packager.addons.settings import ClusterFacts
from packager.cluster_objects import facts_of

_Place = tuple[Source, Document, FieldPath]


@dataclass(frozen=True)
class Input:
    """Clusters by namespace and name, and messages about files that could not be read."""

    clusters: tuple[ClusterFacts, ...]
    unreadable: tuple[str, ...] = ()
    _places: Mapping[int, _Place] = field(default_factory=dict, repr=False)

    def place(self, cluster: Key, finding: Finding, number: int = 0) -> str:
        """Return file and line (`cluster.yaml:12`) that a finding about a cluster is about; empty where none is.

        Of several clusters with one key, `number` is the one that is meant.
        """
        named = [facts for facts in self.clusters if facts.key == cluster]
        known = self._places.get(id(holder(finding.path, named[number]))) if number < len(named) else None
        if known is None:
            return ""
        source, document, base = known
        return f"{source.name}:{document.position((*base, *finding.path)).line}"


def read_files(paths: Sequence[str], stdin: BinaryIO) -> Input:
    """Read all clusters of files and folders; `-` is the stream. Raises nothing that files can cause."""
    found: list[tuple[Obj, _Place]] = []
    sources, unreadable = read_all(paths, stdin)
    for source in sources:
        problems = (*source.problems, *(one for document in source.documents for one in document.problems))
        unreadable += (
            f"{source.name}:{problem.place.line}: {problem.finding.detail}"
            for problem in problems
            if not problem.finding.advice
        )
        found += ((obj, (source, document, base)) for document in source.documents for obj, base in _objects(document))
    unreadable += tuple(_nameless(found))
    clusters = facts_of(obj for obj, _ in found)
    return Input(tuple(clusters), tuple(unreadable), {id(obj): place for obj, place in found})


def _nameless(found: Sequence[tuple[Obj, _Place]]) -> Iterator[str]:
    """Report Clusters with an invalid name: an API server would reject them, and here they would be missed."""
    for obj, (source, document, base) in found:
        is_cluster = obj.get("kind") == "Cluster" and str(obj.get("apiVersion")).startswith(f"{CLUSTER_API_GROUP}/")
        name = at(obj, "metadata", "name")
        if is_cluster and not (isinstance(name, str) and name):
            line = document.position((*base, "metadata", "name")).line
            yield f"{source.name}:{line}: metadata.name must be text: quote numbers, and words such as true"


def _objects(document: Document) -> Iterator[tuple[Obj, FieldPath]]:
    """Objects of a document with their paths in it: itself, or those of a List."""
    value: Any = document.value
    listed = value.get("items") if isinstance(value, dict) and str(value.get("kind")).endswith("List") else None
    if isinstance(listed, list):
        yield from ((item, ("items", index)) for index, item in enumerate(listed) if isinstance(item, dict))
    elif isinstance(value, dict):
        yield value, ()
