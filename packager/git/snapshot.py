"""The content of a commit as data: without a work tree, links, submodules and filters of a repository have no effect.

Objects are read through GitPython's database, one persistent `git cat-file --batch`. Its `Tree` objects cost 40 ms for
1,000 folders; names and ids are sufficient here, and its parser alone returns them in a tenth of that time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import git
from git.exc import GitError as GitPythonError
from git.exc import ODBError
from git.objects.fun import tree_entries_from_data

from packager.git.errors import CorruptClone, UnusableContent
from packager.git.folder import FOLDER, LINK, Tree
from packager.git.paths import joined, may_be_checked_out

_FORMAT = 0o170000
_FILE = 0o100000
_MOST_REMEMBERED = 20_000
_LONGEST_REMEMBERED = 4096
# A repository of 1,000 clusters has some 10,000 files in folders that are five levels deep.
MAX_DEPTH = 64
MAX_FILES = 200_000
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder: `mode` as in Git's trees, `id` in hexadecimal."""

    mode: int
    id: str

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and neither a file, a link nor a submodule."""
        return self.mode & _FORMAT == FOLDER

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.mode & _FORMAT == _FILE


@dataclass(frozen=True, slots=True)
class Unread:
    """A link or submodule; `is_folder` says whether files may be below it."""

    why: str
    is_folder: bool


class Store(Protocol):
    """Objects by id: entries of folders, and contents of files and commits.

    Methods raise CorruptClone, and UnusableContent.
    """

    def tree(self, name: str) -> Mapping[str, Entry]: ...  # noqa: D102
    def content(self, name: str) -> bytes: ...  # noqa: D102


class Objects:
    """Objects of a clone by id, cached for all snapshots: an id never changes its meaning."""

    def __init__(self, repository: git.Repo) -> None:
        self._repository = repository
        self._trees: dict[str, Mapping[str, Entry]] = {}
        self._contents: dict[str, bytes] = {}

    def tree(self, name: str) -> Mapping[str, Entry]:
        """Return the entries of a folder by name. Raises CorruptClone, UnusableContent."""
        if name not in self._trees:
            entries = _entries(name, self._read(name))
            _make_room(self._trees)
            self._trees[name] = entries
        return self._trees[name]

    def content(self, name: str) -> bytes:
        """Return the content of a file, or a commit as Git stores it. Raises CorruptClone, UnusableContent."""
        if name not in self._contents:
            content = self._read(name)
            if len(content) > _LONGEST_REMEMBERED:
                return content
            _make_room(self._contents)
            self._contents[name] = content
        return self._contents[name]

    def _read(self, name: str) -> bytes:
        try:
            binary = bytes.fromhex(name)
            # A few KiB of a pack can be gigabytes, so `cat-file --batch-check` reads the size first.
            size = self._repository.odb.info(binary).size
            if size <= MAX_BYTES:
                return bytes(self._repository.odb.stream(binary).read())
        except (GitPythonError, ODBError, ValueError, OSError) as error:
            raise CorruptClone(f"object {name} cannot be read: {type(error).__name__}") from None
        raise UnusableContent(
            f"a file or folder has {size:,} bytes, more than {MAX_BYTES:,}: remove it from the repository "
            f"(git rev-list --objects --all | grep {name})"
        )


def _entries(tree: str, content: bytes) -> Mapping[str, Entry]:
    try:
        rows = tree_entries_from_data(content)
        entries = {str(key): Entry(mode, binary.hex()) for binary, mode, key in rows}
    except (ValueError, IndexError):
        # GitPython refuses most of these names by itself.
        raise UnusableContent(f"folder {tree} has a name that Git does not check out, or is damaged") from None
    for name in entries:
        if not may_be_checked_out(name):
            raise UnusableContent(f"folder {tree} has an entry {name[:64]!a}, that Git does not check out: remove it")
    if len(entries) != len(rows):
        raise UnusableContent(f"folder {tree} has two entries of one name: correct it")
    return entries


def _make_room(remembered: dict[str, Any]) -> None:
    if len(remembered) >= _MOST_REMEMBERED:
        remembered.clear()


class Snapshot:
    """A commit below the remote's path; `commit` is empty for a missing branch.

    Reading raises CorruptClone, and UnusableContent for what exceeds the limits above.
    """

    def __init__(self, objects: Store, commit: str, path: str = "", merged: Snapshot | None = None) -> None:
        self.commit = commit
        self._merged = merged
        self._objects = objects
        self._path = path
        self._root_id = ""
        self._folders: dict[str, Mapping[str, Entry]] = {}

    @property
    def merged(self) -> Snapshot:
        """What Fleet reads: this one, or the branch to which this one only proposes changes."""
        return self._merged or self

    @property
    def tree(self) -> Tree:
        """All files below the remote's path; each is read on access."""
        return _Files(self)

    @property
    def message(self) -> str:
        """The commit's message."""
        return self._objects.content(self.commit).partition(b"\n\n")[2].decode(errors="replace")

    @property
    def root(self) -> str:
        """The id of the whole tree, above the remote's path, too; empty for a missing branch."""
        return self._root() if self.commit else ""

    def entry(self, path: str) -> Entry | None:
        """Return the entry at a path relative to the remote's path, or None."""
        return self._entry(joined(self._path, path))

    def entries(self, path: str = "") -> Mapping[str, Entry]:
        """Return the entries of a folder by name; none for a missing folder."""
        found = self._entry(joined(self._path, path))
        return self._objects.tree(found.id) if found and found.is_folder else {}

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file, or None when there is none."""
        found = self.entry(path)
        return self._objects.content(found.id) if found and found.is_file else None

    def files(self, path: str) -> dict[str, Entry]:
        """Return all files, links and submodules below a folder, by path relative to it."""
        top = self.entry(path)
        found: dict[str, Entry] = {}
        for count, (name, entry) in enumerate(self._walk(top.id, "", 1) if top and top.is_folder else ()):
            if count == MAX_FILES:
                raise UnusableContent(f"{path or 'the repository'} has more than {MAX_FILES:,} files: remove some")
            if not entry.is_folder:
                found[name] = entry
        return found

    def unread(self) -> dict[str, Unread]:
        """Return all links and submodules by path."""
        return {path: self._unread(path, entry) for path, entry in self.files("").items() if not entry.is_file}

    def _unread(self, path: str, entry: Entry) -> Unread:
        if entry.mode & _FORMAT != LINK:
            return Unread("is a submodule, which is not read", is_folder=True)
        target = self._objects.content(entry.id).decode(errors="replace")
        found = self._entry(posixpath.normpath(posixpath.join(self._path, posixpath.dirname(path), target)))
        return Unread("is a symbolic link, which is not followed", is_folder=bool(found and found.is_folder))

    def _walk(self, tree: str, prefix: str, depth: int) -> Iterator[tuple[str, Entry]]:
        """Yield folders, too: a tree can be a part of any number of others, without a single file."""
        if depth > MAX_DEPTH:
            raise UnusableContent(f"folders are nested more than {MAX_DEPTH} levels deep: {prefix[:64]}…")
        for name, entry in self._objects.tree(tree).items():
            yield f"{prefix}{name}", entry
            if entry.is_folder:
                yield from self._walk(entry.id, f"{prefix}{name}/", depth + 1)

    def obstacle(self, path: str) -> str:
        """Return the first part of a path, from the root, that exists and is not a folder."""
        parts = joined(self._path, path).split("/")
        for count in range(1, len(parts)):
            part = "/".join(parts[:count])
            found = self._entry(part)
            if found is None:
                return ""
            if not found.is_folder:
                return part
        return ""

    def in_the_way(self, write: Collection[str], delete: Collection[str]) -> str:
        """Return the first link, submodule or folder, from the root, that a change of these files would replace."""
        # A deleted file gives way to a folder of its name, and a folder whose files are all deleted to a file.
        gone = {joined(self._path, path) for path in delete}
        for path in (*write, *delete):
            found, entry = self.obstacle(path), self.entry(path)
            if found and found not in gone:
                return found
            if entry is None or entry.is_file:
                continue
            whole = joined(self._path, path)
            if not (entry.is_folder and gone.issuperset(joined(whole, name) for name in self.files(path))):
                return whole
        return ""

    def _entry(self, path: str) -> Entry | None:
        if not self.commit:
            return None
        if not path:
            return Entry(FOLDER, self._root())
        parent, _, name = path.rpartition("/")
        if parent not in self._folders:
            found = self._entry(parent)
            self._folders[parent] = self._objects.tree(found.id) if found and found.is_folder else {}
        return self._folders[parent].get(name)

    def _root(self) -> str:
        if not self._root_id:
            header = self._objects.content(self.commit).partition(b"\n")[0]
            if not header.startswith(b"tree "):
                raise CorruptClone(f"{self.commit} is no commit")
            self._root_id = header[5:].decode()
        return self._root_id


class _Files(Mapping[str, bytes]):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __getitem__(self, path: str) -> bytes:
        content = self._snapshot.read(path)
        if content is None:
            raise KeyError(path)
        return content

    def __iter__(self) -> Iterator[str]:
        return (path for path, entry in self._snapshot.files("").items() if entry.is_file)

    def __len__(self) -> int:
        return sum(1 for _ in self)
