"""A backup on disk: a directory with one file for each object, and an index that says what there should be.

Every file can be read without the others, so that a backup of which files were lost still says what it has, and what is
missing. Files are 0600 and directories 0700; a new directory appears under its name only when it is complete, and one
that exists gets its index last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from caphv.api.object import Key, Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.text import Limits, TextError, load_json
from overview.backup.sealing import Opener, Sealer, SealError, is_sealed

FORMAT = 1
INDEX = "index.json"
_SEALED = ".sealed"
# etcd keeps no object above 1.5 MiB by default; an index has some hundred bytes for each object.
_OBJECT_LIMITS, _INDEX_LIMITS = (
    Limits(size=8 * 1024 * 1024, nodes=1_000_000),
    Limits(size=64 * 1024 * 1024, nodes=10_000_000),
)
_LONGEST_NAME = 200


class BackupError(Exception):
    """A directory cannot be written, or is no backup."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a backup comes from: `identity` identifies it, `uid` is that of the old `kube-system`."""

    identity: str
    created: str
    server: str
    uid: str


@dataclass(slots=True)
class Backup:
    """What a directory holds.

    `missing` are files that the index lists and that are absent or damaged, with the reason; `unreadable` are further
    files that cannot be read.
    """

    origin: Origin | None = None
    """None when the index is lost."""
    clusters: tuple[str, ...] = ()
    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """References that led nowhere when the backup was made."""
    unseen: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def cluster_keys(self) -> set[Key]:
        """Namespace and name of each of the clusters."""
        return {Key(*name.split("/")) for name in self.clusters}


def write(target: Path, backup: Backup, sealer: Sealer | None) -> int:
    """Write a backup into a new or empty directory; answer the number of files. Raises `BackupError`."""
    check_target(target)
    target = _resolved(target)
    made = target.is_dir()
    # In an empty directory that exists: it may be the working directory, or a volume of its own.
    partial = (target if made else target.parent) / f".{target.name}.partial-{os.getpid()}"
    try:
        count = _write(partial, backup, sealer)
        if made:
            with contextlib.suppress(PermissionError):  # it belongs to another user
                target.chmod(0o700)
            for file in sorted(partial.iterdir(), key=lambda each: each.name.startswith(INDEX)):  # the index last
                file.rename(target / file.name)
        else:
            partial.rename(target)
    except OSError as error:
        raise BackupError(f"cannot write {target}: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return count


def check_target(target: Path) -> None:
    """Raise `BackupError` unless a backup can be written there."""
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BackupError(f"{target} exists and is not an empty directory: name a new one for each backup")
        folder = _resolved(target) if target.exists() else _resolved(target).parent
        if not folder.is_dir():
            raise BackupError(f"{folder} is not a directory")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise BackupError(f"{folder} is not writable")
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}") from None


def _resolved(target: Path) -> Path:
    """The place itself, with a name: `.` has none, and a link to a directory cannot be replaced by one."""
    return Path(os.path.realpath(target))


def read(folder: Path, passphrase: Callable[[], str]) -> Backup:
    """Read a backup as far as it can be read; `passphrase` is asked for when a file is encrypted.

    Raises `BackupError` when there is no file of a backup, or when no file can be opened.
    """
    files = _files(folder)
    if not files:
        raise BackupError(f"{folder} holds no backup: neither {INDEX} nor a file of an object")
    reader = _Reader(folder, passphrase)
    backup = Backup()
    index = reader.index(files)
    digests = {str(entry["file"]): str(entry["sha256"]) for entry in index.get("objects") or ()}
    labels = {str(entry["file"]): _label(entry) for entry in index.get("objects") or ()}
    if index:
        backup.origin = Origin(**{name: str(index["origin"].get(name) or "") for name in Origin.__slots__})
        backup.clusters = tuple(map(str, index.get("clusters") or ()))
        backup.absent = frozenset(map(str, index.get("absent") or ()))
        backup.unseen = tuple(map(str, index.get("unseen") or ()))
    for name in sorted({*files, *digests} - {INDEX, f"{INDEX}{_SEALED}"}):
        try:
            if name not in files:  # whatever path a forged index names
                raise SealError("the file does not exist")
            obj = reader.obj(name, digests.get(name, ""))
        except SealError as error:
            if name in digests:
                backup.missing[labels[name]] = str(error)
            else:
                backup.unreadable[name] = str(error)
        else:
            backup.objects[id_of(obj)] = obj
    if not backup.objects:
        reason = next(iter({**backup.missing, **backup.unreadable, **reader.errors}.values()), "it is empty")
        raise BackupError(f"no object of {folder} can be read: {reason}")
    if not index:
        backup.missing["the index of the backup"] = reader.errors.get(INDEX, "the file does not exist")
    return backup


