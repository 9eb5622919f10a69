import contextlib
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from caphv.api.object import Obj
from reconciler.harvester.addressplan import (
    AddressRequest,
    Grant,
    RefusalReason,
    ReleaseEntry,
    plan_allocations,
    plan_releases,
)
from reconciler.harvester.addressuse import endpoint_addresses, instance_addresses, machine_addresses
from sandbox.harvester import ippools
from tests.support.ippools import merge, pool

pytestmark = pytest.mark.unit


def request(name: str, *pools: str, address: str = "") -> AddressRequest:
    return AddressRequest(f"ns/{name}", pools or ("p",), address)


class TestAllocation:
    def test_first_free_addresses_in_order(self) -> None:
        plan = plan_allocations({"p": pool(allocated={"10.0.0.11": "ns/x"})}, [request("a"), request("b")])
        assert plan.grants == {"ns/a": Grant("p", "10.0.0.10"), "ns/b": Grant("p", "10.0.0.12")}
        assert plan.patches == {
            "p": {
                "metadata": {"resourceVersion": "7"},
                "status": {
                    "allocated": {"10.0.0.10": "ns/a", "10.0.0.12": "ns/b"},
                    "available": 2,
                    "total": 5,
                    "lastAllocated": "10.0.0.12",
                },
            }
        }

    def test_what_is_held_is_adopted_without_a_write(self) -> None:
        pools = {"p": pool(), "q": pool("q", {"subnet": "10.1.0.0/24"}, allocated={"10.1.0.9": "ns/a"})}
        plan = plan_allocations(pools, [request("a", "p", "q")], in_use={"10.1.0.9"}.__contains__)
        assert plan.grants == {"ns/a": Grant("q", "10.1.0.9", adopted=True)}
        assert plan.patches == {}

    def test_the_address_it_had_before(self) -> None:
        history = {"10.0.0.13": "ns/a", "10.0.0.12": "ns/b"}
        plan = plan_allocations({"p": pool(history=history)}, [request("a")])
        assert plan.grants["ns/a"].address == "10.0.0.13"
        assert plan.patches["p"]["status"]["allocatedHistory"] == {"10.0.0.13": None}

    @pytest.mark.parametrize("taken", ["allocated", "excluded", "outside"])
    def test_another_when_the_address_it_had_is_not_to_be_had(self, taken: str) -> None:
        address = "10.0.0.200" if taken == "outside" else "10.0.0.13"
        allocated = {address: "ns/x"} if taken == "allocated" else {}
        excluded = [address] if taken == "excluded" else []
        plan = plan_allocations(
            {"p": pool(allocated=allocated, history={address: "ns/a"})}, [request("a")], excluded.__contains__
        )
        assert plan.grants["ns/a"].address == "10.0.0.10"

    def test_excluded_addresses_are_skipped(self) -> None:
        plan = plan_allocations({"p": pool()}, [request("a")], in_use=["10.0.0.10", "10.0.0.11"].__contains__)
        assert plan.grants["ns/a"].address == "10.0.0.12"

    def test_never_gateway_network_or_broadcast(self) -> None:
        spec = {"subnet": "10.0.0.0/29", "gateway": "10.0.0.3"}
        plan = plan_allocations({"p": pool("p", spec)}, [request(str(n)) for n in range(9)])
        assert [grant.address for grant in plan.grants.values()] == [f"10.0.0.{n}" for n in (1, 2, 4, 5, 6)]
        assert {refusal.reason for refusal in plan.refusals.values()} == {RefusalReason.EXHAUSTED}

    def test_falls_back_from_pool_to_pool_and_range_to_range(self) -> None:
        pools = {
            "a": pool("a", {"subnet": "10.0.0.4/32"}, {"subnet": "10.0.0.5/32"}),
            "b": pool("b", {"subnet": "10.1.0.0/31"}),
        }
        plan = plan_allocations(pools, [request(str(n), "a", "b") for n in range(4)])
        assert [grant.address for grant in plan.grants.values()] == ["10.0.0.4", "10.0.0.5", "10.1.0.0", "10.1.0.1"]
        assert set(plan.patches) == {"a", "b"}

    def test_missing_pool_is_passed_over(self) -> None:
        assert plan_allocations({"p": pool()}, [request("a", "gone", "p")]).grants["ns/a"].pool == "p"

    @pytest.mark.parametrize(
        ("pools", "wanted", "reason", "words"),
        [
            ({}, ["gone"], RefusalReason.MISSING_POOL, "IPPool gone does not exist"),
            (
                {"p": pool("p", {"subnet": "10.0.0.1/32"}, allocated={"10.0.0.1": "x"})},
                ["p"],
                RefusalReason.EXHAUSTED,
                "IPPool p",
            ),
            (
                {"p": {"metadata": {"name": "p"}, "spec": {"ranges": [{"subnet": "x"}]}}},
                ["p"],
                RefusalReason.INVALID_POOL,
                "'x'",
            ),
        ],
    )
    def test_refusals_name_the_pool(self, pools: Any, wanted: list[str], reason: RefusalReason, words: str) -> None:
        refusal = plan_allocations(pools, [request("a", *wanted)]).refusals["ns/a"]
        assert refusal.reason is reason
        assert words in refusal.message

    @pytest.mark.parametrize(
        ("used", "words"),
        [
            ([10, 12, 13, 14], " use 4 of those listed as free (10.0.0.10, 10.0.0.12, 10.0.0.13, ...): add a range"),
            ([10, 12, 13], " use 3 of those listed as free (10.0.0.10, 10.0.0.12, 10.0.0.13): add a range"),
            ([12], " use 1 of those listed as free (10.0.0.12): add a range"),
            ([12], "; VMs, load balancers, HarvesterMachines or external endpoints use 1 of"),
            ([], "no free address in IPPool p, q: add a range"),
        ],
    )
    def test_refusal_names_addresses_in_use_that_the_pool_lists_as_free(self, used: list[int], words: str) -> None:
        addresses = {f"10.0.0.{number}" for number in used}
        others = {f"10.0.0.{number}": "ns/x" for number in range(10, 15) if number not in used}
        pools = {"p": pool(allocated=others), "q": pool("q", allocated=others)}
        refusal = plan_allocations(pools, [request("a", "p", "q")], addresses.__contains__).refusals["ns/a"]
        assert words in refusal.message

    def test_no_pool_at_all(self) -> None:
        assert plan_allocations({}, [AddressRequest("ns/a", ())]).refusals["ns/a"].reason is RefusalReason.NO_POOL

    def test_broken_pool_does_not_stop_the_others(self) -> None:
        broken = {"metadata": {"name": "b"}, "spec": {"ranges": [{"subnet": "x"}]}}
        plan = plan_allocations({"b": broken, "p": pool()}, [request("a", "b", "p"), request("c", "b")])
        assert set(plan.grants) == {"ns/a"}
        assert set(plan.refusals) == {"ns/c"}

    def test_pool_that_no_one_has_counted_yet(self) -> None:
        fresh = pool()
        del fresh["status"]
        status = plan_allocations({"p": fresh}, [request("a")]).patches["p"]["status"]
        assert (status["total"], status["available"], status["lastAllocated"]) == (5, 4, "10.0.0.10")

    def test_available_is_counted_down_even_when_it_is_wrong(self) -> None:
        wrong = pool()
        wrong["status"]["available"] = 100
        assert plan_allocations({"p": wrong}, [request("a")]).patches["p"]["status"]["available"] == 99

    def test_one_id_twice_gets_one_address(self) -> None:
        plan = plan_allocations({"p": pool()}, [request("a"), request("a")])
        assert plan.patches["p"]["status"]["allocated"] == {"10.0.0.10": "ns/a"}

    def test_overlapping_pools_do_not_give_one_address_twice(self) -> None:
        pools = {"p": pool("p"), "q": pool("q")}
        plan = plan_allocations(pools, [request("a", "p"), request("b", "q")])
        assert plan.grants["ns/a"].address != plan.grants["ns/b"].address


