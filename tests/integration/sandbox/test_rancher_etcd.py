"""Servers of RKE2 and K3s have a real etcd for a control plane provider that the user runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import NODES, PODS, Obj, at, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest.etcd import EtcdClient, EtcdError, Member
from sandbox.guest.rancher import K3S, RKE2, Program
from sandbox.harvester import kinds
from sandbox.processes import network, pki
from sandbox.processes.apiserver import ApiServer
from tests.support.simulation import AGENT, Place, Simulation, simulation
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TOKEN = "token-of-the-cluster"
COMMANDS = {
    "rke2": ["curl -sfL https://get.rke2.io | INSTALL_RKE2_VERSION=v1.36.2+rke2r1 sh -", "systemctl start rke2-server"],
    "k3s": ["curl -sfL https://get.k3s.io | INSTALL_K3S_VERSION=v1.36.2+k3s1 sh -s - server && true"],
}
AUTHORITIES = {name: pki.CA.create(name) for name in ("server", "client", "etcd/server")}


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    server = ApiServer(etcd_folder, "rancher-etcd")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


def server_data(program: Program, address: str, first: str) -> Obj:
    """User data of a server, which brings the CAs if it is the first one."""
    files: list[Obj] = []
    config: Obj = {"token": TOKEN, "tls-san": [first]}
    if address == first:
        for name, authority in AUTHORITIES.items():
            contents = (authority.certificate.decode(), authority.pair.key.decode())
            pairs = zip(program.authority(name), contents, strict=True)
            files += [{"path": path, "content": content} for path, content in pairs]
    else:
        config["server"] = f"https://{first}:{program.port}"
    files.append({"path": program.file, "content": yaml.safe_dump(config)})
    return {**AGENT, "write_files": files, "runcmd": COMMANDS[program.name]}


async def member_names(place: Place, sim: Simulation, address: str, name: str) -> Sequence[str]:
    """The members that the etcd of a guest knows; none while it has no leader."""
    disk = uid_of(await sim.client.get(kinds.VIRTUAL_MACHINES, name, sim.namespace))
    folder = place.server.folder / f"disk-{disk}" / "etcd"
    client = EtcdClient(Member(folder, name, address, AUTHORITIES["etcd/server"]))
    try:
        return sorted(member["name"].rpartition("-")[0] for member in await client.members())
    except EtcdError:
        return ()


@pytest.mark.parametrize("program", [RKE2, K3S], ids=lambda program: program.name)
async def test_a_member_is_removed_when_the_provider_asks_on_the_node(place: Place, program: Program) -> None:
    """Also after a restart of the simulator, which finds the CA of the members on the disks of their guests."""
    async with simulation(place, f"etcd-{program.name}", own_providers=[program.name]) as sim:
        first, second = (f"{sim.prefix}.60.{number + 10 * len(program.name)}" for number in (1, 2))
        for name, address in (("one", first), ("two", second)):
            await sim.create_vm(name, server_data(program, address, first), address)

        ca = AUTHORITIES["server"].certificate.decode()
        workload = Kubeconfig(server=f"https://{first}:6443", ca=ca, token=TOKEN).client(name="workload")
        try:
            await until(lambda: _are_ready(workload), "the Nodes are not ready", 60)
            await until(lambda: _has(place, sim, first, ("one", "two")), "the second server has not joined etcd")

            await sim.restart()
            await until(lambda: _are_ready(workload), "the Nodes are not ready again", 60)
            await until(lambda: _has(place, sim, first, ("one", "two")), "the members are not back")

            pods = (await workload.list(PODS, "kube-system"))["items"]
            proxies = [pod for pod in pods if at(pod, "metadata", "labels", "app") == "etcd-proxy"]
            assert len(proxies) == (2 if program is K3S else 0)

            request = {"metadata": {"annotations": {f"{program.etcd}/remove": "true"}}}
            await workload.patch(NODES, "two", "", request)
            answer = f"{program.etcd}/removed-node-name"
            node = await sim.until(
                NODES, "two", lambda node: node["metadata"]["annotations"].get(answer), client=workload, timeout=60
            )
            assert node["metadata"]["annotations"][answer].startswith("two-")
            await until(lambda: _has(place, sim, first, ("one",)), "the member is not removed")
        finally:
            await workload.close()


async def _are_ready(workload: ApiClient) -> bool:
    """Whether both Nodes are ready. Nothing listens before the first server has started."""
    with suppress(RequestError):
        nodes = (await workload.list(NODES))["items"]
        conditions = [entry for node in nodes for entry in at(node, "status", "conditions") or ()]
        return [entry["status"] for entry in conditions if entry["type"] == "Ready"] == ["True", "True"]
    return False


async def _has(place: Place, sim: Simulation, address: str, names: Sequence[Any]) -> bool:
    return await member_names(place, sim, address, "one") == list(names)
