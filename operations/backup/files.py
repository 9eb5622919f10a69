"""A backup on disk: a directory with a file for each object, and an index of all files.

The index lists every file with a digest, and an encrypted backup authenticates the index itself. A
directory with files that its index does not list is refused, because another user may have added
them. Files that are absent or damaged are reported, and the user may restore the others.

Files are 0600 and directories 0700. A new directory appears under its name only when it is
complete, and one that exists gets its index last.
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

from caphv.api.counting import counted
from caphv.api.object import Key, Obj, at
from caphv.api.objectid import ObjectId, id_of
from caphv.api.resources import IP_POOLS
from caphv.runtime.text import Limits, TextError, load_json
from operations.backup.forms import OBJECT_LIMITS, dump
from operations.backup.pools import Pools
from operations.backup.sealing import Opener, Sealer, SealError
from operations.read.graph import is_cluster_api

FORMAT = 1
INDEX = "index.json"
_SEALED = ".sealed"
# An index has some hundred bytes for each object.
_INDEX_LIMITS = Limits(size=64 * 1024 * 1024, nodes=10_000_000)
# Filesystems allow 255 bytes, and we append an ending and sometimes a digest.
_MAX_NAME_LENGTH = 200


class BackupError(Exception):
    """A directory cannot be written, or is no backup."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a backup comes from, and its own `identity`.

    `uid` identifies the old management cluster: its namespace `kube-system` has this uid.
    """

    identity: str
    created: str
    server: str
    uid: str


@dataclass(slots=True)
class Backup:
    """The content of a directory.

    `missing` names the files that the index lists and that are absent or damaged, with the reason.
    """

    origin: Origin | None = None
    clusters: tuple[str, ...] = ()
    objects: dict[ObjectId, Obj] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """References that led nowhere when the backup was made."""
    unseen: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    pools: Pools | None = None
    """IPPools on Harvester that the clusters use; None if they were not saved."""
    missing_pools: dict[str, dict[str, str]] = field(default_factory=dict)
    """As `missing`, by Harvester and name. A restore creates no pools, and needs none."""

    left_out: tuple[str, ...] = ()
    """Clusters that Rancher provisions, unless a user named them. Files do not have this."""

    def cluster_keys(self) -> set[Key]:
        """Return namespace and name of each of the clusters."""
        return {Key(*name.split("/")) for name in self.clusters}


def write(target: Path, backup: Backup, sealer: Sealer | None) -> int:
    """Write a backup into a new or empty directory; return how many files. Raises `BackupError`."""
    check_target(target)
    target = _real_path(target)
    exists = target.is_dir()
    # An existing directory may be the working directory or a mounted volume, which cannot be
    # replaced. Its files are prepared inside of it.
    partial = (target if exists else target.parent) / f".{target.name}.partial-{os.getpid()}"

    try:
        count = _write(partial, backup, sealer)
        if not exists:
            partial.rename(target)
            return count
        with contextlib.suppress(PermissionError):  # it belongs to another user
            target.chmod(0o700)

        # The index comes last because a directory without an index is not a backup.
        for file in sorted(partial.iterdir(), key=lambda file: file.name.startswith(INDEX)):
            file.rename(target / file.name)
        return count
    except OSError as error:
        raise BackupError(f"cannot write {target}: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_target(target: Path) -> None:
    """Raise `BackupError` unless a backup can be written there."""
    try:
        # Never overwrite another backup, because an error half-way would leave neither of them.
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BackupError(
                f"{target} exists and is not an empty directory: name a new one for each backup"
            )

        folder = _real_path(target) if target.exists() else _real_path(target).parent
        if not folder.is_dir():
            raise BackupError(f"{folder} is not a directory")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise BackupError(f"{folder} is not writable")
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}") from None


def _real_path(target: Path) -> Path:
    """Return the real path, because `.` has no name and a directory cannot replace a link."""
    return Path(os.path.realpath(target))


def read(folder: Path, passphrase: Callable[[], str] | None) -> Backup:
    """Read a backup.

    :param folder: the directory
    :param passphrase: returns the passphrase of an encrypted backup; None to read a backup that is
        not encrypted
    Raises `BackupError` if the directory is not the result of one run of `write`. Files of its
    index that are absent or damaged are in `missing` instead.
    """
    files = _files(folder)
    if not files:
        raise BackupError(f"{folder} holds no backup: neither {INDEX} nor a file of an object")
    _check_form(folder, files, is_encrypted=passphrase is not None)

    reader = _Reader(folder, Opener(passphrase()) if passphrase else None)
    index = reader.read_index(f"{INDEX}{_SEALED}" if passphrase else INDEX)
    entries = {str(entry["file"]): entry for entry in index["objects"]}
    pools = index.get("pools")
    pool_entries = {str(entry["file"]): entry for entry in pools or ()}
    _check_names(folder, files, entries | pool_entries)

    origin = {name: str(index["origin"].get(name) or "") for name in Origin.__slots__}
    backup = Backup(
        Origin(**origin),
        tuple(map(str, index.get("clusters") or ())),
        absent=frozenset(map(str, index.get("absent") or ())),
        unseen=tuple(map(str, index.get("unseen") or ())),
        pools=None if pools is None else {},
    )
    # A user who lost a file still wants the others.
    for name, entry in sorted(entries.items()):
        try:
            obj = reader.read_object(name, entry)
        except SealError as error:
            backup.missing[_label(entry)] = str(error)
        else:
            backup.objects[id_of(obj)] = obj
    _read_pools(backup, reader, pool_entries)

    if not backup.objects:
        reasons = list(backup.missing.values())
        reason = reasons[0] if reasons else "it is empty"
        raise BackupError(f"no object of {folder} can be read: {reason}")
    return backup


def _read_pools(backup: Backup, reader: _Reader, entries: Mapping[str, Obj]) -> None:
    """Read the pools of a backup.

    :param backup: gets the pools, and those that are missing
    :param reader: reads its files
    :param entries: the entries of the index by file
    """
    pools: Pools = {}
    for name, entry in sorted(entries.items()):
        harvester = str(entry.get("harvester"))
        try:
            pools.setdefault(harvester, []).append(reader.read_pool(name, entry))
        except SealError as error:
            missing = backup.missing_pools.setdefault(harvester, {})
            missing[str(entry.get("name"))] = str(error)
    if backup.pools is not None:
        backup.pools = {harvester: objs for harvester, objs in pools.items() if objs}


def _check_form(folder: Path, files: set[str], *, is_encrypted: bool) -> None:
    """Raise `BackupError` unless all files are encrypted, or none is and that is expected."""
    plain = sorted(name for name in files if not name.endswith(_SEALED))

    # The user must ask for a backup without encryption, because an attacker could put one in the
    # place of an encrypted backup.
    if is_encrypted and len(plain) == len(files):
        raise BackupError(
            f"{folder} is not encrypted, so anyone with write access may have changed it: if you "
            "trust it, add --unencrypted"
        )
    if is_encrypted and plain:
        raise BackupError(
            f"{folder} is encrypted, and {len(plain)} of its files are not: {_shorten(plain)}. "
            "They were added later: find out by whom, and remove them"
        )

    if not is_encrypted and len(plain) < len(files):
        raise BackupError(f"{folder} is encrypted: leave out --unencrypted")


def _check_names(folder: Path, files: set[str], entries: Mapping[str, Obj]) -> None:
    """Raise `BackupError` if there are files that the index does not list."""
    unlisted = sorted(
        name for name in files - entries.keys() if name.removesuffix(_SEALED) != INDEX
    )
    if unlisted:
        raise BackupError(
            f"{folder} has {counted(len(unlisted), 'file')} that its index does not list: "
            f"{_shorten(unlisted)}. They were added later: find out by whom, and remove them"
        )


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


class _Reader:
    """Read the files of one backup; `opener` decrypts them, unless they are plain."""

    def __init__(self, folder: Path, opener: Opener | None) -> None:
        self._folder = folder
        self._opener = opener

    def read_index(self, name: str) -> Obj:
        """Return the index. Raises `BackupError`, because without it no file can be trusted."""
        try:
            index = _parse(self._read(name), _INDEX_LIMITS)
        except SealError as error:
            raise BackupError(
                f"the index of {self._folder} cannot be used: {name} {error}"
            ) from None

        version = index.get("format")
        if version != FORMAT:
            raise BackupError(
                f"{self._folder / name} has format {version!r}; this version of caphv reads "
                f"{FORMAT}"
            )
        lists = (index.get("objects"), index.get("pools", []))
        if not isinstance(index.get("origin"), dict) or not all(map(_are_entries, lists)):
            raise BackupError(f"{self._folder / name} is not the index of a backup")
        return index

    def read_object(self, name: str, entry: Obj) -> Obj:
        """Return the object that an entry of the index names. Raises `SealError`."""
        obj = self._read_entry(name, entry)
        # A backup that others made must not create a ClusterRoleBinding here.
        if not is_kept(id_of(obj)):
            raise SealError(f"is a {id_of(obj).kind}: no backup has objects of this kind")
        return obj

    def read_pool(self, name: str, entry: Obj) -> Obj:
        """Return the IPPool that an entry of the index names. Raises `SealError`."""
        obj = self._read_entry(name, entry)
        # A user gives the manifests of pools to an administrator of Harvester.
        if id_of(obj)[:2] != (IP_POOLS.group, IP_POOLS.kind):
            raise SealError(f"is a {id_of(obj).kind}, and not an IPPool")
        return obj

    def _read_entry(self, name: str, entry: Obj) -> Obj:
        """Return the object in a file of the index, of any kind. Raises `SealError`."""
        # Encryption proves that a file belongs to the backup. The digest proves that two files were
        # not swapped.
        content = self._read(name)
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise SealError("is not the file that was written: it was changed or damaged")

        obj = _parse(content, OBJECT_LIMITS)
        texts = (obj.get("apiVersion"), obj.get("kind"), at(obj, "metadata", "name"))
        if not all(isinstance(text, str) and text for text in texts):
            raise SealError("is not a Kubernetes object")
        return obj

    def _read(self, name: str) -> bytes:
        """Return the decrypted content of a file. Raises `SealError`."""
        try:
            file = self._folder / name
            # A link could lead out of the directory, a pipe would block.
            if not stat.S_ISREG(file.lstat().st_mode) or file.stat().st_size > _INDEX_LIMITS.size:
                raise SealError("is not a file of a backup")
            content = file.read_bytes()
        except FileNotFoundError:
            raise SealError("the file does not exist") from None
        except OSError as error:
            raise SealError(f"cannot be read: {error.strerror}") from None
        return self._opener.open(content) if self._opener else content


def is_kept(identity: ObjectId) -> bool:
    """Whether backups have objects of this kind: Cluster API's kinds and three core kinds."""
    return is_cluster_api(identity.group) or (
        not identity.group and identity.kind in ("ConfigMap", "Namespace", "Secret")
    )


