"""Cases of the provider's tests, each for as long as a block lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import is_true
from tests.support.reconciler.environment import Environment


@contextmanager
def opened(environment: Environment, runner: asyncio.Runner, prefix: str = "case") -> Iterator[Case]:
    """A case for as long as the block lasts; then it is deleted, and nothing of it may be left."""
    case = Case(environment, environment.next_case(), prefix)
    runner.run(case.open())
    try:
        yield case
        left = runner.run(case.remove())
        assert not left, f"left behind on Harvester: {', '.join(left)}"
    finally:
        runner.run(case.close())


async def create_later(case: Case) -> None:
    """Create a cluster, and wait until the provider knows it, and with it all earlier changes of Clusters."""
    await case.cluster(paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
