"""What `kubectl get` shows of our kinds: the API server itself makes the table."""

from __future__ import annotations

import asyncio
from typing import Any

from caphv.api.object import Resource
from tests.support.clusters import Builder, condition
from tests.support.overview import KINDS, Management

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
MESSAGE = "no free address in IPPool machines: add a range to the pool, or another pool to ipPoolRefs"


async def _table(management: Management, resource: Resource) -> dict[str, dict[str, Any]]:
    async with management.server.client() as client:
        table = await client.request("GET", resource.path("columns"), accept=TABLE)
    # kubectl shows columns of priority 0, and the rest with `-o wide`.
    names = [f"{'wide ' if column['priority'] else ''}{column['name']}" for column in table["columnDefinitions"]]
    rows = (dict(zip(names, row["cells"], strict=True)) for row in table["rows"])
    return {row["Name"]: row for row in rows}


def test_a_table_says_why_something_is_not_ready(management: Management) -> None:
    builder = Builder("table")
    builder.break_machine("worker-1", "VMIPPoolExhausted", MESSAGE)
    builder.harvester_cluster["status"]["conditions"] = [
        condition("Ready", "False", "HarvesterConnectionFailed", "no answer")
    ]
    management.load("columns", builder.objects())
    machines = asyncio.run(_table(management, KINDS["HarvesterMachine"]))
    broken, fine = machines["worker-1"], machines["worker-2"]
    assert (broken["Ready"], broken["Reason"], broken["wide Message"]) == ("False", "VMIPPoolExhausted", MESSAGE)
    assert (fine["Ready"], fine["Reason"], fine["Host"]) == ("True", "Ready", "harvester-1")
    (cluster,) = asyncio.run(_table(management, KINDS["HarvesterCluster"])).values()
    assert (cluster["Ready"], cluster["Reason"], cluster["wide Message"]) == (
        "False",
        "HarvesterConnectionFailed",
        "no answer",
    )
