"""Health is answered from the first second; the limit of open files is raised."""

import asyncio
import logging
import resource

import aiohttp
import pytest

from caphv.runtime import httpserver, openfiles
from caphv.runtime.cache import Informer
from caphv.runtime.errors import ApiError, Forbidden, NotFound, TooLarge, Unreachable
from caphv.runtime.health import HealthServer
from caphv.runtime.manager import BindAddresses, Manager
from sandbox.processes.children import free_ports
from tests.support.fake_collection import THINGS, Collection

pytestmark = pytest.mark.unit


async def test_health_is_answered_before_anything_else_works() -> None:
    (port,) = free_ports(1)

    async def status(path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/{path}") as response:
            return response.status, await response.text()

    async with HealthServer(f"127.0.0.1:{port}", "waiting for the management cluster") as health:
        assert await status("healthz") == (200, "ok")
        assert await status("readyz") == (500, "waiting for the management cluster")
        health.report(lambda: ["stalled"], lambda: ["cache"])
        assert await status("healthz") == (500, "stalled")
        assert await status("readyz") == (500, "cache\nstalled")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, ""),
        (Forbidden(403, "Forbidden", 'User "system:serviceaccount:a:b" cannot list things'), ": HTTP 403 Forbidden"),
        (NotFound(404, "", "404 page not found"), ": HTTP 404 Not Found"),
        (ApiError(599, "", ""), ": HTTP 599"),
        (Unreachable("https://10.0.0.1:6443: timed out"), ": no answer from the API server"),
        (TooLarge("https://10.0.0.1:6443: response is larger than 1 bytes"), ": answer too large from the API server"),
        (KeyError("metadata"), ": invalid answer from the API server"),
    ],
)
def test_readiness_names_the_cause_without_the_text_of_a_server(error: Exception | None, reason: str) -> None:
    manager = Manager(addresses=BindAddresses("0", "0"))
    informer = manager.add_informer(Informer(Collection(), THINGS))
    informer.retries.last_error = error
    assert manager.not_ready() == [f"cache of things.example.io is not in sync{reason}"]


async def test_connections_with_slow_headers_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "HEADER_SECONDS", 0.2)
    (port,) = free_ports(1)

    async with HealthServer(f"127.0.0.1:{port}"):
        for beginning in (b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(beginning)
            async with asyncio.timeout(10):
                assert await reader.read(1) == b""
            writer.close()


async def test_other_requests_are_refused() -> None:
    (port,) = free_ports(1)

    async with HealthServer(f"127.0.0.1:{port}"), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for method, path, body, status in (
            ("HEAD", "/healthz", None, 200),
            ("POST", "/healthz", b"x" * 100_000, 405),
            ("GET", "/metrics", None, 404),
        ):
            async with http.request(method, path, data=body) as response:
                assert response.status == status


async def test_a_health_server_without_an_address_does_nothing() -> None:
    async with HealthServer("0"):
        pass


def test_soft_limit_of_open_files_is_raised_to_the_hard_one(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        assert openfiles.raise_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_low_limit_of_open_files_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 1024))
    with caplog.at_level(logging.WARNING):
        openfiles.raise_limit()
    assert "limit of open files is 1024" in caplog.text
