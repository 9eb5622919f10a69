"""Removes clusters and pools that a source no longer defines, and lifts their protection first.

Fleet keeps protected objects whose file is removed. So the removal of a cluster, or of a pool
without machines, takes two commits. The first lifts the protection, and the next one removes the
file once Fleet has applied the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from caphv.api.object import Key, Obj
from packager.definitions import files, ownership, protection
from packager.definitions.buildresult import MANIFEST_ROOT, BuildResult
from packager.definitions.dropped import is_pool
from packager.definitions.manifest import existing, pool_path
from packager.definitions.source import Source
from packager.git.folder import Folder, Root
from packager.git.pruning import Pruning, Skipped
from packager.git.snapshot import Snapshot
from packager.tree import CLUSTERS


@dataclass(frozen=True)
class Removals:
    """The removals that follow from the definitions of one source, for one snapshot.

    Clusters are named `<namespace>/<name>`. `confirmed` are clusters whose removal a user confirmed
    outside of the repository. `protected` are clusters that Fleet keeps even without their
    manifest. `live`: Fleet applies the repository to the management cluster whose state was read.
    """

    built: BuildResult
    source: Source
    snapshot: Snapshot
    live: bool
    confirmed: frozenset[Key]
    protected: frozenset[Key]

    def pruning(self, budget: int) -> Pruning:
        """Return limits that allow the removal of clusters of this source, once it is confirmed."""
        # Clusters of other sources are out of scope: neither removed nor reported.
        removed = self._removed_clusters(self.snapshot)
        defined = {*ownership.clusters(self.snapshot)} & self.built.wanted[MANIFEST_ROOT].keys()
        scope = {
            f"{root}/{name}"
            for root in (files.MANIFESTS, CLUSTERS)
            for name in (*removed, *defined)
        }

        # A protected cluster loses its protection first, so its removal is not confirmed yet.
        confirmed = {
            name
            for name in self._confirmed_clusters(removed, self.snapshot)
            if not self._is_waiting(name)
        }

        # A cluster without a valid definition has no folder in `built`, and must not be taken for a
        # removed one. Its bundles stay, and so do the bundles of a suspended cluster, and of a
        # cluster whose removal is not confirmed.
        invalid = {str(key) for key in self.built.invalid}
        suspended = {str(key) for key in self.built.suspended}
        bundles_stay = invalid | suspended | (removed - confirmed)
        keep = {f"{files.MANIFESTS}/{name}" for name in invalid}
        keep |= {f"{CLUSTERS}/{name}" for name in bundles_stay}

        return Pruning(
            complete=self.source.complete,
            budget=budget,
            scope=scope,
            keep=keep,
            confirmed={f"{files.MANIFESTS}/{name}" for name in confirmed},
        )

    def release_clusters(self, folders: Mapping[Root, dict[str, Folder]]) -> list[Skipped]:
        """Lift the protection of clusters whose removal is confirmed, and report the next step.

        Puts the released manifests into `folders`. A change that is not merged lifts no protection,
        because otherwise the same merge could include the removal.
        """
        why = "its protection is lifted; confirm again and sync once Fleet has applied that"
        if self.live:
            why = "its protection is lifted; it is removed once Fleet has applied that"

        # Read the branch that Fleet reads, where protection that only a review lifts is in place.
        snapshot = self.snapshot.merged
        removed = self._removed_clusters(snapshot)
        released = []
        for name in sorted(self._confirmed_clusters(removed, snapshot)):
            # The manifest of a cluster that is no longer protected is removed, not written.
            if not self._is_waiting(name):
                continue
            namespace, _, _ = name.partition("/")
            manifest = files.released_files(_manifest(snapshot, name), namespace)
            folders[MANIFEST_ROOT][name] = ownership.folder(manifest, self.source.name)
            released.append(Skipped(f"{files.MANIFESTS}/{name}", why))
        return released

    def release_pools(self, folders: Mapping[Root, dict[str, Folder]]) -> list[Skipped]:
        """Lift the protection of dropped MachineDeployments without machines, and report it.

        Puts the released manifests into `folders` while Fleet reads a manifest that protects a
        MachineDeployment.
        """
        why = "its protection is lifted; sync again once that is applied"
        if self.live:
            why = "its protection is lifted; the next commit removes it"

        released = []
        for key, empty in sorted(self.built.empty_pools.items()):
            # A proposal that is not merged lifts no protection, so read the branch of Fleet.
            protected = {
                pool_path(key, obj)
                for obj in existing(self.snapshot.merged, key)
                if is_pool(obj) and protection.is_protected(obj)
            }
            paths = [pool_path(key, pool) for pool in empty.pools]
            waiting = [Skipped(path, why) for path in paths if path in protected]
            if waiting:
                folders[MANIFEST_ROOT][str(key)] = empty.release
                released += waiting
        return released

    def unclaimed_manifests(self) -> list[Skipped]:
        """Return manifests that no source has claimed, so that their owner is unknown."""
        why = (
            "several sources write this repository, and none of them has claimed this cluster: "
            f"define it in its source, or name that source in {ownership.FILE} of this folder"
        )
        owners = ownership.Owners(self.snapshot, self.source.name)
        names = self._undefined_clusters(owners.unclaimed)
        return [Skipped(f"{files.MANIFESTS}/{name}", why) for name in sorted(names)]

    def confirmed_elsewhere(self) -> list[Skipped]:
        """Return clusters of other sources that a user asks this source to remove.

        If the state is live, `confirmed` comes from an annotation on the Cluster. That is not a
        request to this source, because any source may act on it.
        """
        if self.live:
            return []

        owners = ownership.Owners(self.snapshot, self.source.name)
        names = self._undefined_clusters({str(key) for key in self.confirmed}) - owners.own
        skipped = []
        for name in sorted(names):
            if owner := owners.owner_of(name):
                why = f"cluster is defined by another source, {owner}: remove it there"
                skipped.append(Skipped(f"{files.MANIFESTS}/{name}", why))
        return skipped

    def _removed_clusters(self, snapshot: Snapshot) -> set[str]:
        """Return the clusters of the source that it no longer defines."""
        return self._undefined_clusters(ownership.Owners(snapshot, self.source.name).own)

    def _undefined_clusters(self, clusters: Collection[str]) -> set[str]:
        """Return those clusters that have neither a valid nor an invalid definition."""
        invalid = {str(key) for key in self.built.invalid}
        return {*clusters} - self.built.wanted[MANIFEST_ROOT].keys() - invalid

    def _confirmed_clusters(self, clusters: Collection[str], snapshot: Snapshot) -> set[str]:
        """Return the clusters whose removal is confirmed, by `confirmed` or in their manifest."""
        confirmed = {str(key) for key in self.confirmed}
        return {
            name
            for name in clusters
            if name in confirmed
            or any(map(protection.is_confirmed, _manifest(snapshot, name, "Cluster")))
        }

    def _is_waiting(self, name: str) -> bool:
        """Whether Fleet or the live Cluster still protects a cluster from removal."""
        objects = _manifest(self.snapshot.merged, name)
        return any(map(protection.is_protected, objects)) or (
            Key(*name.split("/")) in self.protected
        )


def _manifest(snapshot: Snapshot, name: str, kind: str = "") -> list[Obj]:
    """Return the objects of a cluster's manifest, of one kind or of all."""
    objects = existing(snapshot, Key(*name.split("/")))
    return [obj for obj in objects if kind in ("", obj.get("kind"))]
