"""Snapshots of etcd, as RKE2 and K3s record them in the workload cluster.

Each copy of a snapshot has a cluster-scoped object ETCDSnapshotFile, on the disk of a machine and
in an S3 store. The fields are those of k3s-io/api `k3s.cattle.io/v1/types.go`. K3s writes them
since v1.28.4 (`pkg/etcd/snapshot.go`), and RKE2 embeds K3s.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from caphv.api.object import NODES, Obj, at
from caphv.api.quantity import quantity
from caphv.api.resources import ETCD_SNAPSHOT_FILES
from caphv.runtime.client import ApiClient
from operations.read.management import list_all

READY = "ready"
FAILED = "failed"
LOST = "lost"
# Limits of Linux, in characters.
_MAX_PATH_LENGTH = 4095
_MAX_NAME_LENGTH = 255


@dataclass(frozen=True, slots=True)
class EtcdSnapshot:
    """One copy of a snapshot.

    `state` is `ready`, `failed`, or `lost` with the disk of its Node. `size` is in bytes, `created`
    a time as the API server writes it. `s3` says whether the copy is in a store.
    """

    name: str
    state: str
    node: str
    location: str
    s3: bool
    size: int = 0
    created: str = ""
    error: str = ""

    @property
    def path(self) -> str:
        """The path on the Node; empty for a copy in a store."""
        return "" if self.s3 else _path(self.location)

    @property
    def wrong(self) -> bool:
        """Whether the copy cannot be restored."""
        return self.state != READY


async def read_snapshots(client: ApiClient) -> tuple[EtcdSnapshot, ...]:
    """Read the snapshots of a workload cluster, the newest first.

    Raises `ApiError`, which is `NotFound` for a distribution that records none, and `Unreachable`.
    """
    objs = await list_all(client, ETCD_SNAPSHOT_FILES)
    nodes = {str(at(node, "metadata", "name")) for node in await list_all(client, NODES)}
    return snapshots_of(objs, nodes)


def snapshots_of(objs: Iterable[Obj], nodes: Collection[str]) -> tuple[EtcdSnapshot, ...]:
    """Return the snapshots of ETCDSnapshotFiles, the newest first.

    :param objs: the ETCDSnapshotFiles of a workload cluster
    :param nodes: the names of its Nodes
    """
    snapshots = [_snapshot(obj, nodes) for obj in objs]
    snapshots.sort(key=lambda copy: (copy.created, copy.name, copy.s3), reverse=True)
    return tuple(snapshots)


def is_path(text: str) -> bool:
    """Return whether a text is an absolute path of a file, without `..` or control characters."""
    is_normal = text.startswith("/") and posixpath.normpath(text) == text != "/"
    return is_normal and text.isprintable() and len(text) <= _MAX_PATH_LENGTH


def is_name(text: str) -> bool:
    """Return whether a text is a name of a file, without control characters."""
    is_file = bool(text) and "/" not in text and text not in (".", "..")
    return is_file and text.isprintable() and len(text) <= _MAX_NAME_LENGTH


def _snapshot(obj: Obj, nodes: Collection[str]) -> EtcdSnapshot:
    """Return the snapshot that an ETCDSnapshotFile records.

    The workload cluster writes the records, which are no more than claims. A snapshot whose name or
    path is not that of a file counts as failed, because a reset without a file keeps the database
    as it is.
    """
    name = _text(obj, "spec", "snapshotName")
    node = _text(obj, "spec", "nodeName")
    location = _text(obj, "spec", "location")
    s3 = bool(at(obj, "spec", "s3"))
    state = READY if at(obj, "status", "readyToUse") is True else FAILED
    error = _text(obj, "status", "error", "message")

    if state == READY and not is_name(name):
        state = FAILED
        error = "its name is not that of a file"
    elif state == READY and not s3 and not is_path(_path(location)):
        state = FAILED
        error = "its location is not a path of a file"
    elif state == READY and not s3 and node not in nodes:
        # Until a server compares the records with the Nodes again, the record outlives the disk.
        state = LOST

    created = _text(obj, "status", "creationTime")
    if not _is_time(created):
        created = _text(obj, "metadata", "creationTimestamp")
    size = max(0, int(quantity(at(obj, "status", "size")) or 0))
    return EtcdSnapshot(
        name, state, node, location, s3, size, created if _is_time(created) else "", error
    )


def _path(location: str) -> str:
    """Return the path of a location `file:///…`; empty for another one."""
    return location.removeprefix("file://") if location.startswith("file:///") else ""


def _is_time(text: str) -> bool:
    """Return whether a text is a time with a zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _text(obj: Obj, *path: str) -> str:
    value: Any = at(obj, *path)
    return value if isinstance(value, str) else ""
