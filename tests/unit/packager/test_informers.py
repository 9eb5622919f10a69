"""A kind that cannot be read for a moment is not one without objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound, ServerFault, TooManyRequests, Unreachable
from packager.controller import state
from tests.support.waiting import until

pytestmark = pytest.mark.unit
FLEET, CONTROL_PLANES = "fleet.cattle.io", "controlplane.cluster.x-k8s.io"
ONE = Key("team", "one")
IMPORTED: Obj = {
    "metadata": {
        "name": "one",
        "namespace": "team",
        "uid": "1",
        "resourceVersion": "7",
        "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "one"}],
    }
}
REF = {"apiGroup": CONTROL_PLANES, "kind": "RKE2ControlPlane", "name": "one"}


class Server:
    """An API server: requests for some objects fail with an error until it is removed."""

    name, budget, time = "management", None, None

    def __init__(self, path: str, error: Exception) -> None:
        self.path, self.error = path, error
        self.recovered = False

    def _fail(self, path: str) -> None:
        if path == self.path and not self.recovered:
            raise self.error

    async def request(self, _method: str, path: str) -> Obj:
        self._fail(path)
        group, _, version = path.removeprefix("/apis/").partition("/")
        if not version:
            return {"name": group, "preferredVersion": {"version": "v1"}, "versions": [{"version": "v1"}]}
        kind = "Cluster" if group == FLEET else "RKE2ControlPlane"
        row = {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "verbs": ["list", "watch"]}
        return {"groupVersion": f"{group}/v1", "resources": [row]}

    async def list(self, resource: Any, *_: Any, **__: Any) -> Obj:
        self._fail(resource.group)
        return {"metadata": {"resourceVersion": "7"}, "items": [IMPORTED]}

    async def watch(self, *_: Any, on_open: Callable[[], None], **__: Any) -> AsyncIterator[tuple[str, Obj]]:
        on_open()
        await asyncio.Event().wait()
        yield "", {}


class Packager:
    """The caches of the packager, with one Cluster; `settled` counts what asks for a plan."""

    def __init__(self, server: Server) -> None:
        self.settled = 0
        client = cast(ApiClient, server)
        self.cache = state.ClusterCache(client, "v1beta2", state.ClusterFilter(), lambda *_: None, self._settle)
        ref = {"kind": "HarvesterCluster", "name": "one"}
        metadata = {"name": "one", "namespace": "team", "uid": "1", "resourceVersion": "1"}
        spec = {"infrastructureRef": ref, "controlPlaneRef": REF}
        self.cache.clusters.observe({"metadata": metadata, "spec": spec})
        self.cache.harvester_clusters.observe({"metadata": metadata})
        self.cache.connect()

    def _settle(self) -> None:
        self.settled += 1

    @property
    def one(self) -> state.ClusterState:
        return self.cache.states()[ONE]


async def until_read(packager: Packager) -> None:
    async with asyncio.timeout(10):
        await packager.cache.wait_until_ready(10)


@pytest.mark.parametrize(
    "error", [ServerFault(503, "", "no endpoints"), TooManyRequests(429, "", "slow down"), Unreachable("no answer")]
)
@pytest.mark.parametrize("path", [FLEET, f"/apis/{FLEET}"])
async def test_a_failed_list_does_not_mean_that_there_are_no_fleet_clusters(
    error: Exception, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packager.informers._RETRY_SECONDS", 0.01)
    server = Server(path, error)
    packager = Packager(server)
    packager.cache.states()
    await until(lambda: not packager.one.why.startswith("waiting for RKE2ControlPlane"))
    # Nothing is rendered, and the bundles stay.
    assert packager.one.facts is None
    assert not packager.one.incomplete
    assert packager.one.why == f"Cluster of {FLEET} cannot be read: {error}"
    server.recovered = True
    await until_read(packager)
    facts = packager.one.facts
    assert facts
    assert len(facts.fleet_clusters) == 1
    await packager.cache.kinds.close()


async def test_a_failed_list_of_control_planes_does_not_mean_that_there_are_none() -> None:
    server = Server(CONTROL_PLANES, ServerFault(503, "", "no endpoints"))
    packager = Packager(server)
    packager.cache.states()
    await until(lambda: "cannot be read" in packager.one.why)
    assert packager.one.why == f"RKE2ControlPlane of {CONTROL_PLANES} cannot be read: no endpoints"
    assert not packager.one.incomplete
    server.recovered = True
    await until_read(packager)
    assert packager.one.facts
    await packager.cache.kinds.close()


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no right"), NotFound(404, "NotFound", "no such kind")])
async def test_what_must_not_be_read_or_does_not_exist_is_not_waited_for(error: Exception) -> None:
    packager = Packager(Server(FLEET, error))
    await until_read(packager)
    facts = packager.one.facts
    assert facts
    assert not facts.fleet_clusters
    await packager.cache.kinds.close()
