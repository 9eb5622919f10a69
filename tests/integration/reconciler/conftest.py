"""Fixtures of the provider's tests: one environment for all of them, a case of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.reconciler.case import Case
from tests.support.reconciler.environment import Environment, running


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """API servers, simulated Harvester and provider."""
    with running(tmp_path_factory.mktemp("provider")) as environment:
        yield environment


@pytest.fixture
def case(environment: Environment, runner: asyncio.Runner) -> Iterator[Case]:
    """A cluster of the test's own; when the test has ended it is deleted, and nothing of it may be left."""
    with opened(environment, runner) as case:
        yield case


@pytest.fixture
def other(environment: Environment, runner: asyncio.Runner) -> Iterator[Case]:
    """A second cluster, in namespaces of its own."""
    with opened(environment, runner) as case:
        yield case


@contextmanager
def opened(environment: Environment, runner: asyncio.Runner, prefix: str = "case") -> Iterator[Case]:
    """A case for as long as the block lasts; then it is deleted, and nothing of it may be left."""
    environment.cases += 1
    case = Case(environment, environment.cases, prefix)
    runner.run(case.open())
    try:
        yield case
        left = runner.run(case.remove())
        assert not left, f"left behind on Harvester: {', '.join(left)}"
    finally:
        runner.run(case.close())
