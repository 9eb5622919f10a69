"""From manifests and what a management cluster has to a plan."""

from __future__ import annotations

import json
from typing import cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Invalid, NotFound
from operations.capacity.machinechanges import Action
from operations.change.plan.model import Plan
from operations.change.plan.planning import plan_of_cluster
from operations.read.management import NoClusterApiError
from tests.support.memoryserver import MemoryServer
from tests.support.planning import (
    INFRASTRUCTURE,
    LAST_APPLIED,
    SERVED,
    TOPOLOGY,
    actions,
    classes,
    labelled,
    live,
    machines,
    planned,
    server,
    topology_cluster,
)

pytestmark = pytest.mark.unit


async def test_what_is_applied_already_changes_nothing() -> None:
    plan = await planned(server(), topology_cluster())
    assert (plan.objects, plan.clusters, plan.changes) == ((), (), False)


async def test_other_number_of_workers_creates_and_deletes_machines() -> None:
    more = await planned(server(), topology_cluster(workers=4))
    assert machines(more) == {"md-0": (2, 4, 0), "md-1": (2, 4, 0)}
    assert actions(more) == {"Cluster team/shop": Action.CHANGE}
    assert (more.clusters[0].vms_created, more.clusters[0].vms_deleted) == (4, 0)
    fewer = await planned(server(), topology_cluster(workers=1))
    assert (fewer.clusters[0].vms_created, fewer.clusters[0].vms_deleted) == (0, 2)


async def test_machines_that_exist_count_and_not_those_that_were_wanted() -> None:
    """The core may not have come so far: what is created is the difference to what is there."""
    plan = await planned(server(*live(workers=1)), topology_cluster(workers=4))
    assert machines(plan) == {"md-0": (1, 4, 0), "md-1": (1, 4, 0)}


async def test_machines_of_equal_names_in_two_namespaces_are_reported_apart() -> None:
    others, manifest = live(), topology_cluster(workers=4)
    for obj in [*others, manifest]:
        obj["metadata"]["namespace"] = "other"
        if TOPOLOGY in obj["metadata"].get("labels", {}):
            obj["metadata"]["labels"][TOPOLOGY] = "renamed"
    plan = await planned(server(*others, *live()), topology_cluster(workers=4), manifest)
    team = next(cluster for cluster in plan.clusters if cluster.cluster == "team/shop")
    assert {pool.pool: (pool.before, pool.after) for pool in team.pools} == {"md-0": (2, 4), "md-1": (2, 4)}


async def test_change_of_machines_replaces_them_and_a_rollout_under_way_counts() -> None:
    assert machines(await planned(server(), topology_cluster(cpuCount=8))) == {
        "control plane": (1, 1, 1),
        "md-0": (2, 2, 2),
        "md-1": (2, 2, 2),
    }
    plan = await planned(server(*live(up_to_date=1)), topology_cluster())
    assert machines(plan) == {"md-0": (2, 2, 1), "md-1": (2, 2, 1)}


