"""Commands of the Go provider's guide that build, install and inspect a provider, as written, against ours.

Programs and API servers are real. GitHub, Grafana, Docker and the node of the provider's Pod are stand-ins; the
provider itself is a process with the arguments of its Deployment.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from caphv.api.object import DEPLOYMENTS, Obj
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support import guidehosts
from tests.support.apiservers import running_etcd
from tests.support.clusterctl import NEXT, VERSION, Clusterctl, furnish
from tests.support.e2e import crd
from tests.support.guide import Command, commands
from tests.support.paths import CHECKOUT
from tests.support.shell import Shell
from tests.support.waiting import until
from tests.support.webhooks import Server, example, settled, wrong
from webhooks.configuration import NAMES, RESOURCES
from webhooks.handler import WEBHOOKS

pytestmark = pytest.mark.e2e

FOLDERS = (
    *(
        "bin",
        "caphv",
        "chart",
        "clusterclass",
        "commands",
        "config",
        "deploy",
        "fleet-bundles",
        "operations",
        "packager",
    ),
    *("reconciler", "sandbox", "schemas", "templates", "test", "tests", "tools", "webhooks"),
)
FILES = ("Dockerfile", "LICENSE", "Makefile", "README.md", "pyproject.toml", "requirements.lock")
NUMBERS = itertools.count()
IMAGE = "ghcr.io/rancher-sandbox/cluster-api-provider-harvester:v0.2.7"
URL = "https://github.com/rancher-sandbox/cluster-api-provider-harvester/releases/download"
KINDS = [
    crd("controlplane.cluster.x-k8s.io", "v1beta2", "RKE2ControlPlaneTemplate"),
    crd("bootstrap.cluster.x-k8s.io", "v1beta2", "RKE2ConfigTemplate"),
    crd("monitoring.coreos.com", "v1", "ServiceMonitor"),
    crd("monitoring.coreos.com", "v1", "PrometheusRule"),
    crd("turtles-capi.cattle.io", "v1alpha1", "CAPIProvider"),
]
CAPIPROVIDER = f"""\
apiVersion: turtles-capi.cattle.io/v1alpha1
kind: CAPIProvider
metadata: {{name: harvester, namespace: caphv-system}}
spec:
  name: harvester
  type: infrastructure
  version: {VERSION}
  fetchConfig: {{url: "{URL}/{VERSION}/infrastructure-components.yaml"}}
  configSecret: {{name: caphv-variables}}
"""
READY = """kubectl patch capiprovider harvester -n caphv-system --type=merge \\
  -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'"""
# Where no Pod runs, `--wait` does not end.
WITHOUT_WEBHOOKS = "--set webhooks.enabled=false"


