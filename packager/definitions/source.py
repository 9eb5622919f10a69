"""Reads clusters from ClusterDefinitions or plain manifests.

A file with plain manifests has one Cluster, to which all its objects belong. A file without a
Cluster belongs to the only Cluster of its folder. ClusterClasses with their templates have a file
of their own. Unreadable files are reported by file and line and do not stop the others, but then
the list of clusters is incomplete.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from caphv.api.object import Key, Obj, at
from caphv.api.plaintext import printable
from caphv.validation.finding import Fault, Finding
from packager import secretscan
from packager.definitions import model
from packager.definitions.ownership import DIRECTORY
from packager.definitions.sourcefile import (
    SPLIT,
    Item,
    SourceFile,
    SourceProblem,
    is_hidden,
    is_manifest,
    manifests,
    read_file,
)
from packager.git.errors import UnusableContent
from packager.git.snapshot import Unread
from packager.tree import Tree, path_of

_MAX_VALUES = 1_000_000
_MAX_LISTED = 3

Validator = Callable[[Obj], list[Finding]]
"""Returns all findings of one object of any kind."""


@dataclass(frozen=True)
class ClusterEntry:
    """One cluster of the source: its definition, or its Cluster with all other objects."""

    head: Item
    others: tuple[Item, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name of the cluster."""
        return self.head.key

    @property
    def is_definition(self) -> bool:
        """Whether it is a ClusterDefinition and not plain manifests."""
        return model.is_definition(self.head.obj)


@dataclass
class Source:
    """The content of a source; `complete` is false when some clusters may be unreadable.

    `invalid` are clusters that exist but have errors. `groups` are ClusterClasses with their
    templates, which clusters share, and `invalid_groups` those that have errors. Repositories
    record the source by its `name`, see `packager.definitions.ownership`.
    """

    clusters: list[ClusterEntry] = field(default_factory=list)
    groups: dict[Key, list[Obj]] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)
    invalid: set[Key] = field(default_factory=set)
    invalid_groups: set[Key] = field(default_factory=set)
    complete: bool = True
    name: str = DIRECTORY


@dataclass(frozen=True, slots=True)
class _CachedFile:
    """A parsed file, and the digest of the content that it was parsed from."""

    digest: bytes
    file: SourceFile


class Reader:
    """Reads sources, and keeps each parsed file, because most do not change between two reads."""

    def __init__(self, validate: Validator) -> None:
        self._validate = validate
        self._cached: dict[str, _CachedFile] = {}

    def read(
        self,
        files: Tree,
        unread: Mapping[str, Unread] = MappingProxyType({}),
        *,
        name: str = DIRECTORY,
    ) -> Source:
        """Read all YAML and JSON files except hidden ones.

        `unread` are links and submodules next to the files, and `name` is the name of the source.
        Raises `UnusableContent` if the files are larger than the packager can hold, and no other
        error for any content.
        """
        read: dict[str, _CachedFile] = {}
        values = 0
        for path, content in sorted(manifests(files).items()):
            read[path] = self._read_file(path, content)
            values += read[path].file.values
            if values > _MAX_VALUES:
                raise UnusableContent(
                    f"the definitions have more than {_MAX_VALUES:,} values: {SPLIT}"
                )
        # Forget files that no longer exist.
        self._cached = read

        source = Source(name=name)
        for path, other in unread.items():
            _report_unread(printable(path), other, source, followed=path in read)

        _split_clusters([_items(cached.file, source) for cached in read.values()], source)
        for entry in source.clusters:
            _check(entry, source, self._validate)
        _refuse_duplicates(source)

        # This comes last, because a cluster that is defined twice is invalid at both places.
        source.clusters = [entry for entry in source.clusters if entry.key not in source.invalid]
        source.problems.sort()
        return source

    def _read_file(self, name: str, content: bytes) -> _CachedFile:
        """Return a parsed file, the same object as before if it did not change."""
        digest = hashlib.sha256(content).digest()
        cached = self._cached.get(name)
        if cached is not None and cached.digest == digest:
            return cached
        # Problems name the file in logs, conditions and the status file, which hold only UTF-8.
        return _CachedFile(digest, read_file(printable(name), content))


def _report_unread(name: str, entry: Unread, source: Source, *, followed: bool) -> None:
    """Report a link or submodule that may hide a definition.

    Nothing distinguishes a hidden definition from a removed one.

    :param name: path of the link or submodule
    :param entry: the link or submodule
    :param source: the source to add the problem to
    :param followed: whether the file was read after all
    """
    if followed:
        detail = (
            "is a symbolic link, which is followed in a folder, but not in a repository: put the "
            "file itself here"
        )
        source.problems.append(SourceProblem(name, 1, detail, advice=True))

    elif is_manifest(name):
        detail = f"{entry.why}: put the file itself here, or remove it"
        source.problems.append(SourceProblem(name, 1, detail))
        source.complete = False

    elif entry.is_folder and not is_hidden(name):
        detail = (
            f"{entry.why}: clusters that are defined in it count as removed; put the files "
            "themselves here"
        )
        source.problems.append(SourceProblem(name, 1, detail, advice=True))


def _items(file: SourceFile, source: Source) -> list[Item]:
    """Return the objects of a file; none if a part of it cannot be read."""
    source.problems += file.problems
    if file.problems:
        # The unreadable part may belong to one of the readable clusters.
        source.complete = False
        source.invalid |= {item.key for item in file.items if item.key.name}
        return []
    return list(file.items)


