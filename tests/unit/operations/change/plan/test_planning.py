"""From manifests and what a management cluster has to a plan: what is compared, and what Harvester is asked."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable
from operations.capacity.free import CapacityObjects
from operations.capacity.machinechanges import Action, Field
from operations.capacity.needs import Need
from operations.capacity.surroundings import Surroundings
from operations.change.plan import harvester as plan_harvester
from operations.change.plan.model import ClusterPlan, ObjectPlan, Plan, Shortcoming
from operations.change.plan.planning import plan_of_cluster, plan_of_manifests
from operations.read.accounts import Account
from operations.read.management import NoClusterApiError
from operations.read.objects import HarvesterObjects, Unseen
from tests.support.clusterclasses import objects as class_objects
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

CORE = "cluster.x-k8s.io/v1beta2"
CONTROL_PLANE = "controlplane.cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta1"
SERVED = [
    *((CORE, kind) for kind in ("Cluster", "ClusterClass", "Machine", "MachineDeployment")),
    (CONTROL_PLANE, "RKE2ControlPlane"),
    *((INFRASTRUCTURE, f"Harvester{kind}") for kind in ("Cluster", "Machine", "MachineTemplate")),
]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LABEL, TOPOLOGY = "cluster.x-k8s.io/cluster-name", "topology.cluster.x-k8s.io/deployment-name"


def topology_cluster(workers: int = 2, **variables: Any) -> Obj:
    values = {
        "targetNamespace": "vms",
        "image": "default/sles-15",
        "sshKeyPair": "default/key",
        "vmNetworks": ["default/production"],
        "ipPoolRef": "machines",
        **variables,
    }
    pools = [{"class": "default-worker", "name": name, "replicas": workers} for name in ("md-0", "md-1")]
    topology = {
        "classRef": {"name": "harvester-rke2", "namespace": "classes"},
        "version": "v1.36.2+rke2r1",
        "controlPlane": {"replicas": 1},
        "workers": {"machineDeployments": pools},
        "variables": [{"name": name, "value": value} for name, value in values.items()],
    }
    return {"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "shop", "namespace": "team"}} | {
        "spec": {"topology": topology}
    }


def labelled(version: str, kind: str, name: str, labels: dict[str, str], **fields: Any) -> Obj:
    metadata = {"name": name, "namespace": "team", "labels": {LABEL: "shop", **labels}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def live(*, up_to_date: int = 2, workers: int = 2, **variables: Any) -> list[Obj]:
    """Cluster `team/shop` as it runs, with the HarvesterCluster, deployments and machines that the core made of it."""
    cluster = topology_cluster(**variables)
    cluster["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(topology_cluster())}
    cluster["spec"]["infrastructureRef"] = {
        "apiGroup": INFRASTRUCTURE.partition("/")[0],
        "kind": "HarvesterCluster",
        "name": "shop-x",
    }
    owned: Obj = {"identitySecret": {"namespace": "team", "name": "identity"}, "targetNamespace": "vms"}
    owned["controlPlaneEndpoint"] = {"host": "10.0.0.9", "port": 6443}
    objs = [cluster, labelled(INFRASTRUCTURE, "HarvesterCluster", "shop-x", {}, spec=owned)]
    for name in ("md-0", "md-1"):
        status = {"replicas": workers, "upToDateReplicas": up_to_date, "availableReplicas": workers}
        spec = {"clusterName": "shop", "replicas": workers}
        deployment = f"shop-{name}-x"
        labels = {TOPOLOGY: name}
        objs.append(labelled(CORE, "MachineDeployment", deployment, labels, spec=spec, status=status))
        of = {"cluster.x-k8s.io/deployment-name": deployment}
        objs += [labelled(CORE, "Machine", f"{deployment}-{number}", of, spec={}) for number in range(workers)]
    return [*objs, labelled(CORE, "Machine", "shop-cp-0", {"cluster.x-k8s.io/control-plane": ""}, spec={})]


def classes() -> list[Obj]:
    objs = copy.deepcopy(class_objects("harvester-rke2"))
    for obj in objs:
        obj["metadata"]["namespace"] = "classes"
    return objs


def server(*objs: Obj) -> MemoryServer:
    return MemoryServer(*(objs or live()), *classes(), served=SERVED)


async def planned(found: MemoryServer, *manifests: Obj, harvester: bool = False) -> Plan:
    plan = await plan_of_manifests(cast("ApiClient", found), manifests, "team", with_harvester=harvester)
    assert found.requests == [], "a plan changes nothing"
    return plan


def machines(plan: Plan) -> dict[str, tuple[int, int, int]]:
    """Before, after and replaced, by pool."""
    (cluster,) = plan.clusters
    return {pool.pool: (pool.before, pool.after, pool.replaced) for pool in cluster.pools}


def actions(plan: Plan) -> dict[str, Action]:
    return {each.object: each.action for each in plan.objects}


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
    assert plan.refused


async def test_plan_of_another_server_says_so() -> None:
    with pytest.raises(NoClusterApiError):
        await planned(MemoryServer(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    with pytest.raises(NoClusterApiError):
        await plan_of_cluster(cast("ApiClient", MemoryServer()), Key("team", "shop"))


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


# What Harvester has


def existing(**changed: Any) -> HarvesterObjects:
    """A Harvester with all that the cluster names."""

    def named(name: str) -> Obj:
        return {"metadata": {"name": name, "namespace": "default"}}

    pools = [{"metadata": {"name": "machines"}, "spec": {"ranges": [{"subnet": "172.16.0.0/16"}]}}]
    objects = {"images": [named("sles-15")], "key_pairs": [named("key")], "networks": [named("production")]}
    return HarvesterObjects(**{"server": "https://harvester", **objects, "pools": pools, **changed})


class Harvester:
    """What a Harvester answers, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Obj] = []
        self.accounts: list[Any] = []
        self.hidden: list[Unseen] = []
        self.given: list[Obj] = []
        self.answer: CapacityObjects | ApiError | Unreachable = CapacityObjects(existing())
        self.client = MemoryServer()
        access: Any = type("Access", (), {"server": "https://harvester", "client": lambda *_, **__: self.client})()
        self.accounts.append(Account(Key("team", "identity"), access, frozenset({"vms"})))
        monkeypatch.setattr(plan_harvester, "read_accounts", self._accounts)
        monkeypatch.setattr(plan_harvester, "read_surroundings", self._surroundings)

    async def _accounts(
        self, _client: object, harvester_clusters: list[Obj], given: dict[Key, Obj]
    ) -> tuple[list[Any], list[Unseen]]:
        self.asked += harvester_clusters
        self.given += given.values()
        return self.accounts, self.hidden

    async def _surroundings(self, _harvester: object, namespaces: frozenset[str]) -> Surroundings:
        assert namespaces == {"vms"}
        if isinstance(self.answer, CapacityObjects):
            return Surroundings(self.answer, ["vms"], ["longhorn"])
        raise self.answer


