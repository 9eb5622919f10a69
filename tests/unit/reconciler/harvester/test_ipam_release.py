"""A release takes an address from its holder only, whatever else its pool contains."""

from __future__ import annotations

import pytest

from caphv.api.ippool import allocated
from reconciler.harvester.addressplan import ReleaseEntry, plan_releases
from tests.support.ippools import pool

pytestmark = pytest.mark.unit


def test_released_address_moves_to_history() -> None:
    release = plan_releases(
        pool(allocated={"10.0.0.10": "ns/a", "10.0.0.11": "ns/b"}), [ReleaseEntry("10.0.0.10", "ns/a", "")]
    )
    assert release.released == ("10.0.0.10",)
    assert release.patch == {
        "metadata": {"resourceVersion": "7"},
        "status": {
            "allocated": {"10.0.0.10": None},
            "allocatedHistory": {"10.0.0.10": "ns/a"},
            "available": 4,
            "total": 5,
            "lastAllocated": "",
        },
    }


def test_only_the_holders_address_is_released() -> None:
    release = plan_releases(
        pool(allocated={"10.0.0.10": "ns/b"}),
        [ReleaseEntry("10.0.0.10", "ns/a", ""), ReleaseEntry("10.0.0.11", "ns/a", "")],
    )
    assert release.patch is None
    assert release.foreign == {"10.0.0.10": "ns/b"}
    assert release.absent == ("10.0.0.11",)


def test_address_released_twice_in_one_call_counts_once() -> None:
    entry = ReleaseEntry("10.0.0.10", "ns/a", "")
    release = plan_releases(pool(allocated={"10.0.0.10": "ns/a"}), [entry, entry])
    assert release.patch is not None
    assert release.patch["status"]["available"] == 5


def test_allocated_lists_the_holders() -> None:
    assert allocated(pool(allocated={"10.0.0.10": "ns/a"})) == {"10.0.0.10": "ns/a"}
    assert allocated(pool()) == allocated({"metadata": {"name": "p"}}) == {}


@pytest.mark.parametrize("counts", [{}, {"available": 3, "total": 5}])
def test_address_of_an_invalid_pool_is_released(counts: dict[str, int]) -> None:
    obj = {**pool(), "spec": {"ranges": [{"subnet": "bad"}]}, "status": {"allocated": {"10.0.0.10": "ns/a"}, **counts}}
    patch = plan_releases(obj, [ReleaseEntry("10.0.0.10", "ns/a", "")]).patch
    assert patch is not None
    assert patch["status"]["allocated"] == {"10.0.0.10": None}
    after = {name: patch["status"].get(name) for name in ("available", "total")}
    assert after == ({"available": 4, "total": 5} if counts else {"available": None, "total": None})
