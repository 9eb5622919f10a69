"""Pools of clusters without a topology in the forms of each provider, and which clusters a change concerns."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from caphv.api.objectid import id_of
from operations.capacity.machinechanges import PoolEffect, effect_of
from operations.capacity.machinepools import CONTROL_PLANE, DesiredState, Objects, Pool, clusters_of, desired_state

pytestmark = pytest.mark.unit

CORE, KUBEADM = "cluster.x-k8s.io/v1beta2", "controlplane.cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta1"
KEY = Key("team", "shop")


def made(version: str, kind: str, name: str, spec: Obj | None = None, namespace: str = "team", **metadata: Any) -> Obj:
    found: Obj = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace, **metadata}}
    return found if spec is None else {**found, "spec": spec}


def ref(obj: Obj, **more: str) -> Obj:
    """Return a reference as v1beta2 has it; v1beta1 has `apiVersion` and `namespace`."""
    return {
        "apiGroup": obj["apiVersion"].partition("/")[0],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
    } | more


def old_ref(obj: Obj) -> Obj:
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], **obj["metadata"]}


def template(name: str, namespace: str = "team", **spec: Any) -> Obj:
    return made(INFRASTRUCTURE, "HarvesterMachineTemplate", name, {"template": {"spec": spec}}, namespace)


LARGE, SMALL = template("large", cpu=8), template("small", cpu=2)


def objects_of(*objs: Obj) -> Objects:
    return {id_of(obj): obj for obj in objs}


def wanted(control_plane: Obj | None, *others: Obj) -> DesiredState:
    """Return what a cluster with this control plane wants."""
    infrastructure = made(INFRASTRUCTURE, "HarvesterCluster", "shop-x", {"targetNamespace": "vms"})
    spec = {"infrastructureRef": ref(infrastructure)}
    if control_plane:
        spec["controlPlaneRef"] = ref(control_plane)
    objs = [made(CORE, "Cluster", "shop", spec), infrastructure, LARGE, SMALL, *others]
    return desired_state(KEY, objects_of(*objs, *([control_plane] if control_plane else [])))


def control_plane_of(spec: Obj) -> Pool:
    return wanted(made(KUBEADM, "KubeadmControlPlane", "shop-cp", spec)).pools[CONTROL_PLANE]


@pytest.mark.parametrize(
    "place",
    [
        {"machineTemplate": {"spec": {"infrastructureRef": ref(LARGE)}}},
        {"machineTemplate": {"infrastructureRef": old_ref(LARGE)}},
        {"machineTemplate": {"spec": None, "infrastructureRef": ref(LARGE)}},
        {"infrastructureRef": old_ref(LARGE)},
        {"infrastructureTemplate": old_ref(LARGE)},
        {"machineTemplate": {"spec": {"infrastructureRef": ref(LARGE)}, "infrastructureRef": ref(SMALL)}},
    ],
    ids=["v1beta2", "v1beta1", "v1beta1 with an empty spec", "RKE2 v1beta1", "K3s", "newest counts"],
)
def test_template_of_a_control_plane_is_where_its_provider_has_it(place: Obj) -> None:
    pool = control_plane_of({"replicas": 3, "version": "v1.36.2", **place})
    assert (pool.machine, pool.inputs["machine template"], pool.replicas) == ({"cpu": 8}, "large", 3)


def test_control_plane_without_a_template_or_number_has_one_machine() -> None:
    pool = control_plane_of({})
    assert (pool.replicas, pool.machine, pool.inputs["machine template"]) == (1, {}, None)
    assert control_plane_of({"replicas": 0}).replicas == 0
    assert wanted(None).pools == {}
    assert wanted(made(KUBEADM, "KubeadmControlPlane", "shop-cp")).pools[CONTROL_PLANE].replicas == 1


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"version": "v1.36.3"}, 3),
        ({"kubeadmConfigSpec": {"files": [1]}}, 3),
        ({"infrastructureRef": ref(SMALL)}, 3),
        ({"rollout": {"strategy": {"type": "RollingUpdate"}}}, 0),
        ({"remediation": {"maxRetry": 2}}, 0),
        ({"registrationMethod": "address"}, 0),
    ],
)
def test_machines_of_a_control_plane_are_replaced_for_what_they_are_made_of(change: Obj, replaced: int) -> None:
    spec = {"replicas": 3, "version": "v1.36.2", "infrastructureRef": ref(LARGE)}
    before, after = (
        wanted(made(KUBEADM, "KubeadmControlPlane", "shop-cp", each)) for each in (spec, {**spec, **change})
    )
    assert sum(pool.replaced for pool in effect_of(KEY, before, after).pools) == replaced


@pytest.mark.parametrize(
    ("strategy", "surge"),
    [
        ({}, 1),
        ({"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 2}}}}, 2),
        ({"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0}}}}, 0),
        ({"rolloutStrategy": {"rollingUpdate": {"maxSurge": "50%"}}}, 2),
        ({"strategy": {"rollingUpdate": {"maxSurge": 3}}}, 3),
        ({"rollout": {"strategy": {"type": "OnDelete", "rollingUpdate": {"maxSurge": 3}}}}, 0),
    ],
)
def test_surge_is_that_of_the_strategy_wherever_a_version_has_it(strategy: Obj, surge: int) -> None:
    assert control_plane_of({"replicas": 4, **strategy}).surge == surge


# MachineDeployments


def deployment(name: str, spec: Obj, **metadata: Any) -> Obj:
    return made(CORE, "MachineDeployment", name, spec, **metadata)


def machine_spec(**spec: Any) -> Obj:
    config = ref(made("bootstrap.cluster.x-k8s.io/v1beta2", "RKE2ConfigTemplate", "first"))
    return {"version": "v1.36.2", "infrastructureRef": ref(SMALL), "bootstrap": {"configRef": config}} | spec


def of_cluster(**machine: Any) -> Obj:
    return {"clusterName": "shop", "replicas": 2, "template": {"spec": machine_spec(**machine)}}


def test_deployment_is_a_pool_by_its_name_or_that_of_its_topology() -> None:
    labels = {"topology.cluster.x-k8s.io/deployment-name": "md-0"}
    found = wanted(
        None,
        deployment("plain", of_cluster()),
        deployment("shop-md-0-x7k2p", of_cluster(), labels=labels),
        deployment("labelled", {"replicas": 1}, labels={"cluster.x-k8s.io/cluster-name": "shop"}),
        deployment("other", {**of_cluster(), "clusterName": "other"}),
        deployment("elsewhere", of_cluster(), namespace="another"),
        made(CORE, "MachineSet", "set", of_cluster()),
    )
    assert {name: pool.replicas for name, pool in found.pools.items()} == {"plain": 2, "md-0": 2, "labelled": 1}
    assert found.pools["plain"].machine == {"cpu": 2}
    assert found.pools["labelled"].machine == {}
    assert found.infrastructure == {"targetNamespace": "vms"}


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"version": "v1.36.3"}, "version"),
        ({"infrastructureRef": ref(LARGE)}, "machine template"),
        ({"bootstrap": {"configRef": {"name": "second"}}}, "bootstrap"),
        ({"bootstrap": {"dataSecretName": "second"}}, "bootstrap"),
        ({"failureDomain": "north"}, "failureDomain"),
        ({"nodeDrainTimeout": "1m"}, None),
    ],
)
def test_machines_of_a_deployment_are_replaced_for_what_they_are_made_of(machine: Obj, reason: str | None) -> None:
    before, after = (wanted(None, deployment("md", of_cluster(**each))) for each in ({}, machine))
    pools = effect_of(KEY, before, after).pools
    assert [field.path for pool in pools for field in pool.reasons] == ([reason] if reason else [])
    assert [pool.replaced for pool in pools] == ([2] if reason else [])


def test_template_of_another_namespace_is_found_by_an_old_reference() -> None:
    far = template("far", "shared", cpu=16)
    found = wanted(None, deployment("md", of_cluster(infrastructureRef=old_ref(far))), far)
    assert found.pools["md"].machine == {"cpu": 16}
    # Without a namespace, it is in that of the object.
    found = wanted(None, deployment("md", of_cluster(infrastructureRef=ref(far))), far)
    assert found.pools["md"].machine == {}


@pytest.mark.parametrize("reference", [None, "text", {}, {"name": ""}, {"kind": "HarvesterMachineTemplate"}])
def test_reference_that_names_nothing_leads_nowhere(reference: Any) -> None:
    found = wanted(None, deployment("md", {"clusterName": "shop", "template": {"spec": {"version": "v1"}}}))
    assert found.pools["md"].machine == {}
    cluster = made(CORE, "Cluster", "shop", {"controlPlaneRef": reference, "infrastructureRef": reference})
    assert desired_state(KEY, objects_of(cluster)) == DesiredState()


def test_cluster_without_a_spec_or_that_does_not_exist_wants_nothing() -> None:
    assert desired_state(KEY, objects_of(made(CORE, "Cluster", "shop"))) == DesiredState()
    assert desired_state(KEY, objects_of(made(CORE, "Cluster", "other", {}))) == DesiredState()


def test_class_that_cannot_be_read_makes_a_plan_unknown() -> None:
    topology = {"classRef": {"name": "gone"}, "version": "v1.36.2"}
    found = desired_state(KEY, objects_of(made(CORE, "Cluster", "shop", {"topology": topology})))
    assert found.pools == {}
    assert len(found.unknown) == 1
    effect = effect_of(KEY, DesiredState(pools={"md": Pool("md", 2)}), found)
    assert (effect.pools, effect.infrastructure, effect.unknown) == ((), (), found.unknown)
    assert not effect.changes


# Effects


def effects(before: Pool, after: Pool | None, outdated: int = 0) -> PoolEffect | None:
    pools = {} if after is None else {after.name: after}
    found = effect_of(
        KEY, DesiredState(pools={before.name: before}), DesiredState(pools=pools), {before.name: outdated}
    ).pools
    return found[0] if found else None


def test_pool_that_is_taken_out_is_deleted() -> None:
    effect = effects(Pool("md", 3), None)
    assert effect is not None
    assert (effect.before, effect.after, effect.created, effect.deleted) == (3, 0, 0, 3)


def test_scaled_and_changed_pool_replaces_those_that_stay() -> None:
    effect = effects(Pool("md", 3, inputs={"version": "a"}), Pool("md", 5, surge=2, inputs={"version": "b"}))
    assert effect is not None
    assert (effect.replaced, effect.surge, effect.created, effect.deleted) == (3, 2, 5, 3)
    fewer = effects(Pool("md", 3, inputs={"version": "a"}), Pool("md", 1, inputs={"version": "b"}))
    assert fewer is not None
    assert (fewer.replaced, fewer.created, fewer.deleted) == (1, 1, 3)


def test_only_machines_that_exist_can_be_outdated() -> None:
    effect = effects(Pool("md", 3), Pool("md", 2), outdated=5)
    assert effect is not None
    assert effect.replaced == 2
    assert effects(Pool("md", 3), Pool("md", 3)) is None


@pytest.mark.parametrize(("replicas", "surge"), [(1, 1), (2, 1), (3, 0)])
def test_small_control_plane_gets_a_further_member_first(replicas: int, surge: int) -> None:
    """Whatever its strategy says: without a majority, etcd would be lost."""
    before = Pool(CONTROL_PLANE, replicas, surge=0, inputs={"version": "a"})
    effect = effects(before, Pool(CONTROL_PLANE, replicas, surge=0, inputs={"version": "b"}))
    assert effect is not None
    assert effect.surge == surge
    workers = effects(Pool("md", 1, surge=0, inputs={"version": "a"}), Pool("md", 1, surge=0, inputs={"version": "b"}))
    assert workers is not None
    assert workers.surge == 0


# Clusters that a change concerns


def test_change_concerns_the_clusters_that_own_name_or_use_the_object() -> None:
    cluster = made(CORE, "Cluster", "shop", {"topology": {"classRef": {"name": "c", "namespace": "classes"}}})
    other = made(CORE, "Cluster", "other", {"topology": {"classRef": {"name": "d"}}})
    owner = {"apiVersion": CORE, "kind": "Cluster", "name": "shop", "uid": "u"}
    changed = {
        "the Cluster": cluster,
        "its class": made(CORE, "ClusterClass", "c", {}, "classes"),
        "by clusterName": deployment("md", of_cluster()),
        "by its label": template("t", cpu=1) | {"metadata": {"name": "t", "namespace": "team", "labels": {}}},
        "by its owner": made(INFRASTRUCTURE, "HarvesterCluster", "x", {}, ownerReferences=[owner]),
    }
    changed["by its label"]["metadata"]["labels"] = {"cluster.x-k8s.io/cluster-name": "shop"}
    for how, obj in changed.items():
        found = objects_of(other, cluster, obj)
        assert list(clusters_of(objects_of(obj), found)) == [KEY], how


def test_change_of_other_namespaces_concerns_no_namesake() -> None:
    cluster = made(CORE, "Cluster", "shop", {})
    far = deployment("md", of_cluster(), namespace="another")
    assert list(clusters_of(objects_of(far), objects_of(cluster, far))) == []


def test_clusters_come_by_namespace_and_name() -> None:
    clusters = [made(CORE, "Cluster", name, {}, space) for space, name in (("b", "x"), ("a", "z"), ("a", "y"))]
    changed = objects_of(*clusters)
    assert list(clusters_of(changed, changed)) == [Key("a", "y"), Key("a", "z"), Key("b", "x")]
