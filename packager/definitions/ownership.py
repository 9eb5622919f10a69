"""Which source defines a cluster: a file in the folder of its manifest says so.

Several sources may share a repository. Each one writes and removes what it defines, and leaves the rest: to another
source, a manifest of this one looks like one whose definition was removed.

A repository of 0.11 has no such files. So a source records itself for each cluster that it defines. A manifest that no
source has claimed is treated as before while the repository has only one source, and stays once it has several.
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

FILE = ".caphv-source"
DIRECTORY = "a directory"
"""The source that is a directory without a name: any other source gets the clusters that it defines, too."""
_HEADER = "# The source that defines this cluster. Written by caphv; other sources leave the cluster alone.\n"
_NAME = re.compile(r"[^\x00-\x20\x7f#][^\x00-\x1f\x7f]{0,1000}")


def name_of(remote: Remote) -> str:
    """Return the name of a repository as a source: host and path, the branch, and the folder if there is one.

    Scheme, user and port of ssh are left out: another way to the same repository is the same source.
    """
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
    """Return a name that a user gave. Raises ValueError for one that cannot be stored."""
    if not _NAME.fullmatch(name) or name != name.strip() or name == DIRECTORY:
        raise ValueError(f"{name!r}: must be one line of text, not {DIRECTORY!r}, and not begin with '#' or a blank")
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
        self._snapshot, self._source = snapshot, source

    def recorded(self, cluster: str) -> str:
        """Return the recorded source of a cluster, empty for none."""
        text = (self._snapshot.read(path_of_record(cluster)) or b"").decode(errors="replace")
        return next((line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")), "")

    def other(self, cluster: str) -> str:
        """Return the source that a cluster belongs to, empty if `source` may write it."""
        found = self.recorded(cluster)
        return "" if self._source == DIRECTORY or found in ("", DIRECTORY, self._source) else found

    def to_record(self, cluster: str) -> str:
        """Return what to record for a cluster that `source` writes: a directory without a name replaces no name."""
        return (self.recorded(cluster) or DIRECTORY) if self._source == DIRECTORY else self._source

    @cached_property
    def own(self) -> frozenset[str]:
        """The clusters that belong to `source`, and without any other source those that no source has claimed."""
        wanted = {self._source} if self._is_shared else {self._source, ""}
        return frozenset(name for name, source in self._sources.items() if source in wanted)

    @cached_property
    def unclaimed(self) -> frozenset[str]:
        """Clusters that no source has claimed, in a repository that another source uses, too."""
        return frozenset(name for name, source in self._sources.items() if not source) - self.own

    @cached_property
    def _is_shared(self) -> bool:
        return any(source not in ("", self._source) for source in self._sources.values())

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {name: self.recorded(name) for name in clusters(self._snapshot)}


def clusters(snapshot: Snapshot) -> Iterator[str]:
    """Yield the clusters, `<namespace>/<name>`, whose manifests the repository holds."""
    for namespace, outer in snapshot.entries(MANIFESTS).items():
        if outer.is_folder:
            yield from (f"{namespace}/{name}" for name in snapshot.entries(f"{MANIFESTS}/{namespace}"))
