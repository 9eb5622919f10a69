"""What the real Fleet did with the bundles of whole clusters and the real charts, replayed on the stand-ins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import CONFIG_MAPS, SECRETS, Obj, Resource, uid_of
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from sandbox.processes.apiserver import ApiServer
from tests.support.observed import Record, records
from tests.support.packager.calico import edit_mtu, installation, play_operator
from tests.support.packager.examples import cluster
from tests.support.packager.guest import GIT_REPO, Guest, new_guest
from tests.support.resources import HELM_CHART_CONFIGS, HELM_CHARTS

pytestmark = pytest.mark.integration
NAMESPACE, NAME = "kube-system", "rke2-calico"
# The record says which object a person changed. The stand-in of a chart has a ConfigMap in place of its Deployment.
CHANGED: Mapping[str, tuple[Resource, str, Obj]] = {
    "HelmChartConfig": (HELM_CHART_CONFIGS, NAME, {"spec": {"valuesContent": "mtu: 1300"}}),
    "HelmChart": (HELM_CHARTS, NAME, {"spec": {"valuesContent": "mtu: 1300"}}),
    "of the chart of ccm": (CONFIG_MAPS, "chart-harvester-cloud-provider", {"data": {"values": "changed: by hand"}}),
}
RECORDS = [
    pytest.param(record, id=str(record), marks=() if record.name == "kubeadm-calico" else pytest.mark.long)
    for record in records("rancher-fleet/addons.yaml")
]


class Player:
    """Runs the steps of a record in one cluster, and tells what each did."""

    def __init__(self, guest: Guest, given: Mapping[str, Any]) -> None:
        self.guest, self.given = guest, given
        self._files: dict[str, bytes] = {}
        self._objects: dict[str, str] = {}

    def render(self, mtu: int) -> Rendered:
        """Render the bundles, as the packager commits them."""
        network = {"pods": {"cidrBlocks": ["10.42.0.0/16"]}}
        spec = {"topology": {"version": self.given["version"]}, "clusterNetwork": network}
        addons: Obj = {"distribution": self.given["distribution"], "cni": {"name": self.given["cni"], "mtu": mtu}}
        addons["csi"] = {"storageClasses": [{"name": "fast", "hostStorageClass": "nvme"}]}
        result = Renderer().render_one(cluster("a", addons, spec=spec), {})
        assert result.ok, result.findings
        self._files = dict(result.tree)
        return result

    async def play(self) -> list[Obj]:
        outcome = []
        for step in self.given["steps"]:
            ((action, value),) = step.items()
            outcome.append(await getattr(self, f"_{action}")(value))
        return outcome

    async def _mtu(self, mtu: int) -> Obj:
        is_new = not self._files
        result = self.render(mtu)
        if is_new:
            await self.guest.add_server(result)
        assert await self.guest.sync(self._files) == set()
        if is_new:
            ready = await self.guest.fleet.sync(self._files, GIT_REPO)
            return {"ready": sorted(map(_short, ready)), "mtu": await self._installed_mtu()}
        return {"modified": await self._modified(), "mtu": await self._installed_mtu()}

    async def _operator(self, _: bool) -> Obj:
        await play_operator(self.guest.client)
        return {"modified": await self._modified()}

    async def _drift(self, changed: str) -> Obj:
        resource, name, patch = CHANGED[changed]
        before = await self.guest.client.get(resource, name, NAMESPACE)
        await self.guest.client.patch(resource, name, NAMESPACE, patch)
        modified = await self._modified()
        after = await self.guest.client.get(resource, name, NAMESPACE)
        content = next(iter(patch))
        if after[content] != before[content]:
            await self.guest.client.patch(resource, name, NAMESPACE, {content: before[content]})
            return {"modified": modified, "corrected": False}
        await self.guest.helm.reconcile()
        same = uid_of(after) == uid_of(before)
        return {"modified": modified, "corrected": True, "same object": same, "revisions": await self._revisions("cni")}

    async def _edited(self, mtu: int) -> Obj:
        await edit_mtu(self.guest.client, mtu)
        return {"modified": await self._modified(), "mtu": await self._installed_mtu()}

    async def _repository(self, change: str) -> Obj:
        before = self._objects or await self._uids()
        self._objects = before
        if change == "created":
            assert await self.guest.sync(self._files) == set()
            outcome: Obj = {"modified": await self._modified()}
        else:
            assert await self.guest.sync({}, GIT_REPO if change == "without the cluster" else None) == set()
            outcome = {"releases": sorted(self.guest.fleet.orphans | await self._fleets_releases())}
        return outcome | {"objects": "unchanged" if await self._uids() == before else "changed"}

    async def _modified(self) -> list[str]:
        return sorted(map(_short, await self.guest.fleet.detect_drift()))

    async def _installed_mtu(self) -> Any:
        return (await installation(self.guest.client))["spec"]["calicoNetwork"]["mtu"]

    async def _helm_secrets(self) -> list[Obj]:
        return list((await self.guest.client.list(SECRETS, NAMESPACE, label_selector="owner=helm"))["items"])

    async def _revisions(self, bundle: str) -> int:
        return sum(_short(secret["metadata"]["labels"]["name"]) == bundle for secret in await self._helm_secrets())

    async def _fleets_releases(self) -> set[str]:
        """Return releases that have the name of a bundle, in contrast to those of the Helm controller."""
        names = {secret["metadata"]["labels"]["name"] for secret in await self._helm_secrets()}
        return {name for name in names if _short(name) != name}

    async def _uids(self) -> dict[str, str]:
        maps = (await self.guest.client.list(CONFIG_MAPS, NAMESPACE))["items"]
        return {obj["metadata"]["name"]: uid_of(obj) for obj in [*maps, await installation(self.guest.client)]}


def _short(bundle: str) -> str:
    """Return the kind of a bundle, without cluster and hash."""
    return bundle.rpartition("-a-")[0] or bundle


@pytest.mark.parametrize("record", RECORDS)
async def test_stand_ins_do_what_fleet_did(empty_api_server: ApiServer, tmp_path: Path, record: Record) -> None:
    given = record.input
    async with (
        empty_api_server.client() as client,
        new_guest(empty_api_server, client, given["distribution"], given["cni"], tmp_path) as guest,
    ):
        assert await Player(guest, given).play() == record.outcome
        assert guest.helm.uninstalled == {}
