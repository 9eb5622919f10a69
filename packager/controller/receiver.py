"""Receives push events from Git hosts, so that a push takes effect before the next poll of the repository.

The caller must know the shared secret: GitHub, Gitea, Forgejo, Gogs and Bitbucket sign the body with it (HMAC with
SHA-256), GitLab sends it. The body is not interpreted: an event only triggers a sync. An event that comes again, which
needs no secret, triggers none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from caphv.runtime.httpserver import Connection, has_answered, request_factory
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
_EVENTS_REMEMBERED = 4096
_GRACE_SECONDS = 5.0


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
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        read_secret(secret_file)

    async def run(self) -> None:
        """Serve until cancelled."""
        server = web.Server(self._receive, request_factory=request_factory(_LARGEST))
        host, port = self._place or ("", 0)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(server, loop=loop, access_log=None), host or None, port, backlog=128
        )
        try:
            await asyncio.Event().wait()
        finally:
            listener.close()
            await server.shutdown(_GRACE_SECONDS)

    async def _receive(self, request: web.BaseRequest) -> web.Response:
        try:
            status, text = await self._answer(request)
        finally:
            has_answered(request)
        metrics.PUSH_EVENTS.labels(str(status)).inc()
        if status != 202:
            log.warning("push event rejected with %d: %s", status, text)
        response = web.Response(status=status, text=text)
        if status != 202:
            response.force_close()  # the rest of a body may still come
        return response

    async def _answer(self, request: web.BaseRequest) -> tuple[int, str]:
        if (request.method, request.path) != ("POST", PATH):
            return 404, f"push events are sent to {PATH} with POST"
        try:
            body = await _body(request)
            secret = read_secret(self._secret_file)
        except _Refused as error:
            return error.status, str(error)
        except ValueError as error:
            log.error("%s", error)
            return 503, "cannot read the shared secret"
        if not authentic(request.headers, body, secret):
            return 401, "the signature or token is missing or not that of the shared secret"
        if self._is_repeated(body):
            return 202, "accepted before"
        self._pushed()
        return 202, "accepted"

    def _is_repeated(self, body: bytes) -> bool:
        """Whether this event was accepted before. Events of two pushes differ: they name commits and times."""
        digest = hashlib.sha256(body).digest()
        repeated = digest in self._seen
        self._seen[digest] = None
        self._seen.move_to_end(digest)
        if len(self._seen) > _EVENTS_REMEMBERED:
            self._seen.popitem(last=False)
        return repeated


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def _body(request: web.BaseRequest) -> bytes:
    try:
        async with asyncio.timeout(_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _Refused(413, f"the event is larger than {_LARGEST} bytes; the next poll finds the push") from None
    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError):
        raise _Refused(400, "the body does not have the encoding that its headers say") from None
    except TimeoutError:
        raise _Refused(408, f"the event was not received within {_SECONDS:.0f} s") from None


def authentic(headers: Mapping[str, str], body: bytes, secret: bytes) -> bool:
    """Whether the caller of a request knows the secret; compared in constant time."""
    token = headers.get(_TOKEN)
    if token is not None:
        return hmac.compare_digest(_digest(token.encode("utf-8", "surrogateescape"), secret), _digest(secret, secret))
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
