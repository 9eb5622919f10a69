"""Host names of tenants whose name servers do not answer hold up no one else."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from caphv.api.object import NAMESPACES
from caphv.runtime import resolver
from caphv.runtime.client import ApiClient
from caphv.runtime.connection import Connection
from caphv.runtime.errors import Unreachable
from tests.support.answering import NO_TLS, serving

pytestmark = pytest.mark.unit


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names that were looked up; those in `.slow` get no answer."""
    names: list[str] = []
    answered, system = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *args: Any, **options: Any) -> Any:
        names.append(host)
        if host.endswith(".slow"):
            answered.wait(30)
        return system("127.0.0.1" if host.endswith(".slow") else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield names
    answered.set()


async def _anonymous() -> str:
    return ""


@contextlib.asynccontextmanager
async def client_of(server: str) -> Any:
    connection = Connection(server, NO_TLS, _anonymous, None, None)
    client = ApiClient(connection, name="test", untrusted=True)
    try:
        yield client
    finally:
        await client.close()


async def test_slow_names_of_some_servers_hold_up_no_others(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_LOOKUP_SECONDS", 2.0)

    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"metadata": {"name": "kube-system"}})

    async with contextlib.AsyncExitStack() as stack:
        trusted = await stack.enter_async_context(serving(answer))
        named = trusted.server.replace("127.0.0.1", "localhost")
        healthy = await stack.enter_async_context(client_of(named))
        slow = [await stack.enter_async_context(client_of(f"http://h{n}.slow")) for n in range(60)]
        attempts = [asyncio.create_task(client.get(NAMESPACES, "kube-system")) for client in slow for _ in range(2)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(1):
            await healthy.get(NAMESPACES, "kube-system")
            await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        failures = await asyncio.gather(*attempts, return_exceptions=True)
        assert {type(failure) for failure in failures} == {Unreachable}
        assert "the host name cannot be resolved" in str(failures[0])
    assert len([name for name in asked if name.endswith(".slow")]) == 60, "one lookup of a name at a time"