class TestAddressInUse:
    def test_is_reserved_again_although_excluded_and_before_others(self) -> None:
        plan = plan_allocations(
            {"p": pool()}, [request("new"), request("a", address="10.0.0.10")], in_use={"10.0.0.10"}.__contains__
        )
        assert plan.grants["ns/a"] == Grant("p", "10.0.0.10")
        assert plan.grants["ns/new"].address == "10.0.0.11"

    def test_is_adopted(self) -> None:
        plan = plan_allocations({"p": pool(allocated={"10.0.0.12": "ns/a"})}, [request("a", address="10.0.0.12")])
        assert plan.grants["ns/a"] == Grant("p", "10.0.0.12", adopted=True)

    def test_is_never_replaced_by_another(self) -> None:
        pools = {"p": pool(allocated={"10.0.0.12": "ns/x"})}
        plan = plan_allocations(pools, [request("a", address="10.0.0.12"), request("b", address="10.9.9.9")])
        assert plan.refusals["ns/a"].reason is RefusalReason.TAKEN
        assert "ns/x" in plan.refusals["ns/a"].message
        assert "10.9.9.9 is in no range" in plan.refusals["ns/b"].message
        assert not plan.grants

    def test_two_of_one_plan_cannot_both_have_it(self) -> None:
        plan = plan_allocations({"p": pool()}, [request("a", address="10.0.0.12"), request("b", address="10.0.0.12")])
        assert set(plan.grants) == {"ns/a"}
        assert plan.refusals["ns/b"].reason is RefusalReason.TAKEN


