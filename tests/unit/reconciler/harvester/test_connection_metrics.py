"""Metrics of connections and pools: what is counted when they are scraped, and what leaves with its session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.runtime.errors import Forbidden, Unauthorized, Unreachable
from reconciler import metrics
from reconciler.harvester import connectionmetrics, poolmetrics
from reconciler.harvester.poolmetrics import PoolKey, UsedPools
from tests.support.ippools import pool

pytestmark = pytest.mark.unit

AWAY, REJECTED = Unreachable("no answer"), Unauthorized(401, "Unauthorized", "no")


def values(metric: Any) -> dict[tuple[str, ...], float]:
    """Values of a metric by its labels."""
    return {tuple(sample.labels.values()): sample.value for family in metric.collect() for sample in family.samples}


def session(identity: str = "team/a", error: Exception | None = None, *pools: dict[str, Any], server: str = "h") -> Any:
    by_name = {found["metadata"]["name"]: found for found in pools}
    return SimpleNamespace(
        server=server,
        identity=identity,
        error=error,
        is_unauthorized=isinstance(error, Unauthorized),
        pools=SimpleNamespace(get=lambda _namespace, name: by_name.get(name)),
    )


@pytest.mark.parametrize(
    ("error", "reachable", "accepted"),
    [
        (None, 1, {("team/a",): 1}),
        (AWAY, 0, {}),
        (REJECTED, 1, {("team/a",): 0}),
        (Forbidden(403, "Forbidden", "no"), 1, {("team/a",): 1}),
    ],
)
def test_an_identity_is_accepted_or_not_only_by_a_harvester_that_answers(
    error: Exception | None, reachable: int, accepted: dict[tuple[str, ...], float]
) -> None:
    connectionmetrics.report([session(error=error)])
    assert set(values(metrics.HARVESTER_REACHABLE).values()) == {reachable}
    assert values(metrics.IDENTITY_ACCEPTED) == accepted
    connectionmetrics.report([])
    assert values(metrics.HARVESTER_REACHABLE) == values(metrics.IDENTITY_ACCEPTED) == {}


def test_free_addresses_are_those_of_used_pools_by_harvester() -> None:
    taken = pool("machines")
    free = poolmetrics.free_addresses([UsedPools(session("team/a", None, taken), ["machines"])])[
        PoolKey("h", "machines")
    ]
    taken["status"]["allocated"] = {"10.0.0.10": "team/one"}
    broken = pool("broken")
    broken["spec"]["ranges"] = [{"subnet": "nonsense"}]
    first, second = session("team/a", None, taken, broken, pool("unused")), session("team/b", None, taken, server="i")
    used = [
        UsedPools(first, ["machines", "machines", "broken", "gone"]),
        UsedPools(session("team/c"), ["machines"]),
        UsedPools(second, ["machines"]),
    ]
    assert poolmetrics.free_addresses(used) == {("h", "machines"): free - 1, ("i", "machines"): free - 1}
    poolmetrics.report(used)
    assert set(values(metrics.IPPOOL_FREE).values()) == {free - 1}
    assert len(values(metrics.IPPOOL_FREE)) == 2
    poolmetrics.report([])
    assert values(metrics.IPPOOL_FREE) == {}


def test_the_first_session_that_sees_a_pool_counts_it() -> None:
    stale = pool("machines")
    stale["status"]["allocated"] = {"10.0.0.10": "team/one"}
    sessions = [
        UsedPools(session("team/a", None, pool("machines")), ["machines"]),
        UsedPools(session("b", None, stale), ["machines"]),
    ]
    (free,) = poolmetrics.free_addresses(sessions).values()
    (first,) = poolmetrics.free_addresses(sessions[:1]).values()
    assert free == first
