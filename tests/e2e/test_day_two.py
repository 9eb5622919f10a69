"""A cluster of the real Cluster API core is scaled and upgraded by commands that wait until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner, Result

from commands.main import cli
from sandbox.cluster import EARLIER_VERSION, LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings

pytestmark = pytest.mark.e2e

SETTINGS = SandboxSettings(boot_seconds=0.5, register_seconds=0.2, page=True)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    binaries.prepare()
    box = Sandbox(tmp_path / "box", SETTINGS)
    try:
        yield box
    finally:
        asyncio.run(children.stop_all(box.folder))


async def caphv(box: Sandbox, *words: str) -> Result:
    arguments = [*words, "--kubeconfig", str(box.kubeconfig("management"))]
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def test_a_cluster_is_scaled_and_upgraded_while_the_command_waits(box: Sandbox) -> None:
    await box.up()
    async with aiohttp.ClientSession() as session, session.get(box.page()) as answer:
        assert (answer.status, "caphv" in await answer.text()) == (200, True)
    spec = in_network(ClusterSpec(control_planes=1, workers=1, version=EARLIER_VERSION), box.status()["network"])
    scenario = Scenario(box.folder, spec, timeout=240)
    ref = f"{spec.namespace}/{spec.name}"
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()

        result = await caphv(box, "scale", ref, "--workers", "2", "--yes", "--wait", "--timeout", "3m")
        assert result.exit_code == 0, result.output
        assert "addresses: free addresses in IPPool" in result.output
        assert "capacity: hosts have room for 1 more VM" in result.output
        assert len(scenario.view.workers()) == 2
        assert len(scenario.view.running()) == 3

        result = await caphv(box, "etcd", "members", ref)
        assert (result.exit_code, "healthy" in result.output) == (0, True), result.output

        words = ("upgrade", ref, "--version", LATER_VERSION)
        result = await caphv(box, *words, "--yes", "--wait", "--timeout", "5m")
        assert result.exit_code == 0, result.output
        assert f"3 of 3 machines run {LATER_VERSION}" in result.output
        assert {machine["spec"]["version"] for machine in scenario.view.machines.store} == {LATER_VERSION}
        assert len(scenario.view.running()) == 3
        result = await caphv(box, *words, "--yes", "--wait", "--timeout", "1m")
        assert (result.exit_code, "Nothing to change" in result.output) == (0, True), result.output
