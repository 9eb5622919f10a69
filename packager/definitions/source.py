"""What a repository or folder of definitions holds: clusters, each as a ClusterDefinition or as plain manifests.

A file with plain manifests has one Cluster, and all its objects go with that; a file without one goes with the only
Cluster of its folder. ClusterClasses with their templates are a file of their own. What cannot be read is told by file
and line and stops nothing else, but then nobody knows which clusters there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from caphv.api.object import Key
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.yaml.loader import SUFFIXES, parsed
from caphv.validation.yaml.tree import Document
from packager.addons.merge import Obj, at
from packager.cluster_objects import CLUSTER_API_GROUP
from packager.definitions import model
from packager.rendering import secretscan
from packager.tree import Tree, path_of

# Parsed YAML takes some fifty times as much memory, and no API server takes an object of this size.
_LARGEST = 2 * 1024 * 1024

Judge = Callable[[Obj], list[Finding]]
"""Says what is wrong with one object, whatever its kind."""


@dataclass(frozen=True, order=True)
class Problem:
    """Something that is wrong or, as `advice`, unwise, and where."""

    file: str
    line: int
    message: str
    advice: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Item:
    """One object and where it stands."""

    file: str
    document: Document
    base: FieldPath
    obj: Obj

    def problem(self, finding: Finding) -> Problem:
        """Return a finding about the object with its place."""
        line = self.document.position((*self.base, *finding.path)).line
        return Problem(self.file, line, str(finding), finding.advice)

    @property
    def key(self) -> Key:
        """Namespace and name, as far as it has them."""
        return Key(str(at(self.obj, "metadata", "namespace") or ""), str(at(self.obj, "metadata", "name") or ""))

    def is_of(self, group: str, kind: str) -> bool:
        """Whether it is of a kind."""
        return self.obj.get("kind") == kind and str(self.obj.get("apiVersion")).rpartition("/")[0] == group


@dataclass(frozen=True)
class Given:
    """One cluster of the source: its definition, or its Cluster with the objects that go with it."""

    head: Item
    others: tuple[Item, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name of the cluster."""
        return self.head.key

    @property
    def is_definition(self) -> bool:
        """Whether it is a ClusterDefinition, and no plain manifests."""
        return model.is_definition(self.head.obj)


