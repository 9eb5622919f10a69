"""Reads a repository or folder of definitions: clusters as ClusterDefinitions or as plain manifests.

A file with plain manifests has one Cluster, to which all its objects belong; a file without one belongs to the only
Cluster of its folder. ClusterClasses with their templates have a file of their own. Unreadable files are reported by
file and line and do not stop the others, but then the list of clusters is incomplete.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from caphv.api.object import Key, Obj
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.yaml.loader import SUFFIXES, parsed
from caphv.validation.yaml.tree import Document
from packager.addons.merge import at
from packager.definitions import model
from packager.definitions.ownership import DIRECTORY
from packager.git.errors import UnusableContent
from packager.git.snapshot import Unread
from packager.rendering import secretscan
from packager.tree import Tree, path_of

# No API server takes an object of this size.
_LARGEST = 2 * 1024 * 1024
_MOST_BYTES = 64 * 1024 * 1024
# Each value takes some 250 bytes. A definition has about 60 values, the manifests of a cluster a few hundred.
_MOST_VALUES_OF_FILE = 200_000
_MOST_VALUES = 1_000_000
_MOST_NAMED = 3
_LFS_POINTER = b"version https://git-lfs"
_SPLIT = "split them between several repositories, or move other files out"

Validator = Callable[[Obj], list[Finding]]
"""Returns all findings of one object of any kind."""


@dataclass(frozen=True, order=True)
class SourceProblem:
    """An error or, with `advice`, a warning, and its place."""

    file: str
    line: int
    message: str
    advice: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Item:
    """One object and its place."""

    file: str
    document: Document
    base: FieldPath
    obj: Obj

    def problem(self, finding: Finding) -> SourceProblem:
        """Return a finding of this object with its place."""
        line = self.document.position((*self.base, *finding.path)).line
        return SourceProblem(self.file, line, str(finding), finding.advice)

    @property
    def key(self) -> Key:
        """Namespace and name, as far as it has them."""
        return Key(str(at(self.obj, "metadata", "namespace") or ""), str(at(self.obj, "metadata", "name") or ""))

    def is_of(self, group: str, kind: str) -> bool:
        """Whether it is of a kind."""
        return self.obj.get("kind") == kind and str(self.obj.get("apiVersion")).rpartition("/")[0] == group


@dataclass(frozen=True)
class ClusterEntry:
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
    """The content of a source. `complete` is false when there may be clusters that could not be read.

    `invalid` are clusters that exist but have errors; `groups` are ClusterClasses with their templates, which clusters
    share. `name` is how repositories record the source, see `packager.definitions.ownership`.
    """

    clusters: list[ClusterEntry] = field(default_factory=list)
    groups: dict[Key, list[Obj]] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)
    invalid: set[Key] = field(default_factory=set)
    complete: bool = True
    name: str = DIRECTORY


class Reader:
    """Reads sources, and remembers the content of each file: most do not change between two reads."""

    def __init__(self, validate: Validator) -> None:
        self._validate = validate
        self._known: dict[str, tuple[bytes, _File]] = {}  # by name, with the digest of the content

    def read(
        self, files: Tree, unread: Mapping[str, Unread] = MappingProxyType({}), *, name: str = DIRECTORY
    ) -> Source:
        """Read all YAML and JSON files except hidden ones; `unread` are links and submodules next to them.

        `name` is the source's. Raises UnusableContent for more than the packager can hold; nothing else that files can
        cause.
        """
        read: dict[str, tuple[bytes, _File]] = {}
        values = 0
        for path, content in sorted(manifests(files).items()):
            read[path] = self._file(path, content)
            values += read[path][1].values
            if values > _MOST_VALUES:
                raise UnusableContent(f"the definitions have more than {_MOST_VALUES:,} values: {_SPLIT}")
        self._known = read
        source = Source(name=name)
        for path, other in unread.items():
            _note(path, other, source, followed=path in read)
        by_file = {path: _items(file, source) for path, (_, file) in read.items()}
        _cut(by_file, source)
        for entry in source.clusters:
            _check(entry, source, self._validate)
        _refuse_twice(source)
        source.clusters = [entry for entry in source.clusters if entry.key not in source.invalid]
        source.problems.sort()
        return source

    def _file(self, name: str, content: bytes) -> tuple[bytes, _File]:
        digest = hashlib.sha256(content).digest()
        known = self._known.get(name)
        return known if known is not None and known[0] == digest else (digest, _read(name, content))


@dataclass(frozen=True)
class _File:
    """The objects of a file, and why part of it cannot be read. `values` are those that stay in memory."""

    items: tuple[Item, ...]
    problems: tuple[SourceProblem, ...]
    values: int = 0


def _note(name: str, entry: Unread, source: Source, *, followed: bool) -> None:
    """Report a link or submodule where a definition may have been: it cannot be distinguished from a removed one."""
    if followed:
        detail = "is a symbolic link, which is followed in a folder, but not in a repository: put the file itself here"
        source.problems.append(SourceProblem(name, 1, detail, advice=True))
    elif _is_manifest(name):
        detail = f"{entry.why}: put the file itself here, or remove it"
        source.problems.append(SourceProblem(name, 1, detail))
        source.complete = False
    elif entry.is_folder and not _is_hidden(name):
        detail = f"{entry.why}: clusters that are defined in it count as removed; put the files themselves here"
        source.problems.append(SourceProblem(name, 1, detail, advice=True))


def _items(file: _File, source: Source) -> list[Item]:
    """Return the objects of a file; none if it holds something else, or if part of it cannot be read."""
    source.problems += file.problems
    if file.problems:
        # The unreadable part may belong to one of the readable clusters.
        source.complete = False
        source.invalid |= {item.key for item in file.items if item.key.name}
        return []
    return list(file.items)


def manifests(files: Tree) -> dict[str, bytes]:
    """Return the files that may hold definitions; the content of others is not read.

    Files that are too large are cut, so that they are still too large. Git stores equal files once, so a small commit
    can hold any number of them. Raises UnusableContent when all together are too large.
    """
    found: dict[str, bytes] = {}
    left = _MOST_BYTES
    for name in filter(_is_manifest, files):
        found[name] = files[name][: _LARGEST + 1]
        left -= len(found[name])
        if left < 0:
            raise UnusableContent(f"YAML and JSON files have more than {_MOST_BYTES:,} bytes: {_SPLIT}")
    return found


def _is_manifest(name: str) -> bool:
    _, _, last = name.rpartition("/")
    return name.endswith(SUFFIXES) and not _is_hidden(name) and not last.startswith("kustomization.")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _read(name: str, content: bytes) -> _File:
    if len(content) > _LARGEST:
        return _File((), (SourceProblem(name, 1, f"the file has more than {_LARGEST} bytes: split it"),))
    found = parsed(name, content, named=False, most_values=_MOST_VALUES_OF_FILE)
    items = tuple(
        Item(name, document, base, obj)
        for document in found.documents
        for obj, base in _objects(document)
        if obj.keys() & {"apiVersion", "kind"} or obj.keys() >= {"metadata", "spec"}
    )
    every = [*found.problems, *(one for document in found.documents for one in document.problems)]
    errors = (one for one in every if not one.finding.advice)
    problems = tuple(
        SourceProblem(name, one.place.line, f"{one.finding.detail}: {one.finding.remedy}") for one in errors
    )
    problems += tuple(_texts(name, content, found.documents))
    sizes = {id(item.document): item.document.root.size for item in items}
    return _File(items, problems, sum(sizes.values()) + len(problems))


def _texts(name: str, content: bytes, documents: Iterable[Document]) -> Iterator[SourceProblem]:
    """Yield problems of documents that are a text, which may stand for a file with definitions."""
    detail = "is text, not an object: correct it, or remove the file"
    if content.startswith(_LFS_POINTER):
        detail = "is a pointer of Git LFS, whose files are not fetched: commit the file itself, without LFS"
    for document in documents:
        if isinstance(document.value, str):
            yield SourceProblem(name, document.position(()).line, detail)


def _objects(document: Document) -> Iterator[tuple[Obj, FieldPath]]:
    value = document.value
    listed = at(value, "items")
    if isinstance(listed, list) and str(at(value, "kind")).endswith("List"):
        yield from ((item, ("items", index)) for index, item in enumerate(listed) if isinstance(item, dict))
    elif isinstance(value, dict):
        yield value, ()


def _cut(by_file: Mapping[str, list[Item]], source: Source) -> None:
    """Split the objects into clusters and shared groups."""
    alone: dict[str, list[int]] = defaultdict(list)  # folder → places of its clusters of plain manifests
    left: list[list[Item]] = []
    for name, items in by_file.items():
        definitions = [item for item in items if model.is_definition(item.obj)]
        plain = [item for item in items if not model.is_definition(item.obj)]
        clusters = [item for item in plain if item.is_of(CLUSTER_API_GROUP, "Cluster")]
        source.clusters += (ClusterEntry(item) for item in definitions)
        if len(clusters) == 1:
            alone[_folder(name)].append(len(source.clusters))
            source.clusters.append(ClusterEntry(clusters[0], tuple(item for item in plain if item is not clusters[0])))
        elif clusters:
            _refuse(source, clusters, "this file has several Clusters: move each to its own file")
        elif plain:
            left.append(plain)
    for items in left:
        places = alone[_folder(items[0].file)]
        classes = [item for item in items if item.is_of(CLUSTER_API_GROUP, "ClusterClass")]
        if len(classes) == 1:
            _share(classes[0], items, source)
        elif len(places) == 1:
            entry = source.clusters[places[0]]
            source.clusters[places[0]] = ClusterEntry(entry.head, (*entry.others, *items))
        else:
            _refuse(source, items[:1], "belongs to no Cluster: move it to the file or the folder of its Cluster")


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
        source.invalid.add(item.key)
    source.complete = False


def _check(entry: ClusterEntry, source: Source, validate: Validator) -> None:
    """Validate an entry before it is built; a definition is validated when it is built."""
    problems = _unnamed(entry.head)
    if problems:
        source.complete = False
    if not entry.is_definition:
        items = (entry.head, *entry.others)
        problems += (item.problem(finding) for item in items for finding in validate(item.obj))
        problems += (item.problem(finding) for item in items for finding in secretscan.check(item.obj))
    source.problems += problems
    if any(not problem.advice for problem in problems):
        source.invalid.add(entry.key)


def _unnamed(item: Item) -> list[SourceProblem]:
    """Return problems with name and namespace, which become folder names."""
    found = []
    for name in ("name", "namespace"):
        value = at(item.obj, "metadata", name)
        try:
            path_of(value if isinstance(value, str) else "")
        except ValueError:
            detail = "must be set to a valid Kubernetes name"
            finding = Finding(("metadata", name), Fault.REQUIRED, detail, "definition-file")
            found.append(item.problem(finding))
    return found


def _refuse_twice(source: Source) -> None:
    known: dict[Key, list[ClusterEntry]] = defaultdict(list)
    for entry in source.clusters:
        known[entry.key].append(entry)
    for key, several in known.items():
        names = sorted({entry.head.file for entry in several})[: _MOST_NAMED + 1]
        for entry in several if len(several) > 1 else ():
            others = [name for name in names if name != entry.head.file] or names
            detail = f"cluster is also defined in {', '.join(others[:_MOST_NAMED])}: remove one of them"
            finding = Finding(("metadata", "name"), Fault.DUPLICATE, detail, "definition-twice", key.name)
            source.problems.append(entry.head.problem(finding))
            source.invalid.add(key)
