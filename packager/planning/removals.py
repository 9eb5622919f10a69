"""Removes clusters and pools that a source no longer defines, and lifts their protection first.

Fleet keeps protected objects whose file is removed. So the removal of a cluster, or of a pool
without machines, takes two commits. The first lifts the protection, and the next one removes the
file once Fleet has applied the first. Fleet must not read both at once, because Helm decides by its
last release. What Fleet has applied shows only in live Clusters, so all other removals wait for a
fixed time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from caphv.api.object import Key, Obj
from packager.contents.uninstall import BLIND_SECONDS
from packager.definitions import files, ownership, protection
from packager.definitions.buildresult import MANIFEST_ROOT, BuildResult
from packager.definitions.dropped import is_pool
from packager.definitions.manifest import existing, manifest_path, pool_path
from packager.definitions.source import Source
from packager.git.folder import Folder, Root
from packager.git.pruning import Pruning, Skipped
from packager.git.snapshot import Snapshot
from packager.tree import CLUSTERS

_AFTER_FIXED_TIME = f"{BLIND_SECONDS / 60:.0f} minutes after Fleet can read that"


@dataclass(frozen=True)
class Removals:
    """The removals that follow from the definitions of one source, for one snapshot.

    Clusters are named `<namespace>/<name>`. `confirmed` are clusters whose removal a user confirmed
    outside of the repository. `protected` are clusters that Fleet keeps even without their
    manifest. `live`: Fleet applies the repository to the management cluster whose state was read,
    of all namespaces or of one `namespace`. `waited` are the removals that have given Fleet the
    time to apply the first commit; None if a user decides when to sync again.
    """

    built: BuildResult
    source: Source
    snapshot: Snapshot
    live: bool
    confirmed: frozenset[Key]
    protected: frozenset[Key]
    waited: frozenset[str] | None = None
    namespace: str = ""

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
            released.append(self._waiting_cluster(name))
        return released

    def release_pools(self, folders: Mapping[Root, dict[str, Folder]]) -> list[Skipped]:
        """Lift the protection of dropped MachineDeployments without machines, and report it.

        Puts the released manifests into `folders` while Fleet reads a manifest that protects a
        MachineDeployment, or may not have read the one that does not.
        """
        why = "its protection is lifted; sync again once that is applied"
        if self.waited is not None:
            why = f"its protection is lifted; it is removed {_AFTER_FIXED_TIME}"

        released = []
        for key, empty in sorted(self.built.empty_pools.items()):
            # A proposal that is not merged lifts no protection, so read the branch of Fleet.
            protection_of = {
                pool_path(key, obj): protection.is_protected(obj)
                for obj in existing(self.snapshot.merged, key)
                if is_pool(obj)
            }
            paths = [
                path for pool in empty.pools if (path := pool_path(key, pool)) in protection_of
            ]
            # The pools of a cluster are in one file, so none is removed while another one waits.
            if any(protection_of[path] or self._is_early(path) for path in paths):
                folders[MANIFEST_ROOT][str(key)] = empty.release
                file_id = self._manifest_id(key)
                released += [
                    Skipped(path, why, released="" if protection_of[path] else file_id)
                    for path in paths
                ]
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
        """Whether Fleet may still keep a cluster whose manifest is removed."""
        key = Key(*name.split("/"))
        if self._is_protected(name) or key in self.protected:
            return True
        return not self._is_visible(key) and self._is_early(f"{files.MANIFESTS}/{name}")

    def _is_protected(self, name: str) -> bool:
        """Whether the manifest that Fleet reads protects a cluster."""
        return any(map(protection.is_protected, _manifest(self.snapshot.merged, name)))

    def _is_visible(self, key: Key) -> bool:
        """Whether the live Cluster would show its protection."""
        return self.live and self.namespace in ("", key.namespace)

    def _is_early(self, what: str) -> bool:
        """Whether Fleet may not have applied yet what allows a removal."""
        return self.waited is not None and what not in self.waited

    def _waiting_cluster(self, name: str) -> Skipped:
        """Return the report about a cluster whose removal waits."""
        key = Key(*name.split("/"))
        if self._is_visible(key):
            next_step = "it is removed once Fleet has applied that"
        elif self.waited is not None:
            next_step = f"it is removed {_AFTER_FIXED_TIME}"
        else:
            next_step = "confirm again and sync once Fleet has applied that"

        return Skipped(
            what=f"{files.MANIFESTS}/{name}",
            why=f"its protection is lifted; {next_step}",
            released="" if self._is_protected(name) else self._manifest_id(key),
        )

    def _manifest_id(self, key: Key) -> str:
        """Return Git's id of the manifest that Fleet reads."""
        entry = self.snapshot.merged.entry(manifest_path(key))
        return entry.id if entry else ""


def _manifest(snapshot: Snapshot, name: str, kind: str = "") -> list[Obj]:
    """Return the objects of a cluster's manifest, of one kind or of all."""
    objects = existing(snapshot, Key(*name.split("/")))
    return [obj for obj in objects if kind in ("", obj.get("kind"))]
