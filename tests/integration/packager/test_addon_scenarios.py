"""The life of a cluster's add-ons, for each distribution and CNI, on stand-ins of Fleet and the Helm controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS
from packager.bundler import Bundler
from packager.git.directory import Directory
from packager.git.prune import Pruning
from packager.planner import ManagementState, Planner, publish
from packager.rendering.renderer import Rendered
from packager.tree import CLUSTERS
from sandbox.addons.helm import Helm
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.examples import cluster
from tests.support.packager.guest import WITH_HELM_CONTROLLER, Guest
from tests.support.packager.stand_in_charts import SNAPSHOT_CLASSES
from tests.support.packager.tables import older_table

pytestmark = pytest.mark.integration
CNIS = {
    "rke2": ("calico", "canal", "cilium", "none"),
    "k3s": ("calico", "cilium", "none"),
    "kubeadm": ("calico", "cilium", "none"),
    "talos": ("calico", "cilium", "none"),
}
SHORT = {("rke2", "calico"), ("k3s", "cilium"), ("talos", "calico")}
CSI = "harvester-csi-driver"
CASES = [
    pytest.param(distribution, cni, marks=() if (distribution, cni) in SHORT else pytest.mark.long)
    for distribution, cnis in CNIS.items()
    for cni in cnis
]


class Repository:
    """The repository of one cluster: `push` renders its settings and commits them."""

    def __init__(self, folder: Path, distribution: str, cni: str) -> None:
        self._folder, self._distribution, self._cni = folder, distribution, cni
        self._store = Directory(folder, names=(CLUSTERS,))
        self.held: list[str] = []

    def push(self, planner: Planner, mtu: int, *, upgrade: bool = False, **addons: Any) -> Rendered:
        network = {"clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}}}
        cni = {"cni": {"name": self._cni, **({"mtu": mtu} if self._cni != "none" else {})}}
        classes = [{"name": "fast", "hostStorageClass": "nvme"}]
        csi = {"csi": {"storageClasses": classes}}
        facts = cluster("a", {"distribution": self._distribution, **cni, **csi, **addons}, spec=network)
        pins = {facts.key: Bundler().renderer.table.newest} if upgrade else {}
        state = ManagementState((facts,), live=False, pruning=Pruning(complete=True, budget=9), pins=pins)
        planned, result = publish(self._store, planner, state)
        self.held = [one.what.rpartition("/")[2] for one in result.plan.held]
        (rendered,) = planned.batch.rendered
        assert rendered.ok, rendered.findings
        return rendered

    @property
    def files(self) -> dict[str, bytes]:
        found = (path for path in self._folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self._folder)): path.read_bytes() for path in found}


def mtu_of(installed: Any) -> Any:
    values = installed["values"]
    network = values.get("installation", {}).get("calicoNetwork") or values.get("calico") or values
    return network.get("mtu") or network.get("vethuMTU") or network.get("MTU")


@pytest.mark.parametrize(("distribution", "cni"), CASES)
async def test_add_ons_from_nothing_to_their_end(
    empty_api_server: ApiServer, tmp_path: Path, distribution: str, cni: str
) -> None:
    older, newest = Planner(Bundler(versions=older_table(tmp_path))), Planner(Bundler())
    repository = Repository(tmp_path / "repository", distribution, cni)
    async with empty_api_server.client() as client:
        guest = Guest(client, Helm(empty_api_server.kubeconfig()), distribution, cni, tmp_path / "servers")

        async def settled(version: str, mtu: int) -> None:
            assert await guest.sync(repository.files) == set()
            assert await guest.fleet.detect_drift() == []
            csi = await guest.installed(CSI)
            assert csi, "the CSI driver is not installed"
            assert csi["version"] == version
            if cni != "none":
                assert mtu_of(await guest.installed(f"rke2-{cni}")) == mtu

        # From nothing to ready. The first boot has the network that Fleet finds.
        first = repository.push(older, 1450)
        await guest.add_server(first)
        assert await guest.sync({}, None) == set()
        if distribution in WITH_HELM_CONTROLLER and cni != "none":
            assert mtu_of(await guest.installed(f"rke2-{cni}")) == 1450, "before Fleet"
        await settled("0.0.1", 1450)

        # An upgrade. In its middle, nodes of the old and of the new machine template join, and old ones restart.
        second = repository.push(newest, 1400, upgrade=True)
        await guest.add_server(first)
        await settled("0.1.31", 1400)
        await guest.add_server(second)
        await guest.restart_servers()
        await settled("0.1.31", 1400)

        # Disable an add-on, in two commits. Its CRDs stay.
        disabled = {"csi": {"enabled": False}}
        repository.push(newest, 1400, **disabled)
        assert {"csi", "storage-classes"} <= set(repository.held)
        assert await guest.sync(repository.files) == set()
        assert await guest.installed(CSI)
        repository.push(newest, 1400, **disabled)
        assert repository.held == []
        assert await guest.sync(repository.files) == set()
        assert await guest.installed(CSI) is None
        assert await client.get(CUSTOM_RESOURCE_DEFINITIONS, str(SNAPSHOT_CLASSES))

        # Enable it again.
        repository.push(newest, 1400)
        await settled("0.1.31", 1400)

        # The cluster's folder is removed: nothing is uninstalled.
        assert await guest.sync({}) == set()
        assert guest.fleet.releases == {}
        await guest.restart_servers()
        await guest.helm.reconcile()
        assert await guest.installed(CSI)
        if cni != "none":
            assert mtu_of(await guest.installed(f"rke2-{cni}")) == 1400
