"""The real helm against a real API server: what upgrades keep and renew, and what an uninstallation leaves.

No Pods run there, and webhooks that no one serves would refuse all, so nothing is made that they validate.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, SECRETS, Obj, Resource, uid_of
from caphv.runtime.client import ApiClient
from sandbox.processes import binaries
from sandbox.processes.apiserver import ApiServer
from tests.support.apiservers import running_management
from tests.support.e2e import crd
from webhooks.configuration import NAMES, RESOURCES
from webhooks.handler import WEBHOOKS

pytestmark = pytest.mark.e2e

NAMESPACE = "caphv-system"
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
MACHINES = "harvestermachines.infrastructure.cluster.x-k8s.io"


@dataclass
class Helm:
    """helm with one cluster; `chart` is a copy that holds files in place of links."""

    chart: Path
    kubeconfig: Path

    def __call__(self, *arguments: str) -> None:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.chart.parent)}
        command = [str(binaries.binary("helm")), *arguments, f"--namespace={NAMESPACE}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"

    def install(self, *values: str) -> None:
        """Install or upgrade with values as `--set` takes them."""
        options = [f"--set={value}" for value in values]
        self("upgrade", "--install", "--create-namespace", "caphv", str(self.chart), *options)


@pytest.fixture(scope="module")
def management(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    others = [
        ("cluster.x-k8s.io", "ClusterClass"),
        ("controlplane.cluster.x-k8s.io", "RKE2ControlPlaneTemplate"),
        ("bootstrap.cluster.x-k8s.io", "RKE2ConfigTemplate"),
    ]
    stand_ins = [stand_in(group, kind) for group, kind in others]
    with running_management(tmp_path_factory.mktemp("helm"), stand_ins) as server:
        yield server


def stand_in(group: str, kind: str) -> Obj:
    found = crd(group, "v1beta2", kind)
    if kind == "ClusterClass":
        found["spec"]["names"]["plural"] = CLASSES.plural
        found["metadata"]["name"] = f"{CLASSES.plural}.{group}"
    return found


@pytest.fixture
def helm(management: ApiServer, checkout: Path, tmp_path: Path) -> Helm:
    chart = tmp_path / "chart"
    shutil.copytree(checkout / "deploy" / "chart", chart)
    return Helm(chart, management.folder / "kubeconfig")


async def authorities(client: ApiClient) -> set[str]:
    """CAs of all webhooks; the empty text for one without."""
    found = [await client.get(RESOURCES[webhook], NAMES[webhook]) for webhook in WEBHOOKS]
    return {entry["clientConfig"].get("caBundle", "") for obj in found for entry in obj["webhooks"]}


def test_from_installation_to_the_end(management: ApiServer, helm: Helm) -> None:
    asyncio.run(live(management, helm))


async def live(management: ApiServer, helm: Helm) -> None:
    async with management.client() as client:
        older(helm.chart, without_columns=True)
        helm.install("webhooks.certificate=self-signed")
        made = await client.get(SECRETS, "caphv-webhook-self-signed", NAMESPACE)
        assert await authorities(client) == {made["data"]["ca.crt"]}
        before = await client.get(CUSTOM_RESOURCE_DEFINITIONS, MACHINES)
        assert columns(before) == set()

        older(helm.chart, without_columns=False)
        # As docs/installation.md says: what was set before stays.
        helm("upgrade", "caphv", str(helm.chart), "--reset-then-reuse-values", "--set=replicas=2")
        assert (await client.get(SECRETS, "caphv-webhook-self-signed", NAMESPACE))["data"] == made["data"]
        assert await authorities(client) == {made["data"]["ca.crt"]}
        assert (await client.get(DEPLOYMENTS, "caphv-controller-manager", NAMESPACE))["spec"]["replicas"] == 2
        upgraded = await client.get(CUSTOM_RESOURCE_DEFINITIONS, MACHINES)
        assert columns(upgraded)
        assert uid_of(upgraded) == uid_of(before)

        # Nothing serves webhooks here, and our templates have to get in. API servers call webhooks for a moment after
        # their configuration is deleted.
        helm.install("webhooks.enabled=false")
        classes = ("webhooks.enabled=false", "clusterClasses.namespaces={default}")
        helm.install(*classes)
        found = await client.get(CLASSES, "harvester-rke2", "default")
        helm.install(*classes, "replicas=2")
        assert uid_of(await client.get(CLASSES, "harvester-rke2", "default")) == uid_of(found)

        helm("uninstall", "caphv")
        assert (await client.list(DEPLOYMENTS, NAMESPACE))["items"] == []
        assert uid_of(await client.get(CUSTOM_RESOURCE_DEFINITIONS, MACHINES)) == uid_of(before)
        assert uid_of(await client.get(CLASSES, "harvester-rke2", "default")) == uid_of(found)


def older(chart: Path, *, without_columns: bool) -> None:
    """Take the columns out of a CRD, as if an older chart had none, or put them back."""
    (path,) = (chart / "files" / "crds").glob("*_harvestermachines.yaml")
    kept = path.with_suffix(".whole")
    if not without_columns:
        kept.rename(path)
        return
    shutil.copy(path, kept)
    definition = yaml.safe_load(path.read_text())
    for version in definition["spec"]["versions"]:
        version.pop("additionalPrinterColumns", None)
    path.write_text(yaml.safe_dump(definition))


def columns(definition: Obj) -> set[str]:
    found = [version.get("additionalPrinterColumns") or [] for version in definition["spec"]["versions"]]
    return {column["name"] for version in found for column in version} - {"Age"}
