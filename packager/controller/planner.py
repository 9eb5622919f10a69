"""What the repository should hold for definitions and live clusters together: one pure decision, so one commit.

A cluster has bundles as soon as it has a manifest. Until it is there they follow from its definition, and from then on
from the live Cluster as it will be once its manifest has been applied. So a changed definition changes manifest and
bundles at once, and the Cluster that follows later renders to the same bytes and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caphv.api import names
from caphv.api.object import Key
from packager.addons.gather import ClusterFacts, annotations_of_cluster, labels_of_cluster
from packager.addons.merge import Obj, at, merged
from packager.bundler import Batch, Packager
from packager.cluster_objects import facts_of
from packager.controller import move_marker
from packager.definitions import files
from packager.definitions.builder import Made, Maker, existing, manifest_path
from packager.definitions.source import Source
from packager.definitions.sync import Options, manifests, pruning, with_status
from packager.git.prune import Plan, Pruning
from packager.git.publish import CLUSTER_ROOT, Wanted, planned
from packager.git.snapshot import Snapshot
from packager.tree import CLUSTERS


@dataclass(frozen=True)
class Work:
    """What the management cluster says.

    `facts` are clusters whose bundles follow from them. Of the others that are there, those in `incomplete` have
    bundles of their definition only, and those in `keep` stay as they are, whatever anybody defines. `moved` are
    clusters that went while they were paused, `confirmed` those whose definition may go. `why` is for the message of a
    commit.
    """

    facts: tuple[ClusterFacts, ...]
    keep: frozenset[Key] = frozenset()
    incomplete: frozenset[Key] = frozenset()
    moved: frozenset[Key] = frozenset()
    confirmed: frozenset[Key] = frozenset()
    why: str = ""


@dataclass(frozen=True)
class Decision:
    """Bundles of live clusters, what the source makes if there is one, and what changes in the repository."""

    batch: Batch
    made: Made | None
    plan: Plan


class Decider:
    """Decides; remembers what it made last, so that only what changed costs something. Not for several threads.

    `namespace` limits the clusters that are cared for, empty for all.
    """

    def __init__(self, packager: Packager, maker: Maker, max_prune: int, namespace: str = "") -> None:
        self._packager, self._maker = packager, maker
        self._max_prune, self._namespace = max_prune, namespace
        self._manifests: dict[Key, tuple[str, Sequence[Obj]]] = {}
        self._coming: dict[Key, tuple[ClusterFacts, Sequence[Obj], ClusterFacts]] = {}

    def decide(self, snapshot: Snapshot, work: Work, source: Source | None) -> Decision:
        """Say what work and source make of a repository. Raises Damaged.

        Without a source nobody can say what is defined: then manifests stay as they are.
        """
        made = self._maker.make(source, snapshot) if source else None
        batch = self._packager.render([self._to_be(one, made, snapshot) for one in work.facts], snapshot.tree)
        self._forget(work)
        wanted = self._wanted(made, batch, work)
        allowed = self._pruning(made, batch, work, source, snapshot)
        going = self._bundles(snapshot) - {*allowed.keep} - {f"{CLUSTERS}/{name}" for name in wanted[CLUSTER_ROOT]}
        staying = move_marker.moved(going, {f"{CLUSTERS}/{key}" for key in work.moved}, snapshot)
        plan = planned(snapshot, wanted, replace(allowed, keep={*allowed.keep, *staying}))
        plan = move_marker.with_marks(plan, staying, snapshot)
        return Decision(batch, made, with_status(plan, made, snapshot) if made else plan)

    def _wanted(self, made: Made | None, batch: Batch, work: Work) -> Wanted:
        live = {str(key) for key in (*work.keep, *(facts.key for facts in work.facts))}
        wanted = dict(made.wanted) if made else {}
        to_come = {
            name: folder
            for name, folder in wanted.get(CLUSTER_ROOT, {}).items()
            if name not in live and name.startswith(f"{self._namespace}/" if self._namespace else "")
        }
        return {**wanted, CLUSTER_ROOT: to_come | self._packager.folders(batch)}

    def _pruning(
        self, made: Made | None, batch: Batch, work: Work, source: Source | None, snapshot: Snapshot
    ) -> Pruning:
        """Return what may go: bundles of clusters that are not there and have no manifest; confirmed definitions."""
        defined = manifests(snapshot)
        found = Pruning(complete=True, budget=self._max_prune)
        if made and source:
            found = pruning(made, source, snapshot, Options(self._max_prune, {str(key) for key in work.confirmed}))
        scope = {f"{files.MANIFESTS}/{name}" for name in defined} | self._bundles(snapshot)
        staying = {f"{CLUSTERS}/{key}" for key in work.keep | work.incomplete} | batch.kept
        to_come = {f"{CLUSTERS}/{name}" for name in defined if f"{files.MANIFESTS}/{name}" not in found.confirmed}
        return replace(found, scope=scope, keep={*found.keep, *staying, *to_come})

    def _bundles(self, snapshot: Snapshot) -> set[str]:
        """Return the folders with bundles of clusters that are cared for."""
        return {
            f"{CLUSTERS}/{namespace}/{name}"
            for namespace, outer in snapshot.entries(CLUSTERS).items()
            if outer.is_folder and namespace == (self._namespace or namespace)
            for name in snapshot.entries(f"{CLUSTERS}/{namespace}")
        }

    # Clusters as they will be

    def _to_be(self, facts: ClusterFacts, made: Made | None, snapshot: Snapshot) -> ClusterFacts:
        """Return facts of a live Cluster as they will be when its manifest has been applied."""
        objects = self._objects(facts.key, made, snapshot)
        if not objects:
            return facts
        known = self._coming.get(facts.key)
        if known is None or known[1] is not objects or not _same(known[0], facts):
            known = self._coming[facts.key] = facts, objects, applied(facts, objects)
        return known[2]

    def _objects(self, key: Key, made: Made | None, snapshot: Snapshot) -> Sequence[Obj]:
        """Return the manifest that the repository will hold; that of a faulty definition stays as it is."""
        if made and key in made.objects:
            return made.objects[key]
        entry = snapshot.entry(manifest_path(key))
        if entry is None:
            return ()
        known = self._manifests.get(key)
        if known is None or known[0] != entry.id:
            known = self._manifests[key] = entry.id, existing(snapshot, key)
        return known[1]

    def _forget(self, work: Work) -> None:
        """Forget clusters that are gone: they would stay in memory."""
        live = {facts.key for facts in work.facts}
        self._packager.forget(live)
        for remembered in (self._manifests, self._coming):
            for key in remembered.keys() - live:
                del remembered[key]


def applied(facts: ClusterFacts, objects: Sequence[Obj]) -> ClusterFacts:
    """Return the facts of a Cluster to which objects are applied: what they say wins, what they leave open stays.

    Control plane and HarvesterCluster of a ClusterClass follow from the live one: only its patches know them.
    """
    found = next((one for one in facts_of(objects) if one.key == facts.key), None)
    if found is None:
        return facts
    cluster = _applied(facts, found)
    if at(found.cluster, "spec", "topology"):
        return replace(facts, cluster=cluster)
    return replace(
        facts,
        cluster=cluster,
        harvester_cluster=_spec_applied(facts.harvester_cluster, found.harvester_cluster),
        control_plane=_spec_applied(facts.control_plane, found.control_plane),
    )


def _applied(live: ClusterFacts, manifest: ClusterFacts) -> Obj:
    notes = dict(annotations_of_cluster(live))
    # The settings of the manifest are all of them: what it dropped goes with the next apply.
    notes.pop(names.ADDON_VALUES_ANNOTATION, None)
    metadata = {
        **live.cluster["metadata"],
        "labels": {**labels_of_cluster(live), **labels_of_cluster(manifest)},
        "annotations": {**notes, **annotations_of_cluster(manifest)},
    }
    return {**live.cluster, "metadata": metadata, "spec": merged(_spec(live.cluster), _spec(manifest.cluster))}


def _spec_applied(live: Obj | None, manifest: Obj | None) -> Obj | None:
    return {**live, "spec": merged(_spec(live), _spec(manifest))} if live and manifest else live


def _spec(obj: Obj) -> Obj:
    # A file may hold anything.
    found = obj.get("spec")
    return found if isinstance(found, dict) else {}


def _same(one: ClusterFacts, other: ClusterFacts) -> bool:
    """Whether facts are made of the very same objects; caches replace an object when it changes."""
    return (
        one.cluster is other.cluster
        and one.harvester_cluster is other.harvester_cluster
        and one.control_plane is other.control_plane
        and one.fleet_clusters == other.fleet_clusters
    )
