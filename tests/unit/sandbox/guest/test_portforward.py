"""Forwarded ports of a simulated kubelet: what happens to the streams, and to their data, when one side ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sandbox.guest import portforward
from sandbox.guest.spdy import Data, Decoder, Encoder, Frame, Reset
from tests.support.waiting import until

pytestmark = pytest.mark.unit

ERROR = 1
DATA = 3


class Transport:
    """The connection of an API server, which keeps the frames that it was sent."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self.frames: list[Frame] = []

    def is_closing(self) -> bool:
        return False

    def write(self, content: bytes) -> None:
        self.frames += self._decoder.feed(content)

    def has_ended(self, stream: int) -> bool:
        return any(isinstance(frame, Data) and frame.stream == stream and frame.fin for frame in self.frames)

    def content(self, stream: int) -> bytes:
        return b"".join(frame.content for frame in self.frames if isinstance(frame, Data) and frame.stream == stream)


class Guest:
    """A port of a guest that answers first, and reads until the client ends its data."""

    def __init__(self) -> None:
        self.port = 0
        self.received = b""
        self.connected = asyncio.Event()
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected.set()
        writer.write(b"answer")
        writer.write_eof()
        self.received = await reader.read()
        self.ended.set()
        writer.close()


@dataclass
class Forwarding:
    """A session with one forwarded port: what the client sends, and what both sides got."""

    guest: Guest
    session: portforward._Session
    transport: Transport
    encoder: Encoder = field(default_factory=Encoder)

    def open(self, port: int) -> None:
        """Open both streams, as a client does."""
        for kind, stream in (("error", ERROR), ("data", DATA)):
            headers = {"streamtype": kind, "requestid": "0", "port": str(port)}
            self.session.feed_data(self.encoder.open(stream, headers))

    def send(self, content: bytes, *, fin: bool = False) -> None:
        self.session.feed_data(self.encoder.data(DATA, content, fin=fin))

    @property
    def is_forgotten(self) -> bool:
        return not (self.session._ports or self.session._errors)


@contextlib.asynccontextmanager
async def forwarding(port: int | None = None) -> AsyncIterator[Forwarding]:
    """Forward a port of the guest, or another one."""
    guest = Guest()
    transport = Transport()
    forwarding = Forwarding(guest, portforward._Session(cast("Any", transport), "127.0.0.1"), transport)
    server = await asyncio.start_server(guest.serve, "127.0.0.1", 0)
    try:
        forwarding.open(port or server.sockets[0].getsockname()[1])
        yield forwarding
    finally:
        await forwarding.session.close()
        server.close()


async def test_what_a_client_sends_after_the_end_of_the_guests_data_reaches_the_guest() -> None:
    async with forwarding() as forwarded:
        await until(lambda: forwarded.transport.has_ended(DATA))
        forwarded.send(b"late", fin=True)
        await until(forwarded.guest.ended.is_set)
        assert (forwarded.guest.received, forwarded.transport.content(DATA)) == (b"late", b"answer")


async def test_both_streams_end_and_are_forgotten_once_both_sides_have_ended() -> None:
    async with forwarding() as forwarded:
        forwarded.send(b"all", fin=True)
        await until(lambda: forwarded.transport.has_ended(DATA) and forwarded.transport.has_ended(ERROR))
        assert (forwarded.transport.content(ERROR), forwarded.is_forgotten) == (b"", True)


async def test_a_client_that_never_ends_its_data_does_not_keep_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portforward, "HALF_CLOSED_SECONDS", 0.05)
    async with forwarding() as forwarded:
        await until(lambda: forwarded.transport.has_ended(ERROR))
        assert forwarded.is_forgotten


async def test_a_reset_of_the_data_ends_the_stream_of_errors() -> None:
    """kubectl resets the data, and then waits for the end of the errors."""
    async with forwarding() as forwarded:
        forwarded.session._handle_frame(Reset(DATA))
        await until(lambda: forwarded.transport.has_ended(ERROR))
        assert forwarded.is_forgotten


async def test_a_port_that_nothing_listens_on_is_an_error_of_its_request() -> None:
    async with forwarding(port=1) as forwarded:
        await until(lambda: forwarded.transport.has_ended(DATA) and forwarded.transport.has_ended(ERROR))
        assert forwarded.transport.content(ERROR) == b"cannot connect to port 1: ConnectionRefusedError"
        assert [frame.stream for frame in forwarded.transport.frames if isinstance(frame, Data)] == [ERROR, DATA]
        assert forwarded.is_forgotten


async def test_the_end_of_a_session_ends_its_tasks() -> None:
    def tasks() -> set[Any]:
        return {task for task in asyncio.all_tasks() if "_Port." in str(task.get_coro())}

    async with forwarding() as forwarded:
        await forwarded.guest.connected.wait()
        assert tasks()
        await forwarded.session.close()
        assert not tasks()
