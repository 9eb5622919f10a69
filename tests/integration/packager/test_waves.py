"""Upgrades in waves with a real API server and the command that requests them; a test plays Fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.packager import tables
from tests.support.packager.commands import in_thread
from tests.support.packager.environment import (
    CLASSES,
    CLUSTERS,
    CONTROL_PLANES,
    FLEET_CLUSTERS,
    Case,
    Packager,
    crd,
    install,
    opened,
)
from tests.support.packager.repositories import Origin, git
from tests.support.resources import FLEET_BUNDLES
from tests.support.waiting import ended, until

pytestmark = pytest.mark.integration

NAMES = ("a", "b", "c")
OLDER = "2026.11"
PROCESSING = 1.0
"""Seconds from the new spec of Bundles until their status follows; a packager commits within half of that."""


@dataclass
class Fleet:
    """Applies the head of the branch to all clusters but those in `stuck`.

    It first writes each Bundle with the label of the commit, and its status only then. `overtaken` are commits, all
    but the first, that another one followed in between.
    """

    client: ApiClient
    origin: Origin
    stuck: set[str] = field(default_factory=set)
    applied: tuple[str, frozenset[str]] | None = None
    overtaken: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def follow() -> None:
            while True:
                await self.apply()
                await asyncio.sleep(0.2)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            await ended(task)

    async def apply(self) -> None:
        if not self.origin.branches():
            return
        head, stuck = self.origin.head(), frozenset(self.stuck)
        if self.applied == (head, stuck):
            return
        files = self.origin.files()
        folders = [path.rpartition("/")[0] for path in files if path.startswith("clusters/") and "/fleet.yaml" in path]
        bundles = {folder: await self._spec(files, folder, head) for folder in folders}
        await asyncio.sleep(PROCESSING)
        if self.applied and self.origin.head() != head:
            self.overtaken.append(head)
        for folder, bundle in bundles.items():
            await self._status(bundle, ready=folder.split("/")[2] not in stuck)
        self.applied = head, stuck

    async def _spec(self, files: dict[str, str], folder: str, head: str) -> Obj:
        fleet_yaml = yaml.safe_load(files[f"{folder}/fleet.yaml"])
        labels = {**fleet_yaml["labels"], "fleet.cattle.io/commit": head}
        metadata = {"name": fleet_yaml["name"], "namespace": folder.split("/")[1], "labels": labels}
        resources = [{"name": path, "content": text} for path, text in files.items() if path.startswith(f"{folder}/")]
        obj = {"apiVersion": FLEET_BUNDLES.api_version, "kind": FLEET_BUNDLES.kind, "metadata": metadata}
        return await self.client.apply(FLEET_BUNDLES, {**obj, "spec": {"resources": resources}}, manager="fleet")

    async def _status(self, bundle: Obj, *, ready: bool) -> None:
        metadata = bundle["metadata"]
        summary: Obj = {"desiredReady": 1, "ready": 1, "nonReadyResources": []}
        if not ready:
            summary = {"desiredReady": 1, "ready": 0, "nonReadyResources": [{"message": "image cannot be pulled"}]}
        status = {"status": {"observedGeneration": metadata["generation"], "summary": summary}}
        await self.client.patch(FLEET_BUNDLES, metadata["name"], metadata["namespace"], status, subresource="status")


@pytest.fixture(autouse=True)
def quick(own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command looks often."""
    monkeypatch.setattr("commands.bundles.waves._INTERVAL_SECONDS", 0.2)


@pytest.fixture(scope="module")
def server(etcd_folder: Path) -> Iterator[ApiServer]:
    """An API server without Fleet, which the first test installs."""
    server = ApiServer(etcd_folder, "waves")
    asyncio.run(server.start())
    asyncio.run(install(server, CLUSTERS, CLASSES, CONTROL_PLANES, FLEET_CLUSTERS))
    yield server
    asyncio.run(server.stop())


