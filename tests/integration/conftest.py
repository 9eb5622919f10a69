"""Real API servers for tests: one etcd and one API server for all of a worker, more on demand."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.processes.apiserver import ApiServer
from tests.support.apiservers import running_etcd


@pytest.fixture(scope="package")
def etcd_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sandbox folder with a running etcd; all processes in it end when their worker turns to e2e tests."""
    with running_etcd(tmp_path_factory.mktemp("sandbox")) as folder:
        yield folder


@pytest.fixture(scope="package")
def api_server(etcd_folder: Path) -> ApiServer:
    """A running API server, shared by all tests: use names or namespaces of your own in it."""
    server = ApiServer(etcd_folder, "shared")
    asyncio.run(server.start())
    return server


_numbers = itertools.count()


@pytest.fixture
def new_api_server(etcd_folder: Path) -> Iterator[Callable[..., Awaitable[ApiServer]]]:
    """Start further, empty API servers; takes the options of `ApiServer`. They end with the test."""
    servers: list[ApiServer] = []

    async def start(**options: Any) -> ApiServer:
        server = ApiServer(etcd_folder, f"extra-{next(_numbers)}", **options)
        servers.append(server)
        await server.start()
        return server

    yield start
    for server in servers:
        asyncio.run(server.stop())
