"""Health endpoints that answer from the first second, whatever the process is still waiting for.

Why: the kubelet restarts a Pod whose `/healthz` is silent. A provider that waits for its management cluster is alive.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from caphv.runtime.runnable import listening_address

Check = Callable[[], list[str]]


class HealthServer:
    """Serves `/healthz` and `/readyz` on an address while its context is open.

    Until `report` replaces them, the checks say that the process is healthy and not ready.
    """

    def __init__(self, address: str, starting: str = "starting") -> None:
        self._address = address
        self._unhealthy: Check = list
        self._not_ready: Check = lambda: [starting]
        self._runner: web.AppRunner | None = None

    def report(self, unhealthy: Check, not_ready: Check) -> None:
        """From now on ask these functions; each returns the reasons for a failure."""
        self._unhealthy, self._not_ready = unhealthy, not_ready

    async def __aenter__(self) -> HealthServer:
        place = listening_address(self._address)
        if place is not None:
            application = web.Application()
            application.router.add_get("/healthz", self._healthz)
            application.router.add_get("/readyz", self._readyz)
            self._runner = web.AppRunner(application, access_log=None)
            await self._runner.setup()
            await web.TCPSite(self._runner, place[0] or None, place[1]).start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _response(self._unhealthy())

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _response(self._not_ready() + self._unhealthy())


def _response(reasons: list[str]) -> web.Response:
    return web.Response(status=500 if reasons else 200, text="\n".join(reasons) or "ok")
