"""What a plan asks Harvester: whether what machines name exists, and has room."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.errors import ApiError, Unreachable
from operations.capacity.free import CapacityObjects
from operations.capacity.machinechanges import Action, Field
from operations.capacity.needs import Need
from operations.capacity.surroundings import Surroundings
from operations.change.plan import harvester as plan_harvester
from operations.change.plan.model import ClusterPlan, ObjectPlan, Plan, Shortcoming
from operations.read.accounts import Account
from operations.read.chartlimits import ChartLimits
from operations.read.objects import HarvesterObjects, Unseen
from tests.support.memoryserver import MemoryServer
from tests.support.planning import (
    planned,
    server,
    topology_cluster,
)

pytestmark = pytest.mark.unit


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
        self.release: tuple[int, int] | None = None
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
            return Surroundings(self.answer, ["vms"], ["longhorn"], chart_limits=ChartLimits(self.release))
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


@pytest.mark.parametrize(("release", "has_effect"), [((1, 8), False), ((1, 9), True), (None, True)])
async def test_annotation_of_services_is_announced_where_it_has_an_effect(
    monkeypatch: pytest.MonkeyPatch, release: tuple[int, int] | None, has_effect: bool
) -> None:
    harvester = Harvester(monkeypatch)
    harvester.release = release
    cluster = topology_cluster(workers=4)
    variables = cluster["spec"]["topology"]["variables"]
    (networks,) = [variable for variable in variables if variable["name"] == "vmNetworks"]
    networks["value"] = ["default/production", "default/storage"]
    plan = await planned(server(), cluster, harvester=True)
    text = plan.clusters[0].services
    assert ("annotation cloudprovider.harvesterhci.io/network" in text, "has no effect" in text) == (
        True,
        not has_effect,
    )


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
            Plan(
                clusters=(
                    ClusterPlan("team/a"),
                    ClusterPlan("team/b", needs=(Need(what="CPU", unit="", needed=9, free=1),)),
                )
            ),
            (False, False, True),
        ),
        (
            Plan(clusters=(ClusterPlan("team/a", needs=(Need(what="CPU", unit="", needed=1, free=1),)),)),
            (False, False, False),
        ),
    ],
)
def test_a_plan_says_whether_anything_happens_and_whether_it_can(plan: Plan, expected: tuple[bool, bool, bool]) -> None:
    assert (plan.changes, plan.refused, plan.short) == expected
