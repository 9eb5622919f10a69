"""Accept connections from any client. None may wait forever, because each costs a descriptor.

It uses aiohttp's server without the application layer, because a table of paths is enough, and
routes, middlewares and signals would double the cost of a request.

Compressed bodies are not unpacked, because a piece of 64 KiB can expand to 64 MiB, which block the
event loop even of a server that reads no bodies. Handlers refuse them, see `is_compressed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

HEADER_SECONDS = 10.0
# The kernel may deliver twice as much at once. 256 KiB in chunks of one byte would take 50 ms.
_RECEIVED_AT_ONCE = 32 * 1024
_HANDSHAKE_SECONDS = 10.0
_BACKLOG = 1024

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


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

    def begin_answer(self) -> None:
        """Record that the headers of a request are complete."""
        self._stop_waiting()
        self._answering = True

    def end_answer(self) -> None:
        """Record that the answer to that request is ready, so that the next one may begin."""
        self._answering = False

    def _wait_for_headers(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.force_close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


@contextlib.asynccontextmanager
async def listen(
    address: tuple[str, int],
    handle: Handler,
    *,
    max_body: int,
    read_ahead: int,
    grace_seconds: float,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[asyncio.Server]:
    """Answer requests to a host and port while the context is open.

    - handle: answers a request
    - max_body: bytes that `BaseRequest.read` reads at most
    - read_ahead: bytes of a body that a connection buffers before they are read
    - grace_seconds: the time that answers get which are under way at the end
    - tls: without it, connections are not encrypted

    Raises `OSError` if it cannot listen on the address.
    """

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handle(request)
        finally:
            if isinstance(request.protocol, Connection):
                request.protocol.end_answer()

    server = web.Server(answer, request_factory=_request_factory(max_body))
    loop = asyncio.get_running_loop()
    host, port = address
    listener = await loop.create_server(
        lambda: Connection(server, loop=loop, access_log=None, read_bufsize=read_ahead),
        host or None,
        port,
        ssl=tls,
        ssl_handshake_timeout=_HANDSHAKE_SECONDS if tls else None,
        backlog=_BACKLOG,
    )
    try:
        yield listener
    finally:
        listener.close()
        await server.shutdown(grace_seconds)


async def read_body(request: web.BaseRequest, max_size: int, seconds: float) -> bytearray:
    """Return the body in a single copy, whereas `request.read` creates three.

    Raises `web.HTTPException` for a body that is larger, arrives later or cannot be decoded.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > max_size:
                    raise too_large(max_size)
            return body

    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError):
        message = "the body does not have the encoding that its headers say"
        raise web.HTTPBadRequest(text=message) from None
    except TimeoutError:
        message = f"the body did not arrive within {seconds:.0f} s"
        raise web.HTTPRequestTimeout(text=message) from None


def too_large(max_size: int) -> web.HTTPRequestEntityTooLarge:
    """Return the error for a body of more than `max_size` bytes."""
    text = f"a request has at most {max_size} bytes"
    return web.HTTPRequestEntityTooLarge(max_size, 0, text=text)


def is_compressed(request: web.BaseRequest) -> bool:
    """Return whether the body of a request is compressed."""
    return request.headers.get("Content-Encoding", "identity") != "identity"


def _request_factory(max_size: int) -> Callable[..., web.BaseRequest]:
    """Return a factory for requests of `web.Server` with bodies of at most `max_size` bytes."""

    def create(
        message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        if isinstance(protocol, Connection):
            protocol.begin_answer()
        loop = asyncio.get_running_loop()
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=max_size
        )

    return create
