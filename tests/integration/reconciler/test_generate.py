"""`caphv generate` with a kubeconfig for Harvester: what is absent or too small there, and what it offers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import NAMESPACES
from commands.main import cli
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.reconciler.case import MASK, Case
from tests.support.terminal import caphv as on_terminal

pytestmark = pytest.mark.integration


def kubeconfig(case: Case, folder: Path, token: str = "") -> str:
    file = folder / f"harvester{token and '-refused'}.yaml"
    private_file(file, pki.to_yaml(case.environment.identity(token) if token else case.environment.identity()))
    return str(file)


async def generate(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["generate", *arguments])


async def test_all_that_harvester_lacks_is_reported_at_once_with_flag_value_and_remedy(
    case: Case, tmp_path: Path
) -> None:
    pool = await case.pool("machines", 10, 13)
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    quota = {"metadata": {"name": "team", "namespace": case.target}, "spec": {"hard": {"limits.cpu": "4"}}}
    await case.harvester.create(kinds.RESOURCE_QUOTAS, quota)
    base = ("--name", case.name, "--harvester-kubeconfig", kubeconfig(case, tmp_path), "--gateway", case.gateway)
    base = (*base, "--subnet-mask", MASK, "--ip-pool", pool)
    wrong = ("--image", "default/sles-16", "--ssh-keypair", "default/cahpv", "--network", "default/prodution")
    result = await generate(*base, *wrong, "--target-namespace", case.target, "--lb-ip-pool", "balancer", "--apply")
    assert (result.exit_code, result.stdout) == (1, "")
    errors = dict(line.removeprefix("error: ").split(": ", 1) for line in result.stderr.splitlines())
    # Addresses are counted once all pools exist.
    assert errors.keys() == {"--image", "--ssh-keypair", "--network", "--lb-ip-pool", "--target-namespace"}
    assert '"default/sles-16": VM image does not exist; did you mean "default/sles-15"?' in errors["--image"]
    assert '"default/cahpv": KeyPair does not exist; did you mean "default/caphv"?' in errors["--ssh-keypair"]
    assert '"default/prodution": VM network does not exist; did you mean "default/production"?' in errors["--network"]
    assert "IPPool does not exist" in errors["--lb-ip-pool"]
    assert f"quota {case.target}/team limits.cpu has 4 free, and the cluster needs 10" in errors["--target-namespace"]

    right = ("--image", "default/sles-15", "--ssh-keypair", "default/caphv", "--network", "default/production")
    result = await generate(*base, *right)
    assert result.exit_code == 1
    assert "error: --ip-pool: " in result.stderr
    assert "4 addresses are free, and the cluster needs 5" in result.stderr
    result = await generate(*base, *right, "--worker-replicas", "1")
    assert result.exit_code == 0, result.output
    assert "warning: --ip-pool" in result.stderr
    assert "none is left for a rollout" in result.stderr
    assert "kind: Cluster\n" in result.stdout
    skipped = await generate(*base, *wrong, "--no-harvester")
    assert (skipped.exit_code, skipped.stderr) == (0, "")


async def test_a_kubeconfig_of_something_else_is_refused(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "management.yaml"
    private_file(other, pki.to_yaml(case.environment.management.kubeconfig()))
    base = ("--name", "shop", "--image", "a/b", "--ssh-keypair", "a/b", "--network", "a/b", "--harvester-kubeconfig")
    result = await generate(*base, str(other))
    assert result.exit_code == 1
    assert "is not a Harvester: it does not serve virtualmachineimages.harvesterhci.io" in result.stderr
    result = await generate(*base, kubeconfig(case, tmp_path, "no-such-token"))
    assert result.exit_code == 1
    assert "refuses the credentials" in result.stderr


async def test_what_the_account_may_not_list_is_not_checked(case: Case, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.yaml"
    private_file(stranger, pki.to_yaml(case.environment.harvester.kubeconfig("stranger", ["system:authenticated"])))
    base = ("--name", "shop", "--image", "a/b", "--ssh-keypair", "a/b", "--network", "a/b", "--harvester-kubeconfig")
    result = await generate(*base, str(stranger))
    assert result.exit_code == 0, result.output
    for kind in ("virtualmachineimages", "keypairs", "network-attachment-definitions", "ippools", "quotas"):
        assert kind in result.stderr


async def test_a_person_chooses_from_what_there_is(case: Case, tmp_path: Path) -> None:
    pool = await case.pool("machines", 10, 29)
    scarce = await case.pool("scarce", 30, 32)
    folder = tmp_path / "out"
    await asyncio.to_thread(_interview, case, kubeconfig(case, tmp_path), folder, (pool, scarce))
    (file,) = folder.rglob("cluster.yaml")
    cluster = next(obj for obj in yaml.safe_load_all(file.read_text()) if obj["kind"] == "Cluster")
    variables = {each["name"]: each["value"] for each in cluster["spec"]["topology"]["variables"]}
    assert variables["controlPlane"]["volumes"][0]["imageName"] == "default/sles-15"
    assert variables["sshKeyPair"] == "default/caphv"
    assert variables["vmNetworks"] == ["default/production", "default/storage"]
    assert variables["targetNamespace"] == "default"
    assert (variables["ipPoolRefs"], variables["gateway"], variables["subnetMask"]) == ([pool], case.gateway, MASK)


def _interview(case: Case, identity: str, folder: Path, pools: tuple[str, str]) -> None:
    """Answer as a person does: by numbers, by names, and wrongly at first."""
    pool, scarce = pools
    with on_terminal(["generate", "--interactive", "--to", str(folder)]) as terminal:
        terminal.answer("Kubeconfig for Harvester (empty when the identity Secret exists): ", "/nowhere.yaml")
        terminal.expect("No such file")
        terminal.answer("Kubeconfig for Harvester (empty when the identity Secret exists): ", identity)
        terminal.answer("Name of the cluster: ", "shop")
        for question in ("Namespace [shop]: ", "Version of Kubernetes", "Distribution", "control plane [3]: "):
            terminal.answer(question, "")
        terminal.answer("Worker machines [2]: ", "")
        assert "1  default/sles-15" in terminal.answer("Image of the VMs (namespace/name), or a number", "sles-99")
        terminal.expect("VM image does not exist in namespace default")
        terminal.answer("Image of the VMs (namespace/name), or a number", "1")
        for question in ("CPU cores", "Memory of a VM", "Boot disk", "Further disk"):
            terminal.answer(question, "")
        terminal.answer("KeyPair on Harvester (namespace/name), or a number [default/caphv]: ", "")
        terminal.answer("User of the image", "")
        networks = terminal.answer("VM network (namespace/name), or a number: ", "1, 2")
        assert "1  default/production" in networks
        assert "2  default/storage" in networks
        offered = terminal.answer("IPPools for addresses of VMs (comma-separated, empty for DHCP), or a number", scarce)
        assert f"{pool}  (20 addresses free)" in offered
        assert f"{scarce}  (3 addresses free)" in offered
        terminal.expect("3 addresses are free, and the cluster needs 5")
        number = next(line.split()[0] for line in offered.splitlines() if f"{pool}  (" in line)
        terminal.answer("IPPools for addresses of VMs", number)
        terminal.answer(f"Gateway (empty with DHCP) [{case.gateway}]: ", "")
        terminal.answer(f"Subnet mask (empty with DHCP) [{MASK}]: ", "")
        terminal.answer("DNS servers", "")
        terminal.answer("IPPool for the control plane's address", "")
        assert "harvester-public" in terminal.answer("Namespace on Harvester, or a number [default]: ", "")
        terminal.answer("CNI", "")
        terminal.expect("Summary")
        summary = terminal.expect(f"Write to {folder}? [Y/n]: ")
        assert "Cluster               shop/shop, rke2 v1.36.2+rke2r1" in summary
        assert "Control plane         3 of 2 CPU, 4Gi memory, disks 40Gi" in summary
        assert f"IPPool {pool} (20 addresses free); gateway {case.gateway}, mask {MASK}" in summary
        assert f"namespace default on {case.environment.harvester.url}" in summary
        assert not folder.exists()
        terminal.answer("", "y")
        assert terminal.wait() == 0, terminal.shown
