"""A changed setting of the CNI reaches every distribution, also after others wrote to the same object."""

from __future__ import annotations

from pathlib import Path

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from packager.rendering.renderer import Rendered, Renderer
from sandbox.addons.helm import Helm
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.examples import cluster
from tests.support.packager.guest import Guest
from tests.support.packager.stand_in_charts import INSTALLATIONS

pytestmark = pytest.mark.integration
NAME = {"name": "default", "namespace": "kube-system"}
DEFAULTS = {
    "name": "default-ipv4-ippool",
    "blockSize": 26,
    "nodeSelector": "all()",
    "disableBGPExport": False,
    "disableNewAllocations": False,
    "allowedUses": ["Workload", "Tunnel"],
    "assignmentMode": "Automatic",
}
"""What Calico's operator adds to each pool."""
FORCING = {"rke2": "v1.36.3+rke2r1", "k3s": "v1.36.3+k3s1", "kubeadm": "v1.36.1"}


def rendered(distribution: str, version: str, mtu: int) -> Rendered:
    spec = {"topology": {"version": version}, "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}}}
    addons = {"distribution": distribution, "cni": {"name": "calico", "mtu": mtu}, "csi": {"enabled": False}}
    result = Renderer().render_one(cluster("a", addons, spec=spec), {})
    assert result.ok, result.findings
    return result


async def write(client: ApiClient, manager: str, network: Obj) -> None:
    """Write fields of the Installation as another client, which owns them from then on."""
    head = {"apiVersion": INSTALLATIONS.api_version, "kind": INSTALLATIONS.kind, "metadata": NAME}
    await client.apply(INSTALLATIONS, {**head, "spec": {"calicoNetwork": network}}, manager=manager)


async def network(client: ApiClient) -> Obj:
    live = await client.get(INSTALLATIONS, NAME["name"], NAME["namespace"])
    found: Obj = live["spec"]["calicoNetwork"]
    return found


async def started(server: ApiServer, client: ApiClient, distribution: str, version: str, folder: Path) -> Guest:
    """Return a cluster whose operator has added its defaults."""
    guest = Guest(client, Helm(server.kubeconfig()), distribution, "calico", folder)
    first = rendered(distribution, version, 1450)
    await guest.add_server(first)
    assert await guest.sync(first.tree) == set()
    pools = [pool | DEFAULTS for pool in (await network(client))["ipPools"]]
    await write(client, "operator", {"ipPools": pools})
    return guest


@pytest.mark.parametrize(("distribution", "version"), FORCING.items())
async def test_a_changed_mtu_arrives_after_operator_and_person_wrote(
    empty_api_server: ApiServer, tmp_path: Path, distribution: str, version: str
) -> None:
    async with empty_api_server.client() as client:
        guest = await started(empty_api_server, client, distribution, version, tmp_path)
        uid = (await client.get(INSTALLATIONS, NAME["name"], NAME["namespace"]))["metadata"]["uid"]
        for mtu, edited in ((1400, None), (1380, 1300)):
            if edited:
                await write(client, "kubectl-edit", {"mtu": edited})
            assert await guest.sync(rendered(distribution, version, mtu).tree) == set()
            assert (await network(client))["mtu"] == mtu
        live = await client.get(INSTALLATIONS, NAME["name"], NAME["namespace"])
        assert live["metadata"]["uid"] == uid
        assert guest.helm.uninstalled == {}


async def test_a_helm_controller_that_cannot_force_takes_the_change_and_uninstalls_nothing(
    empty_api_server: ApiServer, tmp_path: Path
) -> None:
    version = "v1.34.9+k3s1"
    async with empty_api_server.client() as client:
        guest = await started(empty_api_server, client, "k3s", version, tmp_path)
        assert await guest.sync(rendered("k3s", version, 1400).tree) == set()
        assert (await network(client))["mtu"] == 1400

        # A person's edit stops the next change. The network stays as it is.
        await write(client, "kubectl-edit", {"mtu": 1300})
        await guest.fleet.sync(rendered("k3s", version, 1380).tree, {"spec": {"paths": ["clusters/*/*/*"]}})
        for _ in range(3):
            await guest.helm.reconcile()
        assert "failure policy is 'abort'" in guest.helm.releases["rke2-calico"].error
        assert (await network(client))["mtu"] == 1300
        assert guest.helm.uninstalled == {}


async def test_a_failed_chart_of_rke2_is_not_uninstalled_by_the_default_of_our_config(
    empty_api_server: ApiServer, tmp_path: Path
) -> None:
    version = "v1.34.9+rke2r1"
    async with empty_api_server.client() as client:
        guest = await started(empty_api_server, client, "rke2", version, tmp_path)
        await write(client, "kubectl-edit", {"mtu": 1300})
        await guest.fleet.sync(rendered("rke2", version, 1380).tree, {"spec": {"paths": ["clusters/*/*/*"]}})
        for _ in range(3):
            await guest.helm.reconcile()
        assert guest.helm.releases["rke2-calico"].error
        assert guest.helm.uninstalled == {}
