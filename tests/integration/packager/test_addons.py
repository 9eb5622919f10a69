"""Add-ons on the stand-ins of Fleet and of the manifests folder, each with a real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from caphv.api.object import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, Obj, Resource
from packager.addons.versions import load_table
from packager.git.directory import Directory
from packager.git.pruning import Pruning
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from packager.rendering.nodefiles import node_files
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import CLUSTERS
from sandbox import manifests
from sandbox.processes import binaries
from sandbox.processes.apiserver import ApiServer
from tests.support.addons.charts import Charts
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.addons.manifests import Addon, DeployController
from tests.support.packager.environment import crd
from tests.support.packager.examples import cluster
from tests.support.packager.stand_in_charts import SNAPSHOT_CLASSES, chart
from tests.support.resources import HELM_CHART_CONFIGS

pytestmark = pytest.mark.integration

POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False
)
GIT_REPO = {"spec": {"paths": ["clusters/*/*/*"]}}


def rendered(distribution: str, release: str, addons: Obj | None = None) -> Rendered:
    classes = [{"name": "fast", "hostStorageClass": "nvme"}]
    facts = cluster("a", {"distribution": distribution, "csi": {"storageClasses": classes}, **(addons or {})})
    result = Renderer().render_one(facts, {}, load_table().release(release))
    assert result.ok, result.findings
    return result


def bundles(names: Sequence[str]) -> list[str]:
    return [name.removesuffix(f"-a-{name.rpartition('-')[2]}") for name in names]


@pytest.mark.parametrize("distribution", ["kubeadm", "talos"])
async def test_csi_driver_becomes_ready_where_the_distribution_has_no_snapshot_crds(
    empty_api_server: ApiServer, distribution: str
) -> None:
    async with empty_api_server.client() as client:
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()), chart)
        wanted = {"csi-crds", "snapshot-controller", "csi", "storage-classes"}
        deadline = time.monotonic() + 60
        # Fleet tries again: an API server serves a new kind a little later.
        while not wanted <= set(bundles(await fleet.sync(rendered(distribution, "2026.12").tree, GIT_REPO))):
            assert time.monotonic() < deadline, fleet.releases
        # CRDs stay whatever happens to the bundle: deleting them deletes all snapshots.
        await fleet.sync({}, GIT_REPO)
        assert fleet.releases == {}
        assert await client.get(CUSTOM_RESOURCE_DEFINITIONS, str(SNAPSHOT_CLASSES))


async def test_a_disabled_add_on_is_uninstalled_in_two_commits_and_by_no_lost_gitrepo(
    empty_api_server: ApiServer, tmp_path: Path
) -> None:
    def push(ipam: Obj) -> dict[str, bytes]:
        topology = {"classRef": {"name": "harvester-rke2"}, "version": "v1.36.2+rke2r1"}
        facts = cluster("a", {"ccm": {"loadBalancer": ipam}}, spec={"topology": topology})
        state = ManagementState((facts,), live=False, pruning=Pruning(complete=True, budget=9))
        commit_plan(Directory(tmp_path, names=(CLUSTERS,)), Planner(Bundler()), state)
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    async def policies() -> int:
        return len((await client.list(POLICIES))["items"])

    async with empty_api_server.client() as client:
        await manifests.apply(client, [crd(HELM_CHART_CONFIGS)])
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()))
        enabled = push({"ipam": "pool"})
        for files, repo in ((enabled, GIT_REPO), (enabled, None), (enabled, GIT_REPO), ({}, GIT_REPO)):
            await fleet.sync(files, repo)
            assert await fleet.detect_drift() == []
            assert await policies() == 1, "a lost GitRepo or branch uninstalls nothing"
        await fleet.sync(enabled, {"spec": {"paths": ["elsewhere/*"]}})
        assert await policies() == 1, "nor does a lost path"

        await fleet.sync(enabled, GIT_REPO)
        await fleet.sync(push({}), GIT_REPO)
        assert await policies() == 1
        await fleet.sync(push({}), GIT_REPO)
        assert await policies() == 0


async def test_a_restarted_and_a_joining_server_do_not_undo_what_fleet_changed(
    empty_api_server: ApiServer, tmp_path: Path
) -> None:
    def network(mtu: int) -> Rendered:
        return rendered("rke2", "2026.12", {"cni": {"name": "calico", "mtu": mtu}})

    folder = tmp_path / "manifests"
    folder.mkdir()
    for path, content in node_files(network(1450)).server_files.items():
        if "/server/manifests/" in path:
            (folder / Path(path).name).write_bytes(content)
    async with empty_api_server.client() as client:
        await manifests.apply(client, [crd(HELM_CHART_CONFIGS)])
        first = DeployController(client, folder, {})
        assert await first.start() == ["caphv-cni-helmchartconfig.yaml"]
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()))

        async def mtu() -> int:
            found = await client.get(HELM_CHART_CONFIGS, "rke2-calico", "kube-system")
            return int(found["spec"]["valuesContent"].partition("mtu: ")[2].split()[0])

        await fleet.sync(network(1400).tree, GIT_REPO)
        assert await mtu() == 1400
        # As it was: a restart applies the old file. Fleet sees the drift and corrects it.
        await first.start()
        assert await mtu() == 1450
        await fleet.detect_drift()
        assert await mtu() == 1400
        # What the script does on the first server once it is up, and on joining servers.
        (folder / "caphv-cni-helmchartconfig.yaml.skip").touch()
        for addons in ({}, {"caphv-cni-helmchartconfig": Addon("other")}):
            assert await DeployController(client, folder, addons).start() == []
        assert await first.poll() == []
        assert await mtu() == 1400


async def test_charts_available_are_rendered_by_the_real_helm(empty_api_server: ApiServer, tmp_path: Path) -> None:
    place = tmp_path / "harvester-cloud-provider"
    (place / "templates").mkdir(parents=True)
    (place / "Chart.yaml").write_text("{apiVersion: v2, name: harvester-cloud-provider, version: 0.2.15}")
    (place / "templates" / "secret.yaml").write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: {{ .Values.fullnameOverride }}}, "
        "data: {cluster: {{ .Values.global.cattle.clusterName | quote }}}}"
    )
    async with empty_api_server.client() as client:
        fleet = FleetCluster(
            client, Helm(empty_api_server.kubeconfig()), Charts(tmp_path, binaries.binary("helm"), chart)
        )
        await fleet.sync(rendered("kubeadm", "2026.12").tree, GIT_REPO)
        found = await client.get(CONFIG_MAPS, "harvester-cloud-provider", "kube-system")
        assert found["data"] == {"cluster": "a"}


async def test_an_installed_object_is_taken_over_only_if_the_bundle_says_so(empty_api_server: ApiServer) -> None:
    def bundle(take: bool) -> dict[str, bytes]:
        fleet = {"helm": {"releaseName": "r", "takeOwnership": take}, "name": "x"}
        return {
            "clusters/a/b/x/fleet.yaml": json.dumps(fleet).encode(),
            "clusters/a/b/x/o.yaml": json.dumps(obj).encode(),
        }

    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"key": "new"}}
    async with empty_api_server.client() as client:
        await client.create(CONFIG_MAPS, {**obj, "metadata": {"name": "theirs", "namespace": "default"}, "data": {}})
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()))
        assert await fleet.sync(bundle(False), GIT_REPO) == []
        assert "invalid ownership metadata" in fleet.releases["x"].error
        assert await fleet.sync(bundle(True), GIT_REPO) == ["x"]
        # Drift makes a bundle unready, unless a patch ignores the field.
        await client.patch(CONFIG_MAPS, "theirs", "default", {"data": {"key": "other"}})
        assert await fleet.sync(bundle(True), GIT_REPO) == []
        ignored = {"apiVersion": "v1", "kind": "ConfigMap", "operations": [{"op": "remove", "path": "/data/key"}]}
        files = bundle(True)
        settings = {**json.loads(files["clusters/a/b/x/fleet.yaml"]), "diff": {"comparePatches": [ignored]}}
        await fleet.sync({**files, "clusters/a/b/x/fleet.yaml": json.dumps(settings).encode()}, GIT_REPO)
        await client.patch(CONFIG_MAPS, "theirs", "default", {"data": {"key": "other"}})
        assert await fleet.detect_drift() == []
