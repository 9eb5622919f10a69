"""Live clusters as they will be once the manifests of the repository have been applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from caphv.api.object import Key, Obj
from packager.addons.facts import ClusterFacts
from packager.definitions.applied import apply_manifest
from packager.definitions.buildresult import BuildResult
from packager.definitions.manifest import existing, manifest_path
from packager.git.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _CachedManifest:
    """The objects of a manifest, and the id of its file."""

    file_id: str
    objects: Sequence[Obj]


@dataclass(frozen=True, slots=True)
class _CachedResult:
    """The predicted facts of a cluster, and the facts and objects that they follow from."""

    facts: ClusterFacts
    objects: Sequence[Obj]
    predicted: ClusterFacts

    def is_current(self, facts: ClusterFacts, objects: Sequence[Obj]) -> bool:
        """Return whether the input consists of the very same objects."""
        # Caches and builds replace an object when it changes.
        return (
            objects is self.objects
            and facts.cluster is self.facts.cluster
            and facts.harvester_cluster is self.facts.harvester_cluster
            and facts.control_plane is self.facts.control_plane
            and facts.fleet_clusters == self.facts.fleet_clusters
        )


class AppliedClusters:
    """Applies manifests to the facts of clusters, and keeps each result."""

    def __init__(self) -> None:
        self._manifests: dict[Key, _CachedManifest] = {}
        self._results: dict[Key, _CachedResult] = {}

    def predict(
        self, facts: ClusterFacts, snapshot: Snapshot, built: BuildResult | None
    ) -> ClusterFacts:
        """Return the facts that a live Cluster has once its manifest has been applied."""
        objects = self._manifest(facts.key, snapshot, built)
        if not objects:
            return facts

        cached = self._results.get(facts.key)
        if cached is None or not cached.is_current(facts, objects):
            cached = _CachedResult(facts, objects, apply_manifest(facts, objects))
            self._results[facts.key] = cached
        return cached.predicted

    def forget(self, keep: Collection[Key]) -> None:
        """Forget all other clusters, which would stay in memory after their deletion."""
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

        cached = self._manifests.get(key)
        if cached is None or cached.file_id != entry.id:
            cached = _CachedManifest(entry.id, existing(snapshot, key))
            self._manifests[key] = cached
        return cached.objects
