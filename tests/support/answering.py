"""A client of a server that answers everything with one handler."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from caphv.runtime.client import ApiClient
from caphv.runtime.connection import Connection

Handler = Callable[[Any], Awaitable[web.StreamResponse]]
# The server speaks HTTP: reading the certificates of the system for each client would take longer than its requests.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def _anonymous() -> str:
    return ""


@contextlib.asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[ApiClient]:
    """Lend a client; `options` are those of `ApiClient`."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = ApiClient(Connection(server, NO_TLS, _anonymous, None, None), name="test", **options)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()
