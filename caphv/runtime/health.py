"""Serve health endpoints from the first second, even while the process still waits.

The kubelet restarts a Pod whose `/healthz` is silent, and a provider that waits for its management
cluster is healthy.

Any Pod of the cluster may connect to this port. Therefore a connection that sends its headers
slowly is closed, as in the server of the webhooks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from aiohttp import web

from caphv.runtime.httpserver import listen
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
        self._serving = contextlib.AsyncExitStack()

    def report(self, unhealthy: Check, not_ready: Check) -> None:
        """Call these functions from now on. Each returns the reasons for a failure."""
        self._unhealthy = unhealthy
        self._not_ready = not_ready

    async def __aenter__(self) -> HealthServer:
        if address := listening_address(self._address):
            server = listen(
                address,
                self._answer,
                max_body=0,
                read_ahead=_READ_AHEAD,
                grace_seconds=_GRACE_SECONDS,
            )
            await self._serving.enter_async_context(server)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._serving.aclose()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        response = self._response(request)
        if request.body_exists:
            # Close the connection, because the remainder of the body is not read.
            response.force_close()
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
