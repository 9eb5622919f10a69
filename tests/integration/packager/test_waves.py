"""Upgrades in waves, by the command and by the packager, with a real API server; a test plays Fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import LEASES, NAMESPACES, Obj
from caphv.api.resources import FLEET_BUNDLES
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
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
from tests.support.packager.examples import cluster
from tests.support.packager.repositories import Origin, git
from tests.support.paths import CHECKOUT
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


@pytest.fixture(scope="module")
def server(etcd_folder: Path) -> Iterator[ApiServer]:
    """An API server without Fleet, which the first test installs."""
    server = ApiServer(etcd_folder, "waves")
    asyncio.run(server.start())
    asyncio.run(install(server, CLUSTERS, CLASSES, CONTROL_PLANES, FLEET_CLUSTERS))
    yield server
    asyncio.run(server.stop())


@pytest.mark.usefixtures("own_environment")
async def test_waves_continue_when_ready_and_are_reverted_when_not(
    server: ApiServer, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "management.yaml").write_text(yaml.safe_dump(server.kubeconfig()))

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "management.yaml"))
    monkeypatch.setenv("CAPHV_GIT_REPO", origin.url)

    async def process(*arguments: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "caphv", "bundles", *arguments, "-o", "json"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, (out.decode(), err.decode())
        return json.loads(out)

    async def caphv(*arguments: str, expect: int = 0) -> Any:
        done = await in_thread(*arguments, "-o", "json")
        assert done.exit_code == expect, done.output
        return json.loads(done.stdout) if expect < 2 else done.stderr

    def upgrade(waves: str, gate: str, release: str, *more: str, expect: int = 0) -> Awaitable[Any]:
        return caphv("upgrade", "--waves", waves, "--gate", gate, "--release", release, *more, expect=expect)

    async def releases() -> dict[str, str]:
        return {one["name"]: one["versions"]["release"] for one in (await caphv("list"))["clusters"]}

    async with server.client() as client:

        async def annotate(name: str, values: str | None) -> None:
            patch = {"metadata": {"annotations": {"addons.caphv.io/values": values}}}
            await client.patch(CLUSTERS, name, "team", patch)

        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        labels = {"a": {"caphv.io/wave": "canary"}}
        facts = [cluster(name, namespace="team", labels=labels.get(name, {})) for name in NAMES]
        await manifests.apply(client, [one.cluster for one in facts])
        await caphv("push")
        newest = (await releases())["team/a"]

        # Without Fleet's Bundles nothing is committed.
        error = await upgrade("canary,rest", "ready=60s", OLDER, expect=2)
        assert "Bundles of Fleet cannot be read" in error
        assert origin.count() == 1

        await manifests.apply(client, [crd(FLEET_BUNDLES)])
        shown = await upgrade("canary,50%,rest", "ready=60s", OLDER, "--dry-run")
        assert [wave["clusters"] for wave in shown["waves"]] == [["team/a"], ["team/b", "team/c"]]
        fleet = Fleet(client, origin)
        async with fleet.running():
            done = await process("upgrade", "--waves=canary,1,rest", "--gate=ready=60s", f"--release={OLDER}")
            assert [wave["state"] for wave in done["waves"]] == ["ready", "ready", "ready"]
            assert origin.count() == 4
            for ancestor, name in (("main~2", "a"), ("main~1", "b"), ("main", "c")):
                changed = git(origin.folder, "diff", "--name-only", f"{ancestor}~1", ancestor).splitlines()
                assert {path.split("/")[2] for path in changed} == {name}
            assert set((await releases()).values()) == {OLDER}
            assert fleet.overtaken == []

            # The second wave does not become ready: it gets its former versions back, and the third never comes.
            before, fleet.stuck = origin.files(), {"b"}
            done = await upgrade("canary,1,rest", "ready=4s", newest, expect=1)
            assert [wave["state"] for wave in done["waves"]] == ["ready", "reverted"]
            assert "image cannot be pulled" in str(done["waves"][1]["problems"]["team/b"])
            assert await releases() == {"team/a": newest, "team/b": OLDER, "team/c": OLDER}
            after = origin.files()
            assert {path for path in before | after if before.get(path) != after.get(path)} <= {
                path for path in after if path.startswith("clusters/team/a/")
            }

            # The cause is fixed: the same command continues where it stopped, without a cluster that is invalid now.
            fleet.stuck = set()
            await annotate("c", "cni: {mtu: 1}")
            done = await upgrade("canary,1,rest", "ready=60s", newest, expect=1)
            assert [(wave["clusters"], wave["state"]) for wave in done["waves"]] == [(["team/b"], "ready")]
            (left,) = done["leftOut"]
            assert left["cluster"] == "team/c"
            assert "mtu: Invalid value: 1" in left["messages"][0]
            assert await releases() == {"team/a": newest, "team/b": newest, "team/c": OLDER}
            count = origin.count()
            nothing = await upgrade("rest", "ready=60s", newest, expect=1)
            assert nothing == {"waves": [], "leftOut": done["leftOut"]}
            assert origin.count() == count
            await annotate("c", None)
            done = await upgrade("canary,1,rest", "ready=60s", newest)
            assert ([wave["clusters"] for wave in done["waves"]], done["leftOut"]) == ([["team/c"]], [])
            assert set((await releases()).values()) == {newest}


async def test_the_packager_continues_an_upgrade_that_its_lease_requests(
    server: ApiServer, origin: Origin, tmp_path: Path
) -> None:
    async with opened(server, tmp_path, origin) as case:
        await manifests.apply(case.client, [crd(FLEET_BUNDLES)])
        await case.namespace_for_leases()
        await asyncio.gather(*(case.cluster(name) for name in NAMES))
        canary = {"metadata": {"labels": {"caphv.io/wave": "canary"}}}
        await case.client.patch(CLUSTERS, "a", case.namespace, canary)
        fleet = Fleet(case.client, origin)
        async with fleet.running():
            packager = await leader(case)
            for name in NAMES:
                await case.until_condition(name, "True", part="applied by Fleet")
            newest, first = releases(case), case.count()

            await request(case, f"canary,2,rest ready=60s release={OLDER}")
            await until_state(case, "Complete")
            assert set(releases(case).values()) == {OLDER}
            # A commit for each wave, and one that says that all are ready.
            assert case.count() == first + 3
            for ancestor, names in (("main~2", {"a"}), ("main~1", {"b", "c"}), ("main", set())):
                changed = git(origin.folder, "diff", "--name-only", f"{ancestor}~1", ancestor).splitlines()
                assert {path.split("/")[2] for path in changed if "/" in path} == names
            assert "wave 2 of 2 (2)" in origin.message("main~1")
            await case.until_lease_event("UpgradeComplete", f"release {OLDER}")
            assert fleet.overtaken == []

            # The second wave does not become ready; another packager finds that out, and reverts it.
            before, fleet.stuck = origin.files(), {"b"}
            text = "canary,1,rest ready=15s"
            await request(case, text)
            await until_state(case, "Progressing", wave=2)
            await packager.stop()
            packager = await leader(case)
            found = await until_state(case, "Reverted")
            assert found["problems"][0]["cluster"] == f"{case.namespace}/b"
            assert "image cannot be pulled" in found["problems"][0]["messages"][0]
            assert releases(case) == {"a": newest["a"], "b": OLDER, "c": OLDER}
            after = origin.files()
            assert {path for path in before | after if before.get(path) != after.get(path)} <= {
                path for path in after if path.startswith(f"clusters/{case.namespace}/a/") or path == file_of(case)
            }
            await case.until_event("AddonBundlesReverted", "image cannot be pulled")
            await case.until_lease_event("UpgradeReverted", f"{case.namespace}/b")
            fleet.stuck = set()
            await case.until_condition("b", "True", part=f"release {newest['a']} was reverted")

            # The cause is fixed: the same request continues with the clusters that are left.
            await request(case, text)
            found = await until_state(case, "Complete")
            assert [wave["clusters"] for wave in found["waves"]] == [[f"{case.namespace}/{name}"] for name in "bc"]
            assert releases(case) == newest

            # A cluster that cannot be rendered is left out, and costs the others nothing.
            await case.set_values("c", {"cni": {"mtu": 1}})
            await case.until_condition("c", "False", part="mtu")
            await request(case, f"rest ready=60s release={OLDER}")
            found = await until_state(case, "Complete", release=OLDER)
            assert [one["cluster"] for one in found["leftOut"]] == [f"{case.namespace}/c"]
            assert releases(case) == {"a": OLDER, "b": OLDER, "c": newest["c"]}
            await case.until_event("AddonBundlesLeftOut", "mtu: Invalid value: 1")
            await case.until_lease_event("UpgradeProgressing", f"Left out: {case.namespace}/c: ")
            await case.until_condition("c", "False", part=f"the upgrade to release {OLDER} left them out")

            # If none is left, the upgrade waits; once one is corrected, it starts.
            text = f"rest ready=61s release={OLDER}"
            await request(case, text, taken=False)
            await case.until_lease_event("UpgradeNotPossible", "no cluster can be upgraded")
            await case.set_values("c", {"cni": {"name": "calico", "mtu": 1300}})
            await until_state(case, "Complete", request=text)
            assert set(releases(case).values()) == {OLDER}
            await request(case, "rest ready=60s")
            await until_state(case, "Complete", release=newest["a"])
            assert releases(case) == newest

            # What cannot be followed is reported, and changes nothing.
            count = case.count()
            await request(case, "canary,1 ready=60s", taken=False)
            await case.until_lease_event("UpgradeNotPossible", "the last wave must be 'rest'")
            await case.set_values("c", {"cni": {"name": "calico", "mtu": 1400}})
            await case.until_count(count + 1)
            assert releases(case) == newest


async def test_a_stopped_upgrade_commits_no_further_wave(server: ApiServer, origin: Origin, tmp_path: Path) -> None:
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

            # Nothing to stop: the request is taken, and changes nothing.
            await request(case, "stop")
            assert case.count() == first

            fleet.stuck = set(NAMES)
            await request(case, f"1,rest ready=1h release={OLDER}")
            begun = await until_state(case, "Progressing", wave=1)
            (upgraded,) = (one.split("/")[1] for one in begun["waves"][0]["clusters"])
            await packager.until_value(1, "caphv_packager_upgrade_state", state="progressing")
            await until_another_has_synced(server, origin, tmp_path)
            assert await until_state(case, "Progressing", wave=1) == begun
            await request(case, "stop")
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


def file_of(case: Case) -> str:
    """The packager of a case has a share of the clusters, its namespace."""
    return f"caphv-upgrade-{case.namespace}.yaml"


async def leader(case: Case) -> Packager:
    packager = case.packager("--leader-elect")
    packager.environment["POD_NAMESPACE"] = "caphv-system"
    await packager.start()
    return packager


async def request(case: Case, text: str, *, taken: bool = True) -> None:
    """Annotate the Lease of the packager, and wait until it has taken the request."""
    place = f"{case.namespace}.packager.caphv.io", "caphv-system"
    await case.client.patch(LEASES, *place, {"metadata": {"annotations": {"addons.caphv.io/upgrade": text}}})

    async def is_taken() -> bool:
        annotations = (await case.client.get(LEASES, *place))["metadata"].get("annotations") or {}
        return "addons.caphv.io/upgrade" not in annotations

    if taken:
        await until(is_taken, lambda: "the request is still on the Lease")


async def until_state(case: Case, state: str, **fields: object) -> Obj:
    found: Obj = {}

    async def holds() -> bool:
        nonlocal found
        found = yaml.safe_load(case.origin.files().get(file_of(case), "{}"))
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
