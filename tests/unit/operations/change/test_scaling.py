"""What `caphv scale` changes, and what it says before."""

from __future__ import annotations

import copy

import pytest

from caphv.api.names import DEPLOYMENT_LABEL, POOL_LABEL
from caphv.api.object import Key, Obj
from operations.change.changes import ChangeError, Plan
from operations.change.clusterparts import cluster_and_parts
from operations.change.scaling import (
    Scale,
    growing_devices,
    growth,
    is_scaled,
    numbers,
    plan_scale,
    templates_of_empty_pools,
)
from operations.status.check import Result
from tests.support.clusters import Builder, ago

pytestmark = pytest.mark.unit


def topology(builder: Builder, **pools: int) -> Builder:
    """Give the cluster worker pools in its topology."""
    entries = [{"name": name, "class": "workers", "replicas": number} for name, number in pools.items()]
    builder.cluster["spec"]["topology"] |= {
        "controlPlane": {"replicas": 1, "metadata": {"labels": {"a": "b"}}},
        "workers": {"machineDeployments": entries},
    }
    return builder


def without_topology(builder: Builder) -> Builder:
    del builder.cluster["spec"]["topology"]
    return builder


def plan(builder: Builder, control_plane: int | None = None, **workers: int) -> Plan:
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    return plan_scale(parts, deployments, Scale(control_plane, workers))


def builder_key(builder: Builder) -> Key:
    return Key("team", builder.name)


def results(found: Plan, *checks: str) -> dict[str, Result]:
    return {check.id: check.result for check in found.checks if not checks or check.id in checks}


def test_a_topology_is_changed_at_the_cluster_and_only_there() -> None:
    builder = topology(Builder(), md=2, gpu=1)
    (patch,) = plan(builder, 3, gpu=4).patches
    assert patch.kind == "Cluster"
    assert patch.body["spec"]["topology"]["controlPlane"] == {"replicas": 3}
    # A merge patch replaces a list: the other pool has to stay as it is.
    pools = patch.body["spec"]["topology"]["workers"]["machineDeployments"]
    assert pools == [
        {"name": "md", "class": "workers", "replicas": 2},
        {"name": "gpu", "class": "workers", "replicas": 4},
    ]
    assert [(change.field, change.before, change.after) for change in patch.changes] == [
        ("spec.topology.controlPlane.replicas", "1", "3"),
        ("spec.topology.workers.machineDeployments[gpu].replicas", "1", "4"),
    ]


def test_without_a_topology_control_plane_and_deployment_are_changed() -> None:
    first, second = plan(without_topology(Builder()), 3, **{"shop-md-0": 5}).patches
    assert (first.kind, first.body) == ("RKE2ControlPlane", {"spec": {"replicas": 3}})
    assert (second.kind, second.key.name, second.body) == ("MachineDeployment", "shop-md-0", {"spec": {"replicas": 5}})


def test_a_control_plane_of_machines_alone_cannot_be_scaled() -> None:
    objects = without_topology(Builder()).objects()
    objects.control_planes.clear()
    parts, deployments, _ = cluster_and_parts(objects, Key("team", "shop"))
    with pytest.raises(ChangeError, match="create or delete its Machines instead"):
        plan_scale(parts, deployments, Scale(3))
    (patch,) = plan_scale(parts, deployments, Scale(workers={"shop-md-0": 5})).patches
    assert patch.kind == "MachineDeployment"


def test_a_pool_of_a_topology_has_its_name_there() -> None:
    builder = without_topology(Builder())
    builder.deployment["metadata"]["labels"][POOL_LABEL] = "gpu"
    (patch,) = plan(builder, gpu=5).patches
    assert patch.key.name == "shop-md-0"
    with pytest.raises(ChangeError):
        plan(builder, **{"shop-md-0": 5})


def test_a_patch_holds_while_only_other_fields_change() -> None:
    builder = topology(Builder(), md=2, gpu=1)
    (patch,) = plan(builder, gpu=4).patches
    now = copy.deepcopy(builder.cluster)
    now["status"]["phase"] = "Provisioning"
    now["spec"]["topology"]["version"] = "v1.36.3+rke2r1"
    assert patch.holds(now)
    now["spec"]["topology"]["workers"]["machineDeployments"][0]["replicas"] = 3
    assert not patch.holds(now)