async def test_the_packager_follows_a_request_in_the_repository(
    server: ApiServer, origin: Origin, tmp_path: Path
) -> None:
    async with opened(server, tmp_path, origin) as case:
        await case.namespace_for_leases()
        await asyncio.gather(*(case.cluster(name) for name in NAMES))
        canary = {"metadata": {"labels": {"caphv.io/wave": "canary"}}}
        await case.client.patch(CLUSTERS, "a", case.namespace, canary)
        packager = await leader(case)
        for name in NAMES:
            await case.until_condition(name, "True", part="the status of Fleet is not visible")
        newest, first = releases(case), case.count()

        # Without Fleet's Bundles no wave could be awaited.
        await upgrade(case, "--waves=canary,2,rest", "--gate=ready=60s", f"--release={OLDER}")
        await case.until_lease_event("UpgradeNotPossible", "Bundles of Fleet are not visible")
        assert (releases(case), case.count()) == (newest, first + 1)

        await manifests.apply(case.client, [crd(FLEET_BUNDLES)])
        fleet = Fleet(case.client, origin)
        async with fleet.running():
            await until_state(case, "Complete")
            assert set(releases(case).values()) == {OLDER}
            # The request, a commit for each wave, and one that says that all are ready.
            assert case.count() == first + 4
            for ancestor, names in (("main~2", {"a"}), ("main~1", {"b", "c"}), ("main", set())):
                changed = git(origin.folder, "diff", "--name-only", f"{ancestor}~1", ancestor).splitlines()
                assert {path.split("/")[2] for path in changed if "/" in path} == names
            assert "wave 2 of 2 (2)" in origin.message("main~1")
            assert "Upgrade add-ons in waves: canary, 2, rest" in origin.message("main~3")
            await case.until_lease_event("UpgradeComplete", f"release {OLDER}")
            assert fleet.overtaken == []

            # The second wave does not become ready; another packager finds that out, and reverts it.
            before, fleet.stuck = origin.files(), {"b"}
            request = "--waves=canary,1,rest", "--gate=ready=15s"
            waiting = asyncio.create_task(upgrade(case, *request, "--wait", expect=1))
            await until_state(case, "Progressing", wave=2)
            await packager.stop()
            packager = await leader(case)
            found = await waiting
            assert (found["state"], found["wave"]) == ("Reverted", 2)
            status = yaml.safe_load(origin.files()[status_file_of(case)])
            assert found == {"items": status.pop("waves"), **status}
            assert found["problems"][0]["cluster"] == f"{case.namespace}/b"
            assert "image cannot be pulled" in found["problems"][0]["messages"][0]
            assert releases(case) == {"a": newest["a"], "b": OLDER, "c": OLDER}
            after = origin.files()
            assert {path for path in before | after if before.get(path) != after.get(path)} <= {
                path
                for path in after
                if path.startswith(f"clusters/{case.namespace}/a/") or path == status_file_of(case)
            }
            await case.until_event("AddonBundlesReverted", "image cannot be pulled")
            await case.until_lease_event("UpgradeReverted", f"{case.namespace}/b")
            fleet.stuck = set()
            await case.until_condition("b", "True", part=f"release {newest['a']} was reverted")

            # The cause is fixed: the same command continues with the clusters that are left.
            found = await upgrade(case, *request, "--wait")
            assert [wave["clusters"] for wave in found["items"]] == [[f"{case.namespace}/{name}"] for name in "bc"]
            assert releases(case) == newest


async def test_clusters_that_cannot_be_upgraded_are_left_out(server: ApiServer, origin: Origin, tmp_path: Path) -> None:
    async with opened(server, tmp_path, origin) as case:
        await manifests.apply(case.client, [crd(FLEET_BUNDLES)])
        await case.namespace_for_leases()
        await asyncio.gather(*(case.cluster(name) for name in NAMES))
        async with Fleet(case.client, origin).running():
            await leader(case)
            for name in NAMES:
                await case.until_condition(name, "True", part="applied by Fleet")
            newest = releases(case)

            # A cluster that cannot be rendered costs the others nothing.
            await case.set_values("c", {"cni": {"mtu": 1}})
            await case.until_condition("c", "False", part="mtu")
            found = await upgrade(case, "--waves=rest", "--gate=ready=60s", f"--release={OLDER}", "--wait", expect=1)
            assert found["state"] == "Complete"
            assert [one["cluster"] for one in found["leftOut"]] == [f"{case.namespace}/c"]
            assert releases(case) == {"a": OLDER, "b": OLDER, "c": newest["c"]}
            await case.until_event("AddonBundlesLeftOut", "mtu: Invalid value: 1")
            await case.until_lease_event("UpgradeProgressing", f"Left out: {case.namespace}/c: ")
            await case.until_condition("c", "False", part=f"the upgrade to release {OLDER} left them out")

            # If none is left, the upgrade waits; once one is corrected, it starts.
            waiting = asyncio.create_task(
                upgrade(case, "--waves=rest", "--gate=ready=61s", f"--release={OLDER}", "--wait")
            )
            await case.until_lease_event("UpgradeNotPossible", "no cluster can be upgraded")
            await case.set_values("c", {"cni": {"name": "calico", "mtu": 1300}})
            assert (await waiting)["state"] == "Complete"
            assert set(releases(case).values()) == {OLDER}
            await upgrade(case, "--waves=rest", "--gate=ready=60s", "--wait")
            assert releases(case) == newest

            # What cannot be followed is reported, and changes nothing.
            count = case.count()
            origin.push({file_of(case): "{waves: [canary, 1], ready: soon}\n"})
            await case.until_lease_event("UpgradeNotPossible", "ready: must be a time")
            await case.until_lease_event("UpgradeNotPossible", "the last wave must be 'rest'")
            await case.set_values("c", {"cni": {"name": "calico", "mtu": 1400}})
            await case.until_count(count + 2)
            assert releases(case) == newest


