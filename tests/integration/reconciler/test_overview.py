"""What a person sees of a cluster that runs on the simulated Harvester."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import NAMESPACES, NODES
from commands.main import cli
from reconciler.memory.periods import FORCE_DELETE_SECONDS
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import is_false
from tests.support.reconciler.environment import IDENTITY_TOKEN
from tests.support.reconciler.ownership import remove_from_harvester

pytestmark = pytest.mark.integration


def caphv(case: Case, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command as an administrator of the management cluster."""
    kubeconfig = folder / "management.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(case.environment.management.kubeconfig()))
    result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(kubeconfig)])
    return result.exit_code, result.stdout


async def run(case: Case, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command outside the test's event loop."""
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
    (machine,) = found["items"][0]["groups"][0]["machines"]
    assert machine["vm"]["disks"][0]["phase"] == "Bound"
    assert machine["allocated"] in machine["vm"]["addresses"]
    assert next(each for each in found["pools"] if each["name"] == pool)["free"] == 9


async def test_an_identity_that_harvester_refuses_is_the_one_cause(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    await case.identity(case.environment.identity("no-such-token"))
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed")
    )
    code, text = await run(case, tmp_path, "status", f"{case.name}/{case.name}", "--deep")
    assert code == 1
    assert text.count("✗") == 1
    assert f"caphv identity rotate {case.name}/identity --harvester-kubeconfig FILE" in text
    await case.identity()


async def leak(case: Case, pool: str, address: str, holder: str, mark: str | None) -> None:
    """Write an entry as a provider does that ended before it could release it."""
    await case.reserve(pool, address, holder)
    if mark:
        annotations = {f"addresses.caphv.io/{address}": mark}
        await case.harvester.patch(kinds.IP_POOLS, pool, "", {"metadata": {"annotations": annotations}})


async def test_what_leaked_is_released_and_everything_else_stays(case: Case, tmp_path: Path) -> None:
    pool = await case.pool("leaks", 30, 39)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    machine = await case.ready_machine("kept")
    kept = machine["status"]["allocatedIPAddress"]
    us = (await case.management.get(NAMESPACES, "kube-system"))["metadata"]["uid"][:8]
    names = ("balancer", "reserved", "gone", "theirs", "by-hand")
    addresses = {name: f"{case.subnet}.{number}" for number, name in enumerate(names, 34)}
    # A load balancer whose cluster does not exist, and one whose cluster exists.
    await leak(case, pool, addresses["balancer"], f"{case.target}/{case.name}-gone-lb", us)
    await leak(case, pool, addresses["reserved"], f"{case.target}/{case.balancer}", us)
    await leak(case, pool, addresses["gone"], f"{case.name}/gone", us)
    await leak(case, pool, addresses["theirs"], f"{case.name}/gone", "ffffffff")
    await leak(case, pool, addresses["by-hand"], f"{case.name}/gone", None)
    # The remedy of former releases: the entry is removed, and the count stays.
    await case.harvester.patch(kinds.IP_POOLS, pool, "", {"status": {"available": 3}})

    code, text = await run(case, tmp_path, "pools", "audit", pool)
    assert code == 1
    states = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith(f"  {case.subnet}.")}
    assert states == {
        kept: "held",
        addresses["balancer"]: "leaked",
        addresses["reserved"]: "held",
        addresses["gone"]: "leaked",
        addresses["theirs"]: "foreign",
        addresses["by-hand"]: "unrecorded",
    }
    assert "status.available is 3, but its entries give 4" in text

    code, text = await run(case, tmp_path, "pools", "release", pool, "--dry-run")
    assert (code, f"release {addresses['gone']}" in text) == (0, True)
    assert {addresses["gone"], addresses["balancer"]} <= (await case.allocated(pool)).keys()

    code, text = await run(case, tmp_path, "pools", "release", pool, "--yes")
    assert (code, f"IPPool {pool}: released 2 addresses" in text) == (0, True)
    found = await case.harvester.get(kinds.IP_POOLS, pool)
    assert set(found["status"]["allocated"]) == {kept, *(addresses[name] for name in ("reserved", "theirs", "by-hand"))}
    assert found["status"]["available"] == 6
    for name in ("gone", "balancer"):
        assert f"addresses.caphv.io/{addresses[name]}" not in found["metadata"]["annotations"]

    code, text = await run(case, tmp_path, "pools", "release", pool, "--yes")
    assert (code, "Nothing to release" in text) == (0, True)
    for name in ("reserved", "theirs", "by-hand"):
        await case.reserve(pool, addresses[name], None)


async def test_a_release_asks_first_and_needs_a_terminal(case: Case, tmp_path: Path) -> None:
    pool = await case.pool("asked", 40, 49)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    us = (await case.management.get(NAMESPACES, "kube-system"))["metadata"]["uid"][:8]
    await leak(case, pool, f"{case.subnet}.45", f"{case.name}/gone", us)
    code, _ = await run(case, tmp_path, "pools", "release", pool)
    assert code == 2
    assert f"{case.subnet}.45" in await case.allocated(pool)
    await case.reserve(pool, f"{case.subnet}.45", None)


