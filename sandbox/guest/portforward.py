"""Port forwarding of a simulated kubelet, with two streams for each connection to a port.

An API server upgrades a request to SPDY even if its own client uses another protocol. A client
opens a stream for errors and a stream for data, with the port in their headers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import cast

from aiohttp import web
from aiohttp.http_websocket import WebSocketReader

from sandbox.guest.spdy import (
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    Opened,
    Ping,
    Reset,
    SpdyError,
)

log = logging.getLogger(__name__)

PROTOCOL = "portforward.k8s.io"
UPGRADE = "SPDY/3.1"
CONNECT_SECONDS = 5.0
HALF_CLOSED_SECONDS = 1.0
"""How long a connection continues after the guest's end, as in containerd."""
_CHUNK = 65536


async def forward(request: web.Request, address: str) -> web.StreamResponse:
    """Answer a request to forward ports of a Pod, until its client ends the session."""
    transport = request.transport
    if request.headers.get("Upgrade", "").upper() != UPGRADE or transport is None:
        raise web.HTTPBadRequest(text=f"upgrade to {UPGRADE} required")

    headers = {"Connection": "Upgrade", "Upgrade": UPGRADE, "X-Stream-Protocol-Version": PROTOCOL}
    answer = web.StreamResponse(status=101, headers=headers)
    session = _Session(transport, address)
    await answer.prepare(request)

    # aiohttp supports only WebSocket after an upgrade. It calls two methods of a WebSocket's
    # reader, and the session has both.
    request.protocol.set_parser(cast("WebSocketReader", session))
    try:
        await session.ended.wait()
    finally:
        await session.close()
        transport.close()
    return answer


class _Session:
    """One connection of an API server.

    aiohttp passes all data after the upgrade to it, as to a parser.
    """

    def __init__(self, transport: asyncio.Transport | asyncio.WriteTransport, address: str) -> None:
        self._transport = transport
        self._address = address
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._errors: dict[str, int] = {}
        self._ports: dict[int, _Port] = {}
        self.ended = asyncio.Event()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Handle received bytes. The result tells aiohttp to continue, with nothing left over."""
        try:
            for frame in self._decoder.feed(bytes(data)):
                self._handle_frame(frame)
        except SpdyError as error:
            log.warning("port forwarding to %s: %s", self._address, error)
            self.ended.set()
        return False, b""

    def feed_eof(self) -> None:
        """Handle the end of the connection."""
        self.ended.set()

    async def close(self) -> None:
        """Close all connections to the guest, and wait until they are closed."""
        tasks = [port.close() for port in self._ports.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, content: bytes) -> None:
        """Send frames, unless the connection is closed."""
        if self._transport.is_closing():
            self.ended.set()
        else:
            self._transport.write(content)

    def data(self, stream: int, content: bytes = b"", *, fin: bool = False) -> None:
        """Send data of a stream, or its end."""
        self.send(self._encoder.data(stream, content, fin=fin))

    def finish(self, stream: int, request: str, error: str) -> None:
        """Forget a forwarded port, and end its error stream, with an error if it is not empty.

        Clients wait for the end of the error stream also after a success. After an error, the data
        ends as well, and not before the error is sent: a client may leave at the end of the data.
        """
        self._ports.pop(stream, None)
        error_stream = self._errors.pop(request, None)
        if error_stream is not None:
            self.data(error_stream, error.encode(), fin=True)
        if error:
            self.data(stream, fin=True)

    def _handle_frame(self, frame: Frame) -> None:
        """Answer a frame, or pass it to the connection of its stream."""
        match frame:
            case Opened(stream, headers, _):
                self.send(self._encoder.reply(stream))
                self._open(stream, headers)
            case Data(stream, content, fin) if stream in self._ports:
                self._ports[stream].write(content, fin=fin)
            case Reset(stream) if stream in self._ports:
                self._ports.pop(stream).close()
            case Ping(number):
                self.send(self._encoder.ping(number))
            case GoAway():
                self.ended.set()

    def _open(self, stream: int, headers: Mapping[str, str]) -> None:
        """Register an error stream, or connect a data stream to its port.

        Both streams of a forwarded connection have the same request id, and the error stream comes
        first. So the error stream is known when the connection fails.
        """
        kind = headers.get("streamtype", "")
        request = headers.get("requestid", "")
        port = headers.get("port", "")
        if kind == "error":
            self._errors[request] = stream
        elif kind == "data" and port.isdecimal():
            self._ports[stream] = _Port(self, stream, request, (self._address, int(port)))


class _Port:
    """A connection to a port of the guest, for one data stream."""

    def __init__(
        self, session: _Session, stream: int, request: str, endpoint: tuple[str, int]
    ) -> None:
        self._session = session
        self._stream = stream
        self._request = request
        self._endpoint = endpoint
        # Data may arrive before the connection exists. None marks the end of the data.
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._error = ""
        self._task = asyncio.get_running_loop().create_task(self._relay())
        # A callback, because a task that is cancelled before it begins runs no `finally`.
        self._task.add_done_callback(self._finish)

    def write(self, content: bytes, *, fin: bool) -> None:
        """Pass data to the guest, or the end of it."""
        if content:
            self._outgoing.put_nowait(content)
        if fin:
            self._outgoing.put_nowait(None)

    def close(self) -> asyncio.Task[None]:
        """Begin to close the connection, and return the task that ends when it is closed."""
        self._task.cancel()
        return self._task

    async def _relay(self) -> None:
        """Connect to the guest, and pass data in both directions until both sides have ended."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*self._endpoint)
        except OSError as error:
            # This includes TimeoutError.
            self._error = f"cannot connect to port {self._endpoint[1]}: {type(error).__name__}"
        else:
            await self._pass_both_ways(reader, writer)

    def _finish(self, _: asyncio.Task[None]) -> None:
        self._session.finish(self._stream, self._request, self._error)

    async def _pass_both_ways(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass data in both directions, and close the connection to the guest."""
        sending = asyncio.create_task(self._send(writer))
        try:
            await self._receive(reader)
            self._session.data(self._stream, fin=True)

            # The guest has closed only its own direction, so that it may still read. Not every
            # client ends its data, so the wait for the client is limited.
            await asyncio.wait({sending}, timeout=HALF_CLOSED_SECONDS)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Pass the data of the guest to the client until the guest ends its data."""
        try:
            while content := await reader.read(_CHUNK):
                self._session.data(self._stream, content)
        except OSError:
            log.debug("port %d of %s was closed", self._endpoint[1], self._endpoint[0])

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """Pass the data of the client to the guest until the client ends its data."""
        while (content := await self._outgoing.get()) is not None:
            writer.write(content)
            await writer.drain()

        # Close only one direction, because the guest may still answer.
        writer.write_eof()
