"""Files of a repository as plain data, which rendering returns, Git commits and tests compare.

Every path passes through `path_of`, so that a hostile name of a cluster, bundle or template cannot
leave its folder and means nothing to Git or a shell.
"""

from __future__ import annotations

import hashlib
import re

from packager.git.folder import Root, Tree

__all__ = [
    "CLUSTERS",
    "CLUSTER_ROOT",
    "VENDOR",
    "Tree",
    "cluster_folder",
    "content_hash",
    "is_plain",
    "path_of",
]

CLUSTERS = "clusters"
"""The folder in the repository that holds the bundles of all clusters."""
CLUSTER_ROOT = Root(CLUSTERS)
VENDOR = "vendored-charts"
"""The folder that holds charts; checkouts of users may have another one called `vendor`."""

# Names of Kubernetes and file names. None is hidden, an option of a command, or `..`.
_SEGMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def path_of(*segments: str) -> str:
    """Join segments to a path. Raises `ValueError` for a segment that is not a plain name.

    Plain names have letters, digits, '.', '_' and '-'.
    """
    for segment in segments:
        if not _is_plain_name(segment):
            msg = (
                f"{segment!r} cannot be part of a path: take letters, digits, '-', '_' and '.' "
                "between them"
            )
            raise ValueError(msg)
    return "/".join(segments)


def is_plain(path: str) -> bool:
    """Whether a path has plain names only, as all paths that the packager writes.

    A user may keep any other folder next to those of clusters, such as `production (copy)`.
    """
    return all(map(_is_plain_name, path.split("/")))


def _is_plain_name(name: str) -> bool:
    return bool(_SEGMENT.fullmatch(name)) and ".." not in name


def cluster_folder(namespace: str, name: str) -> str:
    """Return the folder `clusters/<namespace>/<name>`. Raises `ValueError` as `path_of` does."""
    return path_of(CLUSTERS, namespace, name)


def content_hash(tree: Tree) -> str:
    """Return a hash (SHA-256, hexadecimal) over paths and contents, independent of their order."""
    digest = hashlib.sha256()
    for path in sorted(tree):
        for part in (path.encode(), tree[path]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()
