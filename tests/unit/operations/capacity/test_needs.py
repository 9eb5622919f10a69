"""What a plan needs on Harvester, compared with what is free there: the quotas and pools that matter, and no others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from operations.capacity.free import CapacityObjects
from operations.capacity.hosts import Size
from operations.capacity.machinechanges import Needs, effect_of
from operations.capacity.machinepools import DesiredState, Pool
from operations.capacity.needs import Need, needs_and_free
from operations.read.objects import HarvesterObjects
from tests.support.ippools import pool

pytestmark = pytest.mark.unit

GIB = 1024**3
SIZE = Size(Decimal(2), Decimal(4 * GIB))
NEEDS = Needs(vms=1, cpu=SIZE.cpu, memory=SIZE.memory, storage=Decimal(40 * GIB), addresses=1, sizes=(SIZE,))
CLUSTER: Obj = {"metadata": {"name": "shop-x", "namespace": "team"}, "spec": {"targetNamespace": "vms"}}


def quota(namespace: str, hard: dict[str, str], used: dict[str, str] | None = None) -> Obj:
    return {"metadata": {"name": "q", "namespace": namespace}, "spec": {"hard": hard}, "status": {"used": used or {}}}


def harvester(*quotas: Obj, **objects: Any) -> CapacityObjects:
    return CapacityObjects(HarvesterObjects("https://harvester", **objects), list(quotas), all_vms=True)


def compared(needs: Needs, found: CapacityObjects | None, cluster: Obj = CLUSTER) -> dict[str, Need]:
    return {need.what: need for need in needs_and_free(needs, cluster, found)}


def test_nothing_is_needed_without_another_vm() -> None:
    assert needs_and_free(Needs(), CLUSTER, harvester()) == ()


def test_quotas_of_the_target_namespace_count_and_those_of_machines_only() -> None:
    hard = {"limits.cpu": "10", "limits.memory": "8Gi", "requests.storage": "30Gi", "pods": "1", "count/secrets": "1"}
    found = compared(NEEDS, harvester(quota("vms", hard, {"limits.memory": "6Gi"}), quota("other", {"cpu": "1"})))
    quotas = {name.split()[-1]: need for name, need in found.items() if name.startswith("quota")}
    assert {name: (need.needed, need.free, need.unit) for name, need in quotas.items()} == {
        "limits.cpu": (2.0, 10.0, ""),
        "limits.memory": (4.0 * GIB, 2.0 * GIB, "B"),
        "requests.storage": (40.0 * GIB, 30.0 * GIB, "B"),
    }
    assert [name for name, need in quotas.items() if need.short] == ["limits.memory", "requests.storage"]
    assert all(name.startswith("quota vms/q ") for name in found if name.startswith("quota"))


@pytest.mark.parametrize("cluster", [{}, {"spec": None}, {"spec": {}}, {"spec": {"targetNamespace": None}}])
def test_a_cluster_without_a_target_namespace_has_no_quota(cluster: Obj) -> None:
    found = compared(NEEDS, harvester(quota("None", {"cpu": "1"}), quota("vms", {"cpu": "1"})), cluster)
    assert not any(name.startswith("quota") for name in found)
    assert found["addresses"].free is None


def test_addresses_are_those_of_all_pools_of_the_cluster() -> None:
    full = pool("full", allocated={f"10.0.0.{number}": "team/a" for number in range(10, 15)})
    broken = pool("broken")
    broken["spec"]["ranges"] = [{"subnet": "nonsense"}]
    pools = [pool("a"), pool("b"), full, broken, pool("others")]

    def addresses(*names: str, **network: Any) -> tuple[float | None, str]:
        spec = {"targetNamespace": "vms", "vmNetworkConfig": {"ipPoolRefs": list(names), **network}}
        need = compared(NEEDS, harvester(pools=pools), {**CLUSTER, "spec": spec})["addresses"]
        return need.free, need.note

    assert addresses("a", "b") == (10.0, "IPPool a, b")
    assert addresses("a", "full") == (5.0, "IPPool a, full")
    assert addresses("full") == (0.0, "IPPool full")
    assert addresses("broken") == (0.0, "IPPool broken"), "no address can be allocated from it"
    assert addresses("gone") == (None, "IPPool gone")
    assert addresses() == (None, "")
    free, note = addresses(ipPool={"subnet": "10.0.0.0/24"})
    assert (free, note.startswith("IPPool ")) == (None, True)


def test_without_an_answer_of_harvester_nothing_is_known_and_nothing_short() -> None:
    found = compared(NEEDS, None)
    assert set(found) == {"CPU", "memory", "storage", "addresses"}
    assert all(need.free is None and not need.short for need in found.values())
    hostless = compared(NEEDS, harvester())
    assert (hostless["CPU"].free, hostless["memory"].free) == (None, None)


# What a change needs while it is under way


def machines(number: int, *, cpu: int = 2, memory: int = 4, disk: int = 40, surge: int = 1, name: str = "md") -> Pool:
    machine = {"cpu": cpu, "memory": f"{memory}Gi", "volumes": [{"volumeSize": f"{disk}Gi"}]}
    return Pool(name, number, surge=surge, inputs={"machine": machine}, machine=machine)


def needed(before: Pool, after: Pool, infrastructure: Obj | None = None, outdated: int = 0) -> Needs:
    wanted = DesiredState({after.name: after}, infrastructure or {})
    return effect_of(Key("team", "shop"), DesiredState({before.name: before}), wanted, {after.name: outdated}).needs


def test_larger_machines_need_what_all_of_them_have_more() -> None:
    needs = needed(machines(3), machines(3, cpu=4, memory=8, disk=60))
    assert (needs.vms, needs.cpu) == (1, 4 * 4 - 3 * 2)
    assert needs.memory == (4 * 8 - 3 * 4) * GIB
    assert needs.storage == (4 * 60 - 3 * 40) * GIB


def test_smaller_machines_need_their_surge_until_the_former_are_deleted() -> None:
    needs = needed(machines(3, cpu=8, memory=16, disk=100), machines(3))
    assert (needs.vms, needs.cpu, needs.memory, needs.storage) == (1, 2, 4 * GIB, 40 * GIB)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(1, 200), st.integers(1, 200))
def test_a_change_never_needs_less_than_the_machines_that_exist_in_addition(
    before: int, after: int, surge: int, old: int, new: int
) -> None:
    needs = needed(machines(before, disk=old), machines(after, disk=new, surge=surge))
    replaced = bool(min(before, after)) and old != new
    more = max(0, after - before) + (surge if replaced else 0)
    assert needs.vms == len(needs.sizes) == more
    if before != after or replaced:
        assert needs.storage >= more * new * GIB
        assert needs.storage >= ((after + surge * replaced) * new - before * old) * GIB
    else:
        assert needs.storage == 0


POOLED = {"network": "n", "addressesFromPools": [{"name": "a"}]}
JUMBO = {"network": "n", "mtu": 9000}


@pytest.mark.parametrize(
    ("infrastructure", "machine", "addresses"),
    [
        ({}, {}, 0),
        ({"vmNetworkConfig": {"ipPoolRefs": ["a"]}}, {}, 2),
        ({"vmNetworkConfig": {"ipPoolRefs": ["a"]}}, {"networkConfig": {"address": "10.0.0.1"}}, 0),
        ({"vmNetworkConfig": {"ipPoolRefs": ["a"]}}, {"networks": ["n"], "networkInterfaces": [POOLED]}, 0),
        ({"vmNetworkConfig": {"ipPoolRefs": ["a"]}}, {"networks": ["n"], "networkInterfaces": [JUMBO]}, 2),
    ],
)
def test_addresses_are_needed_where_machines_take_them_from_pools(
    infrastructure: Obj, machine: Obj, addresses: int
) -> None:
    after = machines(4)
    after = replace(after, surge=0, machine={**after.machine, **machine})
    assert needed(machines(2), after, infrastructure).addresses == addresses


@pytest.mark.parametrize(("outdated", "vms"), [(0, 0), (1, 1), (9, 1)])
def test_machines_that_a_rollout_still_replaces_need_its_surge(outdated: int, vms: int) -> None:
    assert needed(machines(3), machines(3), outdated=outdated).vms == vms


@pytest.mark.parametrize(("replicas", "surge"), [(1, 1), (2, 1), (3, 0)])
def test_a_small_control_plane_never_loses_a_member_first(replicas: int, surge: int) -> None:
    name = "control plane"
    assert needed(machines(replicas, name=name), machines(replicas, cpu=4, surge=0, name=name)).vms == surge


@pytest.mark.parametrize(("vms", "short"), [(2, {}), (3, {"VMs that fit on a host": (3, 2)})])
def test_vms_that_fit_on_no_host_are_counted(vms: int, short: dict[str, tuple[int, int]]) -> None:
    host = {
        "metadata": {"name": "h"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    needs = Needs(
        vms=vms, cpu=SIZE.cpu * vms, memory=SIZE.memory * vms, storage=Decimal(0), addresses=0, sizes=(SIZE,) * vms
    )
    found = compared(needs, harvester(hosts=[host]))
    assert {name: (need.needed, need.free) for name, need in found.items() if name.startswith("VMs")} == short
    assert {"CPU", "memory"} <= found.keys()


@pytest.mark.parametrize(("all_vms", "note"), [(True, ""), (False, "the account does not see VMs of other namespaces")])
def test_devices_of_hosts_that_take_vms_count_unless_a_vm_uses_them(all_vms: bool, note: str) -> None:
    ready = [{"type": "Ready", "status": "True"}]

    def host(name: str, devices: str, **spec: Any) -> Obj:
        status = {"allocatable": {"cpu": "8", "memory": "32Gi", "n.com/a": devices}, "conditions": ready}
        return {"metadata": {"name": name}, "spec": spec, "status": status}

    used = {
        "spec": {"domain": {"devices": {"hostDevices": [{"deviceName": "n.com/a"}]}}},
        "status": {"nodeName": "one"},
    }
    hosts = [host("one", "2"), host("two", "1"), host("closed", "4", unschedulable=True)]
    found = harvester(hosts=hosts, instances=[used])
    found.all_vms = all_vms
    need = compared(replace(NEEDS, devices={"n.com/a": 3}), found)["device n.com/a"]
    assert (need.needed, need.free, need.short, need.note) == (3, 2.0, True, note)
    assert compared(replace(NEEDS, devices={"n.com/a": 3}), None)["device n.com/a"].free is None
    assert not any(name.startswith("device") for name in compared(NEEDS, found))


def test_remainders_of_hosts_are_not_free_for_machines_with_several_devices() -> None:
    ready = [{"type": "Ready", "status": "True"}]

    def host(name: str, devices: str) -> Obj:
        status = {"allocatable": {"cpu": "8", "memory": "32Gi", "n.com/a": devices}, "conditions": ready}
        return {"metadata": {"name": name}, "spec": {}, "status": status}

    found = harvester(hosts=[host("one", "1"), host("two", "3")], instances=[])
    needs = replace(NEEDS, devices={"n.com/a": 4}, smallest={"n.com/a": 2})
    assert compared(needs, found)["device n.com/a"].free == 2


def test_huge_pages_are_a_need_in_bytes() -> None:
    need = compared(replace(NEEDS, devices={"hugepages-1Gi": 4 * 1024**3}), None)["device hugepages-1Gi"]
    assert (need.unit, need.needed) == ("B", 4 * 1024**3)
