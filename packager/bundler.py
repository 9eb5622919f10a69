"""Renders the bundles of many clusters, for the command line and the controller alike.

Clusters are independent. One with an invalid setting, or with suspended bundles, gets no new files, and its files in
the repository stay; all others are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from caphv.api.object import Key
from packager.addons.settings import ClusterFacts
from packager.addons.versions import Versions
from packager.cluster_objects import is_suspended
from packager.git.folder import Folder
from packager.rendering.renderer import Rendered, Renderer, RenderOptions
from packager.tree import CLUSTERS, Tree


@dataclass(frozen=True)
class Batch:
    """The rendered bundles of clusters, and findings about each.

    `rendered` has a result for each cluster that is not suspended, also for those that could not be rendered.
    """

    rendered: tuple[Rendered, ...] = ()
    suspended: frozenset[Key] = frozenset()

    @property
    def failed(self) -> list[Rendered]:
        """Clusters with an error: their files in the repository stay."""
        return [result for result in self.rendered if not result.ok]

    @property
    def trees(self) -> dict[str, Tree]:
        """Files of each cluster that could be rendered, by `<namespace>/<name>`; paths begin with `clusters/`."""
        return {str(result.cluster): result.tree for result in self.rendered if result.ok}

    @property
    def kept(self) -> frozenset[str]:
        """Folders that stay without new files, for `Pruning.keep`: their clusters exist."""
        keys = {*self.suspended, *(result.cluster for result in self.failed)}
        return frozenset(f"{CLUSTERS}/{key}" for key in keys)


class Folders:
    """Makes folders of rendered trees, and remembers each while its tree is the very same object."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tree, Folder]] = {}

    def of(self, trees: Mapping[str, Tree]) -> dict[str, Folder]:
        """Return folders by `<namespace>/<name>`, of trees by the same whose paths begin with `clusters/` and that.

        Raises ValueError when a file stands outside of its folder.
        """
        before, self._known = self._known, {}
        for name, tree in trees.items():
            known = before.get(name)
            self._known[name] = known if known and known[0] is tree else (tree, _folder(name, tree))
        return {name: folder for name, (_, folder) in self._known.items()}


def _folder(name: str, tree: Tree) -> Folder:
    top = f"{CLUSTERS}/{name}/"
    if strange := [path for path in tree if not path.startswith(top)]:
        raise ValueError(f"path {strange[0]!r}: is not below {top}")
    return Folder({path.removeprefix(top): content for path, content in tree.items()})


class Bundler:
    """Renders clusters; remembers for each cluster its last result and input, so that only what changed is rendered.

    Calls block; not thread-safe.
    """

    def __init__(
        self,
        options: RenderOptions | None = None,
        versions: Path | None = None,
        report: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        """Take the options of rendering and the table of versions. Raises as `Renderer` does.

        `report` is called with the number of rendered clusters and their total.
        """
        self.renderer = Renderer(options or RenderOptions(), versions)
        self._report = report
        self._folders = Folders()

    def render(
        self, clusters: Iterable[ClusterFacts], previous: Tree, pins: Mapping[Key, Versions] = MappingProxyType({})
    ) -> Batch:
        """Render all clusters that are not suspended.

        `previous` is what the repository holds (`Snapshot.tree`, empty for a new one): versions that are pinned there
        stay, and a change that would break a running network is a finding.
        """
        facts = list(clusters)
        suspended = frozenset(one.key for one in facts if is_suspended(one.cluster))
        going = [one for one in facts if one.key not in suspended]
        return Batch(tuple(self.renderer.render(self._counted(going), previous, pins)), suspended)

    def _counted(self, facts: Sequence[ClusterFacts]) -> Iterator[ClusterFacts]:
        for done, one in enumerate(facts):
            self._report(done, len(facts))
            yield one

    def folders(self, batch: Batch) -> dict[str, Folder]:
        """Return the folders of a batch for `Wanted`, below `CLUSTER_ROOT`."""
        return self._folders.of(batch.trees)

    def forget(self, keep: Iterable[Key]) -> None:
        """Forget all clusters but these: deleted ones would stay in memory."""
        self.renderer.forget(keep)
