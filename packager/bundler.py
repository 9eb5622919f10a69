"""Clusters in, bundles of all of them out: the one way that the command line and the controller share.

Each cluster stands for itself. One with an invalid setting, or whose bundles are suspended, has no new files, and
nothing of what the repository holds for it is removed; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from caphv.api.object import Key
from packager.addons.settings import ClusterFacts
from packager.addons.versions import Versions
from packager.cluster_objects import is_suspended
from packager.git.commit import Reason
from packager.git.folder import Folder
from packager.git.prune import Plan, Pruning
from packager.git.publish import CLUSTER_ROOT, Folders, planned, told
from packager.git.repository import Result
from packager.git.snapshot import Snapshot
from packager.rendering.renderer import Options, Rendered, Renderer
from packager.tree import CLUSTERS, Tree

Pins = Mapping[Key, Versions]
"""Versions that clusters get in place of those that their record has: an upgrade, or the way back."""

_NO_PINS: Pins = MappingProxyType({})


class Store(Protocol):
    """Where bundles go: a `Repository`, or a `Directory`."""

    def sync(self) -> Snapshot: ...  # noqa: D102
    def commit(self, decide: Callable[[Snapshot], Plan], reason: Reason) -> Result: ...  # noqa: D102


@dataclass(frozen=True)
class Batch:
    """What clusters should have in a repository, and what there is to say about each.

    `rendered` has a result for each cluster that is not suspended, also for those that could not be rendered.
    """

    rendered: tuple[Rendered, ...] = ()
    suspended: frozenset[Key] = frozenset()

    @property
    def failed(self) -> list[Rendered]:
        """Clusters with a finding that is no advice: what the repository holds for them stays."""
        return [result for result in self.rendered if not result.ok]

    @property
    def trees(self) -> dict[str, Tree]:
        """Files of each cluster that could be rendered, by `<namespace>/<name>`; paths begin with `clusters/`."""
        return {str(result.cluster): result.tree for result in self.rendered if result.ok}

    @property
    def kept(self) -> frozenset[str]:
        """Folders that are not wanted and stay, for `Pruning.keep`: the clusters are there, and have no new files."""
        keys = {*self.suspended, *(result.cluster for result in self.failed)}
        return frozenset(f"{CLUSTERS}/{key}" for key in keys)


class Packager:
    """Renders clusters and commits their bundles; remembers of each cluster what it rendered last, and from what.

    Use one for as long as clusters are looked at: then only what changed is rendered, and only what differs is read
    from the repository. Calls block; not for several threads at once.
    """

    def __init__(
        self,
        options: Options | None = None,
        versions: Path | None = None,
        report: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        """Take the options of rendering and the table of versions. Raises as `Renderer` does.

        `report` is told how many clusters are rendered, and of how many.
        """
        self.renderer = Renderer(options or Options(), versions)
        self._report = report
        self._folders = Folders()

    def render(self, clusters: Iterable[ClusterFacts], previous: Tree, pins: Pins = _NO_PINS) -> Batch:
        """Render all clusters that are not suspended.

        `previous` is what the repository holds (`Snapshot.tree`, empty for a new one): versions that are pinned there
        stay, and a change that would break a live network is a finding.
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
        """Return the folders of a batch for `publish` and `planned`, below `CLUSTER_ROOT`."""
        return self._folders.of(batch.trees)

    def plan(
        self, clusters: Iterable[ClusterFacts], snapshot: Snapshot, pruning: Pruning, pins: Pins = _NO_PINS
    ) -> tuple[Batch, Plan]:
        """Return what the clusters should have, and what that changes in a repository. Writes nothing."""
        batch = self.render(clusters, snapshot.tree, pins)
        keep = {*pruning.keep, *batch.kept}
        return batch, planned(snapshot, {CLUSTER_ROOT: self.folders(batch)}, replace(pruning, keep=keep))

    def publish(
        self,
        repository: Store,
        clusters: Iterable[ClusterFacts],
        pruning: Pruning,
        reason: Reason,
        pins: Pins = _NO_PINS,
    ) -> tuple[Batch, Result]:
        """Make the repository hold the bundles of the clusters, as one commit, or none when it does already.

        Clusters are rendered anew for each newer snapshot, after somebody else pushed first. Raises GitErrors.
        """
        facts = list(clusters)
        batch = Batch()

        def decide(snapshot: Snapshot) -> Plan:
            nonlocal batch
            batch, plan = self.plan(facts, snapshot, pruning, pins)
            return plan

        result = told(repository.commit(decide, reason))
        return batch, result

    def forget(self, keep: Iterable[Key]) -> None:
        """Forget all clusters but these: those that are gone would stay in memory."""
        self.renderer.forget(keep)