async def test_harvester_of_a_cluster_is_asked_with_its_identity_and_its_coming_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harvester = Harvester(monkeypatch)
    plan = await planned(server(), topology_cluster(workers=4, targetNamespace="others"), harvester=True)
    (asked,) = harvester.asked
    assert asked["metadata"]["name"] == "shop-x"
    assert asked["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.9", "port": 6443}, "what only the live one has"
    assert asked["spec"]["targetNamespace"] == "others", "what the class makes wins over what is there"
    needs = {need.what: need.needed for need in plan.clusters[0].needs}
    assert needs["CPU"] > 0
    assert needs["addresses"] == 4 + len([pool for pool in plan.clusters[0].pools if pool.surge])
    assert plan.clusters[0].services.startswith("Services get addresses")
    assert harvester.client.closed
    assert plan.unseen == ()


async def test_failure_domain_of_a_pool_wins_over_that_of_its_class() -> None:
    found = server()
    placed = topology_cluster()
    placed["spec"]["topology"]["workers"]["machineDeployments"][0]["failureDomain"] = "north"
    (pool,) = (await planned(found, placed)).clusters[0].pools
    assert (pool.pool, [str(field) for field in pool.reasons]) == ("md-0", ["failureDomain: (none) → north"])


async def test_new_cluster_asks_with_what_its_class_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester(monkeypatch)
    other = {**topology_cluster(), "metadata": {"name": "other", "namespace": "team"}}
    await planned(server(), other, harvester=True)
    (asked,) = harvester.asked
    assert asked["metadata"]["namespace"] == "team"
    assert asked["spec"]["targetNamespace"] == "vms"


