"""Resolve the host names of one untrusted server.

An event loop resolves names in a few threads, with uvloop two at a time. A few host names whose
name server does not answer would occupy them, and no other connection could be opened. Therefore
each lookup here has its own thread, and a server has one lookup of a name at a time. Connections
wait some seconds for the answer, and the thread ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_LOOKUP_SECONDS = 10.0
# Host, port, family and flags.
_Question = tuple[str, int, int, int]
# Family, type, protocol, canonical name and address, as `socket.getaddrinfo` returns them.
_Answer = list[tuple[int, int, int, str, tuple[Any, ...]]]


class Resolver(AbstractResolver):
    """Look up the names in one kubeconfig: its server and its proxy."""

    def __init__(self) -> None:
        self._running: dict[_Question, asyncio.Future[_Answer]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name that this host can reach. Raises `OSError`."""
        answer = await self.look_up(host, port, family, socket.AI_ADDRCONFIG)
        return [_result(host, *entry) for entry in answer]

    async def look_up(self, host: str, port: int, family: int = 0, flags: int = 0) -> _Answer:
        """Return all addresses of a name. Raises `OSError`."""
        question = (host, port, int(family), flags)
        if question not in self._running:
            self._running[question] = self._start(question)
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                return await asyncio.shield(self._running[question])
        except TimeoutError:
            raise socket.gaierror(
                socket.EAI_AGAIN, f"{host} was not resolved within {_LOOKUP_SECONDS:g} s"
            ) from None

    async def close(self) -> None:
        """Do nothing, because a running lookup ends anyway."""

    def _start(self, question: _Question) -> asyncio.Future[_Answer]:
        """Start a thread for a lookup, and return the future of its answer."""
        host, port, family, flags = question
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Answer] = loop.create_future()

        def finish(answer: _Answer | Exception) -> None:
            del self._running[question]
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # mark it as retrieved, in case nothing awaits it
            else:
                future.set_result(answer)

        def look_up() -> None:
            answer: _Answer | Exception
            try:
                answer = list(
                    socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags)
                )
            except Exception as error:
                answer = error
            with contextlib.suppress(RuntimeError):  # the loop is closed when the process ends
                loop.call_soon_threadsafe(finish, answer)

        try:
            # The thread is a daemon, so that the end of the process waits for no name server.
            threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
        except RuntimeError as error:
            # The Pod has reached its limit of processes.
            raise OSError(f"{host} is not resolved: {error}") from None
        return future


def _result(
    host: str, family: int, _kind: int, proto: int, _name: str, address: tuple[Any, ...]
) -> ResolveResult:
    scope = f"%{address[3]}" if family == socket.AF_INET6 and address[3] else ""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host,
        host=f"{address[0]}{scope}",
        port=address[1],
        family=family,
        proto=proto,
        flags=flags,
    )
