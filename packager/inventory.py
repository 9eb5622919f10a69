"""Lists the clusters of a repository by their lockfiles, and selects the clusters of an upgrade."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packager.addons.settings import ClusterFacts
from packager.addons.versions import Versions
from packager.cluster_objects import is_suspended
from packager.git.paths import joined
from packager.git.snapshot import Snapshot
from packager.rendering import lockfile
from packager.tree import CLUSTERS, Tree, cluster_folder


@dataclass(frozen=True)
class RepositoryCluster:
    """One cluster of a repository: `name` is `<namespace>/<name>`; `fault` says why there is no lockfile."""

    name: str
    bundles: tuple[str, ...]
    record: lockfile.Record | None
    fault: str = ""


def inventory(snapshot: Snapshot) -> list[RepositoryCluster]:
    """Return all clusters that a repository has a folder of, by name."""
    found = []
    for namespace, outer in sorted(snapshot.entries(CLUSTERS).items()):
        for name, entry in sorted(snapshot.entries(joined(CLUSTERS, namespace)).items() if outer.is_folder else ()):
            if entry.is_folder:
                found.append(_held(snapshot, f"{namespace}/{name}"))
    return found


def _held(snapshot: Snapshot, name: str) -> RepositoryCluster:
    folder = joined(CLUSTERS, name)
    bundles = tuple(sorted(inner for inner, entry in snapshot.entries(folder).items() if entry.is_folder))
    content = snapshot.read(joined(folder, lockfile.FILE))
    if content is None:
        return RepositoryCluster(name, bundles, None, f"{lockfile.FILE} is missing")
    try:
        return RepositoryCluster(name, bundles, lockfile.read(content))
    except ValueError as error:
        return RepositoryCluster(name, bundles, None, f"{lockfile.FILE} {error}")


@dataclass(frozen=True)
class UpgradeWave:
    """Clusters whose versions change now, and how many more of those given have other versions, or no bundles yet."""

    chosen: tuple[ClusterFacts, ...]
    waiting: int
    unknown: int


def wave(clusters: Iterable[ClusterFacts], previous: Tree, target: Versions, count: int | None) -> UpgradeWave:
    """Choose clusters for an upgrade: the first `count` by namespace and name, all for None.

    Left out are those that have the target's versions, that are suspended, and those that the repository does not hold:
    they get the newest versions when they are first rendered.
    """
    outdated: list[ClusterFacts] = []
    unknown = 0
    for facts in sorted(clusters, key=lambda facts: facts.key):
        versions = pinned(facts, previous)
        if versions is None:
            unknown += 1
        elif versions != target and not is_suspended(facts.cluster):
            outdated.append(facts)
    chosen = outdated if count is None else outdated[:count]
    return UpgradeWave(tuple(chosen), len(outdated) - len(chosen), unknown)


def pinned(facts: ClusterFacts, previous: Tree) -> Versions | None:
    """Return the versions that the repository pins for a cluster; None where it has none that can be read."""
    try:
        content = previous.get(f"{cluster_folder(*facts.key)}/{lockfile.FILE}")
        return lockfile.read(content).versions if content is not None else None
    except ValueError:
        return None
