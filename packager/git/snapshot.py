"""The content of a commit, without a work tree, so that links, submodules and filters do nothing.

GitPython's database reads objects through one persistent `git cat-file --batch`. Its `Tree` objects
cost 40 ms for 1,000 folders. Names and ids are sufficient here, and GitPython's parser alone
returns them in a tenth of that time.
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

from caphv.api.plaintext import printable
from packager.git.errors import CorruptClone, UnusableContent
from packager.git.folder import FOLDER, LINK, Tree
from packager.git.paths import join_path, may_be_checked_out

_FORMAT_MASK = 0o170000
_FILE = 0o100000
_MAX_CACHED = 20_000
_MAX_CACHED_BYTES = 4096
# A repository of 1,000 clusters has some 10,000 files in folders that are five levels deep.
MAX_DEPTH = 64
MAX_FILES = 200_000
MAX_BYTES = 16 * 1024 * 1024
_MAX_LINK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder: `mode` as in Git's trees, `id` in hexadecimal."""

    mode: int
    id: str

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and neither a file, a link nor a submodule."""
        return self.mode & _FORMAT_MASK == FOLDER

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.mode & _FORMAT_MASK == _FILE


@dataclass(frozen=True, slots=True)
class Unread:
    """A link or submodule; `is_folder` says whether files may be below it."""

    why: str
    is_folder: bool


class Store(Protocol):
    """Objects by id: entries of folders, and contents of files and commits.

    Methods raise `CorruptClone` and `UnusableContent`.
    """

    def tree(self, name: str) -> Mapping[str, Entry]: ...  # noqa: D102
    def content(self, name: str) -> bytes: ...  # noqa: D102


class Objects:
    """Objects of a clone by id, cached for all snapshots: an id always means the same content."""

    def __init__(self, repository: git.Repo) -> None:
        self._repository = repository
        self._trees: dict[str, Mapping[str, Entry]] = {}
        self._contents: dict[str, bytes] = {}

    def tree(self, name: str) -> Mapping[str, Entry]:
        """Return the entries of a folder by name. Raises `CorruptClone`, `UnusableContent`."""
        if name not in self._trees:
            entries = _entries(name, self._read(name))
            _make_room(self._trees)
            self._trees[name] = entries
        return self._trees[name]

    def content(self, name: str) -> bytes:
        """Return the content of a file, or a commit as Git stores it.

        Raises `CorruptClone`, `UnusableContent`.
        """
        if name not in self._contents:
            content = self._read(name)
            if len(content) > _MAX_CACHED_BYTES:
                return content
            _make_room(self._contents)
            self._contents[name] = content
        return self._contents[name]

    def _read(self, name: str) -> bytes:
        try:
            binary = bytes.fromhex(name)
            # A few KiB of a pack can unpack to gigabytes, so `cat-file --batch-check` reads the
            # size first.
            size = self._repository.odb.info(binary).size
            if size <= MAX_BYTES:
                content = bytes(self._repository.odb.stream(binary).read())
                # Git announces the size before it unpacks the object, so a damaged object, or a
                # killed Git, cuts the content short. An empty definition would count as a removed
                # one.
                if len(content) != size:
                    raise CorruptClone(
                        f"object {name} has {len(content):,} bytes instead of {size:,}"
                    )
                return content
        except (GitPythonError, ODBError, ValueError, OSError) as error:
            raise CorruptClone(f"object {name} cannot be read: {type(error).__name__}") from None
        raise UnusableContent(
            f"a file or folder has {size:,} bytes, more than {MAX_BYTES:,}: remove it from the "
            f"repository (git rev-list --objects --all | grep {name})"
        )


def _entries(tree: str, content: bytes) -> Mapping[str, Entry]:
    """Parse a tree object. Raises `UnusableContent` for names that no checkout allows."""
    try:
        rows = tree_entries_from_data(content)
        entries = {str(key): Entry(mode, binary.hex()) for binary, mode, key in rows}
    except (ValueError, IndexError):
        # GitPython itself refuses most names that Git does not check out.
        raise UnusableContent(
            f"folder {tree} has a name that Git does not check out, or is damaged"
        ) from None

    for name in entries:
        if not may_be_checked_out(name):
            raise UnusableContent(
                f"folder {tree} has an entry {name[:64]!a}, that Git does not check out: remove it"
            )
    if len(entries) != len(rows):
        raise UnusableContent(f"folder {tree} has two entries of one name: correct it")
    return entries


def _make_room(remembered: dict[str, Any]) -> None:
    if len(remembered) >= _MAX_CACHED:
        remembered.clear()


class Snapshot:
    """A commit below the remote's path; `commit` is empty for a missing branch.

    Reading raises `CorruptClone`, and `UnusableContent` for content that exceeds the limits above.
    """

    def __init__(
        self, objects: Store, commit: str, path: str = "", merged: Snapshot | None = None
    ) -> None:
        self.commit = commit
        self._merged = merged
        self._objects = objects
        self._path = path
        self._root_id = ""
        self._folders: dict[str, Mapping[str, Entry]] = {}

    @property
    def merged(self) -> Snapshot:
        """The snapshot of the branch that Fleet reads, which differs for a review branch."""
        return self._merged or self

    @property
    def tree(self) -> Tree:
        """All files below the remote's path. Each file is read on access."""
        return _Files(self)

    @property
    def message(self) -> str:
        """The commit's message."""
        return self._objects.content(self.commit).partition(b"\n\n")[2].decode(errors="replace")

    @property
    def root(self) -> str:
        """The id of the tree of the whole repository; empty for a missing branch."""
        return self._find_root_id() if self.commit else ""

    def entry(self, path: str) -> Entry | None:
        """Return the entry at a path relative to the remote's path, or None."""
        return self._entry_at(join_path(self._path, path))

    def entries(self, path: str = "") -> Mapping[str, Entry]:
        """Return the entries of a folder by name; none for a missing folder."""
        return self._entries_at(join_path(self._path, path))

    def _entries_at(self, path: str) -> Mapping[str, Entry]:
        if not self.commit:
            return {}
        entries = self._objects.tree(self._find_root_id())
        # Walk down to the first missing folder, because a link that another user made may lead to
        # a path of any depth.
        for name in path.split("/") if path else ():
            entry = entries.get(name)
            if entry is None or not entry.is_folder:
                return {}
            entries = self._objects.tree(entry.id)
        return entries

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file, or None when there is none."""
        entry = self.entry(path)
        return self._objects.content(entry.id) if entry and entry.is_file else None

    def files(self, path: str) -> dict[str, Entry]:
        """Return all files, links and submodules below a folder, by path relative to it."""
        top = self.entry(path)
        if top is None or not top.is_folder:
            return {}

        files: dict[str, Entry] = {}
        for count, (name, entry) in enumerate(self._walk(top.id, "", 1)):
            # Also count folders, because a tree without any file can have millions of them.
            if count == MAX_FILES:
                raise UnusableContent(
                    f"{path or 'the repository'} has more than {MAX_FILES:,} files: remove some"
                )
            if not entry.is_folder:
                files[name] = entry
        return files

    def unread(self) -> dict[str, Unread]:
        """Return all links and submodules by path."""
        return {
            path: self._unread(path, entry)
            for path, entry in self.files("").items()
            if not entry.is_file
        }

    def _unread(self, path: str, entry: Entry) -> Unread:
        if entry.mode & _FORMAT_MASK != LINK:
            return Unread("is a submodule, which is not read", is_folder=True)
        link = self._objects.content(entry.id)
        is_folder = False
        # A longer link leads nowhere on any system.
        if len(link) <= _MAX_LINK_BYTES:
            # A link to a folder may hide definitions below it.
            folder = posixpath.join(self._path, posixpath.dirname(path))
            place = posixpath.join(folder, link.decode(errors="replace"))
            target = self._entry_at(posixpath.normpath(place))
            is_folder = target is not None and target.is_folder
        return Unread("is a symbolic link, which is not followed", is_folder=is_folder)

    def _walk(self, tree: str, prefix: str, depth: int) -> Iterator[tuple[str, Entry]]:
        """Yield all entries below a tree by path, folders before their content."""
        if depth > MAX_DEPTH:
            raise UnusableContent(
                f"folders are nested more than {MAX_DEPTH} levels deep: {printable(prefix[:64])}…"
            )
        for name, entry in self._objects.tree(tree).items():
            yield f"{prefix}{name}", entry
            if entry.is_folder:
                yield from self._walk(entry.id, f"{prefix}{name}/", depth + 1)

    def obstacle(self, path: str) -> str:
        """Return the first part of a path, from the root, that exists and is not a folder."""
        parts = join_path(self._path, path).split("/")
        for count in range(1, len(parts)):
            parent = "/".join(parts[:count])
            entry = self._entry_at(parent)
            if entry is None:
                return ""
            if not entry.is_folder:
                return parent
        return ""

    def find_conflict(self, write: Collection[str], delete: Collection[str]) -> str:
        """Return the first link, submodule or folder that a change of these files would replace.

        The path begins at the root. It is empty if nothing would be replaced.
        """
        deleted = {join_path(self._path, path) for path in delete}
        for path in (*write, *delete):
            # A deleted file gives way to a folder of its name.
            obstacle = self.obstacle(path)
            if obstacle and obstacle not in deleted:
                return obstacle

            entry = self.entry(path)
            if entry is None or entry.is_file:
                continue
            full_path = join_path(self._path, path)
            if not entry.is_folder:
                return full_path
            # A folder whose files are all deleted gives way to a file.
            if not deleted.issuperset(join_path(full_path, name) for name in self.files(path)):
                return full_path
        return ""

    def _entry_at(self, path: str) -> Entry | None:
        """Return the entry at a path from the root; remember the folders above it."""
        if not self.commit:
            return None
        if not path:
            return Entry(FOLDER, self._find_root_id())
        parent, _, name = path.rpartition("/")
        # Parse each folder once per snapshot, because most paths share their folders.
        if parent not in self._folders:
            self._folders[parent] = self._entries_at(parent)
        return self._folders[parent].get(name)

    def _find_root_id(self) -> str:
        """Return the id of the tree of the commit, which the commit's first line names."""
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