def _split_clusters(items_of_files: Sequence[list[Item]], source: Source) -> None:
    """Split the objects into clusters and shared groups.

    The module's docstring says which objects belong together.
    """
    # Each definition is a cluster, and each file with plain manifests and one Cluster.
    indices_by_folder: dict[str, list[int]] = defaultdict(list)
    files_without_cluster: list[list[Item]] = []
    files_with_class: dict[Key, list[list[Item]]] = defaultdict(list)
    for items in items_of_files:
        plain = []
        for item in items:
            if model.is_definition(item.obj):
                source.clusters.append(ClusterEntry(item))
            else:
                plain.append(item)

        clusters = [item for item in plain if item.has_kind("Cluster")]
        if len(clusters) == 1:
            others = tuple(item for item in plain if item is not clusters[0])
            indices_by_folder[_folder(clusters[0].file)].append(len(source.clusters))
            source.clusters.append(ClusterEntry(clusters[0], others))
        elif clusters:
            _refuse(source, clusters, "this file has several Clusters: move each to its own file")
        elif plain:
            files_without_cluster.append(plain)

    # Only now all Clusters of each folder are known. Other files hold a ClusterClass, or belong to
    # the only Cluster of their folder.
    for items in files_without_cluster:
        indices = indices_by_folder[_folder(items[0].file)]
        classes = [item for item in items if item.has_kind("ClusterClass")]
        if len(classes) == 1:
            files_with_class[classes[0].key].append(items)
        elif len(indices) == 1:
            entry = source.clusters[indices[0]]
            source.clusters[indices[0]] = ClusterEntry(entry.head, (*entry.others, *items))
        elif secrets := _secret_problems(items):
            # Moving a Secret to a cluster would not help.
            source.problems += secrets
            source.complete = False
        else:
            detail = "belongs to no Cluster: move it to the file or the folder of its Cluster"
            _refuse(source, items[:1], detail)

    _share_classes(files_with_class, source)


def _secret_problems(items: Sequence[Item]) -> list[SourceProblem]:
    return [item.problem(finding) for item in items for finding in secretscan.check(item.obj)]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _share_classes(files_of: Mapping[Key, Sequence[Sequence[Item]]], source: Source) -> None:
    """Add each ClusterClass with its templates, which are applied before it, to the shared groups.

    A ClusterClass that is invalid or defined twice is left out. Without it, nothing tells whether
    its clusters are on Harvester and have bundles, so the list of clusters is incomplete.
    """
    for key, files in files_of.items():
        heads = [item for items in files for item in items if item.has_kind("ClusterClass")]
        problems = [problem for items in files for problem in _secret_problems(items)]
        problems += _check_names(heads[0])
        if not problems and len(heads) > 1:
            problems = _duplicate_problems("ClusterClass", heads)

        if problems:
            source.problems += problems
            source.invalid_groups.add(key)
            source.complete = False
        else:
            templates = [item.obj for item in files[0] if item is not heads[0]]
            source.groups[key] = [*templates, heads[0].obj]


def _refuse(source: Source, items: Sequence[Item], detail: str) -> None:
    """Report objects that belong to no cluster. The list of clusters is then incomplete."""
    for item in items:
        finding = Finding(("kind",), Fault.FORBIDDEN, detail, "definition-file")
        source.problems.append(item.problem(finding))
        source.invalid.add(item.key)
    source.complete = False


def _check(entry: ClusterEntry, source: Source, validate: Validator) -> None:
    """Validate plain manifests before they are built. Building validates a definition.

    A cluster with an error is invalid. Without a valid name, its cluster is unknown, so the list of
    clusters is incomplete.
    """
    problems = _check_names(entry.head)
    if problems:
        source.complete = False
    if not entry.is_definition:
        items = (entry.head, *entry.others)
        problems += (item.problem(finding) for item in items for finding in validate(item.obj))
        problems += _secret_problems(items)
    source.problems += problems
    if any(not problem.advice for problem in problems):
        source.invalid.add(entry.key)


def _check_names(item: Item) -> list[SourceProblem]:
    """Return problems with name and namespace, which become folder names."""
    problems = []
    for name in ("name", "namespace"):
        value = at(item.obj, "metadata", name)
        try:
            path_of(value if isinstance(value, str) else "")
        except ValueError:
            detail = "must be set to a valid Kubernetes name"
            finding = Finding(("metadata", name), Fault.REQUIRED, detail, "definition-file")
            problems.append(item.problem(finding))
    return problems


def _refuse_duplicates(source: Source) -> None:
    """Report clusters that are defined more than once, at each of their definitions."""
    entries_of: dict[Key, list[ClusterEntry]] = defaultdict(list)
    for entry in source.clusters:
        entries_of[entry.key].append(entry)

    for key, entries in entries_of.items():
        if len(entries) == 1:
            continue
        source.problems += _duplicate_problems("cluster", [entry.head for entry in entries])
        source.invalid.add(key)


def _duplicate_problems(what: str, items: Sequence[Item]) -> list[SourceProblem]:
    """Return a problem for each definition of something that is defined more than once."""
    # Take one name more than is shown, because a message leaves out the file itself.
    names = sorted({item.file for item in items})[: _MAX_LISTED + 1]
    problems = []
    for item in items:
        others = [name for name in names if name != item.file] or names
        detail = f"{what} is also defined in {', '.join(others[:_MAX_LISTED])}: remove one of them"
        finding = Finding(
            ("metadata", "name"), Fault.DUPLICATE, detail, "definition-twice", item.key.name
        )
        problems.append(item.problem(finding))
    return problems
