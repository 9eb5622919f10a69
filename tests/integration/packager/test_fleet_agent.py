"""What Fleet's real agent did with Helm releases, replayed against the stand-in, which runs the real Helm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, TooManyRequests
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.addons.bundles import Bundle
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.observed import Record, records
from tests.support.packager.agent_steps import BUNDLE, NAMESPACE, play
from tests.support.packager.environment import GIT_REPOS, crd
from tests.support.resources import HELM_CHART_CONFIGS
from tests.support.waiting import until

pytestmark = pytest.mark.integration
SHORT = (
    "custom-resource-drift-without-force-is-never-corrected",
    "custom-resource-drift-with-force-is-corrected",
    "an-upgrade-conflicts-with-the-operator-that-owns-the-list",
    "force-that-is-set-later-ends-a-conflict",
    "a-kept-release-of-another-name-is-an-orphan",
)
RECORDS = [
    pytest.param(record, id=str(record), marks=() if record.name in SHORT else pytest.mark.long)
    for record in records("rancher-fleet/agent.yaml")
]
INSTALLATIONS = Resource("operator.tigera.io", "v1", "installations", "Installation", namespaced=False)


class StandIn:
    """The stand-in with one bundle."""

    def __init__(self, fleet: FleetCluster) -> None:
        self._fleet = fleet

    async def deploy(self, settings: Mapping[str, Any], objects: list[Obj]) -> str:
        keep = bool(settings.get("keepResources"))
        named = {"name": BUNDLE, "defaultNamespace": NAMESPACE, **settings}
        return await self._fleet.install_or_upgrade(Bundle(BUNDLE, named, objects, keep))

    async def modified(self) -> list[str]:
        return await self._fleet.modified(self._fleet.releases[BUNDLE].bundle)

    async def correct(self) -> str:
        await self._fleet.correct(self._fleet.releases[BUNDLE])
        return self._fleet.releases[BUNDLE].error

    async def remove(self) -> None:
        await self._fleet.remove(self._fleet.releases.pop(BUNDLE).bundle)

    async def releases(self) -> list[str]:
        return [f"{NAMESPACE}/{name}" for name in sorted(self._fleet.orphans)]


async def listed(client: ApiClient, kind: Resource) -> bool:
    try:
        await client.list(kind)
    except (NotFound, TooManyRequests):
        return False
    return True


@pytest.mark.parametrize("record", RECORDS)
async def test_the_stand_in_does_what_the_agent_did(empty_api_server: ApiServer, record: Record) -> None:
    async with empty_api_server.client() as client:
        installations = crd(INSTALLATIONS)
        installations["spec"]["scope"] = "Cluster"
        await manifests.apply(client, [crd(HELM_CHART_CONFIGS), crd(GIT_REPOS), installations])
        for kind in (HELM_CHART_CONFIGS, GIT_REPOS, INSTALLATIONS):
            await until(lambda kind=kind: listed(client, kind), lambda kind=kind: f"{kind} cannot be listed")

        agent = StandIn(FleetCluster(client, Helm(empty_api_server.kubeconfig())))
        assert await play(agent, client, record.input) == record.outcome
