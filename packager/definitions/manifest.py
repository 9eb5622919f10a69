"""The file with all objects of a cluster, as the repository holds it."""

from __future__ import annotations

from caphv.api.object import Key, Obj, text_at
from caphv.runtime.text import Limits, TextError, load_yaml_all
from packager.definitions import files
from packager.git.snapshot import Snapshot
from packager.rendering import yaml

MANIFEST = f"{files.CLUSTER}/{files.CLUSTER}.yaml"
# The packager wrote the manifests, but a user may have edited them.
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000, seconds=30)


def existing(snapshot: Snapshot, key: Key) -> list[Obj]:
    """Return the objects that the repository holds for a cluster; none if they cannot be parsed."""
    return parse_manifest(snapshot.read(manifest_path(key)))


def parse_manifest(content: bytes | None, limits: Limits = _LIMITS) -> list[Obj]:
    """Return the objects of a file that the packager wrote; none if they cannot be parsed.

    The objects can be written again, even if a user edited the file.
    """
    try:
        documents = load_yaml_all(content or b"", limits)
    except TextError:
        return []
    return [yaml.writable(document) for document in documents if isinstance(document, dict)]


def pool_path(key: Key, pool: Obj) -> str:
    """Return the name of an object of a cluster's manifest for messages."""
    return f"{files.MANIFESTS}/{key}/{pool['kind']}/{text_at(pool, 'metadata', 'name')}"


def manifest_path(key: Key) -> str:
    """Return the path of the file with all objects of a cluster."""
    return f"{files.MANIFESTS}/{key}/{MANIFEST}"
