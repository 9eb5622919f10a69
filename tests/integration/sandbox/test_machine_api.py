"""The machine API of Talos guests in the sandbox, as Talos's control plane provider uses it."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.errors import AlreadyExists, Unreachable
from sandbox.capi.talos.machineclient import EtcdProblem, MachineClient
from sandbox.capi.talos.machineconfig import authority, client_config, new_bundle
from sandbox.guest.kubelet import Etcd
from sandbox.guest.machineapi import PORT, MachineApi, path_of
from sandbox.guest.workload import Workloads
from sandbox.processes.network import claim

pytestmark = pytest.mark.integration

BUNDLE = new_bundle("demo")
CONFIG = yaml.safe_dump(client_config("demo", BUNDLE)).encode()
CLIENT = MachineClient({"data": {"talosconfig": base64.b64encode(CONFIG).decode()}})


class Guests(Workloads):
    """Control plane guests whose etcd a test starts, at addresses of a network of their own."""

    def __init__(self, folder: Path, network: IPv4Network) -> None:
        super().__init__(folder)
        self.network = network
        self.etcd = Etcd()
        self.running: set[str] = set()

    def etcd_of(self, address: str) -> Etcd | None:
        return self.etcd if address in self.running else None

    def has_data(self, disk: str) -> bool:
        return disk in self.etcd.disks

    def start(self, machine: Obj) -> None:
        name = machine["metadata"]["name"]
        self.etcd.join(name, name)
        self.running.add(machine["status"]["addresses"][0]["address"])

    def machine(self, number: int, **status: Any) -> Obj:
        """Return the Machine of a guest with its own address."""
        address = {"type": "InternalIP", "address": str(self.network[number])}
        status = {"addresses": [address], "nodeRef": {"name": f"cp-{number}"}, **status}
        return {"metadata": {"name": f"cp-{number}"}, "status": status}

    @property
    def members(self) -> set[str]:
        return {name.rpartition("-")[0] for name in self.etcd.members.values()}


@pytest.fixture
def guests(tmp_path: Path) -> Iterator[Guests]:
    with claim() as (network, _holder):
        yield Guests(tmp_path, network)


@asynccontextmanager
async def apis(guests: Guests, *machines: Obj) -> AsyncIterator[list[MachineApi]]:
    async with AsyncExitStack() as stack:
        found = []
        for each in machines:
            name, address = each["metadata"]["name"], each["status"]["addresses"][0]["address"]
            api = MachineApi(address, name, name, authority(BUNDLE, "os"), guests)
            found.append(await stack.enter_async_context(api.serving()))
        yield found


async def test_the_machine_with_the_lowest_address_creates_the_cluster_once(guests: Guests) -> None:
    machines = [guests.machine(2), guests.machine(1)]
    async with apis(guests, *machines) as (second, first):
        await CLIENT.bootstrap(machines)
        assert (first.bootstrapped.is_set(), second.bootstrapped.is_set()) == (True, False)

        # Another machine must not create a second cluster.
        first.bootstrapped.clear()
        guests.start(machines[0])
        await CLIENT.bootstrap(machines)
        assert not first.bootstrapped.is_set()
        with pytest.raises(AlreadyExists, match="etcd data directory is not empty"):
            await CLIENT.call(machines[0], "Bootstrap")


async def test_no_machine_creates_the_cluster_while_one_has_no_address(guests: Guests) -> None:
    async with apis(guests, guests.machine(1)) as (first,):
        with pytest.raises(Unreachable, match="cp-2 has no address"):
            await CLIENT.bootstrap([guests.machine(1), guests.machine(2, addresses=[])])
        assert not first.bootstrapped.is_set()


async def test_members_without_a_machine_are_removed(guests: Guests) -> None:
    machines = [guests.machine(1), guests.machine(2)]
    async with apis(guests, *machines):
        for each in [*machines, guests.machine(3)]:
            guests.start(each)
        with pytest.raises(EtcdProblem, match="expected to have 2 members, got 3"):
            await CLIENT.check_etcd(machines)
        with pytest.raises(EtcdProblem, match="noderef"):
            await CLIENT.remove_orphans([guests.machine(1), guests.machine(2, nodeRef={})])
        assert guests.members == {"cp-1", "cp-2", "cp-3"}

        await CLIENT.remove_orphans(machines)
        assert guests.members == {"cp-1", "cp-2"}
        await CLIENT.check_etcd(machines)


async def test_a_host_name_of_a_machine_that_is_not_that_of_its_member_costs_the_member(guests: Guests) -> None:
    """This provider reports no address of type Hostname, so the Node decides."""
    machines = [guests.machine(1), guests.machine(2)]
    for each in machines:
        guests.start(each)
    other = {"type": "Hostname", "address": "another-name"}
    machines[1]["status"]["addresses"].append(other)
    async with apis(guests, *machines):
        await CLIENT.remove_orphans(machines)
    assert guests.members == {"cp-1"}


async def test_a_machine_leaves_etcd(guests: Guests) -> None:
    machines = [guests.machine(1), guests.machine(2)]
    async with apis(guests, *machines):
        with pytest.raises(EtcdProblem, match='service "etcd" not in expected state: Preparing'):
            await CLIENT.check_etcd(machines)
        for each in machines:
            guests.start(each)
        await CLIENT.leave_etcd(machines[0])
        await CLIENT.leave_etcd(machines[0])
        assert guests.members == {"cp-2"}
        with pytest.raises(EtcdProblem, match="Finished"):
            await CLIENT.check_etcd(machines)


async def test_a_client_needs_a_certificate_of_the_cluster(guests: Guests) -> None:
    other = yaml.safe_dump(client_config("other", new_bundle("other"))).encode()
    stranger = MachineClient({"data": {"talosconfig": base64.b64encode(other).decode()}})
    context = ssl.create_default_context(cadata=authority(BUNDLE, "os").certificate.decode())
    async with apis(guests, guests.machine(1)) as (first,):
        with pytest.raises(Unreachable):
            await stranger.call(guests.machine(1), "Bootstrap")
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.post(f"https://{guests.network[1]}:{PORT}{path_of('Bootstrap')}", json={}, ssl=context)
        assert not first.bootstrapped.is_set()