def test_the_same_numbers_change_nothing() -> None:
    assert plan(topology(Builder(), md=2), 1, md=2).patches == ()
    assert plan(without_topology(Builder()), 1, **{"shop-md-0": 2}).patches == ()


def test_only_what_differs_is_in_the_patch() -> None:
    (patch,) = plan(topology(Builder(), md=2), 1, md=3).patches
    assert "controlPlane" not in patch.body["spec"]["topology"]
    (patch,) = plan(topology(Builder(), md=2), 3, md=2).patches
    assert "workers" not in patch.body["spec"]["topology"]
    (patch,) = plan(without_topology(Builder()), 1, **{"shop-md-0": 3}).patches
    assert patch.kind == "MachineDeployment"


def test_a_number_that_was_not_set_has_no_former_value() -> None:
    builder = topology(Builder(), md=2)
    del builder.cluster["spec"]["topology"]["controlPlane"]
    del builder.cluster["spec"]["topology"]["workers"]["machineDeployments"][0]["replicas"]
    found = plan(builder, 3, md=4)
    assert [(change.before, change.after) for change in found.changes] == [("", "3"), ("", "4")]
    assert growth(found) == 7
    assert growth(plan(topology(Builder(), md=4, gpu=1), 3, md=1, gpu=2)) == 3, "a pool that shrinks makes no room"


def test_the_only_pool_needs_no_name() -> None:
    builder = topology(Builder(), md=2)
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    assert growth(plan_scale(parts, deployments, Scale(workers={"": 6}))) == 4


def test_all_unknown_pools_are_named_at_once_with_what_there_is() -> None:
    builder = topology(Builder(), general=2, gpu=1)
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    with pytest.raises(ChangeError) as caught:
        plan_scale(parts, deployments, Scale(workers={"generall": 3, "x": 1, "": 4}))
    assert caught.value.problems == (
        "--workers generall=3: cluster team/shop has no worker pool generall; did you mean general?",
        "--workers x=1: cluster team/shop has no worker pool x; there are general, gpu",
        "cluster team/shop has 2 worker pools: name one, --workers general=4",
    )


@pytest.mark.parametrize(
    ("former", "number", "result", "text"),
    [
        (1, 0, Result.ERROR, "loses its etcd"),
        (1, 1, Result.OK, "survives the loss of 0 of 1"),
        (2, 1, Result.WARNING, "survives no failure"),
        (3, 1, Result.WARNING, "survives no failure"),
        (1, 2, Result.ERROR, "2 control plane machines survive no more failures than 1"),
        (1, 3, Result.OK, "survives the loss of 1 of 3"),
        (3, 4, Result.ERROR, "4 control plane machines survive no more failures than 3"),
        (1, 5, Result.OK, "survives the loss of 2 of 5"),
    ],
)
def test_the_quorum_of_etcd_is_checked(former: int, number: int, result: Result, text: str) -> None:
    found = plan(topology(Builder(control_planes=former), md=2), number)
    (check,) = [check for check in found.checks if check.id == "quorum"]
    assert check.result is result
    assert text in check.message
    if number in (2, 4):
        assert f"Use {number - 1} or {number + 1}" in check.remedy


def test_the_quorum_is_not_checked_when_only_workers_change() -> None:
    assert "quorum" not in results(plan(topology(Builder(), md=2), md=3))


@pytest.mark.parametrize(("number", "expected"), [(0, {"workers": Result.WARNING}), (1, {})])
def test_a_pool_that_will_be_empty_is_warned_of(number: int, expected: dict[str, Result]) -> None:
    assert results(plan(topology(Builder(), md=2), md=number), "workers") == expected


def test_a_cluster_without_pools_says_how_to_get_one() -> None:
    with pytest.raises(ChangeError, match="has no worker pool: add one to its topology"):
        plan(topology(Builder()), md=1)


