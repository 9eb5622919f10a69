"""The arithmetic of IPPools, and the takeover of an address by a load balancer."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from sandbox.harvester import ippools

pytestmark = pytest.mark.unit

HOLDER = "ns/lb"


def pool(*, first: str = "10.0.0.4", last: str = "10.0.0.6", gateway: str = "10.0.0.1", **status: object) -> Obj:
    spec = {"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": first, "rangeEnd": last, "gateway": gateway}]}
    made: Obj = {"metadata": {"name": "pool"}, "spec": spec}
    return {**made, "status": {**ippools.recount(made), **status}}


def test_gateway_is_not_given_out() -> None:
    made = pool(first="10.0.0.1", last="10.0.0.3")
    assert list(ippools.addresses(made["spec"])) == ["10.0.0.2", "10.0.0.3"]
    assert (made["status"]["total"], made["status"]["available"]) == (2, 2)


def test_range_without_bounds_is_its_subnet() -> None:
    assert list(ippools.addresses({"ranges": [{"subnet": "10.0.0.0/30"}]})) == ["10.0.0.1", "10.0.0.2"]


def test_takeover_gets_the_same_address_when_no_one_is_faster() -> None:
    held = pool(allocated={"10.0.0.5": HOLDER}, available=2)
    assert ippools.address_of(held["status"], HOLDER) == "10.0.0.5"
    released = ippools.release(held, "10.0.0.5", HOLDER)
    assert released is not None
    assert released["allocated"] == {}
    assert released["allocatedHistory"] == {"10.0.0.5": HOLDER}
    assert released["available"] == 3
    status, address = ippools.reserve({**held, "status": released}, HOLDER)
    assert address == "10.0.0.5"
    assert status["allocated"] == {"10.0.0.5": HOLDER}
    assert status["allocatedHistory"] == {}
    assert (status["available"], status["lastAllocated"]) == (2, "10.0.0.5")


def test_takeover_continues_with_the_next_address_when_a_user_is_faster() -> None:
    released = pool(allocatedHistory={"10.0.0.5": HOLDER})
    released["spec"]["ranges"][0]["rangeStart"] = "10.0.0.5"
    taken, address = ippools.reserve({**released, "status": {**released["status"], "allocatedHistory": {}}}, "ns/thief")
    assert address == "10.0.0.5"
    assert ippools.reserve({**released, "status": taken}, HOLDER)[1] == "10.0.0.6"


def test_address_of_the_history_that_another_has_is_a_permanent_error() -> None:
    between = pool(allocated={"10.0.0.5": "ns/thief"}, allocatedHistory={"10.0.0.5": HOLDER}, available=2)
    with pytest.raises(ippools.AllocationError, match=r"10\.0\.0\.5 is not available"):
        ippools.reserve(between, HOLDER)


def test_reserved_address_is_a_duplicate_unless_the_history_has_it_too() -> None:
    held = pool(allocated={"10.0.0.5": HOLDER}, available=2)
    with pytest.raises(ippools.DuplicateAllocationError, match=f"has been allocated to {HOLDER}"):
        ippools.reserve(held, HOLDER)
    status = {**held["status"], "allocatedHistory": {"10.0.0.5": HOLDER}}
    assert ippools.reserve({**held, "status": status}, HOLDER) == (status, "10.0.0.5")


def test_address_of_another_client_is_not_released() -> None:
    assert ippools.release(pool(allocated={"10.0.0.5": "ns/other"}), "10.0.0.5", HOLDER) is None


def test_exhausted_pool_gives_nothing() -> None:
    full = pool(last="10.0.0.4", allocated={"10.0.0.4": "ns/other"})
    with pytest.raises(ippools.AllocationError, match="no IP addresses available"):
        ippools.reserve(full, HOLDER)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (pool(first="10.0.0.6", last="10.0.0.4"), "rangeStart is greater than rangeEnd"),
        (pool(allocated={"10.0.0.9": HOLDER}), "10.0.0.9 is allocated but outside the ranges"),
        (pool(allocated={"10.0.0.5": HOLDER}), ""),
    ],
)
def test_refusals(changed: Obj, reason: str) -> None:
    assert reason in ippools.validate(changed)
    assert bool(ippools.validate(changed)) == bool(reason)


def test_overlapping_ranges_are_refused() -> None:
    both = pool()
    both["spec"]["ranges"] *= 2
    assert ippools.validate(both) == "spec.ranges: ranges overlap"


@pytest.mark.parametrize(
    ("first", "last", "refused"), [("10.0.0.6", "10.0.0.9", True), ("10.0.0.7", "10.0.0.9", False)]
)
def test_ranges_of_another_pool_are_refused_on_every_network(first: str, last: str, refused: bool) -> None:
    other = pool(first=first, last=last)
    other["spec"]["selector"] = {"network": "default/storage"}
    assert bool(ippools.validate(pool(), [other])) is refused


def test_range_that_is_none_is_refused() -> None:
    assert "10.0.0.999" in ippools.validate({"spec": {"ranges": [{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.999"}]}})


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=30))
def test_available_and_allocated_always_add_up(steps: list[tuple[str, bool]]) -> None:
    made = pool()
    for holder, take in steps:
        address = ippools.address_of(made["status"], holder)
        status: Obj | None = None
        if take and not address:
            with contextlib.suppress(ippools.AllocationError):
                status, _ = ippools.reserve(made, holder)
        elif not take and address:
            status = ippools.release(made, address, holder)
        made = {**made, "status": status or made["status"]}
        allocated = made["status"].get("allocated", {})
        assert made["status"]["available"] + len(allocated) == made["status"]["total"]
        assert len(set(allocated.values())) == len(allocated)
        assert not allocated.keys() & made["status"].get("allocatedHistory", {}).keys()


def test_recounted_pool_is_ready_and_forgets_what_its_ranges_lost() -> None:
    status = {"allocated": {"10.0.0.4": "a/b"}, "allocatedHistory": {"10.0.0.5": "c/d", "10.9.0.1": "e/f"}}
    counted = ippools.recount({**pool(), "status": status})
    assert counted["allocatedHistory"] == {"10.0.0.5": "c/d"}
    assert counted["available"] == counted["total"] - 1
    assert counted["conditions"] == [{"type": "Ready", "status": "True"}]
