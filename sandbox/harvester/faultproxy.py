"""A proxy in front of Harvester's API server that injects faults of transport.

While a fault is active, it delays, rejects or drops requests. It terminates TLS, so that it can
answer in place of the server. Clients must therefore use a bearer token, which it forwards; it
cannot forward a client certificate. Clients that should not meet faults bypass the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from yarl import URL

from caphv.api.object import CONFIG_MAPS, text_at
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.harvester import faults
from sandbox.harvester.faults import Fault

_STATUS = {
    "unauthorized": (401, "Unauthorized"),
    "forbidden": (403, "Forbidden"),
    "conflict": (409, "Conflict"),
    "too-many-requests": (429, "TooManyRequests"),
    "server-error": (500, "InternalError"),
    "unavailable": (503, "ServiceUnavailable"),
}
_READS = {"GET", "HEAD", "OPTIONS"}
_HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "transfer-encoding",
    "upgrade",
}


class FaultProxy:
    """Forwards requests to `upstream`, unless a fault applies.

    `requests` counts all incoming requests, watches included.

    :param certificate: the file with the certificate that clients see; `key` is its key
    :param port: the port to listen on, 0 for any free one
    """

    def __init__(
        self,
        upstream: Kubeconfig,
        *,
        certificate: Path,
        key: Path,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.requests = 0
        self._upstream = URL(upstream.server)
        self._client_tls = ssl.create_default_context(cadata=upstream.ca)
        self._server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._server_tls.load_cert_chain(certificate, key)
        self._listen = (host, port)

        self._faults: list[Fault] = []
        # Objects whose first creation was rejected.
        self._refused: set[tuple[str, str]] = set()
        # The last bytes to send on each open watch, empty for none; `_CUT` drops the connection.
        self._watches: set[asyncio.Future[bytes]] = set()

        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        """Return the URL for clients, once the proxy listens."""
        return f"https://{self._listen[0]}:{self._listen[1]}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultProxy]:
        """Listen inside the block. Raises `OSError` if the address is in use."""
        connector = aiohttp.TCPConnector(limit=0, ssl=self._client_tls)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        # Forward compressed responses unchanged.
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        )

        # Cancel the request of a client that disconnects, because its watch must not stay open on
        # the API server.
        self._runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True),
            access_log=None,
            shutdown_timeout=0,
        )
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, *self._listen, ssl_context=self._server_tls).start()
            self._listen = (self._listen[0], self._runner.addresses[0][1])
            yield self
        finally:
            await self._runner.cleanup()
            await self._session.close()

    def apply(self, active: Iterable[Fault]) -> None:
        """Apply exactly these faults to requests from now on, and ignore object faults."""
        self._faults = [fault for fault in active if faults.KINDS[fault.name].in_transport]

        # End open watches, because they began without the fault and would hide it from their
        # clients.
        endings = [_ENDINGS[fault.name] for fault in self._faults if fault.name in _ENDINGS]
        for watch in self._watches:
            if endings and not watch.done():
                watch.set_result(endings[0])

    async def follow(self, client: ApiClient) -> None:
        """Apply the faults recorded on Harvester until cancelled.

        `client` belongs to an administrator and bypasses this proxy.
        """
        selector = f"metadata.name={faults.NAME}"
        informer = Informer(
            client, CONFIG_MAPS, namespace=faults.NAMESPACE, field_selector=selector, max_backoff=2
        )
        informer.add_handler(self._apply_record)
        await informer.run()

    def _apply_record(self, change: Change) -> None:
        self.apply(faults.faults_of(change.new) if change.new is not None else ())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        watches = request.query.get("watch") in ("true", "1")

        # Each fault affects its share of the requests.
        active = [fault for fault in self._faults if random.random() < fault.share]
        for fault in active:
            if fault.name == "slow":
                await asyncio.sleep(fault.delay)
            rejection = await self._intercept(fault.name, request, watches=watches)
            if rejection is not None:
                return rejection

        try:
            response = await self._forward(request, watches=watches)
        except (aiohttp.ClientError, TimeoutError):
            return _drop_connection(request)

        # The write took effect, but its client cannot know.
        writes = request.method not in _READS
        if writes and any(fault.name == "cut-after" for fault in active):
            return _drop_connection(request)
        return response

    async def _intercept(
        self, fault: str, request: web.BaseRequest, *, watches: bool
    ) -> web.Response | None:
        """Return the response to send instead of the server's; None if the request may pass."""
        writes = request.method not in _READS
        drops = {"away": True, "cut-before": writes, "watches-cut": watches}
        if drops.get(fault):
            return _drop_connection(request)
        if fault == "watches-gone" and watches:
            return web.Response(body=_GONE, content_type="application/json")

        is_creation = request.method == "POST"
        if fault == "create-once" and is_creation and await self._record_first_creation(request):
            return _rejection(403, "Forbidden")
        if fault in _STATUS and (writes or fault != "conflict"):
            return _rejection(*_STATUS[fault])
        return None

    async def _record_first_creation(self, request: web.BaseRequest) -> bool:
        """Record the creation of an object, and return whether it is the first."""
        # aiohttp keeps a body that was read, so that the proxy can forward it later.
        name = text_at(json.loads(await request.read() or b"{}"), "metadata", "name")
        key = (request.path, name)
        if not name or key in self._refused:
            return False
        self._refused.add(key)
        return True

    async def _forward(self, request: web.BaseRequest, *, watches: bool) -> web.StreamResponse:
        assert self._session is not None  # noqa: S101 - set while the proxy listens
        async with self._session.request(
            request.method,
            self._upstream.join(URL(request.raw_path, encoded=True)),
            data=await request.read() if request.body_exists else None,
            headers=_end_to_end_headers(request.headers),
            allow_redirects=False,
        ) as answer:
            headers = _end_to_end_headers(answer.headers)
            if not (watches and answer.status == 200):
                body = await answer.read()
                return web.Response(status=answer.status, headers=headers, body=body)

            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            if await self._stream(answer.content, response) == _CUT:
                return _drop_connection(request)
            return response

    async def _stream(self, source: aiohttp.StreamReader, response: web.StreamResponse) -> bytes:
        """Forward the events of a watch until it ends.

        Return the last bytes that a fault sends, empty if the server ended the watch.
        """
        ending: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._watches.add(ending)
        pump = asyncio.create_task(_pump(source, response))
        try:
            ends: list[asyncio.Future[Any]] = [pump, ending]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._watches.discard(ending)
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

        # Write this after the pump has stopped, so that it is not written into an event.
        last = ending.result() if ending.done() else b""
        if last and last != _CUT:
            await response.write(last)
        return last


