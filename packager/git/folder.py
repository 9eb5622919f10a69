"""A folder that the packager writes, with the list of its files, and its Git id.

Git's ids show whether a folder changed, so that nothing is read for a thousand unchanged folders.
The list says which files are the packager's: other files in the folder are unmanaged and stay.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packager.git.paths import check_path, fault_of

Tree = Mapping[str, bytes]
"""POSIX path relative to a repository or folder → content of the file."""

FILE_LIST = ".caphv-files"
MARK = ".caphv-moved"
"""Marks a folder whose cluster may run elsewhere (`packager.contents.move_marker`)."""
# Modes in Git's trees.
FOLDER = 0o040000
REGULAR_FILE = 0o100644
LINK = 0o120000
_HEADER = "# Written by caphv, which replaces and removes the files listed here and no others.\n"


@dataclass(frozen=True)
class Root:
    """A folder at the top of the remote's path that holds folders `<namespace>/<name>`.

    `definitions`: removing one of its folders deletes a cluster.
    """

    name: str
    definitions: bool = False


@dataclass(frozen=True)
class Folder:
    """Files of one cluster, by relative path. Raises `ValueError` for an invalid path."""

    files: Tree

    def __post_init__(self) -> None:
        for path in self.files:
            parents = path.split("/")[:-1]
            if check_path(path) == FILE_LIST or any(
                "/".join(parents[:end]) in self.files for end in range(1, len(parents) + 1)
            ):
                raise ValueError(f"path {path!r}: is also a folder of another file")

    @cached_property
    def with_file_list(self) -> Tree:
        """The files and their list."""
        return {**self.files, FILE_LIST: file_list(self.files)}

    @cached_property
    def id(self) -> str:
        """Git's id of a folder with exactly these files and their list."""
        return tree_id(self.with_file_list)


@dataclass(frozen=True)
class ExistingFolder:
    """A folder of the repository: ids of the packager's files and of unmanaged ones, by path.

    Paths are relative to the folder. Links and submodules have an empty id.
    """

    owned: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    file_list: str = ""
    obstacle: str = ""
    """Message about an entry that is in the place of the folder, or of its list of files."""

    @property
    def own_files(self) -> list[str]:
        """Paths of the packager's files, with their list."""
        return [*self.owned, FILE_LIST] if self.file_list else [*self.owned]


def file_list(paths: Iterable[str]) -> bytes:
    """Return the list of these paths: one per line, sorted."""
    return (_HEADER + "".join(f"{path}\n" for path in sorted(paths))).encode()


def parse_file_list(content: bytes | None) -> frozenset[str]:
    """Parse a list of files; lines that are not paths inside the folder are ignored."""
    lines = (content or b"").decode(errors="replace").splitlines()
    return frozenset(line for line in lines if not line.startswith("#") and not fault_of(line))


def blob_id(content: bytes) -> str:
    """Return Git's id of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def tree_id(files: Tree) -> str:
    """Return Git's id of a folder with these regular files."""
    entries: dict[str, tuple[int, str]] = {}
    folders: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        name, slash, inner_path = path.partition("/")
        if slash:
            folders.setdefault(name, {})[inner_path] = content
        else:
            entries[name] = REGULAR_FILE, blob_id(content)
    for name, inner in folders.items():
        entries[name] = FOLDER, tree_id(inner)
    return tree_id_of(entries)


def tree_id_of(entries: Mapping[str, tuple[int, str]]) -> str:
    """Return Git's id of a folder with these entries: mode and id by name."""
    # Git sorts folders as if their names ended with a slash.
    rows = sorted(
        (f"{name}/" if mode == FOLDER else name, mode, name, id_)
        for name, (mode, id_) in entries.items()
    )
    body = b"".join(
        b"%o %s\0%s" % (mode, os.fsencode(name), bytes.fromhex(id_)) for _, mode, name, id_ in rows
    )
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
