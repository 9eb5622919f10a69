"""HTTP to one API server, with time-outs and bounds for responses.

A user's identity may name a server outside of the provider's control. Compressed responses of such
a server are refused, because a few KiB could expand to hundreds of MiB. The memory that one
connection may use at a time is also limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

import aiohttp
from yarl import URL

from caphv.runtime.budget import TimeBudget
from caphv.runtime.connection import Connection, RestClient
from caphv.runtime.errors import TooLarge
from caphv.runtime.resolver import Resolver

MIB = 1024 * 1024
# The transport refuses a larger response, and informers then request smaller pages. Errors are much
# shorter.
MAX_RESPONSE = 3 * MIB
_MAX_ERROR = 256 * 1024
_MAX_TRUSTED_RESPONSE = 256 * MIB
_MAX_LINE = 16 * MIB
# Few bodies and events above _LARGE are read at a time. The others wait, and TCP slows their server
# down.
_LARGE = 256 * 1024
_MAX_LARGE_BODIES = 2
# JSON of many small lists and objects takes fifty times its size once it is parsed. A VM has about
# 300 of them.
_MAX_CONTAINERS = 60_000
# A value of one object takes up to 200 bytes. An IPPool has as many addresses as etcd can store,
# about 40,000.
_MAX_VALUES_OF_LINE = 60_000
# The values of VMs have 40 bytes each; this many of them fit into the largest response. 350,000
# short values in 2.8 MB took 44 ms on the event loop and 34 MiB.
_MAX_VALUES_OF_RESPONSE = 100_000
# A watch event is one object, which etcd limits to 1.5 MiB.
_MAX_UNTRUSTED_LINE = 4 * MIB
# A read of a list or an object may take this many time-outs in total, as long as data arrives
# within each of them.
_SLOW_LIST = 20
_SLOW_READ = 2
# The check of a server's address behind a proxy is valid for this long.
_TARGET_CHECK_SECONDS = 30.0


class Transport:
    """A pool of connections to one API server.

    The responses of an `untrusted` server are bounded and never compressed.
    """

    def __init__(self, connection: Connection, *, user_agent: str, untrusted: bool) -> None:
        self.connection = connection
        self.untrusted = untrusted
        self.time = TimeBudget() if untrusted else None
        self.closed = False

        headers = [*connection.headers, ("User-Agent", user_agent), ("Accept", "application/json")]
        if untrusted:
            headers.append(("Accept-Encoding", "identity"))
        self._resolver = Resolver()
        self._rest = RestClient(connection, headers, self._resolver if untrusted else None)

        self._max_response = MAX_RESPONSE if untrusted else _MAX_TRUSTED_RESPONSE
        self._large = asyncio.Semaphore(_MAX_LARGE_BODIES)
        self._target_checked = -_TARGET_CHECK_SECONDS
        self._streams: set[aiohttp.ClientResponse] = set()

    async def close(self) -> None:
        """Close all connections permanently.

        Watches and later requests raise `aiohttp.ClientConnectionError`.
        """
        self.closed = True
        for stream in self._streams:
            # aiohttp does not wake a reader of a connection that it closes.
            stream.content.set_exception(_closed_error())
        await self._rest.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send a request without following redirects.

        The caller reads the body and releases the response.

        :param path: quoted path below the URL of the server
        :param query: parameters; empty values are omitted
        :param data: encoded body
        """
        await self._check_target()
        if self.time and method == "GET":
            # Only reads count, because the queues of reconciles limit writes.
            self.time.spend_on_request()
            await self.time.rest()

        response = await self._session().request(
            method,
            self._url(path, query),
            data=data,
            headers=headers,
            timeout=timeout,
            proxy=self.connection.proxy,
            server_hostname=self.connection.server_name,
            allow_redirects=False,
        )
        if self.untrusted and response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise ValueError("the response is compressed, which is not accepted from this server")
        return response

    @contextlib.asynccontextmanager
    async def websocket(
        self,
        path: str,
        query: Sequence[tuple[str, str]],
        *,
        protocol: str,
        headers: Mapping[str, str],
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket on a quoted path for the time of a `with` block; follow no redirects."""
        await self._check_target()
        async with self._session().ws_connect(
            URL(self.connection.server + path, encoded=True).with_query(query),
            protocols=(protocol,),
            headers=headers,
            proxy=self.connection.proxy,
            server_hostname=self.connection.server_name,
        ) as socket:
            yield socket

    async def read(self, response: aiohttp.ClientResponse) -> bytearray:
        """Return the body. Raises `TooLarge`."""
        longest = self._max_response
        if response.status >= 400:
            longest = min(_MAX_ERROR, longest)

        body = bytearray()
        self._streams.add(response)
        try:
            async with _LargeBodyRight(self._large if self.untrusted else None) as right:
                async for chunk in response.content.iter_any():
                    size = len(body) + len(chunk)
                    if size > longest:
                        raise TooLarge(
                            f"{self.connection.server}: response is larger than {longest} bytes"
                        )
                    await right.acquire(size)
                    body += chunk
                    await self._spend_time_on(chunk)
        finally:
            self._streams.discard(response)

        if self.untrusted:
            self._check_values(body, _MAX_VALUES_OF_RESPONSE, "response")
        return body

    async def lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch. Raises `TooLarge`."""
        longest = _MAX_UNTRUSTED_LINE if self.untrusted else _MAX_LINE
        partial = bytearray()  # the line whose end has not arrived yet
        self._streams.add(response)
        try:
            async with _LargeBodyRight(self._large if self.untrusted else None) as right:
                while chunk := await response.content.readany():
                    await self._spend_time_on(chunk)
                    if b"\n" not in chunk:
                        size = len(partial) + len(chunk)
                        if size > longest:
                            raise TooLarge(
                                f"{self.connection.server}: a watch event is larger than {longest} "
                                "bytes"
                            )
                        await right.acquire(size)
                        partial += chunk
                        continue

                    *lines, end = bytes(partial + chunk).split(b"\n")
                    partial = bytearray(end)
                    right.release()
                    for line in lines:
                        if not line:
                            continue
                        if self.untrusted:
                            self._check_values(line, _MAX_VALUES_OF_LINE, "a watch event")
                        yield line
        finally:
            self._streams.discard(response)

    async def _spend_time_on(self, chunk: bytes) -> None:
        if self.time:
            self.time.spend_on_bytes(len(chunk))
            await self.time.rest()

    def _check_values(self, text: bytes | bytearray, most: int, what: str) -> None:
        """Refuse JSON that would take much memory once it is parsed. Raises `TooLarge`.

        Punctuation inside of strings also counts, which only makes the bounds stricter. Comparing
        the length first saves counting in short texts.
        """
        if len(text) > _MAX_CONTAINERS and text.count(b"[") + text.count(b"{") > _MAX_CONTAINERS:
            raise TooLarge(
                f"{self.connection.server}: response has more than {_MAX_CONTAINERS} lists and "
                "objects"
            )
        if len(text) > most and text.count(b",") > most:
            raise TooLarge(f"{self.connection.server}: {what} has more than {most} values")

    async def _check_target(self) -> None:
        """Check the server's address behind a proxy, where no socket shows it.

        The name is resolved here, as far as this network can.
        """
        check = self.connection.check_address
        if not check or not self.connection.proxy:
            return
        if time.monotonic() - self._target_checked < _TARGET_CHECK_SECONDS:
            return

        url = URL(self.connection.server)
        try:
            addresses = await self._resolver.look_up(url.host or "", url.port or 0)
        except OSError:
            addresses = []  # only the proxy knows the name, and decides
        for *_, address in addresses:
            check(str(address[0]))
        self._target_checked = time.monotonic()

    def _session(self) -> aiohttp.ClientSession:
        if self.closed:
            # Nothing would ever close a session that is created now.
            raise _closed_error()
        return self._rest.session()

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        url = URL(self.connection.server + path, encoded=True)
        pairs = {name: value for name, value in (query or {}).items() if value}
        return url.with_query(pairs) if pairs else url


def _closed_error() -> aiohttp.ClientConnectionError:
    return aiohttp.ClientConnectionError("the client has been closed")


def list_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return the time-out of a list, in which data must arrive within `seconds` each time.

    The total is longer, so that slow links can transfer large lists.
    """
    return _growing_timeout(seconds, seconds * _SLOW_LIST)


def read_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return the time-out of a read of one object, which is shorter than for a list.

    A reconcile waits for the object, and may read several.
    """
    return _growing_timeout(seconds, seconds * _SLOW_READ)


def _growing_timeout(seconds: float, total: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=total, connect=seconds, sock_connect=min(seconds, 10), sock_read=seconds
    )


def write_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return the time-out of a write, for the whole response, because it is small."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, 10))


class _LargeBodyRight:
    """The right to hold a large body in memory. Only a few bodies have it at a time.

    `acquire` waits for the right once the body is large, and the end of the `with` block returns
    it.
    """

    def __init__(self, rights: asyncio.Semaphore | None) -> None:
        self._rights = rights
        self._held = False

    async def __aenter__(self) -> _LargeBodyRight:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.release()

    async def acquire(self, size: int) -> None:
        if self._rights and size > _LARGE and not self._held:
            self._held = await self._rights.acquire()

    def release(self) -> None:
        if self._rights and self._held:
            self._rights.release()
        self._held = False
