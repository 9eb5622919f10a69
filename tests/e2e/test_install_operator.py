"""The operator behind Rancher Turtles installs, upgrades and removes the provider from the files of a release.

Turtles runs the controllers of cluster-api-operator for its CAPIProviders. There is no network here, so the files are
in ConfigMaps, as at an air-gapped site. No Pods run on the API server: a stand-in reports each Deployment as available,
and another one is all that there is of the core.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from caphv import data
from caphv.api.object import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Obj,
    Resource,
    at,
    uid_of,
)
from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from sandbox import manifests
from sandbox.capi import core, manager
from sandbox.capi.manager import Manager, Ports
from sandbox.processes import binaries, children
from sandbox.processes.apiserver import ApiServer, Etcd
from tests.support.clusterctl import CORE, NEXT, VERSION, released
from tests.support.e2e import crd, holds
from tests.support.waiting import ended, until
from webhooks.configuration import NAMES, RESOURCES

pytestmark = pytest.mark.e2e

GROUP = "operator.cluster.x-k8s.io"
CORE_PROVIDERS = Resource(GROUP, "v1alpha2", "coreproviders", "CoreProvider")
PROVIDERS = Resource(GROUP, "v1alpha2", "infrastructureproviders", "InfrastructureProvider")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
NAMESPACE, NAME, DEPLOYMENT = "caphv-system", "harvester", "caphv-controller-manager"
LABEL = "cluster.x-k8s.io/provider=infrastructure-harvester"
VERSION_LABEL = "provider.cluster.x-k8s.io/version"
CRD = "harvesterclusters.infrastructure.cluster.x-k8s.io"
# Other values than those of the manifest.
VARIABLES = {"CAPHV_LOG_LEVEL": "debug", "CAPHV_CONCURRENCY": "8"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server on which the operator works."""
    folder = tmp_path_factory.mktemp("operator")
    server = ApiServer(folder, "management")
    try:
        with pytest.MonkeyPatch.context() as patch:
            # The operator reads the user's configuration of clusterctl, if there is one.
            patch.setenv("XDG_CONFIG_HOME", str(folder))
            asyncio.run(start(folder, server))
        yield server
    finally:
        asyncio.run(children.stop_all(folder))


async def start(folder: Path, server: ApiServer) -> None:
    """Start the API server with the kinds that others install, and the operator."""
    await Etcd(folder).start()
    await server.start()
    spaces = [namespace(name) for name in (NAMESPACE, core.NAMESPACE)]
    async with server.client() as client:
        await manifests.apply(
            client, [*spaces, *(crd("cert-manager.io", "v1", kind) for kind in ("Issuer", "Certificate"))]
        )

        async def admits(_health: int) -> bool:
            try:
                await client.create(CORE_PROVIDERS, core_provider(), dry_run=True)
            except RequestError:
                return False
            return True

        await manager.start(folder, server, operator(), admits)


def operator() -> Manager:
    name = binaries.OPERATOR.name
    config = manager.read_config(binaries.cluster_api_manifests(program=name))
    return Manager(name, "capi-operator-system", binaries.binary(name), config, options, prefix="capi-operator-")


def options(ports: Ports) -> list[str]:
    return [
        f"--webhook-port={ports.webhook}",
        f"--webhook-cert-dir={ports.certificates}",
        f"--health-addr=127.0.0.1:{ports.health}",
        "--profiler-address=",
        "--diagnostics-address=127.0.0.1:0",
        "--insecure-diagnostics",
    ]


async def test_operator_installs_upgrades_and_removes_the_provider(server: ApiServer) -> None:
    async with server.client() as client, deployments_available(client):
        await install_core(client)
        # The operator retries seldom where it lacks something.
        await manifests.apply(client, [files_of(VERSION), files_of(NEXT), variables()])
        await manifests.apply(client, [provider(VERSION)])
        await check_installed(client, VERSION)
        kind = uid_of(await client.get(CRDS, CRD))

        # As docs/installation.md says: the version and the ConfigMap with its files.
        await client.patch(PROVIDERS, NAME, NAMESPACE, {"spec": fetch(NEXT)})
        await check_installed(client, NEXT)
        assert uid_of(await client.get(CRDS, CRD)) == kind

        await client.delete(PROVIDERS, NAME, NAMESPACE)
        await until(lambda: is_missing(client, PROVIDERS, NAME), "the provider is removed")
        await check_removed(client)
        # Objects of our kinds stay, and what the user created.
        assert uid_of(await client.get(CRDS, CRD)) == kind
        await client.get(NAMESPACES, NAMESPACE)
        await client.get(SECRETS, "caphv-variables", NAMESPACE)


# What users create


def provider(version: str) -> Obj:
    """The CAPIProvider of a release, as the InfrastructureProvider that Turtles makes of it."""
    shipped: Obj = yaml.safe_load((data.folder("deploy/turtles") / "capiprovider.yaml").read_text(encoding="utf-8"))
    spec = {name: value for name, value in shipped["spec"].items() if name not in ("name", "type")}
    assert (shipped["spec"]["name"], shipped["metadata"]["namespace"]) == (NAME, NAMESPACE)
    return typed(PROVIDERS, NAME, NAMESPACE) | {"spec": spec | fetch(version)}


