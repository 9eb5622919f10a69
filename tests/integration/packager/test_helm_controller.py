"""The life of our HelmCharts and HelmChartConfigs: the stand-in does what the real Helm controller did.

The records are of the real controller, which also runs again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Obj, at, uid_of
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from sandbox.processes.apiserver import ApiServer
from tests.support.observed import Record, records
from tests.support.packager.calico import edit_mtu, installation, play_operator
from tests.support.packager.examples import cluster
from tests.support.packager.guest import GIT_REPO, Guest, new_guest
from tests.support.resources import HELM_CHART_CONFIGS, HELM_CHARTS

pytestmark = pytest.mark.integration

RECORDS = records("k3s-io-helm-controller/life.yaml")
CALICO, CSI = "rke2-calico", "harvester-csi-driver"
NAMESPACE = "kube-system"


def _cases(*short: str) -> list[Any]:
    """Return the records; those that are not `short` are for long variants."""
    return [pytest.param(record, marks=() if record.name in short else pytest.mark.long) for record in RECORDS]


async def steps(server: ApiServer, folder: Path, record: Record, *, real: bool = False) -> dict[str, Obj]:
    """Let charts live as in a record. Return what was seen."""
    distribution, version = record.input["distribution"], record.input["version"]
    async with server.client() as client, new_guest(server, client, distribution, "calico", folder, real=real) as guest:
        life = Life(guest, distribution, version)
        await life.run()
    return life.steps


class Life:
    """The life of the charts of one cluster; `steps` has what was seen after each step."""

    def __init__(self, guest: Guest, distribution: str, version: str) -> None:
        self._guest, self._distribution, self._version = guest, distribution, version
        self._helm = guest.fleet.helm
        self._uid = ""
        self.steps: dict[str, Obj] = {}

    async def run(self) -> None:
        """Install, change, fail as the failure policy says, and delete."""
        first = self._render(1450)
        await self._guest.add_server(first)
        assert await self._guest.sync(first.tree) == set()
        self._uid = uid_of(await installation(self._guest.client))
        await play_operator(self._guest.client)
        await self._see("installed")

        assert await self._guest.sync(self._render(1400).tree) == set()
        await self._see("mtu of 1400")

        # A person's edit conflicts with the next change, where Helm does not force it.
        await edit_mtu(self._guest.client, 1300)
        await self._try(self._render(1380))
        await self._see("mtu of 1380 after an edit")
        if self._guest.helm.errors:
            await self._guest.helm.reconcile()
            await self._see("the next attempt")
            # What the page on troubleshooting advises.
            await self._helm.run("rollback", CALICO, "--force-conflicts", namespace=NAMESPACE)
            await self._guest.helm.reconcile()
            await self._see("after helm rollback")

        await self._fail_by_default()
        await self._see("a conflict with the default of failurePolicy")

        for name in (CALICO, CSI):
            if await self._helm.status(name, NAMESPACE):
                await self._guest.client.delete(HELM_CHARTS, name, NAMESPACE)
        await self._guest.helm.reconcile()
        await self._see("HelmCharts deleted")

    async def _try(self, rendered: Rendered) -> None:
        await self._guest.fleet.sync(rendered.tree, GIT_REPO)
        await self._guest.helm.reconcile()

    async def _fail_by_default(self) -> None:
        """Change the MTU in an object without our settings for failures and conflicts, until Helm has reinstalled."""
        kind = HELM_CHART_CONFIGS if self._distribution == "rke2" else HELM_CHARTS
        obj = await self._guest.client.get(kind, CALICO, NAMESPACE)
        values = obj["spec"]["valuesContent"].replace("mtu: 1380", "mtu: 1360")
        assert values != obj["spec"]["valuesContent"]
        await edit_mtu(self._guest.client, 1320)
        spec = {"valuesContent": values, "failurePolicy": None, "forceConflicts": False}
        await self._guest.client.patch(kind, CALICO, NAMESPACE, {"spec": spec})
        await self._guest.helm.reconcile()
        assert "kubectl-edit" in self._guest.helm.errors[CALICO]
        await self._guest.helm.reconcile()

    def _render(self, mtu: int) -> Rendered:
        network = {"pods": {"cidrBlocks": ["10.42.0.0/16"]}}
        addons = {"distribution": self._distribution, "cni": {"name": "calico", "mtu": mtu}}
        spec = {"topology": {"version": self._version}, "clusterNetwork": network}
        result = Renderer().render_one(cluster("a", addons, spec=spec), {})
        assert result.ok, result.findings
        return result

    async def _see(self, step: str) -> None:
        """Note what a person sees."""
        releases = {}
        for name in (CALICO, CSI):
            status = await self._helm.status(name, NAMESPACE)
            if status:
                releases[name] = f"{status.state}, {'server' if status.is_server_side else 'client'}-side"
        live = await installation(self._guest.client)
        values = (await self._guest.installed(CALICO) or {}).get("values")
        self.steps[step] = {
            "releases": releases,
            "mtu of the values": at(values, "installation", "calicoNetwork", "mtu"),
            "mtu of the object": at(live, "spec", "calicoNetwork", "mtu"),
            "object kept": bool(live) and uid_of(live) == self._uid,
            "errors": dict(self._guest.helm.errors),
            "uninstalled": dict(self._guest.helm.uninstalled),
            "drift": [name.rpartition("-a-")[0] for name in await self._guest.fleet.detect_drift()],
        }


@pytest.mark.parametrize("record", _cases("k3s-that-aborts"), ids=str)
async def test_the_stand_in_does_what_the_real_controller_did(
    empty_api_server: ApiServer, tmp_path: Path, record: Record
) -> None:
    assert await steps(empty_api_server, tmp_path, record) == record.outcome


@pytest.mark.parametrize("record", _cases("rke2-that-forces"), ids=str)
async def test_the_real_controller_does_what_it_did(
    new_api_server: Callable[..., Awaitable[ApiServer]], tmp_path: Path, record: Record
) -> None:
    assert await steps(await new_api_server(), tmp_path, record, real=True) == record.outcome