@pytest.mark.parametrize("workers", [1, 2], ids=["only deleted", "nothing"])
async def test_harvester_is_not_asked_when_no_vm_is_created(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester(monkeypatch)
    await planned(server(), topology_cluster(workers=workers), harvester=True)
    assert harvester.asked == []


async def test_harvester_is_not_asked_without_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester(monkeypatch)
    plan = await planned(server(), topology_cluster(workers=4), harvester=False)
    assert harvester.asked == []
    assert plan.clusters[0].needs
    assert all(need.free is None and not need.short for need in plan.clusters[0].needs)


async def test_harvester_that_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester(monkeypatch)
    harvester.answer = Unreachable("no answer")
    plan = await planned(server(), topology_cluster(workers=4), harvester=True)
    assert ["no answer" in text for text in plan.unseen] == [True]
    assert harvester.client.closed
    assert all(need.free is None for need in plan.clusters[0].needs)
    harvester.accounts, harvester.hidden = [], [Unseen("Secret team/identity", "not found")]
    plan = await planned(server(), topology_cluster(workers=4), harvester=True)
    assert ["team/identity" in text for text in plan.unseen] == [True]


async def test_what_harvester_lacks_is_reported_once_with_the_variable_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harvester = Harvester(monkeypatch)
    ranges = [{"subnet": "172.16.0.0/17"}]
    pools = [{"metadata": {"name": "machines"}, "spec": {"ranges": ranges}}]
    harvester.answer = CapacityObjects(existing(images=[], key_pairs=[], pools=pools))
    addresses = {"gateway": "172.16.0.1", "subnetMask": "255.255.0.0"}
    other = {**topology_cluster(**addresses), "metadata": {"name": "other", "namespace": "team"}}

    plan = await planned(server(), other, harvester=True)

    found = {each.check: each for each in plan.clusters[0].shortcomings}
    assert set(found) == {"images", "key-pairs", "pool-subnet"}
    assert found["images"].message.startswith("VM image does not exist")
    assert found["images"].where == "variable image of the topology"
    assert set(found["images"].fields) == {
        f"{pool}: volumes[0].imageName" for pool in ("control plane", "md-0", "md-1")
    }
    assert found["pool-subnet"].fields == ("HarvesterCluster: vmNetworkConfig.subnetMask",)
    assert found["pool-subnet"].where == "variable subnetMask of the topology"
    assert plan.short


async def test_new_version_needs_its_image_or_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "default/sles-1.36.2-rke2r1", "url": "https://i.example.com/a", "checksum": "a" * 128}
    for namespace, images, missing in (
        ("default/", [], ["default/sles-1.36.2-rke2r1"]),
        ("default/", [entry], []),
        # Without a namespace, it is in that of the VMs.
        ("", [entry], ["sles-1.36.2-rke2r1"]),
        ("", [{**entry, "name": "vms/sles-1.36.2-rke2r1"}], []),
    ):
        lookup = {"imageLookup": {"format": namespace + "{{.BaseOS}}-{{.K8sVersion}}", "baseOS": "sles"}}
        Harvester(monkeypatch)
        given = {"images": images} if images else {}
        cluster = {**topology_cluster(**lookup, **given), "metadata": {"name": "other", "namespace": "team"}}
        plan = await planned(server(), cluster, harvester=True)
        assert [found.value for found in plan.clusters[0].shortcomings if found.check == "images"] == missing


async def test_what_the_account_does_not_see_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester(monkeypatch)
    host = {
        "metadata": {"name": "host"},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    hidden = [Unseen(what, "forbidden", forbidden=True) for what in ("VMs of other namespaces", "quotas")]
    hidden.insert(1, Unseen("pools", "no answer"))
    harvester.answer = CapacityObjects(existing(hosts=[host], unseen=hidden))

    plan = await planned(server(), topology_cluster(workers=4), harvester=True)

    assert plan.unseen == (
        "VMs of other namespaces, quotas on Harvester https://harvester: the account may not list them",
        "pools on Harvester https://harvester: no answer",
    )
    cpu = next(need for need in plan.clusters[0].needs if need.what == "CPU")
    assert (cpu.partial, cpu.short) == (True, False)
    assert not plan.short


async def test_identity_of_the_manifests_is_used_before_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester(monkeypatch)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hv-identity-secret", "namespace": "team"}}
    other = {**topology_cluster(), "metadata": {"name": "other", "namespace": "team"}}
    await planned(server(), {**secret, "stringData": {"kubeconfig": "text"}}, other, harvester=True)
    assert [obj["metadata"]["name"] for obj in harvester.given] == ["hv-identity-secret"]


FIELD = Field("spec.targetNamespace", "a", "b")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(), (False, False, False)),
        (Plan(unseen=("quotas",)), (False, False, False)),
        (Plan((ObjectPlan("Cluster team/a", Action.CHANGE),)), (True, False, False)),
        (Plan((ObjectPlan("Cluster team/a", Action.REFUSED),)), (True, True, False)),
        (Plan(clusters=(ClusterPlan("team/a"),)), (False, False, False)),
        (Plan(clusters=(ClusterPlan("team/a", infrastructure=(FIELD,)),)), (True, False, False)),
        (Plan(clusters=(ClusterPlan("team/a"), ClusterPlan("team/b", unknown=("x",)))), (True, False, False)),
        (
            Plan(clusters=(ClusterPlan("team/a", shortcomings=(Shortcoming("images", "a", "", ()),)),)),
            (False, False, True),
        ),
        (
            Plan(clusters=(ClusterPlan("team/a", shortcomings=(Shortcoming("images", "a", "", (), advice=True),)),)),
            (False, False, False),
        ),
        (
            Plan(clusters=(ClusterPlan("team/a"), ClusterPlan("team/b", needs=(Need("CPU", "", 9, 1),)))),
            (False, False, True),
        ),
        (Plan(clusters=(ClusterPlan("team/a", needs=(Need("CPU", "", 1, 1),)),)), (False, False, False)),
    ],
)
def test_a_plan_says_whether_anything_happens_and_whether_it_can(plan: Plan, expected: tuple[bool, bool, bool]) -> None:
    assert (plan.changes, plan.refused, plan.short) == expected
