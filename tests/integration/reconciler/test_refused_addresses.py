"""A Harvester at an address that kubeconfigs may not name: refused for new clusters, a warning for earlier ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from caphv.api.object import Obj
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_true
from tests.support.reconciler.environment import Environment

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner", "alone")]

CONNECTION = "HarvesterConnectionReady"
REFUSED = is_false(CONNECTION, "HarvesterConnectionFailed", "--allow-harvester-cidr")


@contextlib.asynccontextmanager
async def provider(case: Case, *allowed: str) -> AsyncIterator[None]:
    """The provider, with these networks allowed."""
    task = asyncio.create_task(inprocess.run(case, None, allowed=allowed))
    try:
        yield
    finally:
        await inprocess.cancelled(task)


async def set_status(case: Case, harvester: Obj) -> None:
    await case.management.patch(
        HARVESTER_CLUSTERS, case.name, case.name, {"status": {"harvester": harvester}}, subresource="status"
    )


async def test_loopback_harvester_of_a_new_and_of_an_earlier_cluster(environment: Environment) -> None:
    async with inprocess.opened(environment) as case:
        since = environment.audit_position(environment.harvester)
        async with provider(case):
            await case.cluster()
            found = await case.until(HARVESTER_CLUSTERS, case.name, REFUSED)
            assert "127.0.0" not in condition_of(found, CONNECTION)["message"].replace(environment.harvester.url, "")
            await case.until_event(case.name, "Warning", "HarvesterConnectionFailed")
        assert list(environment.requests(environment.harvester, since)) == []

        async with provider(case, "127.0.0.0/8"):
            ready = await case.ready()
            assert ready["status"]["harvester"]["addressChecked"]

        async with provider(case):
            # The address was allowed and no longer is: the operator's change counts for this cluster, too.
            await case.until(HARVESTER_CLUSTERS, case.name, REFUSED)

        # As version 0.11 left it.
        await set_status(case, {"addressChecked": None})
        async with provider(case):
            found = await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION))
            assert "in the next version" in condition_of(found, CONNECTION)["message"]
            assert "addressChecked" not in found["status"]["harvester"]
            await case.until_event(case.name, "Warning", "HarvesterAddressNotAllowed")

        async with provider(case, "127.0.0.0/8"):
            assert await case.remove() == []
