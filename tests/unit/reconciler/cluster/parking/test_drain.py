"""Which Pods a drain ends, and which of them stay for now."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, NotFound, ServerFault
from reconciler.cluster.parking.drain import evict, is_agent_of_rancher, is_evicted

pytestmark = pytest.mark.unit

REPLICA = {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        # It would be lost.
        ({"metadata": {}}, False),
        ({"metadata": {"ownerReferences": [{"kind": "Backup"}]}}, False),
        ({"metadata": REPLICA}, True),
        ({"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}}, False),
        ({"metadata": {**REPLICA, "annotations": {"kubernetes.io/config.mirror": "x"}}}, False),
        ({"metadata": REPLICA, "status": {"phase": "Succeeded"}}, False),
        ({"metadata": REPLICA, "status": {"phase": "Failed"}}, False),
        ({"metadata": REPLICA, "status": {"phase": "Running"}}, True),
    ],
)
def test_pods(pod: Obj, expected: bool) -> None:
    assert is_evicted(pod) is expected


def test_agents_of_rancher_are_known_by_namespace_and_label() -> None:
    labels = {"app": "cattle-cluster-agent"}
    agent = {"name": "agent-x", "namespace": "cattle-system", "labels": labels}
    assert is_agent_of_rancher({"metadata": agent})
    assert not is_agent_of_rancher({"metadata": {**agent, "namespace": "team"}})
    assert not is_agent_of_rancher({"metadata": {**agent, "labels": {"app": "rancher"}}})


class Evictions:
    """A workload API that answers the eviction of a Pod by its name."""

    def __init__(self, **errors: ApiError) -> None:
        self.errors, self.asked = errors, list[str]()

    async def request(self, method: str, path: str, *, body: Obj, **_: Any) -> None:
        name = body["metadata"]["name"]
        assert (method, path) == ("POST", f"/api/v1/namespaces/team/pods/{name}/eviction")
        self.asked.append(name)
        if error := self.errors.get(name):
            raise error


async def test_pods_that_a_budget_keeps_are_counted() -> None:
    client = Evictions(
        budget=ApiError(429, "TooManyRequests", "budget"),
        budgets=ServerFault(500, "InternalError", "more than one budget"),
        ended=NotFound(404, "NotFound", "deleted"),
        replaced=Conflict(409, "Conflict", "another uid"),
    )
    pods = [{"metadata": {"name": name, "namespace": "team"}} for name in ("evicted", *client.errors)]
    ending = {"metadata": {"name": "ending", "namespace": "team", "deletionTimestamp": "2026-11-28T00:00:00Z"}}
    assert await evict(cast("ApiClient", client), [*pods, ending]) == 2
    assert client.asked == ["evicted", *client.errors]
