"""Fixtures of the provider's tests: one environment for all of them, a case of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.reconciler.case import Case
from tests.support.reconciler.cases import opened
from tests.support.reconciler.environment import Environment, running
from tests.support.reconciler.restricted import restricted

__all__ = ["restricted"]


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """API servers, simulated Harvester and provider."""
    with running(tmp_path_factory.mktemp("provider")) as environment:
        yield environment


@pytest.fixture(scope="module")
def alone(environment: Environment) -> Iterator[None]:
    """Without the provider that serves the other tests."""
    asyncio.run(environment.provider.stop())
    yield
    asyncio.run(environment.provider.start())


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
