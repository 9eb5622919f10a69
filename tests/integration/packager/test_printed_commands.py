"""A person who runs the command that a sync prints, unchanged, gets what it is printed for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from caphv.api import remedies
from caphv.api.object import NAMESPACES
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.definitions import definition
from tests.support.packager.environment import CLUSTERS, GIT_REPOS, install
from tests.support.packager.git_servers import git_daemon
from tests.support.packager.repositories import Origin
from tests.support.packager.sync import Management, call, done, put, sync
from tests.support.printed import Person

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_environment")]


@pytest.fixture
def person(empty_api_server: ApiServer, tmp_path: Path) -> Person:
    return Person(tmp_path, empty_api_server, empty_api_server)


async def test_fleet_gets_the_folder_and_the_branch_of_a_sync(
    empty_api_server: ApiServer, person: Person, source: Path, origin: Origin
) -> None:
    put(source, definition("shop"))
    await install(empty_api_server, GIT_REPOS)
    with git_daemon(origin.folder.parent) as server:
        options = ("--branch", "live", "--create-branch", "--path", "infra", "--client-secret", "fleet-git")
        arguments = ("sync", source, "--repo", f"{server}/fleet.git", *options)
        pushed = done(await asyncio.to_thread(call, *arguments))
        async with empty_api_server.client() as client:
            await client.create(NAMESPACES, {"metadata": {"name": "fleet-local"}})
            await person.follows(remedies.APPLY_GIT_REPO, pushed.stdout)
            (repo,) = (await client.list(GIT_REPOS))["items"]

    spec = repo["spec"]
    assert (spec["repo"], spec["branch"]) == (f"{server}/fleet.git", "live")
    assert spec["clientSecretName"] == "fleet-git"
    assert "infra/manifests/*/*/*" in spec["paths"]
    assert "infra/manifests/team-a/shop/cluster/cluster.yaml" in origin.files("live")


async def test_a_cluster_that_a_sync_could_not_delete_is_deleted(
    empty_api_server: ApiServer, person: Person, source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The management cluster allows the deletion, and is unreachable once the removal is pushed."""
    management = Management(monkeypatch)
    management.leaves = True
    old = definition("old")
    old["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, old, definition("other"))
    done(await asyncio.to_thread(sync, source, origin, "--apply"))
    (source / "old.yaml").unlink()
    result = await asyncio.to_thread(sync, source, origin, "--apply")
    assert result.exit_code == 2

    await install(empty_api_server, CLUSTERS)
    async with empty_api_server.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "team-a"}})
        for name in ("old", "other"):
            head = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind}
            await client.create(CLUSTERS, {**head, "metadata": {"name": name, "namespace": "team-a"}, "spec": {}})
        await person.follows(remedies.DELETE_CLUSTER, result.stderr)
        clusters = (await client.list(CLUSTERS))["items"]
    assert [cluster["metadata"]["name"] for cluster in clusters] == ["other"]
