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
        released = ippools.release(state, address, holder)
        assert released
        state = {**state, "status": released}
    assert addresses == ["10.0.0.4", "10.0.0.5", "10.0.0.6"]
    assert reserved(state, "ns/d")[1] == "10.0.0.4"
    assert reserved(state, "ns/b")[1] == "10.0.0.5", "its own of the history"


def reserved(state: Obj, holder: str) -> tuple[Obj, str]:
    status, address = ippools.reserve(state, holder)
    return {**state, "status": status}, address
