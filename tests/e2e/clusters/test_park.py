"""A cluster is parked for longer than its health checks wait, all programs restart, and it comes back as it was.

Another one is parked and resumed in spite of faults of Harvester, killed providers and interrupted commands.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from caphv.api import names
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, annotations_of, at, key_of, uid_of
from commands.main import cli
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import MOST_FAULTS, SHORT_AND_WHOLE, storm
from tests.support.paths import CHECKOUT
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

UNHEALTHY_SECONDS = 5


@SHORT_AND_WHOLE
@pytest.mark.timeout(900)
async def test_a_cluster_that_was_parked_comes_back_as_it_was(box: Sandbox, whole: bool) -> None:
    name, number = ("parked-whole", 3) if whole else ("parked", 1)
    spec = ClusterSpec(control_planes=number, workers=number, unhealthy_seconds=UNHEALTHY_SECONDS)
    spec = replace(in_network(spec, box.status()["network"]), name=name, namespace=name, target_namespace=name)
    scenario = Scenario(box.folder, spec, timeout=300)
    ref = f"{name}/{name}"
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        before = await identities(scenario)

        result = await caphv(box, "park", ref, "--yes", "--wait", "--timeout", "5m")
        assert result.exit_code == 0, result.output
        assert f"{2 * number} VMs stopped" in result.output
        assert not (await scenario.harvester.list(kinds.INSTANCES, name))["items"]

        for part in [each["name"] for each in box.status()["processes"]] if whole else ["simulator", "provider"]:
            await box.restart(part)
        # No event tells that nothing happens.
        await asyncio.sleep(3 * UNHEALTHY_SECONDS)
        assert await identities(scenario) == before
        result = await caphv(box, "status", ref, "--deep")
        assert (result.exit_code, "Parked" in result.output) == (0, True), result.output
        result = await caphv(box, "tree", ref)
        assert (result.exit_code, "✗" in result.output) == (0, False), result.output

        result = await caphv(box, "resume", ref, "--yes", "--wait", "--timeout", "5m")
        assert result.exit_code == 0, result.output
        await until(lambda: len(scenario.view.running()) == 2 * number, "all machines run", seconds=120)
        await asyncio.sleep(3 * UNHEALTHY_SECONDS)
        assert await identities(scenario) == before
        result = await caphv(box, "status", ref, "--deep")
        assert (result.exit_code, "Available" in result.output) == (0, True), result.output
        await scenario.delete()
        assert await scenario.leftovers() == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(MOST_FAULTS, 15), *(pytest.param(seed, 40, marks=pytest.mark.long) for seed in range(41, 47))],
)
async def test_neither_faults_nor_kills_nor_interruptions_keep_a_cluster_from_being_parked(
    box: Sandbox, seed: int, seconds: float
) -> None:
    name = f"storm-park-{seed}"
    number = 1 if seconds < 30 else 3
    spec = ClusterSpec(control_planes=number, workers=1, unhealthy_seconds=UNHEALTHY_SECONDS)
    spec = replace(in_network(spec, box.status()["network"]), name=name, namespace=name, target_namespace=name)
    scenario = Scenario(box.folder, spec, timeout=300)
    ref = f"{name}/{name}"
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        before = await identities(scenario)

        async with storm(box, seed, seconds):
            output = await interrupted(box, "park", ref, "--yes", "--wait")
            assert (
                "Interrupted. The provider continues to park without this command." in output
                or "parked since" in output
            )
            result = await caphv(box, "park", ref, "--yes", "--wait", "--timeout", "5m")
            assert result.exit_code == 0, result.output
        assert not (await scenario.harvester.list(kinds.INSTANCES, name))["items"]
        assert await identities(scenario) == before

        async with storm(box, -seed, seconds):
            # With --force, because the command finds that Harvester does not answer, too.
            resume = ("resume", ref, "--yes", "--force", "--wait")
            result = await caphv(box, *resume, "--timeout", "1s")
            assert (result.exit_code, "run it again to wait" in result.output) == (1, True), result.output
            result = await caphv(box, *resume, "--timeout", "5m")
            assert result.exit_code == 0, result.output
        await until(lambda: len(scenario.view.running()) == number + 1, "all machines run", seconds=120)
        await asyncio.sleep(3 * UNHEALTHY_SECONDS)
        assert await identities(scenario) == before
        vms = (await scenario.harvester.list(kinds.VIRTUAL_MACHINES, name))["items"]
        assert {vm["spec"]["runStrategy"] for vm in vms} == {"Always"}
        assert not [vm for vm in vms if names.PARKED_STRATEGY_ANNOTATION in annotations_of(vm)]
        await scenario.delete()
        assert await scenario.leftovers() == []


async def caphv(box: Sandbox, *words: str) -> Result:
    arguments = [*words, "--kubeconfig", str(box.kubeconfig("management"))]
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def interrupted(box: Sandbox, *words: str) -> str:
    """Interrupt a command as soon as it shows a progress; return what it has printed."""
    arguments = ["-P", "-m", "caphv", *words, "--kubeconfig", str(box.kubeconfig("management"))]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    pipe, merged = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=pipe, stderr=merged, env=environment
    )
    assert process.stdout is not None
    printed = ""
    while not re.search(r"^\d\d:\d\d:\d\d ", printed, re.MULTILINE):
        line = await process.stdout.readline()
        assert line, printed
        printed += line.decode()
    process.send_signal(signal.SIGINT)
    # A busy machine needs seconds to end the process.
    watchdog = asyncio.get_running_loop().call_later(60, process.send_signal, signal.SIGABRT)
    printed += (await process.stdout.read()).decode()
    watchdog.cancel()
    # Between two faults, a small cluster may be parked before the signal arrives.
    assert await process.wait() == (0 if "parked since" in printed else 130), printed
    return printed


async def identities(scenario: Scenario) -> dict[str, object]:
    """Uids of VMs, disks and Machines, and addresses: whatever would be another one after a replacement."""
    target = scenario.spec.target_namespace
    found: dict[str, object] = {}
    for kind in (kinds.VIRTUAL_MACHINES, PERSISTENT_VOLUME_CLAIMS):
        for obj in (await scenario.harvester.list(kind, target))["items"]:
            found[f"{kind.kind} {key_of(obj).name}"] = uid_of(obj)
    for machine in scenario.view.machines.store:
        found[f"Machine {key_of(machine).name}"] = uid_of(machine), _addresses(machine)
    return found


def _addresses(machine: Obj) -> list[str]:
    return sorted({entry["address"] for entry in at(machine, "status", "addresses") or ()})