@pytest.fixture(scope="module")
def checkout_copy(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A separate checkout, in which `make setup` has run: `make` writes to an `out/` and a `dist/` of its own."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(checkout / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(checkout / name, folder)
    environment = folder / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    for name in ("requirements.stamp", "project.stamp"):
        (environment / name).touch()
    return folder


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as folder:
        yield folder


@pytest.fixture
def server(etcd: Path) -> Iterator[ApiServer]:
    """An API server with the kinds of others, where nothing runs."""
    server = ApiServer(etcd, f"management-{next(NUMBERS)}")
    asyncio.run(start(server))
    yield server
    asyncio.run(server.stop())


async def start(server: ApiServer) -> None:
    await server.start()
    async with server.client() as client:
        await furnish(client)
        await manifests.apply(client, KINDS)


@pytest.fixture
def shell(tmp_path: Path, checkout_copy: Path) -> Shell:
    shell = Shell(tmp_path, at=checkout_copy)
    shell.environment["PYTHONPATH"] = str(checkout_copy)
    return shell


@pytest.fixture
def user(server: ApiServer, tmp_path: Path, checkout_copy: Path) -> Shell:
    """The shell with the programs of users and the API server."""
    shell = Shell(tmp_path, "kubectl", "helm", at=checkout_copy)
    shell.environment["PYTHONPATH"] = str(checkout_copy)
    private_file(tmp_path / "kubeconfig", pki.to_yaml(server.kubeconfig()))
    return shell


# Without a cluster


def test_make_builds_and_pushes_images_and_says_what_is_missing(shell: Shell) -> None:
    names = commands("test_make_builds_and_pushes_images_and_says_what_is_missing")
    both, build, binary, tests = (command.text for command in names)
    log = shell.folder / "docker.log"
    shell.program("docker", f'echo "$@" >> {log}')
    shell(both)
    assert log.read_text().splitlines() == [f"build --target controller --tag {IMAGE} .", f"push {IMAGE}"]
    shell(build)
    assert log.read_text().splitlines()[2:] == [f"build --target controller --tag {IMAGE} ."]
    shell.refuses("make docker-push", "IMG is empty: name the image: make docker-push IMG=")
    shell.refuses(f"{build} DOCKER=no-such-program", "no-such-program is not installed: install Docker Engine")

    shell(binary)
    assert [path.suffix for path in (shell.at / "dist").iterdir()] == [".whl"]
    # Run, they would run themselves.
    assert "test-unit test-clusters" in shell(f"{tests} --dry-run")


async def test_scripts_lead_to_what_they_name(shell: Shell) -> None:
    everything, *groups, dashboard = commands("test_scripts_lead_to_what_they_name")
    run = partial(asyncio.to_thread, shell)
    output = await run(f"{everything.text} 2>&1")
    assert "no real Harvester: CAPHV_E2E_MANAGEMENT_KUBECONFIG" in output
    assert " passed" not in output
    # Without a Harvester, all groups report the same: what the script calls is enough.
    shell.program("make", 'echo "$@: $CAPHV_E2E_STORIES"')
    for command in groups:
        assert await run(command.text) == f"e2e-live: {command.text.split()[-1]}\n"
    assert await run(f"{everything.text} webhook scale") == "e2e-live: webhook scale\n"

    shell.environment["GRAFANA_TOKEN"] = "token"
    async with guidehosts.grafana() as url:
        curl = dashboard.text.replace("http://grafana:3000", url)
        assert "bad request data" in await run(curl)
        assert "success" in await run(f"{dashboard.typed} | {curl.rpartition(' ')[0]} @-")


# With a cluster


async def test_helm_installs_the_chart_at_its_old_path_with_its_old_values(server: ApiServer, user: Shell) -> None:
    plain, guarded, classes, uninstall, crds, standalone = commands(
        "test_helm_installs_the_chart_at_its_old_path_with_its_old_values"
    )
    run = partial(asyncio.to_thread, user)
    async with server.client() as client:
        for command in (plain, guarded):
            await run(command.text)
            container = await container_of(client)
            assert container["image"] == IMAGE
            assert "--enable-webhooks" in container["args"]
            assert "caphv-webhook-tls" in await run("kubectl get certificates -n caphv-system -o name")
            await run(uninstall.text)
            shipped = len(list((CHECKOUT / "deploy" / "crds").glob("*.yaml")))
            assert len((await run(crds.text)).splitlines()) == shipped
        await run(plain.typed)
        await run(uninstall.text)

        # As written, the class is created before a Pod serves the webhooks.
        await asyncio.to_thread(user.refuses, classes.text, "failed calling webhook")
        await run(uninstall.text)
        assert classes.typed == f"{classes.text} --wait"
        await run(f"{classes.text} {WITHOUT_WEBHOOKS}")
        assert "harvester-rke2" in await run("kubectl get clusterclasses -n caphv-system -o name")
        await run(uninstall.text)

        await run(standalone.text)
        created = await run("kubectl get clusterclasses,harvestermachinetemplates,rke2controlplanetemplates -o name")
        assert {line.partition("/")[2] for line in created.split()} == {
            "harvester-rke2",
            "harvester-rke2-control-plane",
            "harvester-rke2-worker",
        }


async def container_of(client: ApiClient) -> Obj:
    """The container of the installed Deployment."""
    deployment = await client.get(DEPLOYMENTS, "caphv-controller-manager", "caphv-system")
    container: Obj = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


async def test_components_are_applied_inspected_and_removed(server: ApiServer, user: Shell) -> None:
    apply, deploy, *others = commands("test_components_are_applied_inspected_and_removed")
    first = next(index for index, command in enumerate(others) if command.text.startswith("kubectl delete deploy"))
    run = partial(asyncio.to_thread, user)
    async with server.client() as client:
        await run(apply.typed)
        await run(apply.text)
        arguments = (await container_of(client))["args"]
        assert any("${" in argument for argument in arguments)
        async with provider_of(arguments, server, user.folder) as provider:
            await run("kubectl apply -f out/monitoring.yaml")
            await run(deploy.text)
            assert (await container_of(client))["image"] == IMAGE
            await lead_webhooks(client, provider)
            for name, machine in (("my-harvestermachine", MACHINE), ("refused", wrong(*KIND, "refused")[0])):
                (user.at / f"{name}.yaml").write_text(yaml.safe_dump(machine))
            async with guidehosts.node(user.folder, client, lambda: provider.log):
                await inspect(user, others[:first])
                await asyncio.to_thread(user.refuses, "kubectl apply -f refused.yaml", "guestConfig.userData")

        # Without the Pod, the webhooks refuse changes; when the commands of the guide are done, nothing does.
        await asyncio.to_thread(user.refuses, "kubectl apply -f my-harvestermachine.yaml", "failed calling webhook")
        for command in others[first:]:
            await run(command.text)
        assert (await client.list(RESOURCES["validate"]))["items"] == []
        await run("kubectl apply -f my-harvestermachine.yaml")
        (leftover,) = (await client.list(RESOURCES["mutate"]))["items"]
        assert leftover["metadata"]["name"] == NAMES["mutate"]
        await run(next(command.typed for command in others[first:] if command.row))
        assert (await client.list(RESOURCES["mutate"]))["items"] == []


KIND = ("HarvesterMachine", "v1beta1")
MACHINE = example(*KIND, "my-machine")


async def inspect(user: Shell, inspected: list[Command]) -> None:
    """Run commands that show what is installed; each has an output, on the screen or in a file."""
    for command in inspected:
        assert await asyncio.to_thread(user, command.typed) or " > " in command.text, command.typed


@asynccontextmanager
async def provider_of(arguments: list[str], server: ApiServer, folder: Path) -> AsyncIterator[Server]:
    """The provider as a process with the arguments of its container, but for places."""
    provider = Server(folder, "provider", *arguments[1:], command="run")
    provider.options += (f"--metrics-cert-dir={provider.certificates}",)
    provider.environment["POD_NAMESPACE"] = "caphv-system"
    provider.run_as(server, "caphv", "system:masters")
    try:
        await provider.start()
        yield provider
    finally:
        await provider.stop()


async def lead_webhooks(client: ApiClient, provider: Server) -> None:
    """Lead the installed webhooks to the process, as Service and cert-manager would."""
    authority = base64.b64encode(provider.ca.certificate).decode()
    for webhook in WEBHOOKS:
        configuration = await client.get(RESOURCES[webhook], NAMES[webhook])
        for entry in configuration["webhooks"]:
            path = entry["clientConfig"]["service"]["path"]
            entry["clientConfig"] = {"url": f"{provider.url}{path}", "caBundle": authority}
        await client.replace(RESOURCES[webhook], configuration)
    await until(lambda: settled(client, "led"), "objects are validated")


async def test_a_capiprovider_is_installed_and_upgraded(server: ApiServer, user: Shell) -> None:
    create, apply, get, watch, wait, patch, version, automatic, crds = commands(
        "test_a_capiprovider_is_installed_and_upgraded"
    )
    run = partial(asyncio.to_thread, user)
    (user.at / "capiprovider-harvester.yaml").write_text(CAPIPROVIDER)
    async with server.client() as client, guidehosts.github(user.folder) as variables:
        turtles = partial(asyncio.to_thread, reconcile, user, variables)
        await run(create.text)
        await run(apply.text)
        await turtles()
        assert (await container_of(client))["image"].endswith(f":{VERSION}")
        for command in (get, wait):
            assert "harvester" in await run(command.text)
        assert "harvester" in await run(f"timeout 3 {watch.text} || [ $? = 124 ]")

        await run(patch.text.replace("v0.3.0", NEXT))
        await turtles()
        assert (await container_of(client))["image"].endswith(f":{NEXT}")
        # The version counts, not that in the URL.
        await run(version.text.replace("v0.3.0", VERSION))
        await turtles()
        assert (await container_of(client))["image"].endswith(f":{VERSION}")
        await run(automatic.text)
        assert (
            await run("kubectl get capiprovider harvester -n caphv-system -o jsonpath={.spec.enableAutomaticUpdate}")
            == "true"
        )

        user.environment |= variables
        await asyncio.to_thread(user.refuses, crds.text, "404|not find")
        await run("kubectl delete crd harvestermachines.infrastructure.cluster.x-k8s.io")
        await run(f"{crds.typed} --force-conflicts")
        await run("kubectl get crd harvestermachines.infrastructure.cluster.x-k8s.io")


def reconcile(user: Shell, variables: dict[str, str]) -> None:
    """Install what the CAPIProvider names, as the operator of Turtles does, which has clusterctl as a library."""
    spec = user.read("capiprovider harvester -n caphv-system")["spec"]
    provider = {"name": "harvester", "type": "InfrastructureProvider", "url": spec["fetchConfig"]["url"]}
    (user.folder / "clusterctl.yaml").write_text(yaml.safe_dump({"providers": [provider]}))
    clusterctl = Clusterctl(user.folder, user.folder / "kubeconfig", variables)
    release = f"harvester:{spec['version']}"
    components = clusterctl("generate", "provider", f"--infrastructure={release}", "--target-namespace=caphv-system")
    user("kubectl apply --server-side --force-conflicts -f -", components)
    user(READY)
