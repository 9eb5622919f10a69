"""A live cluster as it will be once its manifest has been applied.

Its bundles can be rendered without waiting for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caphv.api import names
from caphv.api.object import Obj, at
from packager.addons.cluster_objects import facts_of
from packager.addons.facts import ClusterFacts, annotations_of_cluster, labels_of_cluster
from packager.addons.merge import merge


def apply_manifest(facts: ClusterFacts, objects: Sequence[Obj]) -> ClusterFacts:
    """Return the facts of a Cluster after objects are applied to it.

    Their fields win, and all other fields stay. Control plane and HarvesterCluster of a
    ClusterClass are taken from the live cluster, because only the core knows the effect of patches.
    """
    manifest = next((other for other in facts_of(objects) if other.key == facts.key), None)
    if manifest is None:
        return facts
    cluster = _apply_cluster(facts, manifest)
    if at(manifest.cluster, "spec", "topology"):
        return replace(facts, cluster=cluster)
    return replace(
        facts,
        cluster=cluster,
        harvester_cluster=_apply_spec(facts.harvester_cluster, manifest.harvester_cluster),
        control_plane=_apply_spec(facts.control_plane, manifest.control_plane),
    )


def _apply_cluster(live: ClusterFacts, manifest: ClusterFacts) -> Obj:
    annotations = dict(annotations_of_cluster(live))
    # The manifest holds all settings, so settings that it lacks are removed when it is applied.
    annotations.pop(names.ADDON_VALUES_ANNOTATION, None)
    metadata = {
        **live.cluster["metadata"],
        "labels": {**labels_of_cluster(live), **labels_of_cluster(manifest)},
        "annotations": {**annotations, **annotations_of_cluster(manifest)},
    }
    spec = merge(_spec(live.cluster), _spec(manifest.cluster))
    return {**live.cluster, "metadata": metadata, "spec": spec}


def _apply_spec(live: Obj | None, manifest: Obj | None) -> Obj | None:
    if not live or not manifest:
        return live
    return {**live, "spec": merge(_spec(live), _spec(manifest))}


def _spec(obj: Obj) -> Obj:
    # A file may hold anything.
    spec = obj.get("spec")
    return spec if isinstance(spec, dict) else {}
