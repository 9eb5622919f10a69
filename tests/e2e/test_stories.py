"""All stories on the sandbox, with webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from sandbox import binaries, processes
from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox, Settings
from sandbox.story import Story, in_network
from tests.e2e.stories import STORIES, Run, tell

pytestmark = pytest.mark.e2e

SETTINGS = Settings(webhooks=True, boot_seconds=0.5, register_seconds=0.2)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[Run]:
    binaries.prepare()
    box = Sandbox(tmp_path_factory.mktemp("stories"), SETTINGS)
    try:
        runner.run(box.up())
        # One machine more than the first pool has addresses.
        spec = ClusterSpec(name="told", namespace="told", target_namespace="told-vms", control_planes=1, workers=4)
        watching = Story(box.folder, in_network(spec, box.status()["network"]), timeout=300).watching()
        story = runner.run(watching.__aenter__())
        yield Run(story, LATER_VERSION)
        runner.run(watching.__aexit__(None, None, None))
    finally:
        asyncio.run(processes.stop_all(box.folder))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(run: Run, runner: asyncio.Runner, story: Callable[[Run], Awaitable[None]]) -> None:
    runner.run(tell(run, story))


def test_there_are_eighteen() -> None:
    assert len({story.__name__ for story in STORIES}) == 18
