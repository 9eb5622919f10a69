"""Receives push events from Git hosts, so that a push takes effect before the next poll of the repository.

The caller must know the shared secret: GitHub, Gitea, Forgejo, Gogs and Bitbucket sign the body with it (HMAC with
SHA-256), GitLab sends it. The body is not interpreted: an event only triggers a sync.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import web

from caphv.runtime.runnable import Runnable, listening_address
from packager.controller import metrics

log = logging.getLogger(__name__)

PATH = "/push"
_SIGNATURES = ("X-Hub-Signature-256", "X-Gitea-Signature", "X-Forgejo-Signature", "X-Gogs-Signature", "X-Hub-Signature")
_TOKEN = "X-Gitlab-Token"  # noqa: S105 - the name of a header
# GitHub sends up to 25 MiB. Larger events than this are rejected, and the next poll finds the push anyway.
_LARGEST = 5 * 1024 * 1024
_SECONDS = 10.0
_SHORTEST_SECRET = 16


class Receiver(Runnable):
    """Serves `POST /push` at `address` ([host]:port) and calls `pushed` for each authentic event.

    `secret_file` is read for each request, so that a new secret takes effect at once.
    """

    def __init__(self, address: str, secret_file: Path, pushed: Callable[[], None]) -> None:
        """Raises ValueError for an address without a port, or a secret that is missing or short."""
        self._place = listening_address(address)
        if self._place is None:
            raise ValueError(f"{address!r} is not of the form [host]:port")
        self._secret_file = secret_file
        self._pushed = pushed
        read_secret(secret_file)

    async def run(self) -> None:
        """Serve until cancelled."""
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_post(PATH, self._receive)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            host, port = self._place or ("", 0)
            await web.TCPSite(runner, host or None, port).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        status, text = await self._answer(request)
        metrics.PUSH_EVENTS.labels(str(status)).inc()
        if status != 202:
            log.warning("push event rejected with %d: %s", status, text)
        return web.Response(status=status, text=text)

    async def _answer(self, request: web.Request) -> tuple[int, str]:
        try:
            async with asyncio.timeout(_SECONDS):
                body = await request.read()
            secret = read_secret(self._secret_file)
        except web.HTTPRequestEntityTooLarge:
            return 413, f"the event is larger than {_LARGEST} bytes; the next poll finds the push"
        except TimeoutError:
            return 408, f"the event was not received within {_SECONDS:.0f} s"
        except ValueError as error:
            log.error("%s", error)
            return 503, "cannot read the shared secret"
        if not authentic(request.headers, body, secret):
            return 401, "the signature or token is missing or not that of the shared secret"
        self._pushed()
        return 202, "accepted"


def authentic(headers: Mapping[str, str], body: bytes, secret: bytes) -> bool:
    """Whether the caller of a request knows the secret; compared in constant time."""
    token = headers.get(_TOKEN)
    if token is not None:
        return hmac.compare_digest(_digest(token.encode(), secret), _digest(secret, secret))
    signature = next((headers[name] for name in _SIGNATURES if name in headers), "")
    expected = hmac.new(secret, body, hashlib.sha256).hexdigest()
    digest = signature.removeprefix("sha256=")
    return digest.isascii() and hmac.compare_digest(digest, expected)


def read_secret(file: Path) -> bytes:
    """Return the secret in a file. Raises ValueError, whose message never holds the content."""
    try:
        secret = file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ValueError(f"cannot read the secret of push events from {file}: {error.strerror}") from None
    if len(secret) < _SHORTEST_SECRET:
        raise ValueError(
            f"the secret of push events in {file} has less than {_SHORTEST_SECRET} bytes: create a longer one"
        )
    return secret


def _digest(text: bytes, secret: bytes) -> bytes:
    # Digests have one length, so that not even the length of a wrong token leaks.
    return hmac.new(secret, text, hashlib.sha256).digest()
