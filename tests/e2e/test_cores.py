"""The lifecycle of a cluster with each other release of the Cluster API core that the provider supports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands.main import cli
from sandbox import clusterclass
from sandbox.capi import providers
from sandbox.capi.core import CORE_VARIABLE
from sandbox.cluster import EARLIER_VERSION, LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.waiting import until

PATIENCE = 400
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.unmodified_core, pytest.mark.timeout(1800)]


@pytest.fixture(params=sorted(binaries.OTHER_CORES))
def box(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.setenv(CORE_VARIABLE, request.param)
    settings = SandboxSettings(webhooks=True, boot_seconds=0.5, register_seconds=0.2, kubeadm=True)
    binaries.prepare(further=providers.programs(settings))
    binaries.binary(request.param)
    box = Sandbox(tmp_path / "box", settings)
    try:
        asyncio.run(box.up())
        yield box
    finally:
        asyncio.run(children.stop_all(box.folder))


async def caphv(box: Sandbox, *words: str) -> str:
    arguments = [*words, f"--kubeconfig={box.kubeconfig('management')}"]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert result.exit_code == 0, result.output
    assert "there is no kind" not in result.output
    assert "not seen" not in result.output
    return result.output


async def test_a_cluster_lives_with_another_core(box: Sandbox) -> None:
    spec = ClusterSpec(control_planes=1, workers=1, version=EARLIER_VERSION)
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=PATIENCE)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()

        async def both_are_counted() -> bool:
            return (await caphv(box, "status", "-n", spec.namespace)).count("1/1") == 2

        await until(both_are_counted, "status shows one control plane machine and one worker", PATIENCE)
        assert "cni/" in await caphv(box, "bundles", "render", "-n", spec.namespace, "-o", "tree")
        await scenario.replace_lost(scenario.view.workers()[0])
        await scenario.scale(3, 2)
        await scenario.upgrade(LATER_VERSION)
        await scenario.delete()
        assert await scenario.leftovers() == []


async def test_a_cluster_of_kubeadm_lives_with_its_providers_of_another_core(box: Sandbox) -> None:
    if not providers.programs(box.settings):
        pytest.skip("kubeadm's class needs API version v1beta2")
    spec = ClusterSpec(
        control_planes=1,
        workers=1,
        cluster_class=clusterclass.HARVESTER_KUBEADM,
        version=EARLIER_VERSION.partition("+")[0],
    )
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=PATIENCE)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        await scenario.scale(3, 1)
        await scenario.replace_lost(scenario.view.control_planes()[0])
        await scenario.delete()
        assert await scenario.leftovers() == []
