"""The logs of a support bundle: what cannot be read says why, without a credential."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import RawTestServer

from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from caphv.runtime.transport import Connection
from overview import bundle
from overview.objects import HarvesterObjects, Unseen

PASSWORD, TOKEN = "s3cret", "abcdef0123456789"


class Pods:
    """An API client that lists one Pod, or fails."""

    budget = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def list(self, *_: object, **__: object) -> dict[str, Any]:
        if self.error:
            raise self.error
        pod = {"metadata": {"name": "caphv-0"}, "spec": {"containers": [{"name": "manager"}]}}
        return {"metadata": {}, "items": [pod]}


async def authorization() -> str:
    return f"Bearer {TOKEN}"


async def log_of(server: str, proxy: str | None = None) -> str:
    connection = Connection(server, ssl.create_default_context(), authorization, proxy, None)
    client = cast("ApiClient", Pods())
    (text,) = (await bundle.logs(client, connection, "caphv-system", lambda _: None)).values()
    return text


@asynccontextmanager
async def answering(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    server = RawTestServer(handler)
    await server.start_server()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


async def test_a_log_is_redacted() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(text=f"sent Bearer {TOKEN}\nlast line\n")

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    assert text.endswith("last line\n")
    assert TOKEN not in text


async def test_a_refusal_is_no_log() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.json_response({"message": f"may not get pods/log, sent Bearer {TOKEN}"}, status=403)

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    assert text.startswith("cannot be read: HTTP 403: ")
    assert "may not get pods/log" in text
    assert TOKEN not in text


async def test_a_proxy_that_refuses_is_described_without_its_password() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(status=407, reason=f"not with http://user:{PASSWORD}@proxy:3128")

    async with answering(handler) as address:
        text = await log_of("https://192.0.2.1:6443", f"http://user:{PASSWORD}@{address}")
    assert text.startswith("cannot be read: HTTP 407 ")
    assert PASSWORD not in text


async def test_an_unreachable_server_is_described_in_words() -> None:
    assert await log_of("http://127.0.0.1:1") == (
        "cannot be read: the connection was refused: nothing listens at this address and port\n"
    )


async def test_pods_that_cannot_be_listed_are_named_without_credentials() -> None:
    refused = cast("ApiClient", Pods(Forbidden(403, "Forbidden", f"denied to Bearer {TOKEN}")))
    connection = Connection("http://127.0.0.1:1", ssl.create_default_context(), authorization, None, None)
    files = await bundle.logs(refused, connection, "caphv-system", lambda _: None)
    assert list(files) == ["logs/README.txt"]
    assert "Pods of namespace caphv-system: denied to" in files["logs/README.txt"]
    assert TOKEN not in files["logs/README.txt"]


def test_what_was_not_seen_on_a_harvester_is_redacted() -> None:
    objects = HarvesterObjects(server="https://harvester")
    objects.unseen = [Unseen("Harvester", f"proxy http://user:{PASSWORD}@proxy:3128 refuses")]
    files = dict(bundle.files_of_harvester(1, objects))
    assert "refuses" in files["harvester-1/server.txt"]
    assert PASSWORD not in files["harvester-1/server.txt"]
