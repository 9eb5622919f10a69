"""The control plane's address while its only machine, or its external load balancer, is replaced.

The health check of Harvester's load balancer is as slow as it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from caphv.api.names import CONTROL_PLANE_LABEL
from caphv.api.object import SERVICES, at, labels_of
from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.processes.proxy import TcpProxy
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.e2e import impatient_core, running_sandbox
from tests.support.endpointwatch import PAUSE_SECONDS, running, watched
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# Health checks in real time. With this period, the first probe of a new machine comes long after its Node is healthy.
SETTINGS = SandboxSettings(older_versions=False, boot_seconds=0.5, register_seconds=0.2, probe_scale=1.0)
_LONGEST_SECONDS = 5.0
LOAD_BALANCER = {"ipamType": "pool", "ipPoolRef": "load-balancers", "healthCheck": {"periodSeconds": 15}}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with impatient_core(), running_sandbox(tmp_path_factory.mktemp("endpoint"), SETTINGS) as box:
        yield box


class ExternalBalancer:
    """A load balancer of the user: it probes the control plane machines, and forwards the ports of RKE2 to them."""

    def __init__(self, scenario: Scenario, address: str) -> None:
        self._scenario = scenario
        self._proxies = [TcpProxy((address, port)) for port in (6443, 9345)]

    async def run(self) -> None:
        """Serve until cancelled, which destroys it."""
        try:
            for proxy in self._proxies:
                await proxy.start()
            while True:
                addresses = [address for address in self._addresses() if await _accepts(address)]
                for proxy in self._proxies:
                    proxy.set_backends((address, proxy.listen[1]) for address in addresses)
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            for proxy in self._proxies:
                await proxy.close()

    def _addresses(self) -> list[str]:
        machines = self._scenario.view.harvester_machines.store
        control_plane = [machine for machine in machines if CONTROL_PLANE_LABEL in labels_of(machine)]
        entries = [entry for machine in control_plane for entry in at(machine, "status", "addresses") or ()]
        return sorted({entry["address"] for entry in entries if entry["address"].startswith("127.")})


async def _accepts(address: str) -> bool:
    try:
        # `wait_for` may lose a cancellation that comes with the connection.
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(address, 6443)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def test_upgrade_of_the_only_control_plane_machine_loses_the_endpoint_for_seconds(box: Sandbox) -> None:
    spec = ClusterSpec(
        name="lone",
        namespace="lone",
        target_namespace="lone",
        control_planes=1,
        workers=1,
        variables={"loadBalancer": LOAD_BALANCER},
    )
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        async with watched(scenario.view.endpoint()) as watch:
            await until(lambda: watch.answers > 0, "the endpoint answers")
            watch.restart()
            await scenario.upgrade(LATER_VERSION)
            asked = watch.answers
            await until(lambda: watch.answers > asked, "the endpoint answers after the upgrade")

        assert watch.longest < _LONGEST_SECONDS
        await scenario.delete()


async def test_external_load_balancer_is_replaced_and_so_is_the_only_machine_behind_it(box: Sandbox) -> None:
    network = box.status()["network"]
    address = f"{network.removesuffix('.0.0/16')}.0.9"
    balancer = {"ipamType": "none", "endpoint": {"host": address}, "healthCheck": {"periodSeconds": 1}}
    spec = ClusterSpec(
        name="outside",
        namespace="outside",
        target_namespace="outside",
        control_planes=1,
        workers=1,
        variables={"loadBalancer": balancer},
    )
    scenario = Scenario(box.folder, in_network(spec, network), timeout=300)
    async with scenario.watching():
        async with running(ExternalBalancer(scenario, address).run()):
            await scenario.create()
            assert scenario.view.endpoint() == f"https://{address}:6443"
            await scenario.bring_up()
            async with watched(scenario.view.endpoint()) as watch:
                await until(lambda: watch.answers > 0, "the endpoint answers")
                watch.restart()
                await scenario.upgrade(LATER_VERSION)
                assert watch.longest < _LONGEST_SECONDS

        # The one that holds the address is destroyed, and a standby takes it.
        async with running(ExternalBalancer(scenario, address).run()), watched(scenario.view.endpoint()) as watch:
            await until(lambda: watch.answers > 0, "the endpoint answers again", _LONGEST_SECONDS)
            for resource in (SERVICES, kinds.LOAD_BALANCERS):
                assert (await scenario.harvester.list(resource, "outside"))["items"] == []
            await scenario.delete()
        assert await scenario.leftovers() == []
