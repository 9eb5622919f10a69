"""A plain folder instead of a remote: a checkout that the user commits, or files for inspection.

Its files get Git's ids, so that planning works as for a remote.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from packager.git.changeplan import Plan
from packager.git.commit import Reason, check
from packager.git.errors import UnmanagedFiles, UnusableContent
from packager.git.folder import FOLDER, LINK, REGULAR_FILE, blob_id, tree_id_of
from packager.git.history import Change, of_path
from packager.git.result import Result
from packager.git.snapshot import MAX_BYTES, MAX_DEPTH, Entry, Snapshot

T = TypeVar("T")

_COMMIT = "folder"


class Directory:
    """A folder on disk, read and written as `Repository` reads and writes a remote.

    `path` is a folder in it. Below that, only `names` are read, because a checkout may hold much
    else.
    """

    def __init__(self, root: Path, path: str = "", *, names: Collection[str]) -> None:
        self._root = root
        self._path = path
        self._names = names

    def sync(self) -> Snapshot:
        """Return a snapshot of the folder, empty if it does not exist. Raises `UnmanagedFiles`."""
        return Snapshot(_OnDisk(self._root, self._path, self._names), _COMMIT, self._path)

    def read(self, call: Callable[[Snapshot], T]) -> T:
        """Call with the snapshot of `sync`."""
        return call(self.sync())

    def last_change(self, path: str) -> Change | None:
        """Return the newest commit that changed a file or folder, if this is a checkout."""
        return of_path(self._root / self._path / path)

    def commit(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result:
        """Write the plan for the current folder. There is no commit, and `reason` is not stored.

        Raises `UnmanagedFiles` if something cannot be written.
        """
        base = self.sync()
        planned = plan(base)
        check(planned, base)
        top = self._root / self._path
        try:
            for name, content in planned.write.items():
                _write(top / name, content)
            for name in planned.delete:
                _delete(top / name, top)
        except OSError as error:
            raise UnmanagedFiles(
                f"{error.filename or top}: cannot be written: {error.strerror}"
            ) from None
        return Result(planned, "", "")


class _OnDisk:
    """Objects of Git for a part of a folder, in memory. 1,000 clusters have a few megabytes."""

    def __init__(self, root: Path, path: str, names: Collection[str]) -> None:
        self._names = names
        self._trees: dict[str, Mapping[str, Entry]] = {}
        self._contents: dict[str, bytes] = {}
        try:
            top = self._read_along(root, [part for part in path.split("/") if part])
        except OSError as error:
            raise UnmanagedFiles(f"{error.filename}: cannot be read: {error.strerror}") from None
        self._contents[_COMMIT] = f"tree {top.id}\n".encode()

    def tree(self, name: str) -> Mapping[str, Entry]:
        return self._trees[name]

    def content(self, name: str) -> bytes:
        return self._contents[name]

    def _read_along(self, folder: Path, parts: list[str]) -> Entry:
        """Read the folders along a path, and at its end the files and folders of the packager."""
        entries: dict[str, Entry] = {}
        for name in parts[:1] or self._names:
            path = folder / name
            if not os.path.lexists(path):
                continue
            if parts and path.is_dir() and not path.is_symlink():
                entries[name] = self._read_along(path, parts[1:])
            else:
                entries[name] = self._read_entry(path, 1)
        return self._add_folder(entries)

    def _read_entry(self, path: Path, depth: int) -> Entry:
        """Read a file, or a folder with everything below it."""
        status = path.lstat()
        if depth > MAX_DEPTH:
            raise UnusableContent(f"folders are nested more than {MAX_DEPTH} levels deep: {path}")
        if stat.S_ISDIR(status.st_mode):
            return self._add_folder(
                {inner.name: self._read_entry(inner, depth + 1) for inner in path.iterdir()}
            )

        # Anything that is neither folder nor file counts as a link, and links are not read.
        if not stat.S_ISREG(status.st_mode):
            return Entry(LINK, blob_id(b""))
        if status.st_size > MAX_BYTES:
            raise UnusableContent(f"{path}: has more than {MAX_BYTES:,} bytes: remove it")
        content = path.read_bytes()
        entry = Entry(REGULAR_FILE, blob_id(content))
        self._contents[entry.id] = content
        return entry

    def _add_folder(self, entries: Mapping[str, Entry]) -> Entry:
        rows = {name: (entry.mode, entry.id) for name, entry in entries.items()}
        folder = Entry(FOLDER, tree_id_of(rows))
        self._trees[folder.id] = entries
        return folder


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write the file next to its place and rename it, so that no reader sees half a file.
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".caphv-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(fresh).chmod(0o644)
        Path(fresh).replace(path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def _delete(path: Path, top: Path) -> None:
    path.unlink(missing_ok=True)
    for parent in path.parents:
        if parent == top or any(parent.iterdir()):
            return
        parent.rmdir()