def _parse(content: bytes, limits: Limits) -> Obj:
    """Return the JSON object in a file. Raises `SealError` for anything else."""
    try:
        value = load_json(content, limits)
    except TextError as error:
        raise SealError(str(error)) from None
    if not isinstance(value, dict):
        raise SealError("is not a JSON object")
    return value


def _are_entries(value: object) -> bool:
    """Whether a value is the list of files of an index."""
    return isinstance(value, list) and all(map(_is_entry, value))


def _is_entry(entry: object) -> bool:
    file = at(entry, "file")
    digest = at(entry, "sha256")
    if not isinstance(file, str) or not isinstance(digest, str):
        return False
    # An index of others must not lead out of the directory.
    return not file.startswith("/") and ".." not in file.split("/")


def _write(folder: Path, backup: Backup, sealer: Sealer | None) -> int:
    """Write the objects and the index into a new folder; return the number of files."""
    folder.mkdir(mode=0o700)
    ending = _SEALED if sealer else ""

    entries = []
    for identity, obj in sorted(backup.objects.items()):
        entries.append(_store_object(folder, f"{_path(identity)}{ending}", obj, sealer))

    pools = []
    for number, (harvester, objs) in enumerate(sorted((backup.pools or {}).items()), 1):
        for pool in objs:
            path = "/".join((f"harvester-{number}", _path(id_of(pool)).partition("/")[2]))
            entry = _store_object(folder, f"{path}{ending}", pool, sealer)
            pools.append(entry | {"harvester": harvester})

    index = {
        "format": FORMAT,
        "origin": {name: getattr(backup.origin, name, "") for name in Origin.__slots__},
        "clusters": list(backup.clusters),
        "objects": entries,
        "absent": sorted(backup.absent),
        "unseen": list(backup.unseen),
    }
    if backup.pools is not None:
        index["pools"] = pools
    _store(folder / f"{INDEX}{ending}", dump(index), sealer)
    return len(entries) + len(pools) + 1