async def test_the_doctor_finds_no_fault_with_a_cluster_that_works(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    await case.ready_machine("patient")
    _, content = await run(case, tmp_path, "doctor", f"{case.name}/{case.name}", "-o", "json")
    checks = [check for check in json.loads(content)["items"] if check["subject"] != "management cluster"]
    assert [check for check in checks if check["result"] not in ("ok", "skipped")] == []
    assert {"credentials", "rights", "connection", "hosts", "images", "orphans"} <= {check["id"] for check in checks}


async def test_the_doctor_names_the_rights_that_an_account_lacks(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    user = case.environment.harvester.kubeconfig("stranger", ["system:authenticated"])
    await case.identity(user)
    _, content = await run(case, tmp_path, "doctor", f"{case.name}/{case.name}", "-o", "json")
    rights = next(check for check in json.loads(content)["items"] if check["id"] == "rights")
    assert (rights["result"], rights["wrong"]) == ("error", True)
    assert f"virtualmachines.kubevirt.io in namespace {case.target}" in rights["message"]
    await case.identity()


async def test_a_deletion_that_harvester_blocks_is_explained_and_forced(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    await case.ready_machine("blocked")
    ref = f"{case.name}/{case.name}"
    await case.identity(case.environment.identity("no-such-token"))
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed")
    )
    code, text = await run(case, tmp_path, "delete", ref, "--dry-run")
    assert (code, "1 VirtualMachine: blocked" in text) == (0, True)

    await case.ask_deletion(HARVESTER_MACHINES, "blocked")
    await case.ask_deletion(MACHINES, "blocked")
    await case.until(HARVESTER_MACHINES, "blocked", is_false("VMProvisioningReady", "HarvesterAuthenticationFailed"))
    _, text = await run(case, tmp_path, "delete", ref, "--explain")
    assert "HarvesterMachine/blocked waits for: Harvester" in text

    left = tmp_path / "left.yaml"
    code, _ = await run(case, tmp_path, "delete", ref, "--force", "--yes", "--save", str(left))
    assert code == 0
    assert left.stat().st_mode & 0o777 == 0o600
    objects = yaml.safe_load(left.read_text())["objects"]
    assert {"kind": "VirtualMachine", "name": "blocked", "namespace": case.target} in objects
    await case.until_gone(HARVESTER_MACHINES, "blocked", timeout=2 * FORCE_DELETE_SECONDS)
    # What was left behind is the test's to remove.
    await case.identity()
    await remove_from_harvester(case, "blocked")


async def test_a_support_bundle_has_everything_but_secrets(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    await case.ready_machine("bundled", guestConfig={"userData": "runcmd: [echo canary-user-data]\n"})
    file = tmp_path / "bundle.tar.gz"
    code, _ = await run(case, tmp_path, "support-bundle", f"{case.name}/{case.name}", "--file", str(file))
    assert code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        content = {
            name.partition("/")[2]: (archive.extractfile(name) or io.BytesIO()).read().decode()
            for name in archive.getnames()
        }
    wanted = {"overview.json", "doctor.json", "events.txt", "harvester-1/vms.yaml", "harvester-1/pools.yaml"}
    wanted |= {f"management/{kind}/{case.name}/{case.name}.yaml" for kind in ("cluster", "harvestercluster")}
    assert wanted | {f"management/harvestermachine/{case.name}/bundled.yaml"} <= set(content)
    assert "HarvesterMachine/bundled" in content["events.txt"]
    whole = "".join(content.values())
    assert IDENTITY_TOKEN not in whole
    assert "canary-user-data" not in whole


async def test_identities_are_listed_with_the_clusters_that_use_them(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    code, text = await run(case, tmp_path, "identity", "list", "-n", case.name)
    _, line = text.splitlines()
    assert code == 0
    assert line.split() == [
        f"{case.name}/identity",
        "valid",
        "-",
        case.environment.harvester.url,
        f"{case.name}/{case.name}",
    ]


async def test_what_is_free_is_less_by_each_machine(case: Case, tmp_path: Path) -> None:
    pool = await case.pool("machines", 10, 19)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    kubeconfig = tmp_path / "harvester.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(case.environment.harvester.kubeconfig()))
    quota = {"metadata": {"name": "team", "namespace": case.target}, "spec": {"hard": {"limits.cpu": "10"}}}
    await case.harvester.create(kinds.RESOURCE_QUOTAS, quota)
    arguments = ("capacity", "-n", case.name, "--harvester-kubeconfig", str(kubeconfig), "-o", "json")

    async def free() -> tuple[float, int, list[str]]:
        code, text = await run(case, tmp_path, *arguments)
        assert code == 0
        (found,) = json.loads(text)["items"]
        addresses = {each["name"]: each["free"] for each in found["pools"]}
        return found["total"]["cpuFree"], addresses[pool], [each["namespace"] for each in found["quotas"]]

    cpu, addresses, quotas = await free()
    assert (addresses, quotas) == (10, [case.target])
    await case.ready_machine("one", cpu=2)
    later, addresses, _ = await free()
    assert addresses == 9
    assert 0 < cpu - later <= 2
    code, text = await run(case, tmp_path, "capacity", "-n", case.name, "--hosts")
    assert (code, f"{pool}  9 of 10" in " ".join(text.split(" ")), "all hosts" in text) == (0, True, True), text
    # What hosts report counts, too: not every identity may list the VMs of other namespaces.
    await _report_pods(case, '{"cpu":"3","memory":"5Gi","pods":"70"}')
    code, text = await run(case, tmp_path, "capacity", "-n", case.name, "-o", "json")
    (found,) = json.loads(text)["items"]
    assert (code, found["allVms"]) == (0, True)
    assert {each["memory"] - each["memoryFree"] for each in found["hosts"]} == {5 * 1024**3}
    await _report_pods(case, None)


async def _report_pods(case: Case, text: str | None) -> None:
    for host in (await case.harvester.list(NODES))["items"]:
        patch = {"metadata": {"annotations": {"management.cattle.io/pod-requests": text}}}
        await case.harvester.patch(NODES, host["metadata"]["name"], "", patch)