class TestLoadBalancer:
    """Harvester's controller gets the address that the history has for the id of a LoadBalancer, and no other."""

    def ask(self, address: str = "") -> AddressRequest:
        return AddressRequest("ns/lb", ("p",), address, load_balancer=True)

    def test_address_is_reserved_with_history(self) -> None:
        plan = plan_allocations({"p": pool()}, [self.ask()])
        made = merge(pool(), plan.patches["p"])
        assert made["status"]["allocated"] == made["status"]["allocatedHistory"] == {"10.0.0.10": "ns/lb"}
        assert made["status"]["available"] == 4
        assert plan_allocations({"p": made}, [self.ask("10.0.0.10"), self.ask()]).patches == {}

    @pytest.mark.parametrize("address", ["", "10.0.0.12"])
    @pytest.mark.parametrize("past", [{}, {"10.0.0.12": "ns/other"}, {"10.0.0.11": "ns/lb", "10.0.0.13": "ns/other"}])
    def test_address_without_history_gets_it_and_stays_reserved(self, address: str, past: dict[str, str]) -> None:
        state = pool(allocated={"10.0.0.12": "ns/lb"}, history=past)
        state["status"]["lastAllocated"] = "10.0.0.14"
        plan = plan_allocations({"p": state}, [self.ask(address)])
        assert plan.grants["ns/lb"] == Grant("p", "10.0.0.12", adopted=True)
        status = merge(state, plan.patches["p"])["status"]
        assert [a for a, identity in status["allocatedHistory"].items() if identity == "ns/lb"] == ["10.0.0.12"]
        assert ("10.0.0.13" in status["allocatedHistory"]) == ("10.0.0.13" in past)
        same = ("allocated", "available", "total", "lastAllocated")
        assert {name: status[name] for name in same} == {name: state["status"][name] for name in same}

    @pytest.mark.parametrize("address", ["", "10.0.0.12"])
    def test_address_of_a_deleted_load_balancer_is_reserved_again_with_history(self, address: str) -> None:
        # Harvester's controller releases the address of a LoadBalancer that a user deletes into the history.
        state = pool(history={"10.0.0.12": "ns/lb"})
        status = merge(state, plan_allocations({"p": state}, [self.ask(address)]).patches["p"])["status"]
        assert status["allocated"] == status["allocatedHistory"] == {"10.0.0.12": "ns/lb"}

    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["plan", "plan again", "release", "reserve", "other", "lost", "forgotten"]),
                st.sampled_from([f"10.0.0.{number}" for number in range(10, 15)]),
            ),
            max_size=12,
        )
    )
    def test_no_order_of_writers_leaves_a_duplicate(self, steps: list[tuple[str, str]]) -> None:
        """After our write, Harvester's controller gets the address, in whatever order others wrote before."""
        state = pool()
        for step, address in steps:
            status = state["status"]
            if step.startswith("plan"):
                state = self.planned(state, address if step == "plan again" else "")
            elif step == "release":
                state = {**state, "status": ippools.release(state, "ns/lb") or status}
            elif step == "reserve":
                with contextlib.suppress(ippools.AllocationError):
                    state = {**state, "status": ippools.reserve(state, "ns/lb")[0]}
            elif step == "other":
                with contextlib.suppress(ippools.AllocationError):
                    state = {**state, "status": ippools.reserve(state, "ns/other")[0]}
            else:
                field = "allocated" if step == "lost" else "allocatedHistory"
                state = merge(state, {"status": {field: {address: None}}})
        plan = plan_allocations({"p": state}, [self.ask()])
        assume("ns/lb" in plan.grants)
        state = merge(state, plan.patches.get("p", {}))
        assert ippools.reserve(state, "ns/lb")[1] == plan.grants["ns/lb"].address

    def planned(self, state: Obj, address: str) -> Obj:
        return merge(state, plan_allocations({"p": state}, [self.ask(address)]).patches.get("p", {}))

    def test_exhausted_pool_does_not_advise_fields_that_load_balancers_lack(self) -> None:
        taken = {f"10.0.0.{number}": f"ns/{number}" for number in range(10, 15)}
        refusal = plan_allocations({"p": pool(allocated=taken)}, [self.ask()]).refusals["ns/lb"]
        assert refusal.message == "no free address in IPPool p: add a range to the pool"

    def test_address_it_had_before_and_cannot_get_leaves_the_history(self) -> None:
        state = pool(history={"10.0.0.13": "ns/lb"})
        plan = plan_allocations({"p": state}, [self.ask()], in_use={"10.0.0.13"}.__contains__)
        assert merge(state, plan.patches["p"])["status"]["allocatedHistory"] == {"10.0.0.10": "ns/lb"}

    def test_release_leaves_it_in_the_history(self) -> None:
        made = merge(pool(), plan_allocations({"p": pool()}, [self.ask()]).patches["p"])
        released = merge(made, plan_releases(made, [ReleaseEntry("10.0.0.10", "ns/lb", "")]).patch or {})
        assert released["status"]["allocated"] == {}
        assert released["status"]["allocatedHistory"] == {"10.0.0.10": "ns/lb"}


