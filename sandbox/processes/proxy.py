"""A TCP proxy for the traffic of load balancers, and of guests to their API server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import cast

Endpoint = tuple[str, int]


class TcpProxy:
    """Listens on one address and distributes connections over backends round robin.

    Without backends, connections are accepted and closed at once. Connections to a removed backend
    are aborted, as if its machine had died.
    """

    def __init__(self, listen: Endpoint, backends: Iterable[Endpoint] = ()) -> None:
        self.listen = listen
        self._backends: tuple[Endpoint, ...] = tuple(backends)
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._connections: set[_Inbound] = set()

    async def start(self) -> None:
        """Listen. Raises `OSError` if address and port are in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Inbound(self), *self.listen)

    def set_backends(self, backends: Iterable[Endpoint]) -> None:
        """Use these backends from now on."""
        self._backends = tuple(backends)
        for connection in list(self._connections):
            if connection.backend not in self._backends:
                connection.abort()

    async def close(self) -> None:
        """Stop listening and abort all connections."""
        if self._server:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    def next_backend(self) -> Endpoint | None:
        """Return the backend for the next connection, None without backends."""
        if not self._backends:
            return None
        return self._backends[next(self._turn) % len(self._backends)]

    def add_connection(self, connection: _Inbound) -> None:
        """Remember a new connection, which is aborted when its backend is removed."""
        self._connections.add(connection)

    def remove_connection(self, connection: _Inbound) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)


class _Half(asyncio.Protocol):
    """One side of a connection: forwards incoming data to the other side, with backpressure."""

    transport: asyncio.Transport | None = None
    peer: _Half | None = None

    def data_received(self, data: bytes) -> None:
        if self.peer and self.peer.transport:
            self.peer.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer and self.peer.transport and not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer and self.peer.transport and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer and self.peer.transport:
            self.peer.transport.close()


class _Outbound(_Half):
    def __init__(self, inbound: _Inbound) -> None:
        self.peer = inbound

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport, so this cannot be an
        # assertion.
        self.transport = cast("asyncio.Transport", transport)


class _Inbound(_Half):
    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy
        self._connect: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self.backend: Endpoint | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport, so this cannot be an
        # assertion.
        self.transport = cast("asyncio.Transport", transport)
        self.backend = self._proxy.next_backend()
        self._proxy.add_connection(self)
        self._connect = asyncio.get_running_loop().create_task(self._open())

    def data_received(self, data: bytes) -> None:
        # Clients often send before the backend is connected, and uvloop ignores a pause at that
        # time.
        if self.peer is None:
            self._early.append(data)
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.remove_connection(self)
        if self._connect:
            self._connect.cancel()
        super().connection_lost(exc)

    def abort(self) -> None:
        if self.transport:
            self.transport.abort()

    async def _open(self) -> None:
        if self.transport is None:
            return
        try:
            if self.backend is None:
                raise ConnectionRefusedError
            _, self.peer = await asyncio.get_running_loop().create_connection(
                lambda: _Outbound(self), *self.backend
            )
        except OSError:
            self.transport.close()
            return

        # Forward the data that arrived before the backend was connected.
        for data in self._early:
            super().data_received(data)
        self._early.clear()
