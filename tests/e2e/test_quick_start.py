"""The quick start works as it is written: what it applies comes up, and what it deletes disappears."""

import asyncio
import base64
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.clientconfig import own_configuration
from caphv.runtime.errors import NotFound
from sandbox import manifests
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.unmodified_core]

NAMESPACE = "demo"
CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
MACHINES = Resource("infrastructure.cluster.x-k8s.io", "v1beta1", "harvestermachines", "HarvesterMachine")
VMS = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine")


def applied(checkout: Path) -> list[Obj]:
    """The objects that the sandbox part of the page applies."""
    page = (checkout / "docs" / "quick-start.md").read_text(encoding="utf-8")
    found = re.search(r"<<'YAML'\n(.*?)\nYAML\n", page, re.DOTALL)
    assert found
    return list(yaml.safe_load_all(found[1]))


async def the_whole_cluster_can_be_moved(box: Sandbox) -> None:
    folder = box.folder / "moved"
    folder.mkdir()
    command = [str(binaries.binary("clusterctl")), "move", "--namespace", NAMESPACE, "--to-directory", str(folder)]
    variables = {"KUBECONFIG": str(box.kubeconfig("management")), "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"}

    async def moved() -> bool:
        # clusterctl refuses while the core has not found all Nodes.
        done = await asyncio.to_thread(subprocess.run, command, env={**os.environ, **variables}, capture_output=True)
        return done.returncode == 0

    await until(moved, "clusterctl can move the cluster", seconds=180)
    kinds = sorted(path.name.partition("_")[0] for path in folder.iterdir())
    assert kinds.count("HarvesterMachine") == kinds.count("Machine") == 3, kinds
    assert {"Cluster", "HarvesterCluster", "RKE2ControlPlane", "MachineDeployment", "Secret"} <= set(kinds), kinds


async def scenario(box: Sandbox, objects: list[Obj]) -> None:
    await box.up()
    names = ("management", "harvester")
    clients = [ApiClient(await own_configuration(str(box.kubeconfig(name))), name=name) for name in names]
    management, harvester = clients

    async def machines_are_ready() -> bool:
        machines = (await management.list(MACHINES, NAMESPACE))["items"]
        return len(machines) == 3 and all((machine.get("status") or {}).get("ready") for machine in machines)

    async def cluster_is_deleted() -> bool:
        try:
            await management.get(CLUSTERS, "first", NAMESPACE)
        except NotFound:
            return True
        return False

    identity = {"kubeconfig": base64.b64encode(box.kubeconfig("harvester").read_bytes()).decode()}
    secret = {"name": "harvester-identity", "namespace": NAMESPACE}
    await manifests.apply(
        management,
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": identity},
            *objects,
        ],
    )
    # The core takes up to a minute to create workers after the control plane is there.
    await until(machines_are_ready, seconds=180)
    await the_whole_cluster_can_be_moved(box)
    await management.delete(CLUSTERS, "first", NAMESPACE)
    await until(cluster_is_deleted, "the cluster is deleted", seconds=180)
    for resource in (VMS, PERSISTENT_VOLUME_CLAIMS, SERVICES, SECRETS):
        assert (await harvester.list(resource, NAMESPACE))["items"] == []
    for client in clients:
        await client.close()


def test_quick_start(checkout: Path, tmp_path: Path) -> None:
    binaries.prepare()
    box = Sandbox(tmp_path / "box")
    try:
        asyncio.run(scenario(box, applied(checkout)))
        assert asyncio.run(box.down())
    finally:
        asyncio.run(children.stop_all(box.folder))