def test_a_cluster_that_nothing_acts_on_is_not_changed() -> None:
    builder = topology(Builder(), md=2)
    builder.cluster["spec"]["paused"] = True
    builder.cluster["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert {check.id for check in plan(builder, md=3).errors} == {"paused", "deletion"}


@pytest.mark.parametrize(
    ("where", "mark", "tool"),
    [
        ("annotations", "objectset.rio.cattle.io/id", "Fleet"),
        ("labels", "kustomize.toolkit.fluxcd.io/name", "Flux"),
        ("annotations", "argocd.argoproj.io/tracking-id", "Argo CD"),
    ],
)
def test_a_change_that_git_would_revert_is_warned_of(where: str, mark: str, tool: str) -> None:
    builder = topology(Builder(), md=2)
    builder.cluster["metadata"][where] = {mark: "x"}
    (check,) = [check for check in plan(builder, md=3).checks if check.id == "gitops"]
    assert check.message.startswith(f"{tool} applies this cluster from Git")


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"min-size": "1", "max-size": "9"}, "between 1 and 9"),
        ({"min-size": "1"}, "between 1 and None"),
        ({"max-size": "9"}, "between None and 9"),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("in_topology", [True, False])
def test_a_pool_of_the_autoscaler_is_warned_of(bounds: dict[str, str], text: str, in_topology: bool) -> None:
    builder = topology(Builder(), md=2) if in_topology else without_topology(Builder())
    prefix = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-"
    annotations = {f"{prefix}{name}": value for name, value in bounds.items()}
    if in_topology:
        builder.cluster["spec"]["topology"]["workers"]["machineDeployments"][0]["metadata"] = {
            "annotations": annotations
        }
    else:
        builder.deployment["metadata"]["annotations"] = annotations
    found = plan(builder, **{"md" if in_topology else "shop-md-0": 3})
    messages = [check.message for check in found.checks if check.id == "autoscaler"]
    assert [text in message for message in messages] == ([True] if text else [])
    assert results(found, "autoscaler") == ({"autoscaler": Result.WARNING} if text else {})


def test_scaled_means_that_all_machines_work_and_none_is_left_over() -> None:
    builder = topology(Builder(workers=2), md=2)
    builder.deployment["metadata"]["labels"]["topology.cluster.x-k8s.io/deployment-name"] = "md"

    def done(wanted: Scale) -> bool:
        parts, deployments, cluster = cluster_and_parts(builder.objects(), builder_key(builder))
        return is_scaled(parts, deployments, cluster, wanted)

    assert done(Scale(1, {"md": 2}))
    # The Cluster is changed, and its controllers have not seen it yet.
    set_pool(builder.cluster, 3)
    assert not done(Scale(1, {"md": 3}))
    builder.deployment["spec"]["replicas"] = 3
    assert not done(Scale(1, {"md": 3}))
    assert done(Scale(1))


def test_what_is_scaled_has_the_wanted_numbers_although_the_cluster_repeats_them_later() -> None:
    builder = topology(Builder(workers=2), md=2)
    builder.deployment["metadata"]["labels"]["topology.cluster.x-k8s.io/deployment-name"] = "md"
    # The core has seen one worker less until now.
    builder.cluster["status"]["workers"] = {"desiredReplicas": 2, "replicas": 1, "availableReplicas": 1}
    parts, deployments, cluster = cluster_and_parts(builder.objects(), builder_key(builder))
    assert is_scaled(parts, deployments, cluster, Scale(workers={"md": 2}))
    assert str(cluster.workers) == "1/2"
    assert numbers(cluster) == "1/1 control plane, 2/2 workers"


@pytest.mark.parametrize("name", ["", "shop-md-0"])
@pytest.mark.parametrize("up_to_date", [1, 2])
def test_what_is_scaled_is_up_to_date(name: str, up_to_date: int) -> None:
    builder = without_topology(Builder(workers=2))

    def done(wanted: Scale) -> bool:
        return is_scaled(*cluster_and_parts(builder.objects(), builder_key(builder)), wanted)

    builder.deployment["status"]["upToDateReplicas"] = up_to_date
    assert done(Scale(workers={name: 2})) is (up_to_date == 2)
    assert done(Scale(1, {name: 2})) is (up_to_date == 2)
    builder.control_plane["status"]["upToDateReplicas"] = 0
    assert not done(Scale(1, {name: 2}))
    assert done(Scale(workers={name: 2})) is (up_to_date == 2), "the control plane was not scaled"


