"""Repositories, caches and a management cluster for the tests of this folder."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.processes import binaries
from sandbox.processes.apiserver import ApiServer
from tests.support.fixtures import entered
from tests.support.packager.cleanup import Contents
from tests.support.packager.environment import CLASSES, CLUSTERS, CONTROL_PLANES, MACHINES, Case, install, opened
from tests.support.packager.repositories import Origin
from tests.support.packager.tables import two_releases

__all__ = ["two_releases"]


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path / "origin" / "fleet.git")


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and nothing of the one who runs the tests."""
    for name in (
        "GIT_REPO",
        "GIT_BRANCH",
        "GIT_PATH",
        "GIT_CREDENTIALS",
        "GIT_REVIEW",
        "GIT_CACHE",
        "SOURCE_REPO",
        "SOURCE_SIGNERS",
    ):
        monkeypatch.delenv(f"CAPHV_{name}", raising=False)
    # Programs that were built for all tests stay where they are.
    monkeypatch.setenv("CAPHV_CACHE", str(binaries.cache_folder()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder for definitions."""
    folder = tmp_path / "definitions"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="package")
def management(etcd_folder: Path) -> Iterator[ApiServer]:
    """An API server with Cluster API's kinds and ours, without Fleet; each test has a namespace of its own."""
    server = ApiServer(etcd_folder, "packager")
    asyncio.run(server.start())
    asyncio.run(install(server, CLUSTERS, MACHINES, CLASSES, CONTROL_PLANES))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def case(management: ApiServer, tmp_path: Path, origin: Origin, runner: asyncio.Runner) -> Iterator[Case]:
    """A namespace and a repository of the test's own."""
    with entered(opened(management, tmp_path, origin), runner) as case:
        yield case


@pytest.fixture(scope="package")
def contents(etcd_folder: Path) -> Iterator[Contents]:
    """The API server of `empty_api_server`."""
    contents = Contents(etcd_folder)
    asyncio.run(contents.start())
    yield contents
    asyncio.run(contents.server.stop())


@pytest.fixture
def empty_api_server(contents: Contents) -> Iterator[ApiServer]:
    """An API server with only what a new one has; all that a test creates is deleted after it."""
    yield contents.server
    asyncio.run(contents.restore())