@dataclass
class Source:
    """All that was read. `complete` is false when there may be clusters that could not be read.

    `bad` are clusters that are there and cannot be used as they are; `groups` are ClusterClasses with their templates,
    which clusters share.
    """

    clusters: list[Given] = field(default_factory=list)
    groups: dict[Key, list[Obj]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    bad: set[Key] = field(default_factory=set)
    complete: bool = True


class Reader:
    """Reads sources, and remembers of each file what it held: most are the same the next time."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._known: dict[str, tuple[bytes, _File]] = {}

    def read(self, files: Tree) -> Source:
        """Read all YAML and JSON files but hidden ones; others are not for us. Raises nothing that files can cause."""
        source = Source()
        by_file = {name: self._items(name, content, source) for name, content in sorted(manifests(files).items())}
        self._known = {name: self._known[name] for name in by_file}
        _cut(by_file, source)
        for given in source.clusters:
            _check(given, source, self._judge)
        _refuse_twice(source)
        source.clusters = [given for given in source.clusters if given.key not in source.bad]
        source.problems.sort()
        return source

    def _items(self, name: str, content: bytes, source: Source) -> list[Item]:
        """Return the objects of a file; none of a file that holds something else, or cannot be read as a whole."""
        known = self._known.get(name)
        if known is None or known[0] != content:
            known = self._known[name] = content, _read(name, content)
        found = known[1]
        source.problems += found.problems
        if found.problems:
            # Part of a cluster may be missing in what could be read.
            source.complete = False
            source.bad |= {item.key for item in found.items if item.key.name}
            return []
        return list(found.items)


@dataclass(frozen=True)
class _File:
    """Objects of a file, and why it cannot be read as a whole."""

    items: tuple[Item, ...]
    problems: tuple[Problem, ...]


def manifests(files: Tree) -> dict[str, bytes]:
    """Return the files that may hold definitions; others are not even read."""
    return {name: files[name] for name in files if _is_manifest(name)}


def _is_manifest(name: str) -> bool:
    parts = name.split("/")
    hidden = any(part.startswith(".") for part in parts)
    return name.endswith(SUFFIXES) and not hidden and not parts[-1].startswith("kustomization.")


def _read(name: str, content: bytes) -> _File:
    if len(content) > _LARGEST:
        return _File((), (Problem(name, 1, f"the file has more than {_LARGEST} bytes: split it"),))
    found = parsed(name, content, named=False)
    items = (
        Item(name, document, base, obj)
        for document in found.documents
        for obj, base in _objects(document)
        if obj.keys() & {"apiVersion", "kind"} or obj.keys() >= {"metadata", "spec"}
    )
    every = [*found.problems, *(one for document in found.documents for one in document.problems)]
    wrong = (one for one in every if not one.finding.advice)
    problems = (Problem(name, one.place.line, f"{one.finding.detail}: {one.finding.remedy}") for one in wrong)
    return _File(tuple(items), tuple(problems))


def _objects(document: Document) -> Iterator[tuple[Obj, FieldPath]]:
    value = document.value
    listed = at(value, "items")
    if isinstance(listed, list) and str(at(value, "kind")).endswith("List"):
        yield from ((item, ("items", index)) for index, item in enumerate(listed) if isinstance(item, dict))
    elif isinstance(value, dict):
        yield value, ()


def _cut(by_file: Mapping[str, list[Item]], source: Source) -> None:
    """Cut what was read into clusters and what they share."""
    alone: dict[str, list[int]] = defaultdict(list)  # folder → places of its clusters of plain manifests
    left: list[list[Item]] = []
    for name, items in by_file.items():
        definitions = [item for item in items if model.is_definition(item.obj)]
        plain = [item for item in items if item not in definitions]
        clusters = [item for item in plain if item.is_of(CLUSTER_API_GROUP, "Cluster")]
        source.clusters += (Given(item) for item in definitions)
        if len(clusters) == 1:
            alone[_folder(name)].append(len(source.clusters))
            source.clusters.append(Given(clusters[0], tuple(item for item in plain if item is not clusters[0])))
        elif clusters:
            _refuse(source, clusters, "this file has several Clusters: give each a file of its own")
        elif plain:
            left.append(plain)
    for items in left:
        places = alone[_folder(items[0].file)]
        classes = [item for item in items if item.is_of(CLUSTER_API_GROUP, "ClusterClass")]
        if len(classes) == 1:
            _share(classes[0], items, source)
        elif len(places) == 1:
            given = source.clusters[places[0]]
            source.clusters[places[0]] = Given(given.head, (*given.others, *items))
        else:
            _refuse(source, items[:1], "belongs to no Cluster: put it into the file of its Cluster, or into its folder")


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _share(head: Item, items: Sequence[Item], source: Source) -> None:
    problems = [item.problem(finding) for item in items for finding in secretscan.check(item.obj)]
    problems += _unnamed(head)
    source.problems += problems
    if not problems:
        source.groups[head.key] = [item.obj for item in sorted(items, key=lambda item: item is head)]


def _refuse(source: Source, items: Sequence[Item], detail: str) -> None:
    for item in items:
        finding = Finding(("kind",), Fault.FORBIDDEN, detail, "definition-file")
        source.problems.append(item.problem(finding))
        source.bad.add(item.key)
    source.complete = False


def _check(given: Given, source: Source, judge: Judge) -> None:
    """Judge what can be judged before anything is made of it; a definition is judged when it is built."""
    problems = _unnamed(given.head)
    if problems:
        source.complete = False
    if not given.is_definition:
        items = (given.head, *given.others)
        problems += (item.problem(finding) for item in items for finding in judge(item.obj))
        problems += (item.problem(finding) for item in items for finding in secretscan.check(item.obj))
    source.problems += problems
    if any(not problem.advice for problem in problems):
        source.bad.add(given.key)


def _unnamed(item: Item) -> list[Problem]:
    """Name and namespace become folders, and say whose the objects are."""
    found = []
    for name in ("name", "namespace"):
        value = at(item.obj, "metadata", name)
        try:
            path_of(value if isinstance(value, str) else "")
        except ValueError:
            detail = "must be set, in the form of a name of Kubernetes"
            finding = Finding(("metadata", name), Fault.REQUIRED, detail, "definition-file")
            found.append(item.problem(finding))
    return found


def _refuse_twice(source: Source) -> None:
    known: dict[Key, list[Given]] = defaultdict(list)
    for given in source.clusters:
        known[given.key].append(given)
    for key, several in known.items():
        for given in several if len(several) > 1 else ():
            others = ", ".join(sorted({one.head.file for one in several if one is not given}))
            detail = f"another one makes this cluster, in {others}: remove one of them"
            finding = Finding(("metadata", "name"), Fault.DUPLICATE, detail, "definition-twice", key.name)
            source.problems.append(given.head.problem(finding))
            source.bad.add(key)
