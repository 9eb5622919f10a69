"""The simulated Harvester allocates addresses of IPPools as the real one does."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from sandbox.harvester import ippools
from tests.support.ippools import pool

pytestmark = pytest.mark.unit

LOW = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.4", "rangeEnd": "10.0.0.6"}
HIGH = {"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.1", "rangeEnd": "10.0.1.3", "gateway": "10.0.1.2"}


@pytest.mark.parametrize(
    ("last", "listed"),
    [
        ("", "0.4 0.5 0.6 1.1 1.3"),
        ("10.0.0.4", "0.5 0.6 1.1 1.3 0.4"),
        ("10.0.0.6", "1.1 1.3 0.4 0.5 0.6"),
        ("10.0.1.1", "1.3 0.4 0.5 0.6 1.1"),
        ("10.0.1.3", "0.4 0.5 0.6 1.1 1.3"),
        # The ranges have changed, or a user has written something else.
        ("10.0.0.7", "0.4 0.5 0.6 1.1 1.3"),
        ("none", "0.4 0.5 0.6 1.1 1.3"),
    ],
)
def test_allocation_continues_after_the_last_allocated_address(last: str, listed: str) -> None:
    spec = {"ranges": [LOW, HIGH]}
    assert list(ippools.addresses(spec, last)) == [f"10.0.{address}" for address in listed.split()]


def test_released_address_is_the_last_one_that_others_get() -> None:
    state = pool("p", LOW)
    addresses = []
    for holder in ("ns/a", "ns/b", "ns/c"):
        state, address = reserved(state, holder)
        addresses.append(address)
        released = ippools.release(state, holder)
        assert released
        state = {**state, "status": released}
    assert addresses == ["10.0.0.4", "10.0.0.5", "10.0.0.6"]
    assert reserved(state, "ns/d")[1] == "10.0.0.4"
    assert reserved(state, "ns/b")[1] == "10.0.0.5", "its own of the history"


def test_one_address_of_a_holder_is_released() -> None:
    state = pool("p", LOW, allocated={"10.0.0.5": "ns/a", "10.0.0.6": "ns/a", "10.0.0.4": "ns/b"})
    status = ippools.release(state, "ns/a")
    assert status
    assert (sorted(status["allocated"].values()), status["available"]) == (["ns/a", "ns/b"], 1)
    assert list(status["allocatedHistory"].values()) == ["ns/a"]
    assert ippools.release(state, "ns/c") is None


@pytest.mark.parametrize(
    ("entry", "listed", "gateway"),
    [
        ({"subnet": "10.0.0.0/29"}, "2 3 4 5 6", "10.0.0.1"),
        ({"subnet": "10.0.0.0/29", "gateway": "10.0.0.6"}, "1 2 3 4 5", "10.0.0.6"),
        ({"subnet": "10.0.0.4/29", "rangeEnd": "10.0.0.3"}, "2 3", "10.0.0.1"),
        ({"subnet": "10.0.0.0/29", "rangeStart": "10.0.0.4"}, "4 5 6", "10.0.0.1"),
        ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.6", "rangeEnd": "10.0.0.4"}, "4 5 6", "10.0.0.1"),
        ({"subnet": "10.0.0.5/32"}, "5", "<nil>"),
        ({"subnet": "10.0.0.4/31"}, "4", "10.0.0.5"),
    ],
)
def test_range_without_bounds_or_gateway(entry: Obj, listed: str, gateway: str) -> None:
    spec = {"ranges": [entry]}
    addresses = [f"10.0.0.{number}" for number in listed.split()]
    assert list(ippools.addresses(spec)) == addresses
    assert ippools.total(spec) == len(addresses)
    assert ippools.network_of(spec, addresses[0])["gateway"] == gateway
    assert ippools.validate({"spec": spec}) == ""


def test_gateway_of_another_range_is_allocated() -> None:
    other = {**HIGH, "rangeStart": "10.0.1.9", "rangeEnd": "10.0.1.9", "gateway": "10.0.1.3"}
    both = {"ranges": [HIGH, other]}
    assert list(ippools.addresses(both)) == ["10.0.1.1", "10.0.1.3", "10.0.1.9"]
    assert ippools.network_of(both, "10.0.1.9")["gateway"] == "10.0.1.3"


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([{**LOW, "rangeStart": "10.0.2.1"}], "IP 10.0.2.1 is out of subnet 10.0.0.0/24"),
        ([{**LOW, "gateway": "10.0.2.1"}], "IP 10.0.2.1 is out of subnet 10.0.0.0/24"),
        ([{**LOW, "rangeStart": "10.0.0.0"}], "IP 10.0.0.0 is the network address"),
        ([{**LOW, "rangeEnd": "10.0.0.255"}], "IP 10.0.0.255 is the broadcast address"),
        ([{"subnet": "10.0.0.5/32", "rangeStart": "10.0.0.5"}], "IP 10.0.0.5 is the network address"),
        ([LOW, {**LOW, "rangeStart": "10.0.0.6", "rangeEnd": "10.0.0.9"}], "ranges overlap"),
        ([HIGH], "the ranges overlap those of other pools"),
    ],
)
def test_pool_is_refused(ranges: list[Obj], reason: str) -> None:
    others = [{"spec": {"ranges": [{**HIGH, "rangeStart": "10.0.1.3", "rangeEnd": "10.0.1.9"}]}}]
    assert ippools.validate({"spec": {"ranges": ranges}}, others).endswith(reason)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ("10.0.2.1", "10.0.2.1 not in range set 10.0.1.1-10.0.1.3"),
        ("10.0.1.2", "requested ip 10.0.1.2 is subnet's gateway"),
    ],
)
def test_address_of_the_history_that_the_ranges_exclude(history: str, reason: str) -> None:
    with pytest.raises(ippools.AllocationError, match=f"^{reason}$"):
        ippools.reserve(pool("p", HIGH, history={history: "ns/a"}), "ns/a")


def test_full_pool_names_its_ranges() -> None:
    full = pool("p", HIGH, allocated={"10.0.1.1": "ns/a", "10.0.1.3": "ns/b"})
    with pytest.raises(ippools.AllocationError, match=r"no IP addresses available in range set: 10.0.1.1-10.0.1.3$"):
        ippools.reserve(full, "ns/c")


def reserved(state: Obj, holder: str) -> tuple[Obj, str]:
    status, address = ippools.reserve(state, holder)
    return {**state, "status": status}, address
