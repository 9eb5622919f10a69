"""Lists of an untrusted server, whose pages may be too large: etcd among hundreds of Pods, all VMs of a Harvester."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from aiohttp import web

from caphv.api.object import NODES, PODS, Obj
from caphv.runtime.errors import TooLarge
from caphv.runtime.etcd import find_pods
from caphv.runtime.listing import list_pages
from operations.read.management import list_all
from reconciler.cluster.parking.drain import pods_to_evict
from tests.support.answering import serving

pytestmark = pytest.mark.unit


@dataclass
class Collection:
    """Answers lists by label and page, and notes what it was asked for."""

    objs: list[Obj]
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def __call__(self, request: web.Request) -> web.Response:
        selector, limit = request.query.get("labelSelector", ""), int(request.query.get("limit") or 10**6)
        self.asked.append((selector, limit))
        wanted = dict(each.split("=") for each in selector.split(",") if each)
        found = [obj for obj in self.objs if wanted.items() <= (obj["metadata"].get("labels") or {}).items()]
        start = int(request.query.get("continue") or 0)
        rest = {"continue": str(start + limit)} if start + limit < len(found) else {}
        items = found[start : start + limit]
        return web.json_response({"metadata": {"resourceVersion": "10", **rest}, "items": items})


def thing(name: str, brackets: int, labels: dict[str, str] | None = None) -> Obj:
    """An object whose managedFields have so many lists and objects."""
    return {"metadata": {"name": name, "labels": labels or {}, "managedFields": [{} for _ in range(brackets)]}}


def pod(name: str, node: str, container: str, labels: dict[str, str] | None = None) -> Obj:
    return {**thing(name, 840, labels), "spec": {"nodeName": node, "containers": [{"name": container}]}}


AGENTS = [pod(f"agent-{number}", f"node-{number}", "agent") for number in range(300)]
LABELS = {"component": "etcd", "tier": "control-plane"}


async def test_labelled_pods_of_etcd_are_found_with_one_request_whatever_else_runs() -> None:
    etcd = [pod(f"etcd-{node}", node, "etcd", LABELS) for node in "abc"]
    server = Collection([*AGENTS, *etcd])
    async with serving(server, untrusted=True) as client:
        assert [found["metadata"]["name"] for found in await find_pods(client, "b")] == ["etcd-a", "etcd-c"]
    assert server.asked == [("component=etcd,tier=control-plane", 125)]


async def test_pods_of_etcd_without_labels_are_found_among_hundreds_of_large_ones() -> None:
    server = Collection([*AGENTS, pod("etcd-a", "a", "etcd")])
    async with serving(server, untrusted=True) as client:
        assert [found["metadata"]["name"] for found in await find_pods(client, "b")] == ["etcd-a"]
    assert [limit for _, limit in server.asked[:3]] == [125, 125, 31], "one by label, and then smaller pages"


async def test_the_last_pod_of_etcd_is_not_looked_for_under_another_label() -> None:
    server = Collection([*AGENTS, pod("etcd-a", "a", "etcd", LABELS)])
    async with serving(server, untrusted=True) as client:
        assert await find_pods(client, "a") == []
    assert len(server.asked) == 1


async def test_hundreds_of_pods_of_a_node_are_drained() -> None:
    owner = {"kind": "ReplicaSet", "controller": True}
    pods = [pod(f"web-{number}", "node", "web") for number in range(250)]
    for evicted in pods:
        evicted["metadata"]["ownerReferences"] = [owner]
    async with serving(Collection(pods), untrusted=True) as client:
        assert len(await pods_to_evict(client, ["node"])) == 250


@pytest.mark.parametrize(("brackets", "last"), [(300, 125), (1200, 31)])
async def test_a_whole_collection_of_an_untrusted_server_is_read(brackets: int, last: int) -> None:
    server = Collection([thing(f"vm-{number}", brackets) for number in range(600)])
    async with serving(server, untrusted=True) as client:
        found = await list_all(client, NODES)
    assert [obj["metadata"]["name"] for obj in found] == [f"vm-{number}" for number in range(600)]
    assert server.asked[-1] == ("", last)


async def test_a_trusted_server_is_asked_for_large_pages() -> None:
    server = Collection([thing(f"vm-{number}", 300) for number in range(600)])
    async with serving(server) as client:
        assert len(await list_all(client, NODES)) == 600
    assert server.asked == [("", 500)] * 2


async def test_one_object_beyond_the_bounds_is_an_error() -> None:
    async with serving(Collection([thing("large", 70_000)]), untrusted=True) as client:
        with pytest.raises(TooLarge):
            await list_all(client, NODES)


async def test_a_list_of_an_untrusted_server_ends() -> None:
    async def endless(_request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "10", "continue": "more"}, "items": []})

    async with serving(endless, untrusted=True) as client:
        with pytest.raises(TooLarge, match="does not end"):
            _ = [page async for page in list_pages(client, PODS)]
