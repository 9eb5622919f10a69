"""Accept connections from any client. None may wait forever, because each costs a descriptor.

Compressed bodies are not unpacked, because a piece of 64 KiB can expand to 64 MiB, which block the
event loop even of a server that reads no bodies. Handlers refuse them, see `is_compressed`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

HEADER_SECONDS = 10.0
# The kernel may deliver twice as much at once. 256 KiB in chunks of one byte would take 50 ms.
_RECEIVED_AT_ONCE = 32 * 1024


class Connection(RequestHandler):
    """A connection that unpacks no bodies, and is closed when headers take too long."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, auto_decompress=False, **options)
        self._patience: asyncio.TimerHandle | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 - inherited
        super().connection_made(transport)
        if connection := transport.get_extra_info("socket"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_AT_ONCE)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:  # noqa: D102 - of the base class
        if self._patience is None and not self._answering:
            self._wait_for_headers()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: D102 - of the base class
        self._stop_waiting()
        super().connection_lost(exc)

    def has_headers(self) -> None:
        """Record that the headers of a request are complete."""
        self._stop_waiting()
        self._answering = True

    def has_answered(self) -> None:
        """Record that the answer to that request is ready, so that the next one may begin."""
        self._answering = False

    def _wait_for_headers(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.force_close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def request_factory(max_size: int) -> Callable[..., web.BaseRequest]:
    """Return a factory for requests of `web.Server` with bodies of at most `max_size` bytes."""

    def create(
        message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        if isinstance(protocol, Connection):
            protocol.has_headers()
        loop = asyncio.get_running_loop()
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=max_size
        )

    return create


def is_compressed(request: web.BaseRequest) -> bool:
    """Return whether the body of a request is compressed."""
    return request.headers.get("Content-Encoding", "identity") != "identity"


def has_answered(request: web.BaseRequest) -> None:
    """Record that a request was answered. A handler calls this at its end."""
    if isinstance(request.protocol, Connection):
        request.protocol.has_answered()
