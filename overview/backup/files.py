"""A backup on disk: a directory with one file for each object, and an index that says what there must be.

A backup is one authenticated whole. Its index lists every file with a digest, and is itself authenticated in an
encrypted backup. A directory with other files than those of its index is refused, because they were added later; files
that are absent or damaged are reported, and the rest can be restored on request.

Files are 0600 and directories 0700; a new directory appears under its name only when it is complete, and one that
exists gets its index last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from caphv.api.counting import counted
from caphv.api.object import Key, Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.text import Limits, TextError, load_json
from overview.backup.graph import is_cluster_api
from overview.backup.sealing import Opener, Sealer, SealError

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

    `missing` are files that the index lists and that are absent or damaged, with the reason.
    """

    origin: Origin | None = None
    clusters: tuple[str, ...] = ()
    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """References that led nowhere when the backup was made."""
    unseen: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)

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


def read(folder: Path, passphrase: Callable[[], str] | None) -> Backup:
    """Read a backup.

    :param passphrase: is asked for the passphrase of an encrypted backup; None reads one that is not encrypted
    :raises BackupError: if the directory is not what one run of `write` left there; files of its index that are absent
        or damaged are in `missing` instead
    """
    files = _files(folder)
    if not files:
        raise BackupError(f"{folder} holds no backup: neither {INDEX} nor a file of an object")
    _check_form(folder, files, is_encrypted=passphrase is not None)

    reader = _Reader(folder, Opener(passphrase()) if passphrase else None)
    index = reader.read_index(f"{INDEX}{_SEALED}" if passphrase else INDEX)
    entries = {str(entry["file"]): entry for entry in index["objects"]}
    _check_names(folder, files, entries)

    backup = Backup(
        Origin(**{name: str(index["origin"].get(name) or "") for name in Origin.__slots__}),
        tuple(map(str, index.get("clusters") or ())),
        absent=frozenset(map(str, index.get("absent") or ())),
        unseen=tuple(map(str, index.get("unseen") or ())),
    )
    for name, entry in sorted(entries.items()):
        try:
            obj = reader.read_object(name, entry)
        except SealError as error:
            backup.missing[_label(entry)] = str(error)
        else:
            backup.objects[id_of(obj)] = obj

    if not backup.objects:
        reason = next(iter(backup.missing.values()), "it is empty")
        raise BackupError(f"no object of {folder} can be read: {reason}")
    return backup


def _check_form(folder: Path, files: set[str], *, is_encrypted: bool) -> None:
    """Raise `BackupError` unless all files are encrypted, or none is and that is expected."""
    plain = sorted(name for name in files if not name.endswith(_SEALED))
    if is_encrypted and len(plain) == len(files):
        raise BackupError(
            f"{folder} is not encrypted, so anyone with write access may have changed it: if you trust it, add "
            "--unencrypted"
        )
    if is_encrypted and plain:
        raise BackupError(
            f"{folder} is encrypted, and {len(plain)} of its files are not: {_listed(plain)}. They were added later: "
            "find out by whom, and remove them"
        )
    if not is_encrypted and len(plain) < len(files):
        raise BackupError(f"{folder} is encrypted: leave out --unencrypted")


def _check_names(folder: Path, files: set[str], entries: Mapping[str, Obj]) -> None:
    """Raise `BackupError` if there are files that the index does not list."""
    unlisted = sorted(name for name in files - entries.keys() if name.removesuffix(_SEALED) != INDEX)
    if unlisted:
        raise BackupError(
            f"{folder} has {counted(len(unlisted), 'file')} that its index does not list: {_listed(unlisted)}. They "
            "were added later: find out by whom, and remove them"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


class _Reader:
    """Reads the files of one backup; `opener` decrypts them, unless they are plain."""

    def __init__(self, folder: Path, opener: Opener | None) -> None:
        self._folder = folder
        self._opener = opener

    def read_index(self, name: str) -> Obj:
        """Return the index. Raises `BackupError`: without it, nothing shows what belongs to the backup."""
        try:
            index = self._parse(name, self._read(name), _INDEX_LIMITS)
        except SealError as error:
            raise BackupError(f"the index of {self._folder} cannot be used: {name} {error}") from None

        version = index.get("format")
        if version != FORMAT:
            raise BackupError(f"{self._folder / name} has format {version!r}; this version of caphv reads {FORMAT}")
        if not isinstance(index.get("origin"), dict) or not _are_entries(index.get("objects")):
            raise BackupError(f"{self._folder / name} is not the index of a backup")
        return index

    def read_object(self, name: str, entry: Obj) -> Obj:
        """Return an object that is the one of the index. Raises `SealError`."""
        content = self._read(name)
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise SealError("is not the file that was written: it was changed or damaged")

        obj = self._parse(name, content, _OBJECT_LIMITS)
        metadata = obj.get("metadata")
        texts = (obj.get("apiVersion"), obj.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None)
        if not all(isinstance(text, str) and text for text in texts):
            raise SealError("is not a Kubernetes object")
        if not is_kept(id_of(obj)):
            raise SealError(f"is a {id_of(obj).kind}: no backup has objects of this kind")
        return obj

    def _read(self, name: str) -> bytes:
        try:
            file = self._folder / name
            if not stat.S_ISREG(file.lstat().st_mode) or file.stat().st_size > _INDEX_LIMITS.size:
                raise SealError("is not a file of a backup")
            content = file.read_bytes()
        except FileNotFoundError:
            raise SealError("the file does not exist") from None
        except OSError as error:
            raise SealError(f"cannot be read: {error.strerror}") from None
        return self._opener.open(content) if self._opener else content

    def _parse(self, name: str, content: bytes, limits: Limits) -> Obj:
        try:
            value = load_json(content, limits)
        except TextError as error:
            raise SealError(f"{name} {error}") from None
        if not isinstance(value, dict):
            raise SealError(f"{name} is not a JSON object")
        return value


def is_kept(identity: ObjectId) -> bool:
    """Return whether backups have objects of this kind: those of Cluster API, Secrets, ConfigMaps and Namespaces."""
    return is_cluster_api(identity.group) or (
        not identity.group and identity.kind in ("ConfigMap", "Namespace", "Secret")
    )


def _are_entries(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and _is_entry(entry) for entry in value)


def _is_entry(entry: Obj) -> bool:
    file, digest = entry.get("file"), entry.get("sha256")
    if not isinstance(file, str) or not isinstance(digest, str):
        return False
    # An index of others must not lead out of the directory.
    return not file.startswith("/") and ".." not in file.split("/")


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
