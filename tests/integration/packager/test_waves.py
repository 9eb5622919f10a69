"""`caphv bundles upgrade --waves` as a process, with a real API server; a test plays Fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import NAMESPACES, Obj
from caphv.api.resources import FLEET_BUNDLES
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.environment import CLASSES, CLUSTERS, CONTROL_PLANES, FLEET_CLUSTERS, crd, install
from tests.support.packager.examples import cluster
from tests.support.packager.repositories import Origin, git
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.integration

NAMES = ("a", "b", "c")
OLDER = "2026.11"


@dataclass
class Fleet:
    """Applies the head of the branch to all clusters but those in `stuck`."""

    client: ApiClient
    origin: Origin
    stuck: set[str] = field(default_factory=set)
    applied: str = ""

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
            task.cancel()

    async def apply(self) -> None:
        if (head := self.origin.head()) == self.applied:
            return
        for path, content in self.origin.files().items():
            parts = path.split("/")
            if parts[0] == "clusters" and parts[-1] == "fleet.yaml":
                await self._bundle(parts[1], parts[2], yaml.safe_load(content), head)
        self.applied = head

    async def _bundle(self, namespace: str, name: str, fleet_yaml: Obj, head: str) -> None:
        labels = {**fleet_yaml["labels"], "fleet.cattle.io/commit": head}
        metadata = {"name": fleet_yaml["name"], "namespace": namespace, "labels": labels}
        obj = {"apiVersion": FLEET_BUNDLES.api_version, "kind": FLEET_BUNDLES.kind, "metadata": metadata}
        await self.client.apply(FLEET_BUNDLES, obj, manager="fleet")
        summary: Obj = {"desiredReady": 1, "ready": 1, "nonReadyResources": []}
        if name in self.stuck:
            summary = {"desiredReady": 1, "ready": 0, "nonReadyResources": [{"message": "image cannot be pulled"}]}
        status = {"status": {"summary": summary}}
        await self.client.patch(FLEET_BUNDLES, metadata["name"], namespace, status, subresource="status")


async def test_waves_continue_when_ready_and_are_reverted_when_not(
    new_api_server: Callable[..., Awaitable[ApiServer]], origin: Origin, tmp_path: Path
) -> None:
    server = await new_api_server()
    (tmp_path / "management.yaml").write_text(yaml.safe_dump(server.kubeconfig()))

    async def caphv(*arguments: str, expect: int = 0) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "caphv", "bundles", *arguments, "-o", "json"),
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(CHECKOUT),
                "HOME": str(tmp_path),
                "KUBECONFIG": str(tmp_path / "management.yaml"),
                "CAPHV_GIT_REPO": origin.url,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == expect, (out.decode(), err.decode())
        return json.loads(out) if expect < 2 else err.decode()

    def upgrade(waves: str, gate: str, release: str, *more: str, expect: int = 0) -> Awaitable[Any]:
        return caphv("upgrade", "--waves", waves, "--gate", gate, "--release", release, *more, expect=expect)

    async def releases() -> dict[str, str]:
        return {one["name"]: one["versions"]["release"] for one in (await caphv("list"))["clusters"]}

    async with server.client() as client:
        await install(server, CLUSTERS, CLASSES, CONTROL_PLANES, FLEET_CLUSTERS)
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
            done = await upgrade("canary,1,rest", "ready=60s", OLDER)
            assert [wave["state"] for wave in done["waves"]] == ["ready", "ready", "ready"]
            assert origin.count() == 4
            for ancestor, name in (("main~2", "a"), ("main~1", "b"), ("main", "c")):
                changed = git(origin.folder, "diff", "--name-only", f"{ancestor}~1", ancestor).splitlines()
                assert {path.split("/")[2] for path in changed} == {name}
            assert set((await releases()).values()) == {OLDER}

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

            # The cause is fixed: the same command continues where it stopped.
            fleet.stuck, fleet.applied = set(), ""
            done = await upgrade("canary,1,rest", "ready=60s", newest)
            assert [wave["clusters"] for wave in done["waves"]] == [["team/b"], ["team/c"]]
            assert set((await releases()).values()) == {newest}