@pytest.mark.parametrize(
    ("labels", "seen", "error", "updated"),
    [
        ({"team": "a"}, 2, "", 2),
        ({"team": "b"}, 2, "", 0),
        ({"team": "a"}, 1, "", 0),
        ({"team": "a"}, 2, "get Namespace", 0),
        ({"team": "a"}, 2, "list ExtensionConfig", 0),
    ],
)
async def test_machines_are_updated_in_place_where_the_extension_does_it(
    labels: dict[str, str], seen: int, error: str, updated: int
) -> None:
    rollout = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}

    def with_rollout(cluster: Obj) -> Obj:
        for entry in cluster["spec"]["topology"]["workers"]["machineDeployments"]:
            entry["rollout"] = rollout
        return cluster

    world = live()
    before = with_rollout(topology_cluster(cpuCount=2, cpuMax=8))
    world[0]["spec"]["topology"] = before["spec"]["topology"]
    world[0]["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(before)}
    able = [{"type": kind, "status": "True"} for kind in ("VMUpToDate", "VMCanGrow")]
    for obj in [obj for obj in world if obj["kind"] == "Machine"]:
        name = obj["metadata"]["name"]
        obj["spec"]["infrastructureRef"] = {"kind": "HarvesterMachine", "name": f"vm-{name}"}
        if not name.endswith("-1") or seen == 2:
            world.append(labelled(INFRASTRUCTURE, "HarvesterMachine", f"vm-{name}", {}, status={"conditions": able}))

    hook = {"requestHook": {"hook": "CanUpdateMachineSet"}, "name": "caphv-canupdatemachineset.caphv"}
    config = {
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
        "kind": "ExtensionConfig",
        "metadata": {"name": "caphv"},
        "spec": {"namespaceSelector": {"matchLabels": {"team": "a"}}},
        "status": {"conditions": [{"type": "Discovered", "status": "True"}], "handlers": [hook]},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}}
    found = server(*world, namespace, config)
    if error:
        found.errors[error] = Forbidden(403, "Forbidden", "may not")

    plan = await planned(found, with_rollout(topology_cluster(cpuCount=4, cpuMax=8)))

    pools = {pool.pool: (pool.updated, pool.replaced) for pool in plan.clusters[0].pools}
    assert pools == {"control plane": (0, 1), "md-0": (updated, 2 - updated), "md-1": (updated, 2 - updated)}
    assert any("as without updates in place" in text for text in plan.unseen) is error.startswith("list")


async def test_new_cluster_creates_all_its_machines() -> None:
    other = topology_cluster()
    other["metadata"] = {"name": "other"}  # in the namespace of the command
    plan = await planned(server(), other)
    assert actions(plan) == {"Cluster team/other": Action.CREATE}
    assert plan.clusters[0].cluster == "team/other"
    assert machines(plan) == {"control plane": (0, 1, 0), "md-0": (0, 2, 0), "md-1": (0, 2, 0)}
    assert plan.clusters[0].vms_created == 5


async def test_class_that_changes_concerns_its_clusters_in_other_namespaces() -> None:
    template = next(obj for obj in classes() if obj["kind"] == "HarvesterMachineTemplate")
    template["spec"]["template"]["spec"]["guestAgent"] = "another"  # which no variable sets
    plan = await planned(server(), template)
    assert [each.cluster for each in plan.clusters] == ["team/shop"]
    assert plan.clusters[0].vms_created > 0
    assert [change.action for change in plan.objects] == [Action.CHANGE]


async def test_changed_class_itself_concerns_its_clusters_in_other_namespaces() -> None:
    (changed,) = [obj for obj in classes() if obj["kind"] == "ClusterClass"]
    changed["metadata"]["labels"] = {"reviewed": "yes"}
    patches = changed["spec"]["patches"]
    changed["spec"]["patches"] = patches[:1]
    plan = await planned(server(), changed)
    assert [each.cluster for each in plan.clusters] == ["team/shop"]


async def test_class_and_namespace_of_the_same_manifests_count_as_there() -> None:
    """In a dry run they do not exist, and the API server refuses what needs them."""
    created = topology_cluster()
    created["metadata"]["namespace"] = "new"
    created["spec"]["topology"]["classRef"]["namespace"] = "new"
    objs = classes()
    for obj in objs:
        obj["metadata"]["namespace"] = "new"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}
    found = server()
    # Dry runs of namespaced objects meet the missing namespace.
    for kind in {obj["kind"] for obj in (created, *objs)}:
        found.errors[f"dry-run create {kind}"] = NotFound(404, "NotFound", 'namespaces "new" not found')
    plan = await planned(found, created, *objs, namespace)
    assert set(actions(plan).values()) == {Action.CREATE}
    assert machines(plan) == {"control plane": (0, 1, 0), "md-0": (0, 2, 0), "md-1": (0, 2, 0)}
    # A class that is created along: the webhook of the core knows it from the dry run no more than the namespace.
    kinds = [(obj["apiVersion"], obj["kind"]) for obj in classes()]
    found = MemoryServer(*live()[1:], served=[*SERVED, *kinds])
    found.errors["dry-run create Cluster"] = Invalid(422, "Invalid", "no such ClusterClass")
    plan = await planned(found, topology_cluster(), *classes())
    assert actions(plan)["Cluster team/shop"] is Action.CREATE
    assert not plan.refused
    plan = await planned(found, topology_cluster())
    assert actions(plan) == {"Cluster team/shop": Action.REFUSED}


