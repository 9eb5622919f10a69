"""What a cluster no longer defines is deleted if nothing runs on it, and stays in its manifest otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from packager.definitions.dropped import dropped_objects, empty_pools, staying_pools
from packager.definitions.files import cluster_files
from packager.definitions.protection import is_protected, protect
from tests.support.packager.definitions import built, definition, one

pytestmark = pytest.mark.unit

POOL: Obj = {"name": "workers", "replicas": 2, "cpu": 8, "memory": "16Gi"}
GPU: Obj = {**POOL, "name": "gpu", "cpu": 16}


def pools(*workers: Obj) -> list[Obj]:
    return [*built(definition("a", individualObjects=True, workers=[*workers])).objects]


def names(objects: list[Obj]) -> list[tuple[str, str]]:
    return [(obj["kind"], obj["metadata"]["name"]) for obj in objects]


def bare(objects: list[Obj]) -> set[str]:
    return {obj["kind"] for obj in protect(objects) if not is_protected(obj)}


def test_objects_on_which_nothing_runs_are_not_protected() -> None:
    assert bare(pools(POOL)) == {"MachineHealthCheck"}
    # It may have been scaled up in the cluster.
    assert bare(pools({**POOL, "replicas": 0})) == {"MachineHealthCheck"}
    sets = [*built(definition("a", addonDelivery="ClusterResourceSet")).objects]
    assert bare(sets) == {"MachineHealthCheck", "ClusterResourceSet", "ConfigMap"}
    assert [obj["kind"] for obj in protect(sets) if is_protected(obj)] == ["Cluster"]


def changed(obj: Obj, **spec: Any) -> Obj:
    return {**obj, "spec": {**obj["spec"], **spec}}


def test_objects_of_others_are_protected() -> None:
    found = built(definition("a", addonDelivery="ClusterResourceSet"))
    of_another = changed(one(found, "MachineHealthCheck"), clusterName="b")
    sets = [
        changed(obj, clusterSelector={"matchLabels": {"team": "a"}})
        for obj in found.objects
        if obj["kind"] == "ClusterResourceSet"
    ]
    contents = [obj for obj in found.objects if obj["kind"] == "ConfigMap"]
    assert bare([one(found, "Cluster"), of_another, *sets, *contents]) == set()


def test_a_pool_with_machines_stays_with_its_templates_until_it_is_empty() -> None:
    before, after = protect(pools(POOL, GPU)), pools(POOL)
    kept = staying_pools(before, after, "team-a")
    template = next(name for kind, name in names(before) if kind == "HarvesterMachineTemplate" and "-gpu-" in name)
    assert sorted(names(kept)) == [
        ("HarvesterMachineTemplate", template),
        ("MachineDeployment", "a-gpu"),
        ("RKE2ConfigTemplate", "a-gpu"),
    ]
    # The next sync finds them in the manifest.
    assert staying_pools([*after, *kept], after, "team-a") == kept
    assert staying_pools([*after, *kept], pools(POOL, GPU), "team-a") == []
    assert empty_pools(before, after, "team-a") == []
    empty = protect(pools(POOL, {**GPU, "replicas": 0}))
    assert staying_pools(empty, after, "team-a") == []
    leaving = empty_pools(empty, after, "team-a")
    assert sorted(names(leaving)) == sorted(names(kept))
    manifest = yaml.safe_load_all(cluster_files(after, "team-a", leaving[-1:])["cluster/cluster.yaml"])
    assert names([obj for obj in manifest if not is_protected(obj)])[1:] == [("MachineDeployment", "a-gpu")]
    limits = {"cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0"}
    scaled = [{**obj, "metadata": {**obj["metadata"], "annotations": limits}} for obj in empty]
    assert (empty_pools(scaled, after, "team-a"), sorted(names(staying_pools(scaled, after, "team-a")))) == (
        [],
        sorted(names(leaving)),
    )
    # A namespace that is not written is that of the cluster.
    unnamed = [{**obj, "metadata": {**obj["metadata"], "namespace": ""}} for obj in after]
    assert dropped_objects(unnamed, after, "team-a") == []
