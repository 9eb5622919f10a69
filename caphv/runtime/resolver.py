"""Resolves the host names of one untrusted server.

Why: an event loop resolves names in a few threads, with uvloop two at a time. A few host names whose name server does
not answer would occupy them, and no other connection could be made. Here each lookup has a thread of its own, and a
server has one lookup of a name at a time. Connections wait for it for some seconds; its thread ends with its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_SECONDS = 10.0
_Asked = tuple[str, int, int, int]
# Family, type, protocol, canonical name and address, as `socket.getaddrinfo` returns them.
_Found = list[tuple[int, int, int, str, tuple[Any, ...]]]


class Resolver(AbstractResolver):
    """Lookups of the names in one kubeconfig: its server and its proxy."""

    def __init__(self) -> None:
        self._running: dict[_Asked, asyncio.Future[_Found]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name that this host can reach. Raises `OSError`."""
        return [_result(host, *one) for one in await self.look_up(host, port, family, socket.AI_ADDRCONFIG)]

    async def look_up(self, host: str, port: int, family: int = 0, flags: int = 0) -> _Found:
        """Return all addresses of a name. Raises `OSError`."""
        asked = (host, port, int(family), flags)
        if asked not in self._running:
            self._running[asked] = self._start(asked)
        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.shield(self._running[asked])
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, f"{host} was not resolved within {_SECONDS:g} s") from None

    async def close(self) -> None:
        """A lookup under way ends by itself."""

    def _start(self, asked: _Asked) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Found] = loop.create_future()

        def finish(found: _Found | Exception) -> None:
            del self._running[asked]
            if isinstance(found, Exception):
                future.set_exception(found)
                future.exception()  # marks it as retrieved: no one may wait any more
            else:
                future.set_result(found)

        def look_up() -> None:
            host, port, family, flags = asked
            found: _Found | Exception
            try:
                found = list(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags))
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the process ends: the loop is closed
                loop.call_soon_threadsafe(finish, found)

        # A daemon: the end of the process waits for no name server.
        try:
            threading.Thread(target=look_up, name=f"resolve {asked[0]}", daemon=True).start()
        except RuntimeError as error:
            raise OSError(f"{asked[0]} is not resolved: {error}") from None  # the Pod's limit of processes
        return future


def _result(host: str, family: int, _kind: int, proto: int, _name: str, address: tuple[Any, ...]) -> ResolveResult:
    scope = f"%{address[3]}" if family == socket.AF_INET6 and address[3] else ""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=f"{address[0]}{scope}", port=address[1], family=family, proto=proto, flags=flags
    )
