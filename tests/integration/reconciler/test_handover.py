"""The older of two control plane machines leaves after the newer one has taken over, and in any case."""

from __future__ import annotations

import asyncio
import time

import pytest

from caphv.api.names import ENDPOINT_HOOK
from caphv.api.object import Obj, annotations_of
from reconciler.machine import handover
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import MACHINES
from tests.support.reconciler.environment import Environment

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner", "alone")]


async def test_older_machine_waits_for_the_newer_one_but_not_forever(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No guest answers here, so the load balancer serves none."""
    monkeypatch.setattr(handover, "MAX_WAIT_SECONDS", 1.0)
    inprocess.install(monkeypatch)
    async with inprocess.opened(environment) as case, inprocess.running(case, inprocess.Hook()):
        await case.ready_cluster(loadBalancerConfig={"ipamType": "dhcp", "healthCheck": {"periodSeconds": 1}})
        await case.ready_machine("old", control_plane=True)
        await asyncio.sleep(1.1)  # creation timestamps have seconds
        await case.ready_machine("new", control_plane=True)
        await case.until(MACHINES, "old", is_held)
        assert not is_held(await case.get(MACHINES, "new"))

        started = time.monotonic()
        await case.ask_deletion(MACHINES, "old")
        await case.until(MACHINES, "old", lambda obj: not is_held(obj))
        assert time.monotonic() - started > 2.0
        await case.until_event("old", "Normal", "EndpointHandover")
        await case.until_event("old", "Warning", "EndpointHandoverTimedOut")
        await case.delete_machine("old")
        assert await case.remove() == []


def is_held(machine: Obj) -> bool:
    """Whether Cluster API has to wait before it drains the Node."""
    return ENDPOINT_HOOK in annotations_of(machine)
