"""`caphv etcd` and machines that may not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from caphv.api import resources
from commands.main import cli
from operations.read.harvester import Harvesters
from operations.read.objects import Unseen
from operations.status.assembly import overview_of
from operations.status.query import Answer
from tests.support.clusters import Builder

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("command", ["members", "remove"])
@pytest.mark.parametrize("kind", [str(resources.machines("v1beta1")), str(resources.HARVESTER_MACHINES)])
def test_members_are_not_called_stale_because_machines_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch, command: str, kind: str
) -> None:
    objects = Builder().objects()
    objects.unseen.append(Unseen(kind, "forbidden", forbidden=True))

    @asynccontextmanager
    async def client(_flags: dict[str, Any]) -> AsyncIterator[None]:
        yield None

    async def ask(*_: object) -> Answer:
        return Answer(overview_of(objects, datetime.now(UTC)), objects, Harvesters())

    monkeypatch.setattr("commands.etcd.management_client", client)
    monkeypatch.setattr("operations.status.query.ask", ask)
    result = CliRunner().invoke(cli, ["etcd", command, "team/shop"])
    assert (result.exit_code, f"machines of the cluster cannot be read: {kind}: forbidden" in result.output) == (
        2,
        True,
    )
