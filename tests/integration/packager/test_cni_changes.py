"""A changed setting of the CNI reaches every distribution, also after others wrote to the same object."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from caphv.api.object import uid_of
from caphv.runtime.client import ApiClient
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.calico import edit_mtu, installation, play_operator
from tests.support.packager.examples import cluster
from tests.support.packager.guest import GIT_REPO, Guest, new_guest

pytestmark = pytest.mark.integration
FORCING = {"rke2": "v1.36.3+rke2r1", "k3s": "v1.36.3+k3s1", "kubeadm": "v1.36.1"}


def rendered(distribution: str, version: str, mtu: int) -> Rendered:
    spec = {"topology": {"version": version}, "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}}}
    addons = {"distribution": distribution, "cni": {"name": "calico", "mtu": mtu}, "csi": {"enabled": False}}
    result = Renderer().render_one(cluster("a", addons, spec=spec), {})
    assert result.ok, result.findings
    return result


@asynccontextmanager
async def started(
    server: ApiServer, client: ApiClient, distribution: str, version: str, folder: Path
) -> AsyncIterator[Guest]:
    """Lend a cluster whose operator has added its defaults."""
    async with new_guest(server, client, distribution, "calico", folder) as guest:
        first = rendered(distribution, version, 1450)
        await guest.add_server(first)
        assert await guest.sync(first.tree) == set()
        await play_operator(client)
        yield guest


@pytest.mark.parametrize(("distribution", "version"), FORCING.items())
async def test_a_changed_mtu_arrives_after_operator_and_person_wrote(
    empty_api_server: ApiServer, tmp_path: Path, distribution: str, version: str
) -> None:
    async with (
        empty_api_server.client() as client,
        started(empty_api_server, client, distribution, version, tmp_path) as guest,
    ):
        uid = uid_of(await installation(client))
        for mtu, edited in ((1400, None), (1380, 1300)):
            if edited:
                await edit_mtu(client, edited)
            assert await guest.sync(rendered(distribution, version, mtu).tree) == set()
            assert (await installation(client))["spec"]["calicoNetwork"]["mtu"] == mtu
        assert uid_of(await installation(client)) == uid
        assert guest.helm.uninstalled == {}


async def test_a_failed_chart_of_rke2_is_not_uninstalled_by_the_default_of_our_config(
    empty_api_server: ApiServer, tmp_path: Path
) -> None:
    version = "v1.34.9+rke2r1"
    async with (
        empty_api_server.client() as client,
        started(empty_api_server, client, "rke2", version, tmp_path) as guest,
    ):
        await edit_mtu(client, 1300)
        await guest.fleet.sync(rendered("rke2", version, 1380).tree, GIT_REPO)
        for _ in range(3):
            await guest.helm.reconcile()
        assert guest.helm.errors["rke2-calico"]
        assert guest.helm.uninstalled == {}
