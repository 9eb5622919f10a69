"""The scenarios against a real Harvester: `make e2e-live`. See docs/live-tests.md.

It creates and deletes a cluster of its own, in namespaces of its own, and destroys the VM of one of its workers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator

import pytest

from tests.support.installation import KUBECONFIGS, PREFIX, live, telling
from tests.support.scenarios import Run, Step, run_step, scenarios

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3 * 3600)]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[Run]:
    if not any(os.environ.get(f"{PREFIX}{name}") for name in KUBECONFIGS):
        pytest.skip(f"no real Harvester: {' and '.join(PREFIX + name for name in KUBECONFIGS)} name none")
    folder = tmp_path_factory.mktemp("live")
    reported = telling(live(dict(os.environ)), folder)
    try:
        yield runner.run(reported.__aenter__())
        runner.run(reported.__aexit__(None, None, None))
    finally:
        # It has kubeconfigs.
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "scenario", scenarios(os.environ.get("CAPHV_E2E_STORIES", "").split()), ids=lambda scenario: scenario.__name__
)
def test_scenario(run: Run, runner: asyncio.Runner, scenario: Step) -> None:
    runner.run(run_step(run, scenario))
