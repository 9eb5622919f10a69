"""Finds files and reads them, bounded: what cannot be read is reported and never stops the rest."""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from caphv.validation.finding import LocatedFinding
from caphv.validation.yaml.documents import LINE_BREAK, MOST_VALUES, decoded, documents
from caphv.validation.yaml.tree import Document
from caphv.validation.yaml.yaml_rules import TextFinding

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"
LARGEST_FILE = 16 * 1024 * 1024
# Settings of Kustomize, which are not objects and need no kind.
_KUSTOMIZATIONS = frozenset({"kustomization.yaml", "kustomization.yml"})
_SECRET = re.compile(r"""["']?kind["']?\s*:\s*["']?Secret\b""")


class Unreadable(Exception):
    """A file or folder cannot be read; the message names it and says why."""


@dataclass(slots=True)
class Source:
    """One file with its documents; `problems` are of documents that cannot be read.

    `named` tells a file that was asked for from one that was found in a folder.
    """

    name: str
    named: bool
    documents: list[Document] = field(default_factory=list)
    problems: list[TextFinding] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _secret: list[range] = field(default_factory=list)

    def excerpt(self, line: int) -> str:
        """The text of a line, counted from 1; empty when its document holds a Secret, which is not to be shown."""
        if any(line in part for part in self._secret) or not 1 <= line <= len(self.lines):
            return ""
        return self.lines[line - 1]


def files(paths: Iterable[str], *, skip_others: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield file names of files and, sorted, of all YAML and JSON files below folders; True for those named as such.

    Hidden files and folders are left out. With `skip_others`, files count as found in a folder, and not as named.

    Raises:
        Unreadable: there is no such file or folder, or a folder holds none of these files.
    """
    for path in paths:
        if path == STDIN or not os.path.isdir(path):
            if path == STDIN or not skip_others:
                yield path, True
            elif _is_chosen(os.path.basename(path)) and not _is_hidden(path):
                yield path, False
            continue
        found = [(name, False) for name in _below(path)]
        if not found:
            msg = f"{path}: no file ends in {', '.join(SUFFIXES)}"
            raise Unreadable(msg)
        yield from found


def _below(folder: str) -> list[str]:
    found = []

    def refuse(error: OSError) -> None:
        raise Unreadable(f"{error.filename}: {error.strerror}") from error

    root = _root_of(folder)
    for directory, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(directory, name) for name in sorted(filter(_is_chosen, names))]
    for name in found:
        # The author of a commit must not have others read a file that only they may, or one without an end.
        target = Path(os.path.realpath(name))
        if os.path.islink(name) and (not target.is_relative_to(root) or ".git" in target.parts):
            msg = f"{name}: leads out of {root}: put the file itself there, or remove the link"
            raise Unreadable(msg)
    return found


def _root_of(folder: str) -> Path:
    """The checkout that a folder is in, else the folder."""
    path = Path(folder).resolve()
    return next((parent for parent in (path, *path.parents) if (parent / ".git").exists()), path)


def _is_hidden(path: str) -> bool:
    """Whether a file is in a hidden folder below the working directory."""
    return not os.path.isabs(path) and any(part.startswith(".") and part != ".." for part in Path(path).parts)


def _is_chosen(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(".") and name not in _KUSTOMIZATIONS


def read(name: str, stdin: BinaryIO, *, named: bool = True) -> Source:
    """Read one file, `-` for the stream, and parse it.

    Raises:
        Unreadable: the file is absent, forbidden, or larger than `LARGEST_FILE`.
    """
    try:
        if name == STDIN:
            data = stdin.read(LARGEST_FILE + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        msg = f"{name}: {error.strerror}"
        raise Unreadable(msg) from error
    if len(data) > LARGEST_FILE:
        msg = f"{name}: larger than {LARGEST_FILE // 1024**2} MiB: split it"
        raise Unreadable(msg)
    return parsed("<stdin>" if name == STDIN else name, data, named=named)


def read_all(
    paths: Iterable[str],
    stdin: BinaryIO,
    before_file: Callable[[str], None] = lambda _: None,
    *,
    skip_others: bool = False,
) -> tuple[list[Source], list[str]]:
    """Read all files that the paths name, each once; return them, and why files and folders cannot be read.

    `before_file` is called with the name of each file before it is read; `skip_others` is that of `files`.
    """
    sources: list[Source] = []
    unreadable: list[str] = []
    for name, named in _each_once(paths, unreadable, skip_others):
        before_file(name)
        try:
            sources.append(read(name, stdin, named=named))
        except Unreadable as error:
            unreadable.append(str(error))
    return sources, unreadable


def _each_once(paths: Iterable[str], unreadable: list[str], skip_others: bool) -> Iterator[tuple[str, bool]]:
    """Yield what `files` does, no file twice; why a path has none is added to `unreadable`."""
    seen: set[str] = set()
    for path in paths:
        try:
            for name, named in files([path], skip_others=skip_others):
                same = os.path.realpath(name) if name != STDIN else name
                if same not in seen:
                    seen.add(same)
                    yield name, named
        except Unreadable as error:
            unreadable.append(str(error))


def parsed(name: str, data: bytes, *, named: bool = True, most_values: int = MOST_VALUES) -> Source:
    """Return a file's content with its documents, and the problems of what cannot be read of it."""
    text, problems = decoded(data)
    source = Source(name, named, problems=problems, lines=LINE_BREAK.split(text))
    source._secret = list(_secret_parts(source.lines))
    for document in documents(text, most_values):
        if isinstance(document, LocatedFinding):
            source.problems.append(document)
        else:
            source.documents.append(document)
    return source


def _secret_parts(lines: list[str]) -> Iterator[range]:
    """Lines, counted from 1, of the documents that hold a Secret, whether or not they can be parsed."""
    borders = [0, *(index for index, line in enumerate(lines) if line.startswith("---")), len(lines)]
    for start, end in itertools.pairwise(borders):
        if any(_SECRET.search(line) for line in lines[start:end]):
            yield range(start + 1, end + 1)
