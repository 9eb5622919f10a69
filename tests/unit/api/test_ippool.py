import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import ippool
from caphv.api.ippool import InvalidPoolError, free_count, pool_capacity, ranges_of
from caphv.api.object import Obj
from tests.support.ippools import pool

pytestmark = pytest.mark.unit


class TestCapacity:
    @pytest.mark.parametrize(
        ("spec", "capacity"),
        [
            ({"subnet": "10.0.0.0/24"}, 253),
            ({"subnet": "10.0.0.0/24", "gateway": "10.0.0.254"}, 253),
            ({"subnet": "10.0.0.7/24"}, 253),
            ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}, 10),
            ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.1", "rangeEnd": "10.0.0.2"}, 1),
            ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.19", "rangeEnd": "10.0.0.10"}, 10),
            ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.0", "rangeEnd": "10.0.0.255"}, 253),
            ({"subnet": "10.0.0.0/16"}, 65533),
            ({"subnet": "10.0.0.0/30"}, 1),
            ({"subnet": "10.0.0.0/31"}, 2),
            ({"subnet": "10.0.0.5/32"}, 1),
            ({"subnet": "fd00::/64"}, 2**64 - 2),
        ],
    )
    def test_of_a_range(self, spec: Obj, capacity: int) -> None:
        assert pool_capacity({"metadata": {"name": "p"}, "spec": {"ranges": [spec]}}) == capacity

    def test_ranges_add_up(self) -> None:
        assert pool_capacity(pool("p", {"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/31"})) == 3

    def test_free_count_ignores_holders_outside_of_the_ranges(self) -> None:
        assert free_count(pool(allocated={"10.0.0.10": "a", "10.9.9.9": "b", "junk": "c"})) == 4

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"subnet": "junk"}, "subnet 'junk'"),
            ({}, "subnet ''"),
            ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}, "rangeStart 10.0.1.1 is not in"),
            ({"subnet": "10.0.0.0/24", "rangeEnd": "x"}, "rangeEnd 'x'"),
            ({"subnet": "10.0.0.0/24", "gateway": "10.1.0.1"}, "gateway 10.1.0.1"),
        ],
    )
    def test_invalid_range_names_field_and_value(self, spec: Obj, words: str) -> None:
        with pytest.raises(InvalidPoolError, match=words):
            pool_capacity({"metadata": {"name": "p"}, "spec": {"ranges": [spec]}})

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"ranges": ["x"]}, r"spec.ranges\[0\] of IPPool p is not an object"),
            ({"ranges": {"subnet": "10.0.0.0/24"}}, "spec.ranges of IPPool p is not a list"),
            ({"ranges": [{"subnet": 5}]}, "subnet is not a string"),
            ({"ranges": [{"subnet": "10.0.0.0/24", "gateway": ["10.0.0.1"]}]}, "gateway is not a string"),
            ({"ranges": [{"subnet": "10.0.0.0/24"}] * 257}, "more than 256 ranges"),
        ],
    )
    def test_ranges_of_another_form_are_invalid(self, spec: Obj, words: str) -> None:
        with pytest.raises(InvalidPoolError, match=words):
            free_count({"metadata": {"name": "p"}, "spec": spec})

    def test_ranges_that_overlap_count_each_address_once(self) -> None:
        overlapping = pool("p", _range(10, 19), _range(15, 24), _range(12, 30), allocated={"10.0.0.16": "a"})
        assert pool_capacity(overlapping) == 21
        assert free_count(overlapping) == 20
        addresses = [address for part in ranges_of(overlapping) for address in part]
        assert addresses == [f"10.0.0.{number}" for number in range(10, 31)]

    def test_hostile_pool_is_counted_in_time(self) -> None:
        hostile: Obj = {
            "metadata": {"name": "p"},
            "spec": {"ranges": [{"subnet": "10.0.0.0/8", "rangeStart": f"10.0.0.{n}"} for n in range(1, 250)]},
            "status": {"allocated": {f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}": "ns/a" for n in range(100_000)}},
        }
        began = time.process_time()
        free_count(hostile)
        assert time.process_time() - began < 3


def _range(first: int, last: int) -> Obj:
    return {"subnet": "10.0.0.0/24", "rangeStart": f"10.0.0.{first}", "rangeEnd": f"10.0.0.{last}"}


VALUES = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "x", "a:b", "10.0.0.5", "10.0.0.0/24", "::/64"])
)
ANY = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["10.0.0.5", "a:b"]), inner),
    max_leaves=4,
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return ANY | st.fixed_dictionaries({}, optional=fields)