class _Reader:
    def __init__(self, folder: Path, passphrase: Callable[[], str]) -> None:
        self._folder = folder
        self._passphrase = passphrase
        self._opener: Opener | None = None
        self.errors: dict[str, str] = {}

    def index(self, files: set[str]) -> Obj:
        """The index, empty when it cannot be read; why is in `errors`."""
        name = next((name for name in (INDEX, f"{INDEX}{_SEALED}") if name in files), "")
        if not name:
            return {}
        try:
            found = self._json(name, self._content(name), _INDEX_LIMITS)
            version = found.get("format")
            if isinstance(version, int) and version != FORMAT:
                raise BackupError(f"{self._folder / name} has format {version!r}; this version of caphv reads {FORMAT}")
            if isinstance(found["origin"], dict) and all({"file", "sha256"} <= set(each) for each in found["objects"]):
                return found
            self.errors[INDEX] = "is not an index of a backup"
        except SealError as error:
            self.errors[INDEX] = str(error)
        except (KeyError, TypeError):
            self.errors[INDEX] = "is not an index of a backup"
        return {}

    def obj(self, name: str, digest: str) -> Obj:
        """An object, checked against the digest of the index. Raises `SealError`."""
        content = self._content(name)
        if digest and hashlib.sha256(content).hexdigest() != digest:
            raise SealError("is not the file that was written: it was changed or damaged")
        obj = self._json(name, content, _OBJECT_LIMITS)
        metadata = obj.get("metadata")
        texts = (obj.get("apiVersion"), obj.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None)
        if not all(isinstance(text, str) and text for text in texts):
            raise SealError("is not a Kubernetes object")
        return obj

    def _content(self, name: str) -> bytes:
        try:
            file = self._folder / name
            if not stat.S_ISREG(file.stat().st_mode) or file.stat().st_size > _INDEX_LIMITS.size:
                raise SealError("is not a file of a backup")
            content = file.read_bytes()
        except FileNotFoundError:
            raise SealError("the file does not exist") from None
        except OSError as error:
            raise SealError(f"cannot be read: {error.strerror}") from None
        if not is_sealed(content):
            return content
        if self._opener is None:
            self._opener = Opener(self._passphrase())
        return self._opener.open(content)

    def _json(self, name: str, content: bytes, limits: Limits) -> Obj:
        try:
            value = load_json(content, limits)
        except TextError as error:
            raise SealError(f"{name} {error}") from None
        if not isinstance(value, dict):
            raise SealError(f"{name} is not a JSON object")
        return value


def _write(folder: Path, backup: Backup, sealer: Sealer | None) -> int:
    folder.mkdir(mode=0o700)
    entries = []
    for identity, obj in sorted(backup.objects.items()):
        content = _dump(obj)
        name = f"{_path(identity)}{_SEALED if sealer else ''}"
        _store(folder / name, content, sealer)
        head = {"apiVersion": obj["apiVersion"], "kind": identity.kind}
        place = {"namespace": identity.namespace, "name": identity.name}
        entries.append({**head, **place, "file": name, "sha256": hashlib.sha256(content).hexdigest()})
    index = {
        "format": FORMAT,
        "origin": {name: getattr(backup.origin, name, "") for name in Origin.__slots__},
        "clusters": list(backup.clusters),
        "objects": entries,
        "absent": sorted(backup.absent),
        "unseen": list(backup.unseen),
    }
    _store(folder / f"{INDEX}{_SEALED if sealer else ''}", _dump(index), sealer)
    return len(entries) + 1


def _store(file: Path, content: bytes, sealer: Sealer | None) -> None:
    for folder in (file.parent.parent, file.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        target.write(sealer.seal(content) if sealer else content)


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def _path(identity: ObjectId) -> str:
    kind = f"{identity.kind.lower()}.{identity.group}".removesuffix(".")
    return "/".join(map(_segment, (identity.namespace or "cluster-scoped", kind, f"{identity.name}.json")))


def _segment(text: str) -> str:
    """A name that is one file of a directory, whatever an API server says."""
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in text)
    if safe == text and not text.startswith(".") and len(text) <= _LONGEST_NAME:
        return text
    return f"_{safe.lstrip('.')[:_LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _files(folder: Path) -> set[str]:
    try:
        if not folder.is_dir():
            raise BackupError(f"{folder} is not a directory")
        found = [file for file in folder.rglob("*.json*") if file.is_file()]
    except OSError as error:
        raise BackupError(f"{folder} cannot be read: {error.strerror}") from None
    endings = (".json", f".json{_SEALED}")
    return {file.relative_to(folder).as_posix() for file in found if file.name.endswith(endings)}


def _label(entry: Obj) -> str:
    place = "/".join(filter(None, map(str, (entry.get("namespace"), entry.get("name")))))
    return f"{entry.get('kind')} {place}"