def proxy_of(kubeconfig: Kubeconfig, upstream: Kubeconfig, folder: Path) -> FaultProxy:
    """Return the proxy at the server URL of a kubeconfig, for an API server with this folder."""
    url = urlsplit(kubeconfig.server)
    return FaultProxy(
        upstream,
        certificate=folder / "tls.crt",
        key=folder / "tls.key",
        host=url.hostname or "127.0.0.1",
        port=url.port or 0,
    )


async def _pump(source: aiohttp.StreamReader, response: web.StreamResponse) -> None:
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        async for chunk in source.iter_any():
            await response.write(chunk)


def _end_to_end_headers(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]


def _drop_connection(request: web.BaseRequest) -> web.Response:
    if request.transport:
        request.transport.abort()
    # aiohttp needs a response, which is never sent.
    return web.Response(status=502)


def _rejection(status: int, reason: str) -> web.Response:
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.json_response(_status(status, reason), status=status, headers=headers)


def _status(code: int, reason: str) -> dict[str, Any]:
    message = f"injected by the sandbox's fault proxy: {code}"
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**kind, "message": message, "reason": reason, "code": code}


# Each of these faults ends open watches: with the bytes of an event, with empty bytes for a normal
# end, or with `_CUT` for a dropped connection.
_GONE = json.dumps({"type": "ERROR", "object": _status(410, "Expired")}).encode() + b"\n"
_CUT = b"cut"
_ENDINGS = {"away": _CUT, "watches-cut": _CUT, "unauthorized": b"", "watches-gone": _GONE}