_RANGES = _some(subnet=ANY, rangeStart=ANY, rangeEnd=ANY, gateway=ANY)
# What an informer caches is an object whose metadata, spec and status are objects or missing.
POOLS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.just("p"),
                "annotations": st.none() | st.dictionaries(st.just(ippool.mark_name("10.0.0.5")), ANY),
            }
        )
    },
    optional={
        "spec": st.none()
        | st.fixed_dictionaries({}, optional={"ranges": ANY | st.lists(_RANGES), "selector": _some(network=ANY)}),
        "status": st.none() | st.fixed_dictionaries({}, optional={"allocated": ANY, "allocatedHistory": ANY}),
    },
)


@given(POOLS)
def test_pool_of_any_content_is_read_or_invalid(hostile: Obj) -> None:
    for count in (free_count, pool_capacity, ranges_of):
        with contextlib.suppress(InvalidPoolError):
            count(hostile)
    ippool.serves(hostile, ["vms/net"])
    for address, holder in ippool.allocated(hostile).items():
        held = ippool.held(hostile, holder, "")
        assert set(held) <= set(ippool.allocated(hostile))
        assert ippool.holds(hostile, address, holder, "") is (address in held)
        assert isinstance(ippool.mark(hostile, address), str)
    assert all(isinstance(holder, str) for holder in ippool.allocated_before(hostile).values())


class TestInterfaces:
    """Ids and subnets of the addresses of single interfaces."""

    @given(st.integers(0, 15), st.integers(0, 7), st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True))
    def test_machine_of_an_id(self, interface: int, entry: int, name: str) -> None:
        identity = ippool.interface_holder(f"team/{name}", interface, entry)
        assert identity != f"team/{name}"
        assert ippool.machine_holder(identity) == ippool.machine_holder(f"team/{name}") == f"team/{name}"

    def test_entries_of_a_machine_are_those_of_no_machine_with_a_longer_name(self) -> None:
        allocated = {
            "10.0.0.1": "team/one",
            "10.0.0.2": "team/one.1-0",
            "10.0.0.3": "team/one-1",
            "10.0.0.4": "team/one.1-0x",
            "10.0.0.5": "team/one.2-0",
            "10.0.0.6": "other/one.1-0",
        }
        marks = {"addresses.caphv.io/10.0.0.2": "ours", "addresses.caphv.io/10.0.0.5": "theirs"}
        obj = {"metadata": {"name": "p", "annotations": marks}, "status": {"allocated": allocated}}
        assert ippool.held_by_machine(obj, "team/one", "ours") == {
            "10.0.0.1": ("team/one", False),
            "10.0.0.2": ("team/one.1-0", True),
        }

    @pytest.mark.parametrize(
        ("address", "subnet"),
        [("10.0.0.9", (24, "10.0.0.254")), ("10.1.0.9", (16, "")), ("fd00::9", (64, "")), ("10.2.0.1", (0, ""))],
    )
    def test_subnet_of_an_address(self, address: str, subnet: tuple[int, str]) -> None:
        obj = pool(
            "p", {"subnet": "10.1.0.0/16"}, {"subnet": "10.0.0.0/24", "gateway": "10.0.0.254"}, {"subnet": "fd00::/64"}
        )
        assert ippool.subnet_of(obj, address) == subnet

    def test_subnet_of_an_invalid_pool(self) -> None:
        with pytest.raises(InvalidPoolError):
            ippool.subnet_of({"metadata": {"name": "p"}, "spec": {"ranges": [{"subnet": "x"}]}}, "10.0.0.1")

    @pytest.mark.parametrize(
        ("spec", "address"),
        [
            ({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.9"}, "10.0.0.9"),
            ({"subnet": "10.0.0.0/30"}, "10.0.0.2"),
            ({"subnet": "10.0.0.0/29"}, ""),
            ({"subnet": "x"}, ""),
        ],
    )
    def test_only_address_of_a_pool(self, spec: Obj, address: str) -> None:
        assert ippool.only_address({"metadata": {"name": "p"}, "spec": {"ranges": [spec]}}) == address
