"""Records which source defines a cluster, in a file in the folder of its manifest.

Several sources may share a repository. Each source writes and removes only its own clusters. To
another source, their manifests would look as if their definitions had been removed.

A user removes such files to move a source. So a source records itself for each cluster that it
defines. A manifest that no source has claimed belongs to the source while the repository has only
one source, and stays once it has several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from urllib.parse import urlsplit

from packager.definitions.files import MANIFESTS
from packager.git.folder import Folder, Tree
from packager.git.remote import Remote
from packager.git.snapshot import Snapshot
from packager.tree import is_plain

FILE = ".caphv-source"
DIRECTORY = "a directory"
"""Stands for a directory without a name. Other sources take over clusters that they also define."""
_HEADER = (
    "# The source that defines this cluster. Written by caphv; other sources leave the cluster "
    "alone.\n"
)
_NAME = re.compile(r"[^\x00-\x20\x7f#][^\x00-\x1f\x7f]{0,1000}")


def name_of(remote: Remote) -> str:
    """Return the name of a repository as a source: host, path, branch, and a folder.

    Scheme, user and port of ssh are left out, because another way to the same repository is the
    same source.
    """
    # An ssh URL and its scp form address one repository, so both give the same name.
    url = remote.url
    if "://" in url:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port and remote.scheme != "ssh" else ""
        url = f"{parts.hostname or ''}{port}{parts.path}"
    elif not url.startswith("/"):
        host, _, path = url.rpartition("@")[2].partition(":")
        url = f"{host}/{path.lstrip('/')}"
    name = f"{url.rstrip('/').removesuffix('.git')}, branch {remote.branch}"
    return f"{name}, path {remote.path}" if remote.path else name


def checked_name(name: str) -> str:
    """Return a name that a user gave. Raises `ValueError` if the name cannot be stored."""
    if not _NAME.fullmatch(name) or name != name.strip() or name == DIRECTORY:
        raise ValueError(
            f"{name!r}: must be one line of text, not {DIRECTORY!r}, and not begin with '#' or a "
            "blank"
        )
    return name


def content(source: str) -> bytes:
    """Return the content of the file that names a source."""
    return f"{_HEADER}{source}\n".encode()


def folder(files: Tree, source: str) -> Folder:
    """Return the folder of a cluster's manifests, by path, with the record of its source."""
    return Folder({**files, FILE: content(source)})


def path_of_record(cluster: str) -> str:
    """Return the path of the file for a cluster, `<namespace>/<name>`."""
    return f"{MANIFESTS}/{cluster}/{FILE}"


class Owners:
    """The sources of the manifests in a snapshot, as `source` sees them."""

    def __init__(self, snapshot: Snapshot, source: str) -> None:
        self._snapshot = snapshot
        self._source = source

    def owner_of(self, cluster: str) -> str:
        """Return the recorded source of a cluster, empty if none is recorded."""
        text = (self._snapshot.read(path_of_record(cluster)) or b"").decode(errors="replace")
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                return line.strip()
        return ""

    def other_source(self, cluster: str) -> str:
        """Return the other source that owns a cluster, empty if `source` may write the cluster."""
        owner = self.owner_of(cluster)
        if self._source == DIRECTORY or owner in ("", DIRECTORY, self._source):
            return ""
        return owner

    def source_to_record(self, cluster: str) -> str:
        """Return the source to record for a cluster that `source` writes.

        A directory without a name replaces no name.
        """
        if self._source == DIRECTORY:
            return self.owner_of(cluster) or DIRECTORY
        return self._source

    @cached_property
    def own(self) -> frozenset[str]:
        """The clusters that belong to `source`.

        If there is no other source, these include the clusters that no source has claimed.
        """
        # A cluster without a record may belong to any of several sources.
        owners = {self._source} if self._is_shared else {self._source, ""}
        return frozenset(name for name, source in self._sources.items() if source in owners)

    @cached_property
    def unclaimed(self) -> frozenset[str]:
        """Clusters that no source has claimed, in a repository that another source also uses."""
        return frozenset(name for name, source in self._sources.items() if not source) - self.own

    @cached_property
    def _is_shared(self) -> bool:
        return any(source not in ("", self._source) for source in self._sources.values())

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {name: self.owner_of(name) for name in clusters(self._snapshot)}


def clusters(snapshot: Snapshot) -> Iterator[str]:
    """Yield the clusters, `<namespace>/<name>`, whose manifests the repository holds.

    A folder whose name the packager never writes, such as a copy, is no cluster.
    """
    for namespace in snapshot.entries(MANIFESTS):
        for name, entry in snapshot.entries(f"{MANIFESTS}/{namespace}").items():
            # A user may keep files next to the folders.
            if entry.is_folder and is_plain(f"{namespace}/{name}"):
                yield f"{namespace}/{name}"
