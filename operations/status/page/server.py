"""Serve the live page to a browser: one static file, and a stream of events with the whole state.

The page shows everything that the user who started it may read, so it is for this user alone. Its
address has a random token, which other users of the machine do not know. The server listens on
loopback, and refuses requests that name another host, because a web site whose name resolves to
127.0.0.1 could read the page otherwise.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

# Proxies close a stream on which nothing is sent.
_HEARTBEAT_SECONDS = 15.0
# Browsers open a stream for each tab. Each stream costs a file descriptor and a copy of the state.
_MAX_STREAMS = 32


@dataclass(slots=True)
class Feed:
    """The newest state, for which streams wait."""

    content: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, content: str) -> None:
        """Publish a state, unless it equals the previous one."""
        if content != self.content:
            self.content = content
            # A new event for each state avoids a race between clearing and waiting.
            self._changed.set()
            self._changed = asyncio.Event()

    async def newer(self, than: str) -> str:
        """Wait until the state differs from `than`, and return it."""
        while self.content in (than, ""):
            await self._changed.wait()
        return self.content


class PageServer:
    """Serve the page of a feed.

    :param feed: the states to show, as JSON
    :param token: the secret part of the page's address; a new one by default
    """

    def __init__(self, feed: Feed, token: str = "") -> None:
        self._feed = feed
        self._token = token or secrets.token_urlsafe(24)
        self._nonce = secrets.token_urlsafe(16)
        self._streams = 0
        self._hosts: frozenset[str] = frozenset()
        self._page = ""

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve while the block lasts; yield the URL. Raises `OSError`."""
        self._hosts = _names_of(host)
        self._page = page_text(self._nonce)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._index)
        app.router.add_get("/{token}/events", self._stream)

        # The server never reads, decompresses or awaits the body of a request.
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.5, auto_decompress=False, lingering_time=0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            # Port 0 lets the system choose one.
            bound = runner.addresses[0][1]
            authority = f"[{host}]" if ":" in host else host
            yield f"http://{authority}:{bound}/{self._token}/"
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Reject requests with another host name, or without the token."""
        named = (request.url.host or "").removesuffix(".").lower()
        if not (
            _is_loopback(named) or named in self._hosts or (self._hosts and _is_address(named))
        ):
            raise web.HTTPForbidden(text="This page does not have this host name.")

        # The token is a secret, so the comparison must take constant time.
        sent = request.path.split("/")[1]
        if not secrets.compare_digest(sent.encode(), self._token.encode()):
            raise web.HTTPNotFound(
                text="The address of the page is in the output of the command that serves it."
            )

        response: web.StreamResponse = await handler(request)
        return response

    async def _index(self, _request: web.Request) -> web.Response:
        """Answer with the page."""
        # Texts of objects may contain anything, so only the page's own style and script may run.
        policy = (
            f"default-src 'none'; style-src 'nonce-{self._nonce}'; script-src "
            f"'nonce-{self._nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        )

        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Answer with the states of the page as a stream of events."""
        if self._streams >= _MAX_STREAMS:
            text = "Too many pages are open: close some."
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "15"})

        self._streams += 1
        try:
            return await self._send_states(request)
        finally:
            self._streams -= 1

    async def _send_states(self, request: web.Request) -> web.StreamResponse:
        """Send each state as a server-sent event, until the browser closes the stream."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        sent = ""

        with suppress(ConnectionError):
            while True:
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        sent = await self._feed.newer(sent)
                    await response.write(f"data: {sent}\n\n".encode())
                except TimeoutError:
                    await response.write(b": still here\n\n")
        return response


def page_text(nonce: str) -> str:
    """Return the page as one file, whose style and script carry the nonce of its policy."""
    folder = Path(__file__).parent
    text = (folder / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js"):
        text = text.replace(f"@{name}@", (folder / name).read_text(encoding="utf-8"))
    return text.replace("@NONCE@", nonce)


def _names_of(host: str) -> frozenset[str]:
    """Return the names by which browsers may reach this machine, if not on loopback.

    Addresses need not be listed, because a web site can point its name to this machine, but not
    its address.
    """
    if _is_loopback(host):
        return frozenset()
    return frozenset({host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()})


def _is_loopback(host: str) -> bool:
    if host.removesuffix(".") == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
