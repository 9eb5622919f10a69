"""Serves the live page to a browser: one static file, and a stream of events with the whole state.

The page shows what the user who started it may read, so it is for that user alone: its address has a
random token, which other users of the machine do not know, it listens on loopback, and requests that
name another host are refused, lest a web site that resolves its name to 127.0.0.1 reads along.
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

_HEARTBEAT_SECONDS = 15.0
# Browsers open one for each tab. Each costs a file descriptor and a copy of the state.
_MOST_STREAMS = 32


@dataclass(slots=True)
class Feed:
    """The newest state, and who waits for a newer one."""

    content: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, content: str) -> None:
        """Hand out a state, unless it equals the previous one."""
        if content != self.content:
            self.content = content
            self._changed.set()
            self._changed = asyncio.Event()

    async def newer(self, than: str) -> str:
        """Wait until the state is another one, and return it."""
        while self.content in (than, ""):
            await self._changed.wait()
        return self.content


class PageServer:
    """Serves the page of a feed.

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
        """Serve for as long as the block lasts; yields the URL. Raises `OSError`."""
        self._hosts = _names_of(host)
        self._page = page_text(self._nonce)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._index)
        app.router.add_get("/{token}/events", self._stream)
        # Nothing is read of a body: neither unpacked, nor waited for.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, auto_decompress=False, lingering_time=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            bound = runner.addresses[0][1]
            yield f"http://{f'[{host}]' if ':' in host else host}:{bound}/{self._token}/"
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        named = (request.url.host or "").removesuffix(".").lower()
        if not (_is_loopback(named) or named in self._hosts or (self._hosts and _is_address(named))):
            raise web.HTTPForbidden(text="This page does not have this host name.")

        sent = request.path.split("/")[1]
        if not secrets.compare_digest(sent.encode(), self._token.encode()):
            raise web.HTTPNotFound(text="The address of the page is in the output of the command that serves it.")

        response: web.StreamResponse = await handler(request)
        return response

    async def _index(self, _request: web.Request) -> web.Response:
        policy = (
            f"default-src 'none'; style-src 'nonce-{self._nonce}'; script-src 'nonce-{self._nonce}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= _MOST_STREAMS:
            text = "Too many pages are open: close some."
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "15"})

        self._streams += 1
        try:
            return await self._send_states(request)
        finally:
            self._streams -= 1

    async def _send_states(self, request: web.Request) -> web.StreamResponse:
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
    """Return the page as one file: its policy allows no other, and only what has this nonce."""
    folder = Path(__file__).parent
    text = (folder / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js"):
        text = text.replace(f"@{name}@", (folder / name).read_text(encoding="utf-8"))
    return text.replace("@NONCE@", nonce)


def _names_of(host: str) -> frozenset[str]:
    """Return the names under which browsers may reach this machine if it does not listen on loopback.

    Addresses are not among them: a web site can make its name lead here, but not its address.
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
