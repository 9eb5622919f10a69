"""Watches of claims, on cores that have them and on cores that do not."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, Unreachable
from reconciler.remote.ipam import Ipam, claims_version
from tests.support.memoryserver import MemoryServer
from tests.support.waiting import until

pytestmark = pytest.mark.unit

CRD = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
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
    timeout = asyncio.timeout

    def short(seconds: float) -> asyncio.Timeout:
        waits.append(seconds)
        return timeout(0 if len(waits) < 6 else None)

    monkeypatch.setattr(asyncio, "timeout", short)
    server = Server(v1alpha1=["IPAddressClaim", "IPAddress", "InClusterIPPool"])
    watches, states = Ipam(cast(ApiClient, server)), []
    watches.connect(lambda: states.append(watches.error), lambda _: None)
    opening = asyncio.create_task(watches._wait_for_version())
    await asyncio.wait([opening], timeout=0.05)
    assert isinstance(watches.error, NotFound)
    assert isinstance(states[-1], NotFound)
    assert waits == [5, 10, 20, 40, 60, 60]

    # The change of a CRD ends the wait.
    server.kinds["v1beta1"] = ["IPAddressClaim", "IPAddress"]
    watches._follow_crds()
    assert await opening == "v1beta1"
    assert watches.error is None


def serving(*versions: str) -> MemoryServer:
    """A management cluster whose core has the claims in these versions."""
    names = ("ipaddressclaims.ipam.cluster.x-k8s.io", "ipaddresses.ipam.cluster.x-k8s.io")
    server = MemoryServer(*({**CRD, "metadata": {"name": name}} for name in names))
    for version in versions:
        for kind in ("IPAddressClaim", "IPAddress"):
            server.serve(f"ipam.cluster.x-k8s.io/{version}", kind)
    return server


async def test_version_that_the_core_has_dropped_is_replaced_with_another() -> None:
    server = serving("v1beta1")
    watches = Ipam(cast(ApiClient, server))
    watches.start()
    await until(lambda: watches.claims is not None, "the caches stay empty")
    former = watches.claims
    assert former is not None
    assert former.resource.version == "v1beta1"

    # Other failures keep what is known.
    former.retries.report_failure(Unreachable("down"), 1, has_answered=True)
    assert watches.claims is former
    server.serve("ipam.cluster.x-k8s.io/v1beta2", "IPAddressClaim")
    server.serve("ipam.cluster.x-k8s.io/v1beta2", "IPAddress")
    former.retries.report_failure(NotFound(404, "NotFound", ""), 1, has_answered=True)
    assert watches.claims is None
    # As a core does that is upgraded.
    server.put({**CRD, "metadata": {"name": "ipaddressclaims.ipam.cluster.x-k8s.io"}})
    await until(lambda: watches.claims is not None, "the caches stay empty", seconds=3)
    assert watches.claims is not None
    assert watches.claims.resource.version == "v1beta2"
    assert watches.error is None
    await watches.close()
