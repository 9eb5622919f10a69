"""Charts without downloads by Fleet, on its stand-in and that of RKE2's Helm controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from caphv.api.object import CONFIG_MAPS, Obj, uid_of
from packager.rendering.renderer import Renderer
from packager.rendering.vendored import ROOT, VendoredChart, folder_of
from packager.tree import Tree
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.addons.helmcontroller import HelmController
from tests.support.packager.environment import crd
from tests.support.packager.examples import cluster
from tests.support.resources import HELM_CHART_CONFIGS, HELM_CHARTS

pytestmark = pytest.mark.integration

CCM = VendoredChart("harvester-cloud-provider", "0.2.15", "", {"Chart.yaml": b"name: harvester-cloud-provider\n"})
GIT_REPO = {"spec": {"paths": ["clusters/*/*/*"]}}


async def test_a_setting_reaches_the_release_without_a_download_by_fleet(
    empty_api_server: ApiServer,
) -> None:
    def tree(replicas: int) -> Tree:
        addons = {"charts": {"installedBy": "HelmController"}, "ccm": {"replicas": replicas}}
        return Renderer().render_one(cluster("a", addons), {}).tree

    def by_fleet(helm: Mapping[str, Any]) -> list[Obj]:
        raise AssertionError(f"Fleet downloads {helm}")

    async with empty_api_server.client() as client:
        await manifests.apply(client, [crd(HELM_CHARTS), crd(HELM_CHART_CONFIGS)])
        helm = Helm(empty_api_server.kubeconfig())
        fleet, controller = FleetCluster(client, helm, by_fleet), HelmController(client, helm)
        assert len(await fleet.sync(tree(1), GIT_REPO)) == 3
        assert await controller.reconcile() == ["harvester-cloud-provider", "harvester-csi-driver"]
        assert controller.releases["harvester-cloud-provider"].input["values"]["replicasCount"] == 1

        upgrades = {name: release.upgrades for name, release in fleet.releases.items()}
        await fleet.sync(tree(2), GIT_REPO)
        await controller.reconcile()
        assert controller.releases["harvester-cloud-provider"].input["values"]["replicasCount"] == 2
        changed = [name for name, release in fleet.releases.items() if release.upgrades != upgrades[name]]
        assert [name.rpartition("-")[0] for name in changed] == ["ccm-a"]


async def test_an_existing_cluster_takes_a_vendored_chart_as_the_same_release(
    empty_api_server: ApiServer,
) -> None:
    (folders,) = folder_of([CCM]).values()
    vendor = {f"{ROOT.name}/{name}/{path}": text for name, one in folders.items() for path, text in one.files.items()}
    facts = cluster("a", {"distribution": "kubeadm", "csi": {"enabled": False}})
    before = Renderer().render_one(facts, {}).tree
    after = Renderer().render_one(facts, {**vendor, **before}).tree
    downloads = 0

    def chart(helm: Mapping[str, Any]) -> list[Obj]:
        nonlocal downloads
        downloads += "repo" in helm
        metadata = {"name": "objects-of-the-chart"}
        return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"version": helm["version"]}}]

    async with empty_api_server.client() as client:
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()), chart)
        ready = await fleet.sync(before, GIT_REPO)
        assert downloads == 1
        live = await client.get(CONFIG_MAPS, "objects-of-the-chart", "kube-system")
        assert await fleet.sync(after, GIT_REPO) == ready
        same = await client.get(CONFIG_MAPS, "objects-of-the-chart", "kube-system")
        assert (downloads, uid_of(same), same["data"]) == (1, uid_of(live), live["data"])
        assert {release.bundle.release for release in fleet.releases.values()} == set(fleet.releases)