def _store_object(folder: Path, name: str, obj: Obj, sealer: Sealer | None) -> Obj:
    """Write the file of an object; return its entry in the index.

    :param folder: the new folder of the backup
    :param name: the path of the file below it
    :param obj: the object
    :param sealer: encrypts the file, None to write plain text
    """
    content = dump(obj)
    identity = id_of(obj)
    _store(folder / name, content, sealer)
    return {
        "apiVersion": obj["apiVersion"],
        "kind": identity.kind,
        "namespace": identity.namespace,
        "name": identity.name,
        "file": name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _store(file: Path, content: bytes, sealer: Sealer | None) -> None:
    """Write a new file and its folders, readable for the user only from the start."""
    for folder in (file.parent.parent, file.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        target.write(sealer.seal(content) if sealer else content)


def _path(identity: ObjectId) -> str:
    """Return the path of an object's file in the directory."""
    kind = f"{identity.kind.lower()}.{identity.group}".removesuffix(".")
    segments = (identity.namespace or "cluster-scoped", kind, f"{identity.name}.json")
    return "/".join(map(_segment, segments))


def _segment(text: str) -> str:
    """Return a safe file name for a text of an API server, which may contain path separators."""
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in text)
    if safe == text and not text.startswith(".") and len(text) <= _MAX_NAME_LENGTH:
        return text
    return (
        f"_{safe.lstrip('.')[:_MAX_NAME_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    )


def _files(folder: Path) -> set[str]:
    """Return the relative paths of all files that may be part of a backup. Raises `BackupError`."""
    try:
        if not folder.is_dir():
            raise BackupError(f"{folder} is not a directory")
        files = [file for file in folder.rglob("*.json*") if file.is_file()]
    except OSError as error:
        raise BackupError(f"{folder} cannot be read: {error.strerror}") from None
    endings = (".json", f".json{_SEALED}")
    return {file.relative_to(folder).as_posix() for file in files if file.name.endswith(endings)}


def _label(entry: Obj) -> str:
    """Return a name for an object whose file cannot be read."""
    place = "/".join(filter(None, map(str, (entry.get("namespace"), entry.get("name")))))
    return f"{entry.get('kind')} {place}"
