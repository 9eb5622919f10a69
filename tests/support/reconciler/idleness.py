"""What the provider asks of its API servers while nothing happens, and the wait until it asks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.support.reconciler.environment import Environment
from tests.support.waiting import until


def positions(environment: Environment) -> dict[str, int]:
    """Where the audit logs of both API servers end now, by the server's name."""
    servers = (environment.management, environment.harvester)
    return {server.name: environment.audit_position(server) for server in servers}


def made(environment: Environment, since: Mapping[str, int]) -> list[str]:
    """Requests of the provider since audit positions; watches and Leases, by which it is seen to live, left out."""
    return [
        f"{event['verb']} {event['requestURI']}"
        for server in (environment.management, environment.harvester)
        for event in environment.requests(server, since[server.name])
        if event["verb"] != "watch" and "/leases" not in event["requestURI"]
    ]


async def until_quiet(environment: Environment) -> None:
    """Wait until a second has passed without a request: Events are written behind everything else."""

    async def quiet() -> bool:
        since = positions(environment)
        await asyncio.sleep(1)
        return made(environment, since) == []

    await until(quiet, lambda: "the provider still makes requests")