@pytest.mark.parametrize("way", ["revert", "command"])
async def test_a_stopped_upgrade_commits_no_further_wave(
    server: ApiServer, origin: Origin, tmp_path: Path, way: str
) -> None:
    async with opened(server, tmp_path, origin) as case:
        await manifests.apply(case.client, [crd(FLEET_BUNDLES)])
        await case.namespace_for_leases()
        await asyncio.gather(*(case.cluster(name) for name in NAMES))
        fleet = Fleet(case.client, origin)
        async with fleet.running():
            packager = await leader(case)
            for name in NAMES:
                await case.until_condition(name, "True", part="applied by Fleet")
            newest, first = releases(case), case.count()

            # Nothing to stop.
            await upgrade(case, "--stop")
            assert case.count() == first

            fleet.stuck = set(NAMES)
            await upgrade(case, "--waves=1,rest", "--gate=ready=1h", f"--release={OLDER}")
            begun = await until_state(case, "Progressing", wave=1)
            (upgraded,) = (one.split("/")[1] for one in begun["waves"][0]["clusters"])
            await packager.until_value(1, "caphv_packager_upgrade_state", state="progressing")
            await until_another_has_synced(server, origin, tmp_path)
            assert await until_state(case, "Progressing", wave=1) == begun
            if way == "revert":
                origin.remove(file_of(case))
            else:
                await upgrade(case, "--stop")
            await until_state(case, "Stopped", wave=1)
            await case.until_lease_event("UpgradeStopped", "is stopped after wave 1 of 2")
            await packager.until_value(1, "caphv_packager_upgrade_state", state="stopped")
            await packager.until_value(0, "caphv_packager_upgrade_state", state="progressing")

            # The wave becomes ready, and another commit follows: no further wave.
            fleet.stuck = set()
            await case.until_condition(upgraded, "True", part="applied by Fleet")
            count = case.count()
            await case.set_values("c", {"cni": {"name": "calico", "mtu": 1400}})
            await case.until_count(count + 1)
            assert releases(case) == newest | {upgraded: OLDER}


async def test_a_packager_whose_commits_are_reviewed_refuses_a_request(
    server: ApiServer, origin: Origin, tmp_path: Path
) -> None:
    async with opened(server, tmp_path, origin) as case:
        await case.namespace_for_leases()
        origin.push({"README.md": "x"})
        await leader(case, "--review=caphv/bundles")
        await upgrade(case, "--waves=rest", "--gate=ready=60s")
        await case.until_lease_event("UpgradeNotPossible", "run the packager without --review")


def file_of(case: Case) -> str:
    """The packager of a case has a share of the clusters, its namespace."""
    return f"caphv-upgrade-{case.namespace}.yaml"


def status_file_of(case: Case) -> str:
    return f"caphv-upgrade-{case.namespace}.status.yaml"


async def leader(case: Case, *options: str) -> Packager:
    packager = case.packager("--leader-elect", "--interval=1", *options)
    packager.environment["POD_NAMESPACE"] = "caphv-system"
    packager.module = tables.__name__
    await packager.start()
    return packager


async def upgrade(case: Case, *options: str, expect: int = 0) -> Any:
    done = await in_thread(
        *("upgrade", *options, "--packager", case.namespace, "--repo", case.origin.url, "-o", "json"),
    )
    assert done.exit_code == expect, done.output
    return json.loads(done.stdout)


async def until_state(case: Case, state: str, **fields: object) -> Obj:
    found: Obj = {}

    async def holds() -> bool:
        nonlocal found
        found = yaml.safe_load(case.origin.files().get(status_file_of(case), "{}"))
        return all(found.get(name) == value for name, value in {"state": state, **fields}.items())

    await until(holds, lambda: f"wanted {state} {fields}, the upgrade is {found}")
    return found


async def until_another_has_synced(server: ApiServer, origin: Origin, folder: Path) -> None:
    """Run a packager of another namespace on the same repository: it finds nothing to do."""
    count = origin.count()
    async with opened(server, folder, origin) as other:
        await (await other.running()).until_value(1, "caphv_packager_syncs_total", result="unchanged")
    assert origin.count() == count


def releases(case: Case) -> dict[str, str]:
    top = f"clusters/{case.namespace}"
    files = case.origin.files()
    return {name: yaml.safe_load(files[f"{top}/{name}/caphv.yaml"])["versions"]["release"] for name in NAMES}
