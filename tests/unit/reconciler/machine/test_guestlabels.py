"""Labels by which Harvester finds the VMs of a guest cluster."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.guestpools import announces_network, pool_of_guest
from caphv.api.object import Key, Obj
from caphv.runtime.store import Store
from reconciler.harvester.watchedcollections import collections_of
from reconciler.machine import labelling
from reconciler.machine.guestlabels import first_network, guest_cluster_name, name_taken
from reconciler.machine.vm import virtual_machine
from tests.support.reconciler.machines import inputs

pytestmark = pytest.mark.unit

CREATOR, NAME = "harvesterhci.io/creator", "guestcluster.harvesterhci.io/name"
NETWORK = "target/vlan"
EVERYWHERE = {"namespace": "*", "project": "*", "guestCluster": "*"}


def labels(**changes: Any) -> tuple[Obj, Obj]:
    """Labels of a VM and of its template."""
    vm = virtual_machine(replace(inputs(), **changes))
    return vm["metadata"]["labels"], vm["spec"]["template"]["metadata"]["labels"]


def pool(network: str = "", *scope: dict[str, str]) -> Obj:
    return {"spec": {"selector": {"network": network, "scope": list(scope)}}}


def named(name: str, obj: Obj) -> Obj:
    return {"metadata": {"name": name}, **obj}


def holder(cluster: str) -> Obj:
    return {"metadata": {"labels": {NAME: "prod", **({"caphv.io/cluster": cluster} if cluster else {})}}}


class TestLabels:
    def test_vm_and_template_name_the_cluster_as_its_cloud_provider_does(self) -> None:
        vm, template = labels()
        assert {CREATOR: "docker-machine-driver-harvester", NAME: "prod"}.items() <= vm.items()
        assert template == vm

    def test_template_hides_the_guest_from_pools_without_a_network(self) -> None:
        vm, template = labels(announces_network=False)
        assert vm[NAME] == "prod"
        assert NAME not in template
        assert template[CREATOR] == "harvester"

    def test_taken_name_is_left_out(self) -> None:
        vm, template = labels(guest_name_taken=True)
        assert vm[CREATOR] == template[CREATOR] == "docker-machine-driver-harvester"
        assert NAME not in vm.keys() | template.keys()

    def test_name_that_cannot_be_a_label_gets_a_hash(self) -> None:
        assert guest_cluster_name(Key("ns", "prod")) == "prod"
        assert len(guest_cluster_name(Key("ns", "a" * 80))) <= 63


class TestName:
    """Two clusters of one target namespace cannot share a name."""

    @pytest.mark.parametrize(
        ("holders", "taken"),
        [([], False), (["ns.prod"], False), (["elsewhere.prod"], True), ([""], True), (["ns.prod", "zz.prod"], False)],
    )
    def test_first_cluster_keeps_it(self, holders: list[str], taken: bool) -> None:
        assert name_taken(map(holder, holders), Key("ns", "prod")) is taken

    def test_of_two_that_have_it_one_gives_it_up(self) -> None:
        vms = [holder("a.prod"), holder("b.prod")]
        assert [name_taken(vms, Key(namespace, "prod")) for namespace in ("a", "b")] == [False, True]

    @given(st.lists(st.sampled_from(["ns.prod", "a.prod", "z.prod", "", "unlabelled"]), max_size=5))
    def test_index_of_the_cache_tells_the_same_as_all_vms(self, clusters: list[str]) -> None:
        collection = collections_of("vms", "")[0]
        store = Store(collection.options["indexes"])
        for number, cluster in enumerate(clusters):
            vm = holder(cluster) if cluster != "unlabelled" else {"metadata": {}}
            store.put(Key("vms", f"vm-{number}"), vm)
        namespace = SimpleNamespace(vms=SimpleNamespace(store=store))
        scope: Any = SimpleNamespace(cluster_key=Key("ns", "prod"), namespace=lambda: namespace)
        vms = [holder(cluster) for cluster in clusters if cluster != "unlabelled"]
        assert labelling.name_taken(scope) is name_taken(vms, Key("ns", "prod"))


class TestNetwork:
    """Harvester compares the network of a guest with that of pools, and no network equals no network."""

    @pytest.mark.parametrize(
        ("pools", "announced"),
        [
            ([], True),
            ([pool(NETWORK, EVERYWHERE)], True),
            ([pool("", EVERYWHERE)], False),
            ([pool("", EVERYWHERE), pool(NETWORK, {"namespace": "target", "guestCluster": "prod"})], True),
            ([pool("", EVERYWHERE), pool(NETWORK, {"namespace": "other"})], False),
            ([pool("", {"namespace": "target", "guestCluster": "prod"})], False),
            ([pool("", {"namespace": "target", "guestCluster": "other"})], True),
            ([pool("", {"namespace": "target", "guestCluster": ""}), pool("target/other", EVERYWHERE)], False),
            ([pool("")], True),
            ([{"spec": {}}], True),
        ],
    )
    def test_pools_decide(self, pools: list[Obj], announced: bool) -> None:
        assert announces_network(pools, NETWORK, "target", "prod") is announced

    def test_pool_of_the_guest_is_found(self) -> None:
        pools = [named("any", pool("", EVERYWHERE)), named("vlan", pool(NETWORK, EVERYWHERE))]
        assert pool_of_guest(pools, NETWORK, "target", "prod") == "vlan"
        assert pool_of_guest(pools[:1], NETWORK, "target", "prod") == "any"
        assert pool_of_guest([named("other", pool("target/other", EVERYWHERE))], NETWORK, "target", "prod") == ""

    def test_first_network_is_that_of_the_vm(self) -> None:
        assert first_network(virtual_machine(inputs())) == "default/production"
        assert first_network({"spec": {"template": {"spec": {"networks": [{"name": "a", "pod": {}}]}}}}) == ""
