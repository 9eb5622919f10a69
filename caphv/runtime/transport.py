"""HTTP to one API server: connections, time-outs, and bounds on what a response may cost.

A user's identity leads to a server outside of the provider's control. From such a server no compressed response is
accepted, because a few KiB would expand to hundreds of MiB, and what one connection may hold at a time is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from caphv.runtime.addresses import AddressCheck, AddressNotAllowed
from caphv.runtime.budget import TimeBudget
from caphv.runtime.errors import TooLarge
from caphv.runtime.kubernetespackage import Configuration, RESTClientObject
from caphv.runtime.resolver import Resolver

MIB = 1024 * 1024
# A larger response is refused; informers then ask for smaller pages. An error says what is wrong in less.
MAX_RESPONSE = 4 * MIB
_MAX_ERROR = 256 * 1024
_MAX_TRUSTED_RESPONSE = 256 * MIB
_MAX_LINE = 16 * MIB
# Bodies and events above _LARGE are read few at a time, the others wait while TCP holds their server back.
_LARGE = 256 * 1024
_LARGE_AT_ONCE = 2
# JSON of many small lists and objects takes fifty times its size once it is parsed. A VM has some 300 of them.
_MAX_CONTAINERS = 60_000
# A value of one object takes up to 200 bytes. An IPPool has as many addresses as etcd takes, some 40,000.
_MAX_VALUES_OF_LINE = 60_000
# A watch event is one object, which etcd limits to 1.5 MiB.
_MAX_UNTRUSTED_LINE = 4 * MIB
# Reads of a list or an object may take this many time-outs in total, as long as data arrives within each.
_SLOW_LIST, _SLOW_READ = 20, 2
_READ_BUFFER = 64 * 1024
_IDLE_SECONDS, _IDLE_SECONDS_UNTRUSTED = 60, 20
# Behind a proxy, how long the check of the server's address is valid.
_TARGET_CHECK_SECONDS = 30.0
# TCP keep-alive: seconds of idleness, number of probes, seconds between them.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
DEAD_CONNECTION_SECONDS = _KEEPALIVE["TCP_KEEPIDLE"] + _KEEPALIVE["TCP_KEEPINTVL"] * _KEEPALIVE["TCP_KEEPCNT"]

# Returns the value of the header `Authorization`, empty for none; it may read a file or run a credential plugin first.
Authorization = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach one API server; `server` is its URL, `server_name` the name in its certificate if different.

    `check_address` hears of each address before a socket is opened to it, and may refuse it. It does not hear of a
    `trusted_proxy`, which the environment of this process sets. `headers` are sent with each request; a name may come
    several times.
    """

    server: str
    tls: ssl.SSLContext = field(repr=False)
    authorization: Authorization = field(repr=False)
    proxy: str | None = field(repr=False)
    server_name: str | None
    trusted_proxy: bool = False
    check_address: AddressCheck | None = field(default=None, repr=False, compare=False)
    headers: tuple[tuple[str, str], ...] = ()


class _RestClient(RESTClientObject):  # type: ignore[misc] # the package has no types
    """The REST client of the `kubernetes` package, with our sockets, TLS settings and headers.

    Its `request` encodes bodies a second time, follows redirects and reads responses without a limit, so requests go
    through the session that it makes.
    """

    def __init__(self, connection: Connection, headers: Sequence[tuple[str, str]], resolver: Resolver | None) -> None:
        untrusted = resolver is not None
        # Not the package's own, which would create a TLS context that nothing uses: 22 KiB for each account.
        self.retry_client = None
        configuration = self.configuration = Configuration(host=connection.server)
        configuration.proxy, configuration.tls_server_name = connection.proxy, connection.server_name
        configuration.client_session_kwargs = {
            "headers": headers,
            "auto_decompress": not untrusted,
            "read_bufsize": _READ_BUFFER,
            # Looking up proxies and netrc for each request doubles its cost; the proxy is passed explicitly.
            "trust_env": False,
            "middlewares": (_no_redirected_upgrade,),
        }
        self.pool_manager: aiohttp.ClientSession | None = None
        self.ssl_context = connection.tls
        checked = None if connection.proxy and connection.trusted_proxy else connection.check_address
        self._socket_factory = _socket_factory(checked)
        self._idle_seconds = idle_seconds(untrusted)
        self._resolver = resolver

    def session(self) -> aiohttp.ClientSession:
        """The session, made by the first call."""
        if self.pool_manager is None:
            # Made here, because it needs a running event loop.
            self.configuration.client_session_kwargs["cookie_jar"] = aiohttp.DummyCookieJar()
            self.pool_manager = self._create_pool_manager()
        return self.pool_manager

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            limit=0,
            ssl=self.ssl_context,
            keepalive_timeout=self._idle_seconds,
            socket_factory=self._socket_factory,
            resolver=self._resolver,
        )


