"""Two deployments share the objects of a management cluster by `--watch-filter`, and one Harvester with its pools."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from caphv.api.names import WATCH_FILTER_LABEL
from caphv.api.object import LEASES
from sandbox.harvester import kinds
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case, is_ready
from tests.support.reconciler.environment import Environment, Provider

pytestmark = pytest.mark.integration

MACHINES = 5
WRITES = ("create", "update", "patch", "delete")


class Share(Provider):
    """A deployment with leader election that reconciles what has its label, with a user of its own."""

    def __init__(self, environment: Environment, share: str, lease_namespace: str) -> None:
        super().__init__(
            environment.folder, f"share-{share}", environment.management, f"--watch-filter={share}", "--leader-elect"
        )
        self.run_as(environment.management, share, "system:masters")
        self.environment["POD_NAMESPACE"] = lease_namespace


@asynccontextmanager
async def shares(case: Case, *names: str) -> AsyncIterator[dict[str, Share]]:
    """One provider per name in the place of the shared one."""
    found = {name: Share(case.environment, name, case.name) for name in names}
    await case.environment.provider.stop()
    try:
        await asyncio.gather(*(share.start() for share in found.values()))
        yield found
    finally:
        await asyncio.gather(*(share.stop() for share in found.values()))
        await case.environment.provider.start()


def writers(environment: Environment, since: int) -> dict[str, set[str]]:
    """Users that wrote something, by namespace on the management cluster."""
    found = defaultdict(set)
    with environment.management.audit_log.open("rb") as file:
        file.seek(since)
        for line in file:
            event = json.loads(line) if line.endswith(b"\n") else {}
            if event.get("verb") in WRITES and event["user"]["username"] in ("blue", "green"):
                reference = event.get("objectRef") or {}
                if reference.get("resource") not in ("leases", "subjectaccessreviews"):
                    found[reference.get("namespace", "")].add(event["user"]["username"])
    return found


async def test_two_deployments_share_the_load_and_one_pool(case: Case, other: Case) -> None:
    environment = case.environment
    since = environment.audit_position(environment.management)
    pool = await case.pool("shared", 1, 4 * MACHINES)
    owners = {"blue": case, "green": other}
    async with shares(case, *owners) as running:
        for share, cluster in owners.items():
            label = {WATCH_FILTER_LABEL: share}
            await cluster.ready_cluster(labels=label, vmNetworkConfig=case.vm_network(pool))
            # The names of VMs differ, because both use the addresses of one pool.
            await asyncio.gather(
                *(cluster.create_machine(f"{share}-{number}", labels=label) for number in range(MACHINES))
            )
        addresses = []
        for share, cluster in owners.items():
            for number in range(MACHINES):
                machine = await cluster.until(HARVESTER_MACHINES, f"{share}-{number}", is_ready)
                addresses.append(machine["status"]["allocatedIPAddress"])
        assert len(set(addresses)) == 2 * MACHINES
        assert set(await case.allocated(pool)) == set(addresses)
        leases = [lease["metadata"]["name"] for lease in (await case.management.list(LEASES, case.name))["items"]]
        # A hash follows the name of the share.
        assert sorted(name.partition("-")[0] for name in leases) == ["blue", "green"]

        await running["green"].stop()
        for share, cluster in owners.items():
            await cluster.create_machine("late", labels={WATCH_FILTER_LABEL: share})
        await case.until(HARVESTER_MACHINES, "late", is_ready)
        assert "status" not in await other.get(HARVESTER_MACHINES, "late")
        assert "late" not in await other.names(kinds.VIRTUAL_MACHINES)
        assert is_ready(await other.get(HARVESTER_CLUSTERS, other.name)), "what was known stays"
        await running["green"].start()
        await other.until(HARVESTER_MACHINES, "late", is_ready)
        written = writers(environment, since)
    assert (written[case.name], written[other.name]) == ({"blue"}, {"green"})
