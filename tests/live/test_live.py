"""The stories against a real Harvester: `make e2e-live`. docs/live-tests.md has the variables and what has to be there.

It creates and deletes a cluster of its own, in namespaces of its own, and destroys the VM of one of its workers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from caphv.runtime.resource import NAMESPACES, Obj
from sandbox import clusterclass, manifests
from sandbox.apiserver import private_file
from sandbox.cluster import ClusterSpec
from sandbox.harvester import kinds
from sandbox.story import Story
from tests.e2e.stories import STORIES, Run, tell

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3 * 3600)]

PREFIX = "CAPHV_E2E_"
# Without these there is nothing to run against; the others have defaults.
KUBECONFIGS = ("MANAGEMENT_KUBECONFIG", "HARVESTER_KUBECONFIG")


@dataclass(frozen=True)
class Live:
    """What the environment says about the installation to test."""

    management: Path
    harvester: Path
    identity: Path
    spec: ClusterSpec
    later: str
    timeout: float


def live(environment: dict[str, str]) -> Live:
    """Read the variables. Raises ValueError that names those that are missing or do not fit."""

    def given(name: str, default: str = "") -> str:
        return environment.get(f"{PREFIX}{name}", default)

    needed = [*KUBECONFIGS, "IMAGE", "SSH_KEYPAIR", "NETWORK", "VM_POOLS", "LB_POOL", "GATEWAY", "SUBNET_MASK"]
    needed += ["VERSION", "LATER_VERSION"]
    missing = [f"{PREFIX}{name}" for name in needed if not given(name)]
    paths = [Path(given(name, given("HARVESTER_KUBECONFIG"))) for name in (*KUBECONFIGS, "IDENTITY_KUBECONFIG")]
    if missing:
        raise ValueError(f"set {', '.join(missing)}")
    if absent := [str(path) for path in paths if not path.is_file()]:
        raise ValueError(f"no such file: {', '.join(absent)}")
    name = given("NAME", "caphv-e2e")
    spec = ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=given("TARGET_NAMESPACE", name),
        control_planes=int(given("CONTROL_PLANES", "1")),
        workers=int(given("WORKERS", "2")),
        version=given("VERSION"),
        load_balancer=given("LB_POOL"),
        machines=tuple(given("VM_POOLS").split(",")),
        gateway=given("GATEWAY"),
        mask=given("SUBNET_MASK"),
        networks=(given("NETWORK"),),
        image=given("IMAGE"),
        storage_class=given("STORAGE_CLASS", "harvester-longhorn"),
        ssh_key_pair=given("SSH_KEYPAIR"),
        class_namespace=name,
        unhealthy_seconds=int(given("UNHEALTHY_SECONDS", "60")),
    )
    return Live(*paths, spec, given("LATER_VERSION"), float(given("TIMEOUT", "2400")))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[Run]:
    if not any(os.environ.get(f"{PREFIX}{name}") for name in KUBECONFIGS):
        pytest.skip(f"no real Harvester: {' and '.join(PREFIX + name for name in KUBECONFIGS)} name none")
    found = live(dict(os.environ))
    folder = tmp_path_factory.mktemp("live")
    for name in ("management", "harvester", "identity"):
        private_file(folder / f"{name}.kubeconfig", getattr(found, name).read_bytes())
    story = Story(folder, found.spec, timeout=found.timeout)
    watching = story.watching()
    runner.run(watching.__aenter__())
    try:
        runner.run(prepare(story))
        yield Run(story, found.later)
    finally:
        # Watches only: a cluster that a story has left behind stays, so that somebody can look at it.
        runner.run(watching.__aexit__(None, None, None))
        shutil.rmtree(folder)


async def prepare(story: Story) -> None:
    """Namespaces and the ClusterClass."""
    spaces: list[Obj] = [kinds.typed(NAMESPACES, {"metadata": {"name": story.spec.namespace}})]
    objects = clusterclass.objects(story.spec.namespace, story.spec.cluster_class)
    await manifests.apply(story.management, [*spaces, *objects])


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(run: Run, runner: asyncio.Runner, story: Callable[[Run], Awaitable[None]]) -> None:
    runner.run(tell(run, story))