async def _no_redirected_upgrade(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Refuse a redirect of a WebSocket's handshake, which aiohttp follows: to any address, and without TLS."""
    response = await send(request)
    if 300 <= response.status < 400 and "Upgrade" in request.headers:
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info, response.history, status=response.status, message="redirects are not followed"
        )
    return response


class Transport:
    """A pool of connections to one API server. `untrusted`: its responses are bounded and never compressed."""

    def __init__(self, connection: Connection, *, user_agent: str, untrusted: bool) -> None:
        self.connection = connection
        self.untrusted = untrusted
        self.time = TimeBudget() if untrusted else None
        headers = [*connection.headers, ("User-Agent", user_agent), ("Accept", "application/json")]
        if untrusted:
            headers.append(("Accept-Encoding", "identity"))
        self._resolver = Resolver()
        self._rest = _RestClient(connection, headers, self._resolver if untrusted else None)
        self._max_response = MAX_RESPONSE if untrusted else _MAX_TRUSTED_RESPONSE
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._target_checked = -_TARGET_CHECK_SECONDS
        self.closed = False

    async def close(self) -> None:
        """Close all connections permanently; later requests raise `aiohttp.ClientConnectionError`."""
        self.closed = True
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
        """Send a request; the caller reads the body and releases the response. Redirects are not followed."""
        await self._check_target()
        if self.time and method == "GET":
            # Writes are the work of reconciles, whose queues limit them.
            self.time.requested()
            await self.time.rest()
        response = await self._http().request(
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
        self, path: str, query: Sequence[tuple[str, str]], *, protocol: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Lend a WebSocket on a quoted path. Redirects are not followed."""
        await self._check_target()
        async with self._http().ws_connect(
            URL(self.connection.server + path, encoded=True).with_query(query),
            protocols=(protocol,),
            headers=headers,
            proxy=self.connection.proxy,
            server_hostname=self.connection.server_name,
        ) as socket:
            yield socket

    async def read(self, response: aiohttp.ClientResponse) -> bytearray:
        """Return the body. Raises `TooLarge`."""
        longest = min(_MAX_ERROR, self._max_response) if response.status >= 400 else self._max_response
        body = bytearray()
        async with _Large(self._large if self.untrusted else None) as large:
            async for chunk in response.content.iter_any():
                if len(body) + len(chunk) > longest:
                    raise TooLarge(f"{self.connection.server}: response is larger than {longest} bytes")
                await large.hold(len(body) + len(chunk))
                body += chunk
                await self._received(len(chunk))
        if self.untrusted:
            self._check_containers(body)
        return body

    async def lines(
        self, response: aiohttp.ClientResponse, on_wait: Callable[[bool], None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch; `on_wait` hears when a wait for the server begins and ends. Raises `TooLarge`."""
        longest = _MAX_UNTRUSTED_LINE if self.untrusted else _MAX_LINE
        rest = bytearray()
        async with _Large(self._large if self.untrusted else None) as large:
            while chunk := await _next_chunk(response, on_wait):
                await self._received(len(chunk))
                if b"\n" not in chunk:
                    if len(rest) + len(chunk) > longest:
                        raise TooLarge(f"{self.connection.server}: a watch event is larger than {longest} bytes")
                    await large.hold(len(rest) + len(chunk))
                    rest += chunk
                    continue
                *complete, left = bytes(rest + chunk).split(b"\n")
                rest = bytearray(left)
                large.release()
                for line in complete:
                    if line:
                        if self.untrusted:
                            self._check_line(line)
                        yield line

    async def _received(self, size: int) -> None:
        if self.time:
            self.time.received(size)
            await self.time.rest()

    def _check_containers(self, body: bytes | bytearray) -> None:
        if len(body) > _MAX_CONTAINERS and body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
            raise TooLarge(f"{self.connection.server}: response has more than {_MAX_CONTAINERS} lists and objects")

    def _check_line(self, line: bytes) -> None:
        self._check_containers(line)
        # Commas in texts count, too.
        if len(line) > _MAX_VALUES_OF_LINE and line.count(b",") > _MAX_VALUES_OF_LINE:
            raise TooLarge(f"{self.connection.server}: a watch event has more than {_MAX_VALUES_OF_LINE} values")

    async def _check_target(self) -> None:
        """Behind a proxy no socket shows the server's address: resolve it here, as far as this network can."""
        check = self.connection.check_address
        if not check or not self.connection.proxy or time.monotonic() - self._target_checked < _TARGET_CHECK_SECONDS:
            return
        url = URL(self.connection.server)
        try:
            found = await self._resolver.look_up(url.host or "", url.port or 0)
        except OSError:
            found = []  # only the proxy knows the name, and decides
        for *_, address in found:
            check(str(address[0]))
        self._target_checked = time.monotonic()

    def _http(self) -> aiohttp.ClientSession:
        if self.closed:
            # A session made now would never be closed.
            raise aiohttp.ClientConnectionError("the client has been closed")
        return self._rest.session()

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        url = URL(self.connection.server + path, encoded=True)
        pairs = {name: value for name, value in (query or {}).items() if value}
        return url.with_query(pairs) if pairs else url


async def _next_chunk(response: aiohttp.ClientResponse, on_wait: Callable[[bool], None]) -> bytes:
    """What has arrived of a response, at least one byte; empty at its end."""
    on_wait(True)
    try:
        return await response.content.readany()
    finally:
        on_wait(False)


def idle_seconds(untrusted: bool) -> int:
    """When a connection without a request is closed. Those of hundreds of untrusted servers and accounts add up."""
    return _IDLE_SECONDS_UNTRUSTED if untrusted else _IDLE_SECONDS


def list_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Time-out of a list: data must arrive within `seconds` each time, so that slow links can transfer large ones."""
    return _growing_timeout(seconds, seconds * _SLOW_LIST)


def read_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Time-out of a read of one object: a reconcile waits for it, and may make several."""
    return _growing_timeout(seconds, seconds * _SLOW_READ)


def _growing_timeout(seconds: float, total: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total, connect=seconds, sock_connect=min(seconds, 10), sock_read=seconds)


def write_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Time-out of a write: the response is small and must have arrived by then."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, 10))


class _Large:
    """The right to hold a large body in memory, of which there are few; taken when it grows large."""

    def __init__(self, rights: asyncio.Semaphore | None) -> None:
        self._rights = rights
        self._held = False

    async def __aenter__(self) -> _Large:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.release()

    async def hold(self, size: int) -> None:
        if self._rights and size > _LARGE and not self._held:
            self._held = await self._rights.acquire()

    def release(self) -> None:
        if self._rights and self._held:
            self._rights.release()
        self._held = False


def describe(error: BaseException) -> str:
    """What went wrong with a request, in words, without credentials."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"HTTP {error.status} {error.message}"  # its own text has the URL of the proxy, password included
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke in the middle of a response"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    known = _describe_tls(cause) if isinstance(cause, ssl.SSLError | ssl.CertificateError) else _describe_socket(cause)
    return known or ("timed out" if isinstance(error, TimeoutError) else str(cause) or type(error).__name__)


_SOCKET_ERRORS = {
    errno.ECONNREFUSED: "the connection was refused: nothing listens at this address and port",
    errno.ECONNRESET: "the server closed the connection",
    errno.EHOSTUNREACH: "no route to this address",
    errno.ENETUNREACH: "no route to this address",
}


def _describe_socket(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    return _SOCKET_ERRORS.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def _describe_tls(error: Exception) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "TLS failed: the server does not speak TLS, or refuses the connection"
    # 62 to 64 of OpenSSL: host name, e-mail or address mismatch; 9 and 10: not yet valid, expired.
    if error.verify_code in (62, 63, 64):
        return "the certificate of the server is for another host name; set tls-server-name, or correct server"
    if error.verify_code in (9, 10):
        return "the certificate of the server has expired or is not valid yet"
    # 18 to 21: its issuer is not among those that are trusted.
    if error.verify_code in (18, 19, 20, 21):
        return "the certificate of the server does not match certificate-authority-data"
    return f"the certificate of the server is not accepted: {error.verify_message}"


def refused_address(error: BaseException) -> AddressNotAllowed | None:
    """The refusal of an address behind a failed request, if that is the cause."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return cause if isinstance(cause, AddressNotAllowed) else None


def _socket_factory(check: AddressCheck | None) -> Callable[[Any], socket.socket]:
    def create(addr_info: Any) -> socket.socket:
        if check:
            check(str(addr_info[4][0]))
        return _keepalive_socket(addr_info)

    return create


def _keepalive_socket(addr_info: Any) -> socket.socket:
    family, kind, proto = addr_info[:3]
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock
