"""Addresses of several management clusters in one pool, and what holds of all allocations."""

import copy
import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.ippool import allocated, held, holds, mark
from caphv.api.object import Obj
from reconciler.harvester.addressplan import (
    AddressRequest,
    Grant,
    RefusalReason,
    ReleaseEntry,
    plan_allocations,
    plan_releases,
)
from reconciler.harvester.poolpatch import mark_patch
from tests.support.ippools import merge, pool

pytestmark = pytest.mark.unit

ADDRESSES = [f"10.0.0.{n}" for n in range(10, 15)]
MARK = "addresses.caphv.io/"


def asks(name: str, cluster: str, *, address: str = "", adopt: bool = True) -> AddressRequest:
    return AddressRequest(f"ns/{name}", ("p",), address, cluster, adopt)


class TestManagementClusters:
    """Two of them may have machines of one namespace and name."""

    def test_entry_and_mark_are_one_patch(self) -> None:
        plan = plan_allocations({"p": pool()}, [asks("a", "one")])
        assert plan.patches["p"]["metadata"] == {"resourceVersion": "7", "annotations": {f"{MARK}10.0.0.10": "one"}}
        made = merge(pool(), plan.patches["p"])
        assert mark(made, "10.0.0.10") == "one"
        assert held(made, "ns/a", "one") == {"10.0.0.10": True}
        assert held(made, "ns/a", "two") == {}
        assert [holds(made, "10.0.0.10", "ns/a", name) for name in ("one", "two")] == [True, False]
        assert not holds(made, "10.0.0.10", "ns/b", "one")
        assert not holds(made, "10.0.0.11", "ns/a", "one")

    def test_machines_of_one_name_never_share_an_address(self) -> None:
        first = merge(pool(), plan_allocations({"p": pool()}, [asks("a", "one")]).patches["p"])
        plan = plan_allocations({"p": first}, [asks("a", "two")])
        assert plan.grants["ns/a"] == Grant("p", "10.0.0.11")
        both = merge(first, plan.patches["p"])
        for cluster, address in (("one", "10.0.0.10"), ("two", "10.0.0.11")):
            assert plan_allocations({"p": both}, [asks("a", cluster)]).grants["ns/a"] == Grant(
                "p", address, adopted=True
            )

    def test_address_in_use_by_another_is_no_excuse(self) -> None:
        first = merge(pool(), plan_allocations({"p": pool()}, [asks("a", "one")]).patches["p"])
        refusal = plan_allocations({"p": first}, [asks("a", "two", address="10.0.0.10")]).refusals["ns/a"]
        assert refusal.reason is RefusalReason.TAKEN
        assert "management cluster one" in refusal.message

    def test_entry_without_a_mark_is_adopted_unless_it_is_contested(self) -> None:
        state = pool(allocated={"10.0.0.12": "ns/a"})
        assert plan_allocations({"p": state}, [asks("a", "one")]).grants["ns/a"] == Grant(
            "p", "10.0.0.12", adopted=True
        )
        other = plan_allocations({"p": state}, [asks("a", "one", adopt=False)]).grants["ns/a"]
        assert other == Grant("p", "10.0.0.10")
        known = plan_allocations({"p": state}, [asks("a", "one", address="10.0.0.12", adopt=False)]).grants["ns/a"]
        assert known == Grant("p", "10.0.0.12", adopted=True)

    def test_release_is_of_its_own_entry_only_and_takes_the_mark_away(self) -> None:
        made = merge(pool(), plan_allocations({"p": pool()}, [asks("a", "one")]).patches["p"])
        assert plan_releases(made, [ReleaseEntry("10.0.0.10", "ns/a", "two")]).patch is None
        release = plan_releases(made, [ReleaseEntry("10.0.0.10", "ns/a", "one")])
        assert release.released == ("10.0.0.10",)
        assert mark(merge(made, release.patch or {}), "10.0.0.10") == ""

    def test_entry_can_pass_to_another_management_cluster(self) -> None:
        made = merge(pool(), plan_allocations({"p": pool()}, [asks("a", "one")]).patches["p"])
        moved = merge(made, mark_patch(made, "10.0.0.10", "two"))
        assert held(moved, "ns/a", "two") == {"10.0.0.10": True}
        assert moved["status"] == made["status"]

    def test_stale_mark_does_not_outlive_a_new_entry(self) -> None:
        state = pool()
        state["metadata"]["annotations"] = {f"{MARK}10.0.0.10": "one"}
        made = merge(state, plan_allocations({"p": state}, [asks("lb", "")]).patches["p"])
        assert made["status"]["allocated"] == {"10.0.0.10": "ns/lb"}
        assert mark(made, "10.0.0.10") == ""

    @pytest.mark.parametrize("address", ["10.0.0.10", "fd00::a", "::1"])
    def test_name_of_a_mark_is_one_that_kubernetes_accepts(self, address: str) -> None:
        (name,) = mark_patch(pool(), address, "one")["metadata"]["annotations"]
        assert re.fullmatch(r"[a-z0-9]([-._a-z0-9]{0,61}[a-z0-9])?", name.removeprefix(MARK))


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), st.sampled_from(["a", "b"])), max_size=8))
def test_no_two_machines_of_any_management_clusters_share_an_address(machines: list[tuple[str, str]]) -> None:
    state = pool()
    found: dict[tuple[str, str], str] = {}
    for cluster, name in machines:
        plan = plan_allocations({"p": state}, [asks(name, cluster)])
        state = merge(state, plan.patches.get("p", {}))
        if grant := plan.grants.get(f"ns/{name}"):
            assert found.setdefault((cluster, name), grant.address) == grant.address
    assert len(set(found.values())) == len(found)


IDS = st.sampled_from([f"ns/m{n}" for n in range(8)])
states = st.builds(
    lambda allocated, history: pool(allocated=allocated, history=history),
    st.dictionaries(st.sampled_from(ADDRESSES), IDS, max_size=5).map(
        lambda entries: {address: identity for identity, address in {i: a for a, i in entries.items()}.items()}
    ),
    st.dictionaries(st.sampled_from(ADDRESSES), IDS, max_size=5),
)
requests = st.lists(st.builds(lambda identity: AddressRequest(identity, ("p",)), IDS), max_size=8)
exclusions = st.sets(st.sampled_from(ADDRESSES))


@given(states, requests, exclusions)
def test_no_address_has_two_holders_and_the_sum_is_kept(state: Obj, wanted: Any, excluded: set[str]) -> None:
    before = copy.deepcopy(state)
    plan = plan_allocations({"p": state}, wanted, excluded.__contains__)
    assert state == before
    assert {r.id for r in wanted} == set(plan.grants) | set(plan.refusals)
    addresses = [grant.address for grant in plan.grants.values()]
    assert len(set(addresses)) == len(addresses)
    after = merge(state, plan.patches.get("p", {}))
    assert before["status"]["allocated"].items() <= after["status"]["allocated"].items()
    assert after["status"]["available"] + len(after["status"]["allocated"]) == 5
    for identity, grant in plan.grants.items():
        assert allocated(after)[grant.address] == identity
        assert grant.adopted or grant.address not in excluded
        assert ipaddress.ip_address(grant.address) in ipaddress.ip_network("10.0.0.0/24")
    refused = any(refusal.reason is RefusalReason.EXHAUSTED for refusal in plan.refusals.values())
    assert not refused or set(ADDRESSES) <= after["status"]["allocated"].keys() | excluded


@given(states, requests)
def test_allocating_again_adopts_and_writes_nothing(state: Obj, wanted: Any) -> None:
    first = plan_allocations({"p": state}, wanted)
    second = plan_allocations({"p": merge(state, first.patches.get("p", {}))}, wanted)
    assert second.patches == {}
    assert {i: g.address for i, g in second.grants.items()} == {i: g.address for i, g in first.grants.items()}


@given(states, requests)
def test_release_undoes_allocation_and_the_same_address_comes_back(state: Obj, wanted: Any) -> None:
    plan = plan_allocations({"p": state}, wanted)
    new = {identity: grant.address for identity, grant in plan.grants.items() if not grant.adopted}
    allocated = merge(state, plan.patches.get("p", {}))
    release = plan_releases(allocated, [ReleaseEntry(address, identity, "") for identity, address in new.items()])
    released = merge(allocated, release.patch or {})
    assert released["status"]["allocated"] == state["status"]["allocated"]
    assert released["status"]["available"] == state["status"]["available"]
    assert not release.foreign
    assert not release.absent
    if len(new) == 1:
        ((identity, address),) = new.items()
        assert plan_allocations({"p": released}, [AddressRequest(identity, ("p",))]).grants[identity].address in {
            address,
            *(a for a, i in state["status"].get("allocatedHistory", {}).items() if i == identity),
        }
