"""What a person sees of a cluster that runs on the simulated Harvester."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands.main import cli
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case, lacks

pytestmark = pytest.mark.integration


def caphv(case: Case, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command as an administrator of the management cluster."""
    kubeconfig = folder / "management.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(case.environment.management.kubeconfig()))
    result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(kubeconfig)])
    return result.exit_code, result.stdout


async def run(case: Case, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command beside the test's event loop."""
    return await asyncio.to_thread(caphv, case, folder, *arguments)


async def test_a_tree_reaches_down_to_disks_and_nodes(case: Case, tmp_path: Path) -> None:
    pool = await case.pool("machines", 10, 19)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.connect_workload()
    await case.ready_machine("tree-1", control_plane=True)
    await case.register_node("tree-1")
    ref = f"{case.name}/{case.name}"
    _, text = await run(case, tmp_path, "tree", ref)
    assert f"VM {case.target}/tree-1  Running  on harvester-" in text
    assert "disk tree-1-disk-0-" in text
    assert f"IPPool {pool}" in text
    _, content = await run(case, tmp_path, "tree", ref, "-o", "json")
    found = json.loads(content)
    (machine,) = found["clusters"][0]["groups"][0]["machines"]
    assert machine["vm"]["disks"][0]["phase"] == "Bound"
    assert machine["allocated"] in machine["vm"]["addresses"]
    assert next(each for each in found["pools"] if each["name"] == pool)["free"] == 9


async def test_an_identity_that_harvester_refuses_is_the_one_cause(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    await case.identity(case.environment.identity("no-such-token"))
    await case.until(HARVESTER_CLUSTERS, case.name, lacks("HarvesterConnectionReady", "HarvesterAuthenticationFailed"))
    code, text = await run(case, tmp_path, "status", f"{case.name}/{case.name}", "--deep")
    assert code == 1
    assert text.count("✗") == 1
    assert f"Write a new kubeconfig into Secret {case.name}/identity: caphv identity create" in text
    await case.identity()
