"""Connections to one API server: address, TLS, credentials, and the sockets of a session."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from caphv.runtime.addresses import AddressCheck
from caphv.runtime.resolver import Resolver

_READ_BUFFER = 64 * 1024
_IDLE_SECONDS = 60
_IDLE_SECONDS_UNTRUSTED = 20
# TCP keep-alive: seconds of idleness, number of probes, seconds between them. So a dead connection
# breaks after 35 seconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

# A function that returns the value of header `Authorization`, empty for none. It may read a file or
# run a credential plugin first.
Authorization = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Connection:
    """Settings for connections to one API server.

    :param server: URL of the server
    :param server_name: name in the certificate of the server, if it differs from the URL's host
    :param trusted_proxy: whether the environment of this process sets the proxy
    :param check_address: called with each address before a socket is opened to it, and may refuse
        the address; not called for a trusted proxy
    :param headers: headers of each request; a name may occur several times
    """

    server: str
    tls: ssl.SSLContext = field(repr=False)
    authorization: Authorization = field(repr=False)
    proxy: str | None = field(repr=False)
    server_name: str | None
    trusted_proxy: bool = False
    check_address: AddressCheck | None = field(default=None, repr=False, compare=False)
    headers: tuple[tuple[str, str], ...] = ()


class RestClient(RESTClientObject):  # type: ignore[misc] # the package has no types
    """The REST client of the `kubernetes` package, with our sockets, TLS settings and headers.

    `Transport` sends requests through the session, because `request` of this class encodes bodies a
    second time, follows redirects and reads responses without a limit.
    """

    def __init__(
        self, connection: Connection, headers: Sequence[tuple[str, str]], resolver: Resolver | None
    ) -> None:
        untrusted = resolver is not None
        # The client of the package would create an unused TLS context of 22 KiB for each account.
        self.retry_client = None
        self.pool_manager: aiohttp.ClientSession | None = None
        self.ssl_context = connection.tls

        configuration = self.configuration = Configuration(host=connection.server)
        configuration.proxy = connection.proxy
        configuration.tls_server_name = connection.server_name
        configuration.client_session_kwargs = {
            "headers": headers,
            "auto_decompress": not untrusted,
            "read_bufsize": _READ_BUFFER,
            # Each request names the proxy, because looking up proxies and netrc would double its
            # cost.
            "trust_env": False,
            "middlewares": (_refuse_redirected_upgrade,),
        }

        is_exempt = connection.proxy and connection.trusted_proxy
        self._socket_factory = _socket_factory(None if is_exempt else connection.check_address)
        self._idle_seconds = idle_seconds(untrusted)
        self._resolver = resolver

    def session(self) -> aiohttp.ClientSession:
        """Return the session. The first call creates it, because it needs a running event loop."""
        if self.pool_manager is None:
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


async def _refuse_redirected_upgrade(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Refuse a redirect of a WebSocket's handshake.

    aiohttp would follow it to any address, and without TLS.
    """
    response = await send(request)
    if 300 <= response.status < 400 and "Upgrade" in request.headers:
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info,
            response.history,
            status=response.status,
            message="redirects are not followed",
        )
    return response


def idle_seconds(untrusted: bool) -> int:
    """Return for how many seconds a connection stays open without a request.

    Idle connections to untrusted servers close earlier, because there may be hundreds of them.
    """
    return _IDLE_SECONDS_UNTRUSTED if untrusted else _IDLE_SECONDS


def _socket_factory(check: AddressCheck | None) -> Callable[[Any], socket.socket]:
    def create(addr_info: Any) -> socket.socket:
        if check:
            check(str(addr_info[4][0]))
        return _create_keepalive_socket(addr_info)

    return create


def _create_keepalive_socket(addr_info: Any) -> socket.socket:
    family, kind, proto = addr_info[:3]
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock
