"""Find files and read them within bounds. Report unreadable files, and continue with others."""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from caphv.validation.finding import LocatedFinding
from caphv.validation.yaml.documents import Bounds, decode, documents
from caphv.validation.yaml.syntax import LINE_BREAK
from caphv.validation.yaml.tree import Document
from caphv.validation.yaml.yaml_rules import TextFinding

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"
MAX_FILE_BYTES = 16 * 1024 * 1024
# Settings of Kustomize, which are not objects and need no kind.
_KUSTOMIZATIONS = frozenset({"kustomization.yaml", "kustomization.yml"})
_SECRET = re.compile(r"""["']?kind["']?\s*:\s*["']?Secret\b""")


class Unreadable(Exception):
    """A file or folder cannot be read. The message names it and the reason."""


@dataclass(slots=True)
class Source:
    """One file with its documents, and the problems of documents that cannot be read.

    `named` is whether a path names the file itself, and not a folder in which it was found.
    """

    name: str
    named: bool
    documents: list[Document] = field(default_factory=list)
    problems: list[TextFinding] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _secret: list[range] = field(default_factory=list)

    def excerpt(self, line: int) -> str:
        """Return the text of a line, counted from 1, or empty if its document holds a Secret."""
        if any(line in part for part in self._secret) or not 1 <= line <= len(self.lines):
            return ""
        return self.lines[line - 1]


def files(
    paths: Iterable[str], *, skip_others: bool = False, may_be_empty: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yield the files, and all YAML and JSON files below the folders, sorted.

    Yields with each file whether a path names the file itself. Skips hidden files and folders. With
    `skip_others`, named files count as found in a folder.

    Raises `Unreadable` if a path does not exist, or if a folder holds none of these files, unless
    it `may_be_empty`.
    """
    for path in paths:
        if path != STDIN and os.path.isdir(path):
            names = _below(path)
            if not names and not may_be_empty:
                msg = f"{path}: no file ends in {', '.join(SUFFIXES)}"
                raise Unreadable(msg)
            for name in names:
                yield name, False
        elif path == STDIN or not skip_others:
            yield path, True
        elif _is_chosen(os.path.basename(path)) and not _is_hidden(path):
            yield path, False


def _below(folder: str) -> list[str]:
    """Return the files below a folder. Raises `Unreadable`."""

    def refuse(error: OSError) -> None:
        raise Unreadable(f"{error.filename}: {error.strerror}") from error

    paths = []
    for directory, folders, names in os.walk(folder, onerror=refuse):
        # os.walk descends only into folders that remain in this list.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [os.path.join(directory, name) for name in sorted(filter(_is_chosen, names))]

    root = _checkout_root(folder)
    for path in paths:
        # The author of a commit must not have the reader read a file that only the reader may read,
        # or an endless file.
        target = Path(os.path.realpath(path))
        leads_out = not target.is_relative_to(root) or ".git" in target.parts
        if os.path.islink(path) and leads_out:
            msg = f"{path}: leads out of {root}: put the file itself there, or remove the link"
            raise Unreadable(msg)
    return paths


def _checkout_root(folder: str) -> Path:
    """Return the root of the checkout that contains a folder, else the folder."""
    path = Path(folder).resolve()
    for parent in (path, *path.parents):
        if (parent / ".git").exists():
            return parent
    return path


def _is_hidden(path: str) -> bool:
    """Return whether a file is hidden, or in a hidden folder below the working directory."""
    if os.path.isabs(path):
        return False
    return any(part.startswith(".") and part != ".." for part in Path(path).parts)


def _is_chosen(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(".") and name not in _KUSTOMIZATIONS


def read(name: str, stdin: BinaryIO, *, named: bool = True) -> Source:
    """Read and parse one file, or the stream for `-`.

    Raises `Unreadable` if the file is absent, forbidden, or larger than `MAX_FILE_BYTES`.
    """
    try:
        if name == STDIN:
            data = stdin.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        msg = f"{name}: {error.strerror}"
        raise Unreadable(msg) from error

    if len(data) > MAX_FILE_BYTES:
        msg = f"{name}: larger than {MAX_FILE_BYTES // 1024**2} MiB: split it"
        raise Unreadable(msg)
    return parse("<stdin>" if name == STDIN else name, data, named=named)


class ReadFiles(NamedTuple):
    """The files that could be read, and messages about those that could not."""

    sources: list[Source]
    unreadable: list[str]


def read_all(
    paths: Iterable[str],
    stdin: BinaryIO,
    before_file: Callable[[str], None] = lambda _: None,
    *,
    skip_others: bool = False,
) -> ReadFiles:
    """Read all files of the paths, each once.

    `before_file` is called with the name of each file before it is read. `files` explains
    `skip_others`.
    """
    sources: list[Source] = []
    unreadable: list[str] = []
    for name, named in _each_once(paths, unreadable, skip_others):
        before_file(name)
        try:
            sources.append(read(name, stdin, named=named))
        except Unreadable as error:
            unreadable.append(str(error))
    return ReadFiles(sources, unreadable)


def _each_once(
    paths: Iterable[str], unreadable: list[str], skip_others: bool
) -> Iterator[tuple[str, bool]]:
    """Yield the result of `files`, but no file twice. Add messages about paths to `unreadable`."""
    real_paths: set[str] = set()
    for path in paths:
        try:
            for name, named in files([path], skip_others=skip_others):
                real_path = os.path.realpath(name) if name != STDIN else name
                if real_path not in real_paths:
                    real_paths.add(real_path)
                    yield name, named
        except Unreadable as error:
            unreadable.append(str(error))


def parse(
    name: str,
    data: bytes,
    *,
    named: bool = True,
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    excerpts: bool = True,
) -> Source:
    """Parse the content of a file to its documents and problems.

    :param name: name of the file, for reports
    :param data: content of the file
    :param named: whether a path names the file itself
    :param bounds: bounds of all its documents
    :param excerpts: whether the source keeps its lines, which take 50 bytes each
    """
    text, problems = decode(data)
    source = Source(name, named, problems=problems)
    if excerpts:
        source.lines = LINE_BREAK.split(text)
        source._secret = list(_secret_parts(source.lines))

    for document in documents(text, bounds):
        if isinstance(document, LocatedFinding):
            source.problems.append(document)
        else:
            source.documents.append(document)
    return source


def _secret_parts(lines: list[str]) -> Iterator[range]:
    """Yield the lines, counted from 1, of each document with a Secret, even if it is broken."""
    separators = [index for index, line in enumerate(lines) if line.startswith("---")]
    for start, end in itertools.pairwise([0, *separators, len(lines)]):
        if any(_SECRET.search(line) for line in lines[start:end]):
            yield range(start + 1, end + 1)
