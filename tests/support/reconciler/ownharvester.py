"""A Harvester of its own for one test, in the environment that the reconciler's tests share."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sandbox.harvester.config import SimulatorConfig
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer, Token
from tests.support.reconciler.case import Case
from tests.support.reconciler.environment import IDENTITY_TOKEN, TIMES, Environment
from tests.support.simulation import Place, simulation


@asynccontextmanager
async def on_harvester(environment: Environment, name: str, **settings: Any) -> AsyncIterator[Case]:
    """Lend a case on a Harvester with these settings; at the end nothing of it may be left there."""
    identity = Token(IDENTITY_TOKEN, "caphv", ("system:masters",))
    server = ApiServer(environment.folder, name, audit=True, tokens=[identity], service_range="10.54.0.0/16")
    await server.start()
    try:
        with network.claim() as (claimed, _):
            settings = {**TIMES, **settings}
            async with simulation(Place(server, str(claimed)), "unused", **settings):
                world = SimulatorConfig.from_settings(str(claimed), settings)
                case = Case(dataclasses.replace(environment, harvester=server, world=world), 1, name)
                await case.open()
                try:
                    yield case
                    assert await case.remove() == []
                finally:
                    await case.close()
    finally:
        await server.stop()
