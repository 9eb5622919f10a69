"""Serve health endpoints from the first second, even while the process still waits.

The kubelet restarts a Pod whose `/healthz` is silent, and a provider that waits for its management
cluster is healthy.

Any Pod of the cluster may connect to this port. Therefore a connection that sends its headers
slowly is closed, as in the server of the webhooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from caphv.runtime.httpserver import Connection, has_answered, request_factory
from caphv.runtime.runnable import listening_address

Check = Callable[[], list[str]]

_GRACE_SECONDS = 1.0
_READ_AHEAD = 4 * 1024


class HealthServer:
    """Serve `/healthz` and `/readyz` on an address while its context is open.

    Until `report` replaces them, the checks say that the process is healthy and not ready.
    """

    def __init__(self, address: str, starting: str = "starting") -> None:
        self._address = address
        self._unhealthy: Check = list
        self._not_ready: Check = lambda: [starting]
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    def report(self, unhealthy: Check, not_ready: Check) -> None:
        """Call these functions from now on. Each returns the reasons for a failure."""
        self._unhealthy = unhealthy
        self._not_ready = not_ready

    async def __aenter__(self) -> HealthServer:
        place = listening_address(self._address)
        if place is None:
            return self

        host, port = place
        server = web.Server(self._answer, request_factory=request_factory(0))
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(server, loop=loop, access_log=None, read_bufsize=_READ_AHEAD),
            host or None,
            port,
        )
        self._server = server
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._listener:
            self._listener.close()
        if self._server:
            await self._server.shutdown(_GRACE_SECONDS)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        response = self._response(request)
        if request.body_exists:
            # Close the connection, because the remainder of the body is not read.
            response.force_close()
        has_answered(request)
        return response

    def _response(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        if request.path == "/healthz":
            return _report(self._unhealthy())
        if request.path == "/readyz":
            return _report(self._not_ready() + self._unhealthy())
        return web.Response(status=404)


def _report(reasons: list[str]) -> web.Response:
    return web.Response(status=500 if reasons else 200, text="\n".join(reasons) or "ok")
