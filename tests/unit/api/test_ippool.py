import pytest

from caphv.api.ippool import InvalidPoolError, free_count, pool_capacity
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
