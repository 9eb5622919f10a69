"""Reads one file of definitions, within bounds for a single file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from caphv.api.object import Key, Obj, text_at
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import FieldPath, Finding
from caphv.validation.yaml.documents import Bounds
from caphv.validation.yaml.loader import SUFFIXES, parse
from caphv.validation.yaml.tree import Document
from packager.definitions import model
from packager.git.errors import UnusableContent
from packager.tree import Tree

# No API server takes an object of this size.
_MAX_FILE_BYTES = 2 * 1024 * 1024
# In Python, each character of a text takes four bytes if one of them needs four, as an emoji does.
_MAX_WIDE_BYTES = _MAX_FILE_BYTES // 2
_WIDE = re.compile(b"[\xf0-\xf4]")
_MAX_BYTES = 64 * 1024 * 1024
# Each value takes up to 400 bytes, and no file may take 16 MiB. A definition has about 60 values,
# the manifests of a cluster a few hundred, a ClusterClass with its templates some thousand.
_MAX_VALUES = 30_000
_MAX_DOCUMENTS = 1_000
_MAX_PROBLEMS = 100
_LFS_POINTER = b"version https://git-lfs"
SPLIT = "split them between several repositories, or move other files out"


@dataclass(frozen=True, order=True)
class SourceProblem:
    """An error (or a warning, with `advice`) and its place."""

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
        """Return a finding about this object with its place."""
        line = self.document.position((*self.base, *finding.path)).line
        return SourceProblem(file=self.file, line=line, message=str(finding), advice=finding.advice)

    @property
    def key(self) -> Key:
        """Namespace and name, as far as the object has them."""
        return Key(
            text_at(self.obj, "metadata", "namespace"),
            text_at(self.obj, "metadata", "name"),
        )

    def has_kind(self, kind: str) -> bool:
        """Whether the object is of this kind of Cluster API."""
        return _has_kind(self.obj, kind)


@dataclass(frozen=True)
class SourceFile:
    """The objects of a file, and problems of reading it; `values` is their number in memory."""

    items: tuple[Item, ...]
    problems: tuple[SourceProblem, ...]
    values: int = 0


def manifests(files: Tree) -> dict[str, bytes]:
    """Return the files that may hold definitions, without reading any other files.

    Files that are too large are cut, but stay too large. Git stores equal files once, so a small
    commit can hold any number of them. Raises `UnusableContent` if all files together are too
    large.
    """
    contents: dict[str, bytes] = {}
    size = 0
    for name in filter(is_manifest, files):
        contents[name] = files[name][: _MAX_FILE_BYTES + 1]
        size += len(contents[name])
        if size > _MAX_BYTES:
            raise UnusableContent(
                f"YAML and JSON files have more than {_MAX_BYTES:,} bytes: {SPLIT}"
            )
    return contents


def is_manifest(name: str) -> bool:
    """Whether a file may hold definitions, by its name."""
    _, _, last = name.rpartition("/")
    return name.endswith(SUFFIXES) and not is_hidden(name) and not last.startswith("kustomization.")


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder above it, is hidden."""
    return any(part.startswith(".") for part in name.split("/"))


def read_file(name: str, content: bytes) -> SourceFile:
    """Parse a file within the bounds of one file."""
    if len(content) > _MAX_FILE_BYTES:
        return _too_large(name, f"more than {_MAX_FILE_BYTES:,} bytes")
    if len(content) > _MAX_WIDE_BYTES and _WIDE.search(content):
        return _too_large(
            name,
            f"{len(content):,} bytes; with characters such as emoji it may have "
            f"{_MAX_WIDE_BYTES:,}",
        )

    bounds = Bounds(_MAX_VALUES, _MAX_DOCUMENTS, _MAX_PROBLEMS)
    file = parse(name, content, named=False, bounds=bounds, excerpts=False)
    items = []
    located = [*file.problems]
    for document in file.documents:
        located += document.problems
        for obj, base in document.objects():
            if obj.keys() & {"apiVersion", "kind"} or obj.keys() >= {"metadata", "spec"}:
                items.append(Item(file=name, document=document, base=base, obj=obj))

    problems = [
        SourceProblem(
            name, problem.place.line, f"{problem.finding.detail}: {problem.finding.remedy}"
        )
        for problem in located
        if not problem.finding.advice
    ]
    problems += _text_problems(name, content, file.documents)
    problems += _lost_object_problems(name, file.documents, items)
    # Only documents with objects stay in memory.
    sizes = {id(item.document): item.document.root.size for item in items}
    return SourceFile(tuple(items), tuple(problems), sum(sizes.values()) + len(problems))


def _too_large(name: str, size: str) -> SourceFile:
    return SourceFile((), (SourceProblem(name, 1, f"the file has {size}: split the file"),))


def _text_problems(
    name: str, content: bytes, documents: Iterable[Document]
) -> Iterator[SourceProblem]:
    """Yield problems of documents that are a text, which may stand for a file with definitions."""
    detail = "is text, not an object: correct it, or remove the file"
    if content.startswith(_LFS_POINTER):
        detail = (
            "is a pointer of Git LFS, whose files are not fetched: commit the file itself, "
            "without LFS"
        )
    for document in documents:
        if isinstance(document.value, str):
            yield SourceProblem(name, document.position(()).line, detail)


def _lost_object_problems(
    name: str, documents: Iterable[Document], items: Sequence[Item]
) -> Iterator[SourceProblem]:
    """Yield problems of documents with objects that are not read, because of where they are.

    Such a cluster would count as removed. One problem for each document is enough.
    """
    read = {
        id(item.obj)
        for item in items
        if _is_object(item.obj) and not str(item.obj.get("kind")).endswith("List")
    }
    for document in documents:
        value = document.value
        if isinstance(value, list) and any(map(_is_object, value)):
            detail = (
                "is a list of objects, which is not read: write each object as a document of its "
                "own, with --- in between"
            )
            yield SourceProblem(name, document.position(()).line, detail)

        elif lost := _lost_cluster(value, read):
            path, kind = lost
            detail = (
                f"has a {kind} inside, which is not read: write it as a document of its own, "
                "without indentation"
            )
            yield SourceProblem(name, document.position(path).line, detail)


def _has_kind(obj: Obj, kind: str) -> bool:
    """Whether an object is of this kind of Cluster API."""
    group = str(obj.get("apiVersion")).rpartition("/")[0]
    return group == CLUSTER_API_GROUP and obj.get("kind") == kind


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.keys() & {"apiVersion", "kind"})


def _lost_cluster(root: Any, read: Set[int]) -> tuple[FieldPath, str] | None:
    """Return path and kind of a definition or Cluster within a value, None if there is none.

    `read` are the identities of objects that are read. What they contain is not searched, because
    they may refer to a Cluster.
    """
    values: list[tuple[FieldPath, Any]] = [((), root)]
    while values:
        path, value = values.pop()
        if id(value) in read:
            continue
        if isinstance(value, dict):
            if model.is_definition(value) or _has_kind(value, "Cluster"):
                return path, value["kind"]
            values += [((*path, key), child) for key, child in value.items()]
        elif isinstance(value, list):
            values += [((*path, index), child) for index, child in enumerate(value)]
    return None
