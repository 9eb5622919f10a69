"""Real clusterctl and real Helm put our release over what the Go provider's release has installed."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from caphv.api.object import DEPLOYMENTS, NAMESPACES, SERVICES, Obj, Resource, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox import manifests
from sandbox.processes import binaries, pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support.apiservers import running_etcd
from tests.support.clusterctl import INVENTORY, Clusterctl, furnish, released, repository
from tests.support.predecessor import crds

pytestmark = pytest.mark.e2e

# Of the servers, which share one etcd.
NUMBERS = itertools.count()
SPACE, DEPLOYMENT = "caphv-system", "caphv-controller-manager"
BEFORE, RELEASE = "v0.10.0", "v1.0.0"
WEBHOOK_SERVICE = "caphv-webhook-service"
MACHINES = Resource(crds.GROUP, "v1beta1", "harvestermachines", "HarvesterMachine")
SELECTOR = {"control-plane": "controller-manager"}
LABELS = {"cluster.x-k8s.io/provider": "infrastructure-harvester"}


def components() -> list[Obj]:
    """The parts of the Go provider's release that ours meets, in their form after `clusterctl init`."""
    leads_to = {"service": {"namespace": SPACE, "name": WEBHOOK_SERVICE, "path": "/convert"}}
    pod = {
        "metadata": {"labels": SELECTOR},
        "spec": {"containers": [{"name": "manager", "image": f"registry.example.com/go:{BEFORE}"}]},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": LABELS}},
        *crds.custom_resource_definitions(leads_to),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": DEPLOYMENT, "namespace": SPACE, "labels": LABELS},
            "spec": {"replicas": 1, "selector": {"matchLabels": SELECTOR}, "template": pod},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": WEBHOOK_SERVICE, "namespace": SPACE, "labels": LABELS},
            "spec": {"selector": SELECTOR, "ports": [{"port": 443, "targetPort": 9443}]},
        },
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_etcd(tmp_path_factory.mktemp("migration")) as folder:
        yield folder


@pytest.fixture
def server(folder: Path) -> Iterator[ApiServer]:
    """An API server with the kinds of the core, on which nothing runs."""
    server = ApiServer(folder, f"management-{next(NUMBERS)}")
    asyncio.run(server.start())
    private_file(kubeconfig(server), pki.to_yaml(server.kubeconfig()))
    asyncio.run(furnished(server))
    yield server
    asyncio.run(server.stop())


async def furnished(server: ApiServer) -> None:
    async with server.client() as client:
        await furnish(client)


def kubeconfig(server: ApiServer) -> Path:
    return server.folder / f"{server.name}.kubeconfig"


async def machine(client: ApiClient) -> Obj:
    """A machine that the Go provider has, without its VM: nothing but CRDs and manifests is checked here."""
    metadata = {"name": "one", "namespace": "default", "finalizers": [f"harvestermachine.{crds.GROUP}/finalizer"]}
    body = {"apiVersion": MACHINES.api_version, "kind": MACHINES.kind, "metadata": metadata, "spec": {"cpu": 2}}
    return await client.create(MACHINES, body)


async def take_the_webhook_out(client: ApiClient) -> None:
    """The first step of docs/migration.md."""
    for kind in crds.KINDS:
        await client.patch(CRDS, f"{kind.lower()}s.{crds.GROUP}", "", crds.WITHOUT_WEBHOOK)


async def the_machine_is_the_same(client: ApiClient, before: Obj) -> None:
    after = await client.get(MACHINES, "one", "default")
    assert (uid_of(after), after["spec"]) == (uid_of(before), before["spec"])
    assert after["metadata"]["finalizers"] == before["metadata"]["finalizers"]
    for crd in (await client.list(CRDS))["items"]:
        if crd["spec"]["group"] == crds.GROUP:
            assert crd["spec"]["conversion"] == {"strategy": "None"}
            assert crd["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"] == "v1alpha1_v1beta1"


@pytest.mark.parametrize("name", ["harvester", "harvester-harvester"])
async def test_clusterctl_upgrades_from_the_go_provider(server: ApiServer, tmp_path: Path, name: str) -> None:
    """`clusterctl upgrade apply`, as the operator of Turtles does it for a CAPIProvider with another version.

    The longer name is the one by which clusterctl knows the provider itself.
    """
    repository(tmp_path, name)
    release = tmp_path / "repository" / f"infrastructure-{name}" / BEFORE
    release.mkdir()
    (release / "infrastructure-components.yaml").write_text(yaml.safe_dump_all(components()))
    (release / "metadata.yaml").write_bytes(released(RELEASE)["metadata.yaml"])
    clusterctl = Clusterctl(tmp_path, kubeconfig(server))

    async with server.client() as client:
        clusterctl("init", f"--infrastructure={name}:{BEFORE}")
        before = await machine(client)
        await take_the_webhook_out(client)
        clusterctl("upgrade", "apply", f"--infrastructure={SPACE}/{name}:{RELEASE}")
        await the_machine_is_the_same(client, before)
        installed = await client.get(DEPLOYMENTS, DEPLOYMENT, SPACE)
        assert installed["spec"]["template"]["spec"]["containers"][0]["args"][0] == "run"
        assert (await client.get(INVENTORY, f"infrastructure-{name}", SPACE))["version"] == RELEASE
        service = await client.get(SERVICES, WEBHOOK_SERVICE, SPACE)
        assert service["spec"]["selector"] == installed["spec"]["selector"]["matchLabels"] != SELECTOR


async def test_from_manifests_to_helm_to_clusterctl(server: ApiServer, checkout: Path, tmp_path: Path) -> None:
    """As docs/migration.md has it: before each, Deployment and Services from before are deleted, and CRDs are not.

    Turtles installs a CAPIProvider as clusterctl does.
    """
    repository(tmp_path)
    clusterctl = Clusterctl(tmp_path, kubeconfig(server))

    async with server.client() as client:
        await manifests.apply(client, [obj for obj in components() if obj["kind"] not in ("Deployment", "Service")])
        before = await machine(client)
        await take_the_webhook_out(client)
        helm(server, "install", "caphv", checkout / "deploy" / "chart", f"--namespace={SPACE}", "--take-ownership")
        await the_machine_is_the_same(client, before)
        await client.get(DEPLOYMENTS, DEPLOYMENT, SPACE)
        helm(server, "uninstall", "caphv", f"--namespace={SPACE}")
        with pytest.raises(NotFound):
            await client.get(DEPLOYMENTS, DEPLOYMENT, SPACE)
        await client.get(NAMESPACES, SPACE)
        clusterctl("init", f"--infrastructure=harvester:{RELEASE}")
        await client.get(DEPLOYMENTS, DEPLOYMENT, SPACE)
        await the_machine_is_the_same(client, before)


def helm(server: ApiServer, *arguments: str | Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig(server))}
    command = [*map(str, [binaries.binary("helm"), *arguments])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
