"""Metrics of identities and pools, as a scrape of the running provider shows them."""

from __future__ import annotations

import pytest

from sandbox.processes.children import free_ports
from tests.support.reconciler.case import AT_ONCE, Case
from tests.support.reconciler.expiry import EXPIRY, account_identity, series
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration

ANSWERS = "caphv_harvester_request_duration_seconds_count"
ERRORS = "caphv_harvester_request_errors_total"
FREE = "caphv_ippool_free_addresses"


async def test_answers_and_expiry_of_an_identity_go_with_its_last_cluster(case: Case) -> None:
    name = {"identity": f"{case.name}/identity"}
    await case.identity(await account_identity(case))
    await case.create_cluster()
    await case.ready()
    answers, left = await series(case, ANSWERS, **name), await series(case, EXPIRY, **name)
    assert answers is not None
    assert answers > 5
    assert left is not None
    assert 3000 < left <= 3600
    assert await series(case, ERRORS, **name, code="403") is None
    await case.delete()

    async def gone() -> bool:
        return [await series(case, metric, **name) for metric in (ANSWERS, EXPIRY)] == [None, None]

    await until(gone, lambda: "series of an unused identity are still there", AT_ONCE)


async def test_refused_and_unanswered_requests_count_for_their_identity(case: Case) -> None:
    name = {"identity": f"{case.name}/identity"}

    async def counted(code: str) -> None:
        async def done() -> bool:
            return bool(await series(case, ERRORS, **name, code=code))

        await until(done, lambda: f"no error of {name} with code {code}", PATIENCE)

    await case.identity(case.environment.identity(token="expired"))
    await case.create_cluster()
    await counted("401")
    nowhere = case.environment.identity()
    nowhere["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_ports(1)[0]}"
    await case.identity(nowhere)
    await counted("none")
    await case.identity()
    await case.ready()


async def test_free_addresses_follow_the_pool_of_the_machines(case: Case) -> None:
    pool = await case.pool("pool", 1, 3)
    labels = {"harvester": case.environment.harvester.url, "pool": pool}
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    assert await series(case, FREE, **labels) == 3
    await case.ready_machine("one")
    assert await series(case, FREE, **labels) == 2
    await case.delete_machine("one")
    assert await series(case, FREE, **labels) == 3
