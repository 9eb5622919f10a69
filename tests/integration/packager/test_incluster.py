"""The packager in the cluster: one commit for what changes together, conditions, trouble, and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandbox import manifests
from sandbox.apiserver import ApiServer
from sandbox.processes import free_ports
from tests.integration.packager.environment import Case, opened
from tests.integration.packager.support import Origin, git
from tests.integration.runtime.test_protection import bind, roles, scrape, token

pytestmark = pytest.mark.integration

CALICO = {"cni": {"name": "calico", "mtu": 1450}}
Story = Callable[[Case], Awaitable[None]]


@pytest.fixture
def run(management: ApiServer, tmp_path: Path, origin: Origin) -> Callable[[Story], None]:
    """Run a story on a namespace and a repository of its own."""

    def run_story(story: Story) -> None:
        async def main() -> None:
            async with opened(management, tmp_path, origin) as case:
                await story(case)

        asyncio.run(main())

    return run_story


def changed_lines(case: Case) -> list[str]:
    """What the newest commit took away and added."""
    diff = git(case.origin.folder, "diff", "--unified=0", "main~1", "main")
    return [line for line in diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]


def test_a_cluster_becomes_one_commit_and_a_changed_setting_one_small_commit(run: Callable[[Story], None]) -> None:
    async def story(case: Case) -> None:
        packager = await case.running()
        await case.cluster("one", values=CALICO)
        found = await case.until_condition("one", "True")
        assert (case.count(), f"commit {case.origin.head()}") == (1, found["message"].partition(";")[0])
        assert {"caphv.yaml", "cni/fleet.yaml", "ccm/fleet.yaml", "csi/fleet.yaml"} <= case.mine("one")
        await case.until_event("AddonBundlesPushed", case.origin.head())
        await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}})
        await case.until_count(2)
        files = git(case.origin.folder, "diff", "--name-only", "main~1", "main").splitlines()
        top = f"clusters/{case.namespace}/one"
        assert files == [f"{top}/caphv.yaml", f"{top}/cni/helmchartconfig.yaml"]
        assert len(changed_lines(case)) == 4, "the MTU, and the hash over all"
        assert f"Changed on the management cluster: {case.namespace}/one." in case.origin.message()
        await case.until_condition("one", "True", part=case.origin.head())
        assert await packager.value("caphv_packager_commits_total") == 2
        assert await packager.value("caphv_packager_renders_total", result="ok") >= 2
        assert await packager.value("caphv_packager_lag_seconds") == 0
        assert await packager.value("caphv_packager_cluster_ready", cluster=f"{case.namespace}/one") == 1

    run(story)


def test_metrics_are_for_accounts_that_may_get_them(run: Callable[[Story], None]) -> None:
    async def story(case: Case) -> None:
        (port,) = free_ports(1)
        await manifests.apply(case.client, roles())
        await bind(case.client, "packager-metrics")
        await case.running(f"--metrics-bind-address=127.0.0.1:{port}", "--metrics-secure")
        assert (await scrape(port))[0] == 401
        status, text = await scrape(port, await token(case.client, "packager-metrics"))
        assert (status, "caphv_packager_lag_seconds" in text) == (200, True)

    run(story)