async def test_what_the_server_refuses_or_does_not_serve_is_named() -> None:
    found = server()
    found.errors["dry-run patch Cluster"] = Invalid(422, "Invalid", "spec.topology is immutable")
    unserved = {"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "a"}}
    plan = await planned(found, topology_cluster(workers=4), unserved)
    assert actions(plan) == {"Cluster team/shop": Action.REFUSED, "Thing team/a": Action.REFUSED}
    assert all(each.error for each in plan.objects)
    assert plan.refused
    assert plan.clusters == ()
    found.errors = {"dry-run create Cluster": NotFound(404, "NotFound", 'namespaces "gone" not found')}
    plan = await planned(found, {**topology_cluster(), "metadata": {"name": "x", "namespace": "gone"}})
    assert [change.error for change in plan.objects] == [
        'namespaces "gone" not found: create it first, or add it to the manifests'
    ]


async def test_plan_of_another_server_says_so() -> None:
    with pytest.raises(NoClusterApiError):
        await planned(MemoryServer(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    with pytest.raises(NoClusterApiError):
        await plan_of_cluster(cast("ApiClient", MemoryServer()), Key("team", "shop"), with_harvester=True)


async def test_values_of_secrets_are_not_shown() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "team"}}
    found = server(*live(), {**secret, "data": {"token": "b2xk"}})
    (change,) = (await planned(found, {**secret, "data": {"token": "bmV3"}})).objects
    assert (change.action, change.fields) == (Action.CHANGE, ())
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", "namespace": "team"}}
    found.put({**settings, "data": {"a": "1"}})
    (change,) = (await planned(found, {**settings, "data": {"a": "2"}})).objects
    assert [(field.path, field.before, field.after) for field in change.fields] == [("data.a", "1", "2")]


async def test_what_may_not_be_read_is_named() -> None:
    found = server()
    found.errors["list HarvesterMachine"] = Forbidden(403, "Forbidden", "cannot list harvestermachines")
    plan = await planned(found, topology_cluster(workers=4))
    assert any("cannot list harvestermachines" in text for text in plan.unseen)
    assert machines(plan) == {"md-0": (2, 4, 0), "md-1": (2, 4, 0)}


# What is still to be done for a cluster


async def rest(*objs: Obj) -> Plan | None:
    return await plan_of_cluster(cast("ApiClient", server(*objs)), Key("team", "shop"), with_harvester=False)


async def test_cluster_that_is_as_it_should_be_has_nothing_to_do() -> None:
    plan = await rest()
    assert plan is not None
    assert (plan.objects, plan.clusters) == ((), ())


async def test_rest_of_a_rollout_and_missing_machines_are_to_be_done() -> None:
    plan = await rest(*live(up_to_date=1))
    assert plan is not None
    assert machines(plan) == {"md-0": (2, 2, 1), "md-1": (2, 2, 1)}
    plan = await rest(*live(workers=1, up_to_date=1))
    assert plan is not None
    assert machines(plan) == {"md-0": (1, 2, 0), "md-1": (1, 2, 0)}


async def test_cluster_that_does_not_exist_has_no_plan() -> None:
    assert await plan_of_cluster(cast("ApiClient", server()), Key("team", "other"), with_harvester=False) is None
