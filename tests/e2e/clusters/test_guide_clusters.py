"""Commands of the Go provider's guide about clusters, on a cluster that they create; names and addresses are others."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Obj
from sandbox.environment import Sandbox
from sandbox.processes.apiserver import private_file
from tests.support.guide import Command, commands
from tests.support.paths import CHECKOUT
from tests.support.shell import Shell
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NAME = "my-cluster"
# Flags of the guide's generator that it leaves out where it writes dots.
FLAGS = (
    "--image default/my-vm-image.qcow2 --ssh-keypair default/my-ssh-key --network default/my-vm-network "
    "--gateway 10.0.0.1 --subnet-mask 255.255.255.0 --harvester-kubeconfig ~/.kube/harvester.yaml"
)


@pytest.fixture
def user(box: Sandbox, tmp_path: Path) -> Shell:
    """A user with kubeconfigs of the sandbox, `bin/` of a checkout, and a `.venv` there."""
    shutil.copytree(CHECKOUT / "bin", tmp_path / "bin")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
    shell = Shell(tmp_path, "kubectl")
    shell.environment["PATH"] += f":{Path(sys.prefix) / 'bin'}"
    shell.environment |= {"PYTHONPATH": str(CHECKOUT), "CAPHV_BACKUP_PASSPHRASE": "correct horse battery"}
    (tmp_path / ".kube").mkdir()
    private_file(tmp_path / "kubeconfig", box.kubeconfig("management").read_bytes())
    private_file(tmp_path / ".kube" / "harvester.yaml", box.kubeconfig("identity").read_bytes())
    private_file(tmp_path / "administrator.yaml", box.kubeconfig("harvester").read_bytes())
    return shell


def adapted(text: str, network: str, **placeholders: str) -> str:
    """A command with names and addresses of the sandbox."""
    gateway = f"{network.removesuffix('.0.0/16')}.0.1"
    values = {
        "default/my-vm-image.qcow2": "default/sles-15",
        "default/sles15-sp7-minimal-vm.x86_64-cloud-qu2.qcow2": "default/sles-15",
        "default/my-ssh-key": "default/caphv",
        "default/capi-ssh-key": "default/caphv",
        "default/my-vm-network": "default/production",
        "255.255.255.0": "255.255.128.0",
        "255.255.0.0": "255.255.128.0",
        "10.0.0.53": gateway,
        "10.0.0.1": gateway,
        "172.16.0.1": gateway,
        "my-ip-pool": "machines-b",
        "prod-ip-pool": "machines-b",
        "my-pool": "machines-b",
        "pool-a,pool-b,pool-c": "machines-a,machines-b",
        "pool-a,pool-b": "machines-a,machines-b",
        "<harvester-kubeconfig>": "administrator.yaml",
        "<path-to-harvester-kubeconfig>": "administrator.yaml",
        "<harvester-target-namespace>": "default",
        "<target-ns>": "default",
        "<pool-name>": "machines-b",
        "<namespace>/<cluster>": f"{NAME}/{NAME}",
        "-n <namespace>": "-n default",
        **{f"<{name.replace('_', '-')}>": value for name, value in placeholders.items()},
        "-n <ns>": f"-n {NAME}",
        "-n my-ns": f"-n {NAME}",
        "-n my-namespace": f"-n {NAME}",
        "-n multipool-test": f"-n {NAME}",
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def test_the_generator_accepts_each_call_of_the_guide(box: Sandbox, user: Shell) -> None:
    network = box.status()["network"]
    for command in commands("test_the_generator_accepts_each_call_of_the_guide"):
        text = command.text.removesuffix("--apply")
        for dots in ("[other flags...]", "[...]", "..."):
            text = text.replace(dots, FLAGS)
        text += "" if "--name" in text else f" --name {NAME}"
        text += "" if "--ip-pool" in text else " --ip-pool my-ip-pool"
        objects = [obj for obj in yaml.safe_load_all(user(adapted(text, network))) if obj]
        found = [obj["kind"] for obj in objects]
        assert {"Namespace", "Secret", "ClusterClass", "Cluster", "MachineHealthCheck"} <= set(found)
        assert found.count("ClusterResourceSet") == (0 if "--fleet-addon-repo" in text else 3)


async def test_a_cluster_of_the_guide_lives_and_ends(box: Sandbox, user: Shell) -> None:
    everything = commands("test_a_cluster_of_the_guide_lives_and_ends")
    network = box.status()["network"]

    def starting(*words: str) -> list[Command]:
        return [command for command in everything if command.text.startswith(words)]

    async def run(*words: str, and_then: str = "", **placeholders: str) -> None:
        for command in starting(*words):
            await asyncio.to_thread(user, adapted(command.text, network, **placeholders) + and_then)

    await run("kubectl create secret", and_then=" && kubectl delete secret hv-identity-secret")
    for command in starting("caphv-generate --interactive", "bin/caphv-generate --interactive"):
        asked = await asyncio.to_thread(user.run, command.text)
        assert "Kubeconfig for Harvester" in asked.stderr
    await run("bin/caphv-generate --name", "caphv-generate --name", "kubectl apply -f cluster.yaml")
    machines = await until(lambda: running(user, 5), "five machines run", seconds=240)

    await inspect(
        user, network, machines[-1], starting("kubectl get", "kubectl describe", "kubectl edit", "kubectl exec", "for ")
    )
    await back_up(user, network, starting("BACKUP_DIR", "kubectl get secrets", 'kubectl apply -f "$BACKUP_DIR'))
    await change(user, network, starting("kubectl scale", "kubectl patch"))
    await run("kubectl delete machine ", machine_name=machines[-1]["metadata"]["name"])
    await run("kubectl delete cluster my-cluster -n my-namespace", and_then=" --dry-run=server")
    await run("kubectl delete cluster my-cluster -n my-ns", and_then=f" && kubectl delete namespace {NAME}")
    left = "kubectl get virtualmachines.kubevirt.io,pvc -n default --kubeconfig administrator.yaml -o name"
    assert await asyncio.to_thread(user, left) == ""


async def running(user: Shell, number: int) -> list[Obj]:
    """The machines as soon as so many run."""
    found = (await asyncio.to_thread(user.read, f"machines.cluster.x-k8s.io -n {NAME}"))["items"]
    if [obj.get("status", {}).get("phase") for obj in found] != ["Running"] * number:
        return []
    return found


async def inspect(user: Shell, network: str, machine: Obj, inspected: list[Command]) -> None:
    """Commands that only read: each has an output, or is refused and what its row says has one."""
    guest = await asyncio.to_thread(user.read, f"secret {NAME}-kubeconfig -n {NAME}")
    private_file(user.folder / "workload.yaml", base64.b64decode(guest["data"]["value"]))
    own = infrastructure_ref(machine)[1]
    in_guest = "kubectl --kubeconfig workload.yaml"
    pods = (await asyncio.to_thread(user, f"{in_guest} get pods -n kube-system -o name")).split()
    etcd = next(name.partition("/")[2] for name in pods if "etcd" in name)

    for command in inspected:
        if "$BACKUP_DIR" in command.text:
            continue
        name = own if "harvestermachine" in command.text else machine["metadata"]["name"]
        text = adapted(command.text, network, name=name, machine_name=name, rke2_cp_pod=etcd, member_id="1")
        if text.startswith(("kubectl get nodes", "kubectl exec")):
            text = text.replace("kubectl", in_guest, 1)
        if text.endswith(" -w"):
            text = f"timeout 3 {text} || [ $? = 124 ]"
        if command.row:
            assert (await asyncio.to_thread(user.run, text)).returncode != 0, text
            text = adapted(command.typed, network)
        output = await asyncio.to_thread(user, text)
        assert output or " > " in text, text


async def back_up(user: Shell, network: str, exported: list[Command]) -> None:
    """The script of the guide, whose files have owners with uids, and what its row says instead."""
    script, secrets, *applied = exported
    folder = await asyncio.to_thread(user, f'{script.text}\n{secrets.text}\necho "$BACKUP_DIR"')
    for command in applied:
        file = command.text.rpartition("/")[2].strip('"')
        objects = yaml.safe_load((user.folder / folder.strip() / file).read_text())["items"]
        assert objects
        if not file.startswith("clusters."):
            assert [obj for obj in objects if not obj["metadata"].get("ownerReferences")] == []
    await asyncio.to_thread(user, adapted(script.typed, network))
    assert list((user.folder / "backup").rglob("*"))


async def change(user: Shell, network: str, changed: list[Command]) -> None:
    """Commands that change the cluster; those of a ClusterClass cannot be used as they are."""
    deployment, control_plane, pools, replicas, version = changed
    await asyncio.to_thread(user.refuses, adapted(version.text, network), "version")
    await asyncio.to_thread(user, f"{adapted(version.typed, network)} --dry-run")
    for command in (deployment, control_plane):
        await asyncio.to_thread(user.refuses, adapted(command.text, network), "not found")
    await asyncio.to_thread(user, f"{adapted(deployment.typed, network)} --yes")

    replaced = await asyncio.to_thread(user, f"{adapted(pools.text, network)} --dry-run=server -o yaml")
    assert pools_of(yaml.safe_load(replaced)) == [("md-0", 3)]
    before = await asyncio.to_thread(user.read, f"cluster.cluster.x-k8s.io {NAME} -n {NAME}")
    assert pools_of(before) == [("workers", 3)]
    await asyncio.to_thread(user, adapted(replicas.text, network))


def pools_of(cluster: Obj) -> list[tuple[str, int]]:
    """Names and sizes of the pools of a topology."""
    pools = cluster["spec"]["topology"]["workers"]["machineDeployments"]
    return [(pool["name"], pool["replicas"]) for pool in pools]
