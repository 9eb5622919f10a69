"""Connections of servers that anyone can reach: each costs a file descriptor, so none may wait forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

HEADER_SECONDS = 10.0


class Connection(RequestHandler):
    """A connection that is closed when the headers of a request take too long: each costs a file descriptor."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience: asyncio.TimerHandle | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 - of the base class
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:  # noqa: D102 - of the base class
        if self._patience is None and not self._answering:
            self._wait_for_headers()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: D102 - of the base class
        self._stop_waiting()
        super().connection_lost(exc)

    def has_headers(self) -> None:
        """The headers of a request are complete."""
        self._stop_waiting()
        self._answering = True

    def has_answered(self) -> None:
        """The answer to that request is ready; the next one may begin."""
        self._answering = False

    def _wait_for_headers(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.force_close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def request_factory(max_size: int) -> Callable[..., web.BaseRequest]:
    """For `web.Server` with `Connection`s: requests whose body has at most `max_size` bytes."""

    def create(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if isinstance(protocol, Connection):
            protocol.has_headers()
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=max_size)

    return create


def has_answered(request: web.BaseRequest) -> None:
    """To be called by a handler at its end: the time for the next request's headers may begin."""
    if isinstance(request.protocol, Connection):
        request.protocol.has_answered()
