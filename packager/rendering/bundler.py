"""Renders the bundles of many clusters, for the command line and the controller.

Clusters are independent. A cluster with an invalid setting or suspended bundles gets no new files,
and its files in the repository stay. All other clusters are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from caphv.api.object import Key
from packager.addons.cluster_objects import is_suspended
from packager.addons.facts import ClusterFacts
from packager.addons.versions import Versions
from packager.git.folder import Folder
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import CLUSTERS, Tree


@dataclass(frozen=True)
class Batch:
    """The rendered bundles of clusters, and findings about each.

    `rendered` has a result for each cluster that is not suspended, even for one with errors.
    """

    rendered: tuple[Rendered, ...] = ()
    suspended: frozenset[Key] = frozenset()

    @property
    def failed(self) -> list[Rendered]:
        """Clusters with an error, whose files in the repository stay."""
        return [result for result in self.rendered if not result.ok]

    @property
    def trees(self) -> dict[str, Tree]:
        """Files of each rendered cluster by `<namespace>/<name>`; paths begin with `clusters/`."""
        return {str(result.cluster): result.tree for result in self.rendered if result.ok}

    @property
    def unchanged_folders(self) -> frozenset[str]:
        """Folders of clusters without new files, for `Pruning.keep`: the clusters exist."""
        # An invalid cluster must not look like a deleted one, whose folder is removed.
        keys = {*self.suspended, *(result.cluster for result in self.failed)}
        return frozenset(f"{CLUSTERS}/{key}" for key in keys)


@dataclass(frozen=True, slots=True)
class _CachedFolder:
    """A folder and the tree that it was built from."""

    tree: Tree
    folder: Folder


class Folders:
    """Builds folders from rendered trees; reuses a folder while its tree is the same object."""

    def __init__(self) -> None:
        self._folders: dict[str, _CachedFolder] = {}

    def of(self, trees: Mapping[str, Tree]) -> dict[str, Folder]:
        """Return folders by `<namespace>/<name>` of a cluster.

        Paths in the trees, which have the same keys, begin with `clusters/<namespace>/<name>/`.
        Raises `ValueError` for any other path.
        """
        entries: dict[str, _CachedFolder] = {}
        for name, tree in trees.items():
            entry = self._folders.get(name)
            if entry is None or entry.tree is not tree:
                entry = _CachedFolder(tree, _folder(name, tree))
            entries[name] = entry

        # Forget the folders of clusters that no longer exist.
        self._folders = entries
        return {name: entry.folder for name, entry in entries.items()}


def _folder(name: str, tree: Tree) -> Folder:
    top = f"{CLUSTERS}/{name}/"
    for path in tree:
        if not path.startswith(top):
            raise ValueError(f"path {path!r}: is not below {top}")
    return Folder({path.removeprefix(top): content for path, content in tree.items()})


class Bundler:
    """Renders clusters, and only those whose input changed since the last call.

    Calls block; not thread-safe.
    """

    def __init__(
        self,
        options: RenderOptions | None = None,
        versions_file: Path | None = None,
        report: Callable[[int, int], None] = lambda _count, _total: None,
    ) -> None:
        """Create the renderer, whose options these are. Raises as `Renderer` does.

        `report` is called with the number of rendered clusters and their total.
        """
        self.renderer = Renderer(options, versions_file)
        self._report = report
        self._folders = Folders()

    def render(
        self,
        clusters: Iterable[ClusterFacts],
        previous: Tree,
        pins: Mapping[Key, Versions] = MappingProxyType({}),
    ) -> Batch:
        """Render all clusters that are not suspended.

        :param clusters: objects of each cluster
        :param previous: content of the repository (`Snapshot.tree`, empty for a new one), whose
            lockfiles pin versions and refuse changes that would break a running network
        :param pins: versions to use instead of those of lockfiles
        """
        facts = list(clusters)
        suspended = frozenset(entry.key for entry in facts if is_suspended(entry.cluster))
        active = [entry for entry in facts if entry.key not in suspended]
        rendered = self.renderer.render(self._report_progress(active), previous, pins)
        return Batch(tuple(rendered), suspended)

    def _report_progress(self, facts: Sequence[ClusterFacts]) -> Iterator[ClusterFacts]:
        for count, cluster in enumerate(facts):
            self._report(count, len(facts))
            yield cluster

    def folders(self, batch: Batch) -> dict[str, Folder]:
        """Return the folders of a batch for `Wanted`, below `CLUSTER_ROOT`."""
        return self._folders.of(batch.trees)

    def forget(self, keep: Iterable[Key]) -> None:
        """Forget all other clusters, which would stay in memory after their deletion."""
        self.renderer.forget(keep)