def vmi(*nics: Obj) -> Obj:
    return {"status": {"interfaces": list(nics)}}


def machine(status: Obj, spec: Obj | None = None, **metadata: str) -> Obj:
    return {"metadata": metadata, "spec": spec or {}, "status": status}


class TestInUse:
    """Addresses of what runs, whatever the pools say."""

    @pytest.mark.parametrize(
        ("instance", "addresses"),
        [
            (None, set()),
            ({}, set()),
            (vmi({"name": "nic-1"}), set()),
            (vmi({"name": "nic-1", "ipAddress": "10.0.0.5"}), {"10.0.0.5"}),
            (
                vmi(
                    {"name": "nic-1", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5", "10.0.0.9/24"]},
                    {"name": "nic-2", "ipAddresses": ["10.1.0.5"]},
                    {"interfaceName": "cilium_host", "ipAddress": "10.42.0.1", "ipAddresses": ["10.42.0.1"]},
                ),
                {"10.0.0.5", "10.0.0.9", "10.1.0.5"},
            ),
        ],
    )
    def test_addresses_of_an_instance_are_those_of_its_nics(self, instance: Obj | None, addresses: set[str]) -> None:
        assert instance_addresses(instance) == addresses

    def test_machine_has_its_addresses_until_it_is_deleted(self) -> None:
        status, spec = {"allocatedIPAddress": "10.0.0.5"}, {"networkConfig": {"address": "10.0.0.6"}}
        assert machine_addresses(machine(status, spec)) == {"10.0.0.5", "10.0.0.6"}
        assert machine_addresses(machine(status, spec, deletionTimestamp="now")) == set()
        status = {"interfaceAddresses": [{"address": "10.1.0.5"}]}
        spec = {"networkInterfaces": [{"network": "a", "addresses": [{"address": "FD00::5/64"}, {"address": "x"}]}]}
        assert machine_addresses(machine(status, spec)) == {"10.1.0.5", "fd00::5"}
        assert machine_addresses(machine({"allocatedIPAddress": ""})) == machine_addresses(None) == set()


def test_large_pools_are_fast() -> None:
    used = {f"10.0.{n // 250}.{n % 250 + 2}": f"ns/m{n}" for n in range(10_000)}
    big = pool("p", {"subnet": "10.0.0.0/16"}, allocated=used)
    started = time.perf_counter()
    plan = plan_allocations({"p": big}, [request(f"new{n}") for n in range(2000)])
    elapsed = time.perf_counter() - started
    assert len(plan.grants) == 2000
    # Quadratic work would take minutes.
    assert elapsed < 5


@pytest.mark.parametrize(
    ("ipam_type", "endpoint", "expected"),
    [
        ("none", {"host": "172.16.0.5", "port": 6443}, {"172.16.0.5"}),
        ("none", {}, set()),
        ("none", None, set()),
        ("pool", {"host": "172.16.0.5", "port": 6443}, set()),
    ],
)
def test_only_an_external_endpoint_has_an_address_that_no_pool_lists(
    ipam_type: str, endpoint: Obj | None, expected: set[str]
) -> None:
    spec = {"loadBalancerConfig": {"ipamType": ipam_type}, "controlPlaneEndpoint": endpoint}
    assert endpoint_addresses({"spec": spec}) == expected
    assert endpoint_addresses(None) == endpoint_addresses({}) == set()
