"""The life of a cluster's add-ons, for each distribution and CNI, on stand-ins of Fleet and the Helm controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS
from packager.git.directory import Directory
from packager.git.pruning import Pruning
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from packager.rendering.rendered import Rendered
from packager.tree import CLUSTERS
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.examples import cluster
from tests.support.packager.guest import GIT_REPO, WITH_HELM_CONTROLLER, Guest, new_guest
from tests.support.packager.stand_in_charts import SNAPSHOT_CLASSES
from tests.support.packager.tables import older_table
from tests.support.resources import HELM_CHART_CONFIGS, HELM_CHARTS

pytestmark = pytest.mark.integration
CNIS = {
    "rke2": ("calico", "canal", "cilium", "none"),
    "k3s": ("calico", "cilium", "none"),
    "kubeadm": ("calico", "cilium", "none"),
    "talos": ("calico", "cilium", "none"),
}
# Releases whose Helm controller retries failed charts. Before, they wait for the user.
VERSIONS = {"rke2": "v1.36.3+rke2r1", "k3s": "v1.36.3+k3s1", "kubeadm": "v1.36.1", "talos": "v1.36.1"}
SHORT = {("rke2", "calico"), ("k3s", "cilium"), ("talos", "calico")}
CSI = "harvester-csi-driver"
CASES = [
    pytest.param(
        distribution,
        cni,
        False,
        marks=() if (distribution, cni) in SHORT else pytest.mark.long,
        id=f"{distribution}-{cni}",
    )
    for distribution, cnis in CNIS.items()
    for cni in cnis
]
WITH_REAL_CONTROLLER = [
    pytest.param(distribution, cni, True, marks=pytest.mark.long, id=f"{distribution}-{cni}-real")
    for distribution, cni in sorted(SHORT)
    if distribution in WITH_HELM_CONTROLLER
]


class Repository:
    """The repository of one cluster: `push` renders its settings and commits them."""

    def __init__(self, folder: Path, distribution: str, cni: str) -> None:
        self._folder, self._distribution, self._cni = folder, distribution, cni
        self._store = Directory(folder, names=(CLUSTERS,))
        self.held: list[str] = []

    def push(self, planner: Planner, mtu: int, *, upgrade: bool = False, **addons: Any) -> Rendered:
        network = {
            "topology": {"version": VERSIONS[self._distribution]},
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
        }
        cni = {"cni": {"name": self._cni, **({"mtu": mtu} if self._cni != "none" else {})}}
        classes = [{"name": "fast", "hostStorageClass": "nvme"}]
        csi = {"csi": {"storageClasses": classes}}
        facts = cluster("a", {"distribution": self._distribution, **cni, **csi, **addons}, spec=network)
        pins = {facts.key: Bundler().renderer.table.newest} if upgrade else {}
        state = ManagementState((facts,), live=False, pruning=Pruning(complete=True, budget=9), pins=pins)
        planned, result = commit_plan(self._store, planner, state)
        self.held = [one.what.rpartition("/")[2] for one in result.plan.held]
        (rendered,) = planned.batch.rendered
        assert rendered.ok, rendered.findings
        return rendered

    def restore(self, files: dict[str, bytes]) -> None:
        """Commit former files, as a reverted wave does."""
        for path in self.files.keys() - files.keys():
            (self._folder / path).unlink()
        for path, content in files.items():
            (self._folder / path).write_bytes(content)

    @property
    def files(self) -> dict[str, bytes]:
        found = (path for path in self._folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self._folder)): path.read_bytes() for path in found}


def mtu_of(installed: Any) -> Any:
    values = installed["values"]
    network = values.get("installation", {}).get("calicoNetwork") or values.get("calico") or values
    return network.get("mtu") or network.get("vethuMTU") or network.get("MTU")


async def change_by_hand(guest: Guest) -> None:
    """Change an object that Fleet installed: it corrects a manifest, and reports that of a chart, which is undone."""
    if guest.distribution == "k3s":
        changed = {"spec": {"valuesContent": "changed: by hand"}}
        await guest.client.patch(HELM_CHARTS, CSI, "kube-system", changed)
    elif guest.distribution == "rke2" and guest.cni != "none":
        changed = {"spec": {"valuesContent": "mtu: 1300"}}
        await guest.client.patch(HELM_CHART_CONFIGS, f"rke2-{guest.cni}", "kube-system", changed)
    else:
        name = f"chart-{CSI}"
        before = (await guest.client.get(CONFIG_MAPS, name, "kube-system"))["data"]
        await guest.client.patch(CONFIG_MAPS, name, "kube-system", {"data": {"values": "changed: by hand"}})
        assert [bundle.partition("-a-")[0] for bundle in await guest.fleet.detect_drift()] == ["csi"]
        await guest.client.patch(CONFIG_MAPS, name, "kube-system", {"data": before})


async def fail_once(guest: Guest, files: dict[str, bytes]) -> None:
    """Let Fleet and the Helm controller try a commit a few times, in which charts fail."""
    for _ in range(3):
        await guest.fleet.sync(files, GIT_REPO)
        await guest.helm.reconcile()
    assert guest.errors


@pytest.mark.parametrize(("distribution", "cni", "real"), CASES + WITH_REAL_CONTROLLER)
async def test_add_ons_from_nothing_to_their_end(
    empty_api_server: ApiServer,
    new_api_server: Callable[..., Awaitable[ApiServer]],
    tmp_path: Path,
    distribution: str,
    cni: str,
    real: bool,
) -> None:
    older, newest = Planner(Bundler(versions_file=older_table(tmp_path))), Planner(Bundler())
    repository = Repository(tmp_path / "repository", distribution, cni)
    # HelmCharts of the real controller have finalizers, which nothing removes once it has ended.
    server = await new_api_server() if real else empty_api_server
    async with (
        server.client() as client,
        new_guest(server, client, distribution, cni, tmp_path / "guest", real=real) as guest,
    ):

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

        # A change by hand does not last.
        await change_by_hand(guest)
        await settled("0.0.1", 1450)

        # A wave fails, and one commit reverts it.
        former = repository.files
        repository.push(newest, 1400, upgrade=True)
        guest.charts.broken = {"0.1.31"}
        await fail_once(guest, repository.files)
        repository.restore(former)
        guest.charts.broken = set()
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

        # The GitRepo is deleted, and recreated by hand with the path that the condition names: nothing is uninstalled.
        uid = (await client.get(CONFIG_MAPS, f"chart-{CSI}", "kube-system"))["metadata"]["uid"]
        assert await guest.sync({}, None) == set()
        assert await guest.installed(CSI)
        assert await guest.sync(repository.files, {"spec": {"paths": ["clusters/team-a/a/*"]}}) == set()
        await settled("0.1.31", 1400)
        assert (await client.get(CONFIG_MAPS, f"chart-{CSI}", "kube-system"))["metadata"]["uid"] == uid

        # The cluster is deleted, and its folder removed: nothing is uninstalled.
        assert await guest.sync({}) == set()
        assert guest.fleet.releases == {}
        await guest.restart_servers()
        await guest.helm.reconcile()
        assert await guest.installed(CSI)
        if cni != "none":
            assert mtu_of(await guest.installed(f"rke2-{cni}")) == 1400
