"""A live cluster as it will be once its manifest has been applied, so that its bundles need not wait for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caphv.api import names
from caphv.api.object import Obj
from packager.addons.gather import ClusterFacts, annotations_of_cluster, labels_of_cluster
from packager.addons.merge import at, merged
from packager.cluster_objects import facts_of


def applied(facts: ClusterFacts, objects: Sequence[Obj]) -> ClusterFacts:
    """Return the facts of a Cluster after objects are applied to it: their fields win, all other fields stay.

    Control plane and HarvesterCluster of a ClusterClass are taken from the live cluster: only the core knows what
    patches make of them.
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
    annotations = dict(annotations_of_cluster(live))
    # The manifest holds all settings: those it dropped are removed with the next apply.
    annotations.pop(names.ADDON_VALUES_ANNOTATION, None)
    metadata = {
        **live.cluster["metadata"],
        "labels": {**labels_of_cluster(live), **labels_of_cluster(manifest)},
        "annotations": {**annotations, **annotations_of_cluster(manifest)},
    }
    return {**live.cluster, "metadata": metadata, "spec": merged(_spec(live.cluster), _spec(manifest.cluster))}


def _spec_applied(live: Obj | None, manifest: Obj | None) -> Obj | None:
    return {**live, "spec": merged(_spec(live), _spec(manifest))} if live and manifest else live


def _spec(obj: Obj) -> Obj:
    # A file may hold anything.
    found = obj.get("spec")
    return found if isinstance(found, dict) else {}
