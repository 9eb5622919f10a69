"""Live clusters as they will be once the manifests of the repository have been applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from caphv.api.object import Key, Obj
from packager.addons.facts import ClusterFacts
from packager.definitions.applied import apply_manifest
from packager.definitions.buildresult import BuildResult
from packager.definitions.manifest import existing, manifest_path
from packager.git.snapshot import Snapshot


class AppliedClusters:
    """Applies manifests to the facts of clusters, and remembers each result.

    Caches and builds replace an object when it changes, so the same objects are the same input.
    """

    def __init__(self) -> None:
        # Objects of a manifest, with the id of its file.
        self._manifests: dict[Key, tuple[str, Sequence[Obj]]] = {}
        # Facts and objects of the input, and the result.
        self._results: dict[Key, tuple[ClusterFacts, Sequence[Obj], ClusterFacts]] = {}

    def predict(
        self, facts: ClusterFacts, snapshot: Snapshot, built: BuildResult | None
    ) -> ClusterFacts:
        """Return the facts that a live Cluster has once its manifest has been applied."""
        objects = self._manifest(facts.key, snapshot, built)
        if not objects:
            return facts

        remembered = self._results.get(facts.key)
        if remembered is not None:
            old_facts, old_objects, result = remembered
            if old_objects is objects and _is_same(old_facts, facts):
                return result

        result = apply_manifest(facts, objects)
        self._results[facts.key] = facts, objects, result
        return result

    def forget(self, keep: Collection[Key]) -> None:
        """Forget all clusters but these, because deleted ones would stay in memory."""
        for memory in (self._manifests, self._results):
            for key in memory.keys() - keep:
                del memory[key]

    def _manifest(self, key: Key, snapshot: Snapshot, built: BuildResult | None) -> Sequence[Obj]:
        """Return the manifest that the repository will hold; an invalid definition keeps it."""
        if built and key in built.objects:
            return built.objects[key]
        entry = snapshot.entry(manifest_path(key))
        if entry is None:
            return ()

        remembered = self._manifests.get(key)
        if remembered is None or remembered[0] != entry.id:
            remembered = (entry.id, existing(snapshot, key))
            self._manifests[key] = remembered
        return remembered[1]


def _is_same(old: ClusterFacts, new: ClusterFacts) -> bool:
    """Whether facts hold the very same objects. Caches replace an object when it changes."""
    return (
        old.cluster is new.cluster
        and old.harvester_cluster is new.harvester_cluster
        and old.control_plane is new.control_plane
        and old.fleet_clusters == new.fleet_clusters
    )
