"""What protects clusters when Fleet loses their manifests, and how to remove one on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from caphv.api.object import NAMESPACES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import NotFound
from commands.main import cli
from packager.definitions.files import management_git_repo
from packager.rendering.gitrepo import GitRepoOptions
from sandbox.processes.apiserver import ApiServer
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.packager.definitions import definition
from tests.support.packager.environment import CLUSTERS, install_kinds_of
from tests.support.packager.repositories import Origin
from tests.support.packager.sync import put

pytestmark = pytest.mark.integration

GROUPS = {
    "MachineDeployment": "cluster.x-k8s.io",
    "MachineHealthCheck": "cluster.x-k8s.io",
    "ClusterResourceSet": "addons.cluster.x-k8s.io",
}
REPO = management_git_repo(GitRepoOptions("https://git.example.com/fleet.git"))


def files(origin: Origin) -> dict[str, bytes]:
    return {path: text.encode() for path, text in origin.files().items()}


def sync(source: Path, origin: Origin, *more: str) -> int:
    arguments = ["packager", "sync", str(source), "--repo", origin.url, *more]
    return CliRunner().invoke(cli, arguments, prog_name="caphv").exit_code


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPHV_GIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "definitions"
    folder.mkdir()
    put(folder, definition("prod"), definition("other", addonDelivery="ClusterResourceSet"))
    return folder


async def names(client: ApiClient, kind: str) -> set[str]:
    found = await client.list(await find_resource(client, kind=kind, group=GROUPS[kind]), "team-a")
    return {obj["metadata"]["name"] for obj in found["items"]}


async def exists(client: ApiClient) -> bool:
    try:
        return bool(await client.get(CLUSTERS, "prod", "team-a"))
    except NotFound:
        return False


async def test_clusters_outlive_their_gitrepo_path_and_branch_and_are_removed_in_two_commits(
    empty_api_server: ApiServer, source: Path, origin: Origin
) -> None:
    assert sync(source, origin) == 0
    async with empty_api_server.client() as client:
        await install_kinds_of(client, files(origin))
        await client.create(NAMESPACES, {"metadata": {"name": "fleet-default"}})
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()))
        assert len(await fleet.sync(files(origin), REPO)) == len(fleet.releases) > 3
        for lost in (None, {**REPO, "spec": {**REPO["spec"], "paths": ["elsewhere"]}}):
            await fleet.sync(files(origin), lost)
            assert fleet.releases == {}
            assert await exists(client)
            await fleet.sync(files(origin), REPO)
        await fleet.sync({}, REPO)
        assert await exists(client), "an emptied branch"
        await fleet.sync(files(origin), REPO)

        # What is no longer defined is deleted, unless machines run on it.
        workers: Obj = {"name": "workers", "replicas": 0, "cpu": 8, "memory": "16Gi"}
        more = (workers, {**workers, "name": "gpu", "replicas": 1})
        assert await names(client, "MachineHealthCheck") == {"other-mhc", "prod-mhc"}
        assert await names(client, "ClusterResourceSet")
        put(source, definition("other", individualObjects=True, workers=[*more]))
        assert sync(source, origin) == 0
        await install_kinds_of(client, files(origin))
        await fleet.sync(files(origin), REPO)
        assert await names(client, "ClusterResourceSet") == set()
        assert await names(client, "MachineDeployment") == {"other-workers", "other-gpu"}
        await fleet.sync(files(origin), None)
        assert await names(client, "MachineDeployment") == {"other-workers", "other-gpu"}
        # Helm takes custom resources over as they are, so the protection could not be lifted at the same time.
        await fleet.sync(files(origin), REPO)
        put(source, definition("other", individualObjects=True, workers=[], healthCheck={"enabled": False}))
        for _ in range(2):
            assert sync(source, origin) == 1
            await fleet.sync(files(origin), REPO)
        assert await names(client, "MachineHealthCheck") == {"prod-mhc"}
        assert await names(client, "MachineDeployment") == {"other-gpu"}
        for pools, status in (([{**more[1], "replicas": 0}], 0), ([], 1), ([], 0)):
            put(source, definition("other", individualObjects=True, workers=pools))
            assert sync(source, origin) == status
            await fleet.sync(files(origin), REPO)
        assert await names(client, "MachineDeployment") == set()

        # On purpose: one commit lifts the protection, the next one removes the cluster.
        (source / "prod.yaml").unlink()
        assert sync(source, origin, "--confirm", "team-a/prod") == 1
        await fleet.sync(files(origin), REPO)
        assert await exists(client)
        assert sync(source, origin) == 1, "the second commit needs a confirmation, too"
        assert sync(source, origin, "--confirm", "team-a/prod") == 0
        await fleet.sync(files(origin), REPO)
        assert not await exists(client)
