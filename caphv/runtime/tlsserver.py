"""Serve HTTPS with the certificate of a folder, from the moment when there is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

from aiohttp import web

from caphv.runtime import httpserver
from caphv.runtime.certwatcher import CertWatcher
from caphv.runtime.runnable import Runnable, listening_address

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
# The default of aiohttp is 256 KiB.
_READ_AHEAD = 32 * 1024


class TLSServer(Runnable):
    """Serve on `address` (`[host]:port`) with the certificate of a folder, once it exists.

    - name: of the server, in probes and logs
    - max_body: bytes of a request at most
    - body_seconds: the time for a body. It can be short, because an API server has it in memory.
    - drain_seconds: the time that a server which stops continues answering, because its clients may
      not know yet that it stops
    """

    name: ClassVar[str]
    max_body: ClassVar[int]
    body_seconds: ClassVar[float] = 5.0
    drain_seconds: ClassVar[float] = 0.0

    def __init__(self, address: str, folder: Path, client_authority: Path | None = None) -> None:
        """Raise `ValueError` for an address without a port.

        :param client_authority: file with the authorities whose certificates clients must show,
            None to accept all clients
        """
        host_and_port = listening_address(address)
        if host_and_port is None:
            raise ValueError(f"{address!r} is no [host]:port to listen on")
        self._address = host_and_port
        self._certificates = CertWatcher(folder, client_authority)
        self._is_serving = False
        self.is_draining = False

    @abstractmethod
    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a request, also if it fails."""

    async def read_body(self, request: web.BaseRequest) -> bytearray:
        """Return the body of a request. Raises `web.HTTPException`."""
        return await httpserver.read_body(request, self.max_body, self.body_seconds)

    def not_ready(self) -> list[str]:
        """Return the reason why nothing is answered yet."""
        if self._is_serving:
            return []
        return [f"{self.name}: {self._certificates.problem or 'starting'}"]

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` if it cannot listen on the address."""
        async with contextlib.AsyncExitStack() as stack:
            while True:
                # Listen only with a certificate. Without one, the probe reports the reason.
                if self._certificates.refresh() and not self._is_serving:
                    await stack.enter_async_context(self._serve())
                await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        """Serve while the context is open, and for `drain_seconds` after it is closed."""
        async with httpserver.listen(
            self._address,
            self.respond,
            max_body=self.max_body,
            read_ahead=_READ_AHEAD,
            grace_seconds=_GRACE_SECONDS,
            tls=self._certificates.listener(),
        ) as listener:
            self._is_serving = True
            addresses = ", ".join(str(sock.getsockname()) for sock in listener.sockets)
            log.info("%s: serving on %s", self.name, addresses)

            try:
                yield
            finally:
                self.is_draining = True
                try:
                    await asyncio.sleep(self.drain_seconds)
                finally:
                    self._is_serving = False
