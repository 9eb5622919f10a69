"""Lists the clusters of a repository by their lockfiles, and selects the clusters of an upgrade."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.plaintext import printable
from packager.addons.cluster_objects import is_suspended
from packager.addons.facts import ClusterFacts
from packager.addons.versions import Versions
from packager.git.paths import join_path
from packager.git.snapshot import Snapshot
from packager.rendering import lockfile
from packager.rendering.lockfile import Lockfile
from packager.tree import CLUSTERS, Tree, cluster_folder


@dataclass(frozen=True)
class RepositoryCluster:
    """One cluster of a repository, named `<namespace>/<name>`.

    `fault` says why `lockfile` is None.
    """

    name: str
    bundles: tuple[str, ...]
    lockfile: Lockfile | None
    fault: str = ""


def inventory(snapshot: Snapshot) -> list[RepositoryCluster]:
    """Return all clusters that have a folder in a repository, by name."""
    clusters = []
    for namespace, outer in sorted(snapshot.entries(CLUSTERS).items()):
        if not outer.is_folder:
            continue
        for name, entry in sorted(snapshot.entries(join_path(CLUSTERS, namespace)).items()):
            if entry.is_folder:
                clusters.append(_read_cluster(snapshot, f"{namespace}/{name}"))
    return clusters


def _read_cluster(snapshot: Snapshot, folder_name: str) -> RepositoryCluster:
    folder = join_path(CLUSTERS, folder_name)
    entries = snapshot.entries(folder).items()
    # Git stores names as bytes, and outputs hold only UTF-8.
    bundles = tuple(sorted(printable(inner) for inner, entry in entries if entry.is_folder))
    name = printable(folder_name)
    content = snapshot.read(join_path(folder, lockfile.FILE))
    if content is None:
        return RepositoryCluster(
            name=name, bundles=bundles, lockfile=None, fault=f"{lockfile.FILE} is missing"
        )
    try:
        return RepositoryCluster(name, bundles, lockfile.parse(content))
    except ValueError as error:
        return RepositoryCluster(
            name=name, bundles=bundles, lockfile=None, fault=f"{lockfile.FILE} {error}"
        )


@dataclass(frozen=True)
class UpgradeWave:
    """Clusters whose versions change now, and numbers of clusters that wait or have no bundles."""

    chosen: tuple[ClusterFacts, ...]
    waiting: int
    unknown: int


def wave(
    clusters: Iterable[ClusterFacts], previous: Tree, target: Versions, count: int | None
) -> UpgradeWave:
    """Choose clusters for an upgrade: the first `count` by namespace and name, all for None.

    Clusters that have the target's versions or are suspended are left out. Clusters that the
    repository does not hold are left out, because they get the newest versions when they are first
    rendered.
    """
    # The order is fixed, so that upgrades of a few clusters at a time go through all of them.
    outdated: list[ClusterFacts] = []
    unknown = 0
    for facts in sorted(clusters, key=lambda facts: facts.key):
        versions = pinned_versions(facts, previous)
        if versions is None:
            unknown += 1
        elif versions != target and not is_suspended(facts.cluster):
            outdated.append(facts)
    chosen = outdated if count is None else outdated[:count]
    return UpgradeWave(tuple(chosen), len(outdated) - len(chosen), unknown)


def pinned_versions(facts: ClusterFacts, previous: Tree) -> Versions | None:
    """Return the versions that the repository pins for a cluster, None without readable ones."""
    try:
        content = previous.get(f"{cluster_folder(*facts.key)}/{lockfile.FILE}")
        return lockfile.parse(content).versions if content is not None else None
    except ValueError:
        return None
