"""Port forwarding of a simulated kubelet: each pair of streams is a connection to a port of the guest.

An API server upgrades a request to SPDY, whatever its own client speaks. A client opens a stream for errors and one for
data, with the port in their headers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from aiohttp import web
from aiohttp.http_websocket import WebSocketReader

from sandbox.guest.spdy import Data, Decoder, Encoder, Frame, GoAway, Opened, Ping, Reset, SpdyError

log = logging.getLogger(__name__)

PROTOCOL = "portforward.k8s.io"
UPGRADE = "SPDY/3.1"
CONNECT_SECONDS = 5.0
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
    # It has the two methods that aiohttp calls of the reader of a WebSocket.
    request.protocol.set_parser(cast("WebSocketReader", session))
    try:
        await session.ended.wait()
    finally:
        session.close()
        transport.close()
    return answer


class _Session:
    """One connection of an API server; aiohttp feeds it as the parser of what follows the upgrade."""

    def __init__(self, transport: asyncio.Transport | asyncio.WriteTransport, address: str) -> None:
        self._transport = transport
        self._address = address
        self._decoder, self._encoder = Decoder(), Encoder()
        self._errors: dict[str, int] = {}
        self._ports: dict[int, _Port] = {}
        self.ended = asyncio.Event()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take what was received."""
        try:
            for frame in self._decoder.feed(bytes(data)):
                self._take(frame)
        except SpdyError as error:
            log.warning("port forwarding to %s: %s", self._address, error)
            self.ended.set()
        return False, b""

    def feed_eof(self) -> None:
        """Take the end of the connection."""
        self.ended.set()

    def close(self) -> None:
        """Close all connections to the guest."""
        for port in self._ports.values():
            port.close()

    def send(self, content: bytes) -> None:
        """Send frames, unless the connection is closed."""
        if self._transport.is_closing():
            self.ended.set()
        else:
            self._transport.write(content)

    def data(self, stream: int, content: bytes = b"", *, fin: bool = False) -> None:
        """Send data of a stream, or its end."""
        self.send(self._encoder.data(stream, content, fin=fin))

    def fail(self, request: str, message: str) -> None:
        """Report an error of a forwarded port on its error stream."""
        stream = self._errors.get(request)
        if stream is not None:
            self.data(stream, message.encode(), fin=True)

    def _take(self, frame: Frame) -> None:
        match frame:
            case Opened(stream, headers, _):
                self.send(self._encoder.reply(stream))
                self._open(stream, headers.get("streamtype", ""), headers.get("requestid", ""), headers.get("port", ""))
            case Data(stream, content, fin) if stream in self._ports:
                self._ports[stream].write(content, fin=fin)
            case Reset(stream) if stream in self._ports:
                self._ports.pop(stream).close()
            case Ping(number):
                self.send(self._encoder.ping(number))
            case GoAway():
                self.ended.set()

    def _open(self, stream: int, kind: str, request: str, port: str) -> None:
        if kind == "error":
            self._errors[request] = stream
        elif kind == "data" and port.isdecimal():
            self._ports[stream] = _Port(self, stream, request, (self._address, int(port)))


class _Port:
    """A connection to a port of the guest, for one data stream."""

    def __init__(self, session: _Session, stream: int, request: str, endpoint: tuple[str, int]) -> None:
        self._session, self._stream, self._request, self._endpoint = session, stream, request, endpoint
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._relay())

    def write(self, content: bytes, *, fin: bool) -> None:
        """Pass data to the guest, or the end of it."""
        if content:
            self._outgoing.put_nowait(content)
        if fin:
            self._outgoing.put_nowait(None)

    def close(self) -> None:
        """Close the connection."""
        self._task.cancel()

    async def _relay(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*self._endpoint)
        except OSError as error:
            # TimeoutError is one, too.
            self._session.fail(self._request, f"cannot connect to port {self._endpoint[1]}: {type(error).__name__}")
            self._session.data(self._stream, fin=True)
            return
        sender = asyncio.get_running_loop().create_task(self._send(writer))
        try:
            while content := await reader.read(_CHUNK):
                self._session.data(self._stream, content)
        except OSError:
            log.debug("port %d of %s was closed", self._endpoint[1], self._endpoint[0])
        finally:
            sender.cancel()
            writer.close()
        self._session.data(self._stream, fin=True)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while (content := await self._outgoing.get()) is not None:
            writer.write(content)
            await writer.drain()
        writer.write_eof()