def fetch(version: str) -> Obj:
    """The fields of a provider that say where its files are."""
    return {"version": version, "fetchConfig": {"selector": {"matchLabels": {VERSION_LABEL: version}}}}


def files_of(version: str) -> Obj:
    """The ConfigMap with the files of a release of ours."""
    files = released(version)
    return config_map(
        f"caphv-{version}", NAMESPACE, version, files["metadata.yaml"], files["infrastructure-components.yaml"]
    )


def config_map(name: str, space: str, version: str, metadata: bytes, components: bytes) -> Obj:
    obj = typed(CONFIG_MAPS, name, space)
    obj["metadata"]["labels"] = {VERSION_LABEL: version}
    return obj | {"data": {"metadata": metadata.decode(), "components": components.decode()}}


def variables() -> Obj:
    """The Secret of a release, with other values."""
    (secret,) = manifests.parse(released(VERSION)["caphv-variables.yaml"].decode())
    assert secret["stringData"].keys() == VARIABLES.keys()
    return {**secret, "stringData": VARIABLES}


def namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def typed(resource: Resource, name: str, space: str) -> Obj:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": space},
    }


# Stand-ins


async def install_core(client: ApiClient) -> None:
    """Have the operator install a Deployment that stands for the core, which it requires."""
    series = [{"major": 1, "minor": 13, "contract": "v1beta2"}]
    metadata = {"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata", "releaseSeries": series}
    labels = {"control-plane": "core"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "manager", "image": "example.com/core"}]}}
    deployment = typed(DEPLOYMENTS, "capi-controller-manager", core.NAMESPACE)
    deployment["spec"] = {"selector": {"matchLabels": labels}, "template": pod}
    components = yaml.safe_dump_all([namespace(core.NAMESPACE), deployment])
    files = config_map("core", core.NAMESPACE, CORE, yaml.safe_dump(metadata).encode(), components.encode())
    await manifests.apply(client, [files])
    await manifests.apply(client, [core_provider()])
    await until(lambda: has(client, CORE_PROVIDERS, "cluster-api", core.NAMESPACE, "Ready"), "the core is ready")


def core_provider() -> Obj:
    spec = {"version": CORE, "fetchConfig": {"selector": {"matchLabels": {VERSION_LABEL: CORE}}}}
    return typed(CORE_PROVIDERS, "cluster-api", core.NAMESPACE) | {"spec": spec}


@asynccontextmanager
async def deployments_available(client: ApiClient) -> AsyncIterator[None]:
    """Report Deployments as available inside the block, in place of kube-controller-manager and Pods."""

    async def report() -> None:
        while True:
            for deployment in (await client.list(DEPLOYMENTS))["items"]:
                if deployment["spec"]["replicas"] and not holds(deployment, "Available"):
                    await report_available(client, deployment["metadata"])
            await asyncio.sleep(0.2)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        await ended(task)


async def report_available(client: ApiClient, metadata: Obj) -> None:
    conditions = [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}]
    patch = {"status": {"conditions": conditions}}
    # An upgrade deletes the Deployment meanwhile.
    with contextlib.suppress(NotFound):
        await client.patch(DEPLOYMENTS, metadata["name"], metadata["namespace"], patch, subresource="status")


# What the operator has done


async def check_installed(client: ApiClient, version: str) -> None:
    """Wait until the operator reports a version as installed and available, and check the Deployment."""
    found: Obj = {}

    async def is_installed() -> bool:
        found.update(await client.get(PROVIDERS, NAME, NAMESPACE))
        return at(found, "status", "installedVersion") == version and all(
            holds(found, condition) for condition in ("PreflightCheckPassed", "ProviderInstalled", "Ready")
        )

    await until(is_installed, lambda: f"{version} is not installed: {found.get('status')}")
    assert found["status"]["contract"] == "v1beta2"
    deployment = await client.get(DEPLOYMENTS, DEPLOYMENT, NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/caphv:{version}"
    assert {"--log-level=debug", "--concurrency=8"} <= set(container["args"])
    assert [owner["kind"] for owner in deployment["metadata"]["ownerReferences"]] == [PROVIDERS.kind]
    for webhook, name in NAMES.items():
        await client.get(RESOURCES[webhook], name)


async def check_removed(client: ApiClient) -> None:
    """Expect that nothing of the provider is left but its CRDs and roles, which docs/tasks/uninstall.md deletes.

    clusterctl's library deletes only ClusterRoles whose name begins with the namespace.
    """
    for kind in (DEPLOYMENTS, SERVICES, SERVICE_ACCOUNTS, *RESOURCES.values()):
        assert (await client.list(kind, label_selector=LABEL))["items"] == []
    labelled, roles = [
        {role["metadata"]["name"] for role in (await client.list(ROLES, label_selector=selector))["items"]}
        for selector in (LABEL, "")
    ]
    assert "caphv-manager-role" in labelled
    assert {name for name in roles if name.startswith("caphv-")} == labelled


async def is_missing(client: ApiClient, resource: Resource, name: str) -> bool:
    try:
        await client.get(resource, name, NAMESPACE if resource.namespaced else "")
    except NotFound:
        return True
    return False


async def has(client: ApiClient, resource: Resource, name: str, space: str, condition: str) -> bool:
    return holds(await client.get(resource, name, space), condition)
