"""Watches of claims, on cores that have them and on cores that do not."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from reconciler.remote import ipam
from reconciler.remote.ipam import Ipam, claims_version

pytestmark = pytest.mark.unit

GROUP = "/apis/ipam.cluster.x-k8s.io"


class Server:
    """Serves kinds of the group by version."""

    name, budget = "management", None

    def __init__(self, **kinds: list[str]) -> None:
        self.kinds = kinds
        self.requests = 0

    async def request(self, _method: str, path: str) -> Obj:
        version = path.removeprefix(GROUP).removeprefix("/")
        if version:
            names = self.kinds[version]
            return {"resources": [{"name": f"{kind.lower()}s", "kind": kind, "namespaced": True} for kind in names]}
        self.requests += 1
        versions = [{"version": name} for name in self.kinds]
        return {"name": "ipam.cluster.x-k8s.io", "versions": versions, "preferredVersion": versions[0]}


async def test_version_is_one_that_has_claims() -> None:
    server = Server(v1alpha2=["InClusterIPPool"], v1beta2=["InClusterIPPool"], v1beta1=["IPAddressClaim", "IPAddress"])
    assert await claims_version(cast(ApiClient, server)) == "v1beta1"
    server.kinds["v1beta2"].append("IPAddressClaim")
    assert await claims_version(cast(ApiClient, server)) == "v1beta2"


async def test_claims_in_no_known_version_are_an_error_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    resumed = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 6:
            await resumed.wait()

    monkeypatch.setattr(ipam.asyncio, "sleep", sleep)
    server = Server(v1alpha1=["IPAddressClaim", "IPAddress", "InClusterIPPool"])
    watches, states = Ipam(cast(ApiClient, server)), []
    watches.connect(lambda: states.append(watches.error), lambda _: None)
    opening = asyncio.create_task(watches._wait_for_version())
    await asyncio.wait([opening], timeout=0.05)
    assert isinstance(watches.error, NotFound)
    assert isinstance(states[-1], NotFound)
    assert waits == [5, 10, 20, 40, 60, 60]

    server.kinds["v1beta1"] = ["IPAddressClaim", "IPAddress"]
    monkeypatch.undo()
    resumed.set()
    assert await opening == "v1beta1"
    assert watches.error is None
