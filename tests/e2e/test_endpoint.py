"""The control plane's address while its only machine is replaced, with a health check as slow as Harvester's."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.e2e import impatient_core, running_sandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# Health checks in real time. With this period, the first probe of a new machine comes long after its Node is healthy.
SETTINGS = SandboxSettings(older_versions=False, boot_seconds=0.5, register_seconds=0.2, probe_scale=1.0)
_PAUSE_SECONDS = 0.1
_LONGEST_SECONDS = 5.0
LOAD_BALANCER = {"ipamType": "pool", "ipPoolRef": "load-balancers", "healthCheck": {"periodSeconds": 15}}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with impatient_core(), running_sandbox(tmp_path_factory.mktemp("endpoint"), SETTINGS) as box:
        yield box


class Watch:
    """How long nothing answered at an address at the longest, in seconds."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self.answers = 0
        self.longest = 0.0
        self._answered = time.monotonic()

    def restart(self) -> None:
        """Forget how long nothing answered before."""
        self.longest = 0.0

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            if await self._asks():
                self.answers += 1
                self._answered = time.monotonic()
            self.longest = max(self.longest, time.monotonic() - self._answered)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _asks(self) -> bool:
        """Whether an API server completes a TLS handshake: the load balancer accepts connections on its own."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connecting = asyncio.open_connection(self._address.hostname, self._address.port, ssl=context)
        try:
            _, writer = await asyncio.wait_for(connecting, 1.0)
        except (OSError, TimeoutError):
            return False

        writer.transport.abort()
        return True


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[Watch]:
    watch = Watch(url)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


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