def set_pool(cluster: Obj, number: int) -> None:
    cluster["spec"]["topology"]["workers"]["machineDeployments"][0]["replicas"] = number


GPUS = {"devices": [{"resourceName": "n.com/a", "count": 2}]}


def with_gpu_pool(builder: Builder) -> Builder:
    """Let the workers be a pool of GPUs, next to a second pool."""
    topology(builder, gpu=2, md=1)
    builder.deployment["metadata"]["labels"][POOL_LABEL] = "gpu"
    reference = {"kind": "HarvesterMachineTemplate", "name": "gpu-template"}
    builder.deployment["spec"]["template"]["spec"]["infrastructureRef"] = reference
    for name, machine in builder.machines.items():
        if "worker" in name:
            machine["metadata"]["labels"][DEPLOYMENT_LABEL] = builder.deployment["metadata"]["name"]
            builder.harvester_machines[name]["spec"] |= GPUS
    return builder


@pytest.mark.parametrize(
    ("scale", "number"),
    [
        (Scale(None, {"gpu": 5}), 3),
        (Scale(None, {"gpu": 1}), 0),
        (Scale(None, {"md": 9}), 0),
        (Scale(3, {}), 0),
        (Scale(3, {"gpu": 3}), 1),
    ],
)
def test_devices_are_those_of_the_pools_that_grow(scale: Scale, number: int) -> None:
    builder = with_gpu_pool(Builder())
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    assert growing_devices(parts, deployments, scale, {}) == [{"n.com/a": 2}] * number
    assert templates_of_empty_pools(parts, deployments, scale) == []


def test_devices_of_a_pool_without_machines_are_those_of_its_template() -> None:
    builder = with_gpu_pool(Builder(workers=0))
    topology(builder, gpu=0)
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    (key,) = templates_of_empty_pools(parts, deployments, Scale(None, {"gpu": 2}))
    assert key == Key("team", "gpu-template")
    template = {"spec": {"template": {"spec": GPUS}}}
    assert growing_devices(parts, deployments, Scale(None, {"gpu": 2}), {key: template}) == [{"n.com/a": 2}] * 2
    assert growing_devices(parts, deployments, Scale(None, {"gpu": 2}), {}) == []


@pytest.mark.parametrize("in_topology", [True, False])
def test_devices_of_a_growing_control_plane_are_those_of_its_machines(in_topology: bool) -> None:
    builder = topology(Builder(), md=1) if in_topology else without_topology(Builder())
    builder.harvester_machines["cp-1"]["spec"] |= GPUS
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    assert growing_devices(parts, deployments, Scale(3), {}) == [{"n.com/a": 2}] * 2
    assert growing_devices(parts, deployments, Scale(1), {}) == []
    # In a topology, its own number counts, which the core hands on later.
    if in_topology:
        parts.cluster["spec"]["topology"]["controlPlane"]["replicas"] = 2
        assert growing_devices(parts, deployments, Scale(3), {}) == [{"n.com/a": 2}]


def test_devices_of_a_template_do_not_count_where_machines_say_otherwise() -> None:
    builder = with_gpu_pool(Builder())
    for name in ("worker-1", "worker-2"):
        del builder.harvester_machines[name]["spec"]["devices"]
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    template = {"spec": {"template": {"spec": GPUS}}}
    assert growing_devices(parts, deployments, Scale(None, {"gpu": 3}), {Key("team", "gpu-template"): template}) == []


def test_a_pool_without_a_template_has_none_to_read() -> None:
    builder = without_topology(Builder(workers=0))
    parts, deployments, _ = cluster_and_parts(builder.objects(), builder_key(builder))
    assert templates_of_empty_pools(parts, deployments, Scale(None, {"": 2})) == []


def test_a_cluster_that_rancher_provisions_is_scaled_there() -> None:
    builder = without_topology(Builder())
    builder.cluster["spec"]["controlPlaneRef"] |= {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane"}
    with pytest.raises(ChangeError, match=r"change quantity of the pool in clusters\.provisioning\.cattle\.io shop"):
        plan(builder, **{"shop-md-0": 4})
