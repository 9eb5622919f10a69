"""Receives push events from Git hosts, so that a push takes effect before the next poll.

The sender must know the shared secret. GitHub, Gitea, Forgejo, Gogs and Bitbucket sign the body
with it (HMAC with SHA-256), and GitLab sends it. The body is not interpreted and not kept, because
an event only triggers a sync. A repeated event triggers no sync, because sending it again needs no
secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from caphv.runtime.httpserver import is_compressed, listen
from caphv.runtime.runnable import Runnable, listening_address
from packager.controller import metrics

log = logging.getLogger(__name__)

PATH = "/push"
_SIGNATURES = (
    "X-Hub-Signature-256",
    "X-Gitea-Signature",
    "X-Forgejo-Signature",
    "X-Gogs-Signature",
    "X-Hub-Signature",
)
_TOKEN = "X-Gitlab-Token"  # noqa: S105 - the name of a header
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
# GitHub sends up to 25 MiB. Larger events than this are rejected, and the next poll finds the push
# anyway.
_MAX_BODY_BYTES = 1024 * 1024
# Bytes of a body that a connection takes before they are read. aiohttp's default is 256 KiB.
_READ_AHEAD = 16 * 1024
_BODY_SECONDS = 10.0
_MIN_SECRET_BYTES = 16
_ACCEPTED = 202
_MAX_KNOWN_EVENTS = 4096
_GRACE_SECONDS = 5.0


class ReceiverOptions(NamedTuple):
    """Where push events are received, and the file with the shared secret."""

    address: str
    secret_file: Path


class Receiver(Runnable):
    """Serves `POST /push` at `address` ([host]:port) and calls `pushed` for each authentic event.

    `secret_file` is read for each request, so that a new secret takes effect at once.
    """

    def __init__(self, address: str, secret_file: Path, pushed: Callable[[], None]) -> None:
        """Raise `ValueError` for an address without a port, or a missing or short secret."""
        host_and_port = listening_address(address)
        if host_and_port is None:
            raise ValueError(f"{address!r} is not of the form [host]:port")
        self._address = host_and_port
        self._secret_file = secret_file
        self._pushed = pushed
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        read_secret(secret_file)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with listen(
            self._address,
            self._receive,
            max_body=_MAX_BODY_BYTES,
            read_ahead=_READ_AHEAD,
            grace_seconds=_GRACE_SECONDS,
        ):
            await asyncio.Event().wait()

    async def _receive(self, request: web.BaseRequest) -> web.Response:
        """Answer a request, count it, and log a refusal."""
        try:
            text = await self._accept(request)
        except Refused as error:
            metrics.PUSH_EVENTS.labels(str(error.status)).inc()
            log.warning("push event rejected with %d: %s", error.status, error)
            response = web.Response(status=error.status, text=str(error))
            response.force_close()  # the rest of a body may still come
            return response
        metrics.PUSH_EVENTS.labels(str(_ACCEPTED)).inc()
        return web.Response(status=_ACCEPTED, text=text)

    async def _accept(self, request: web.BaseRequest) -> str:
        """Trigger a sync for an authentic event, and return the answer. Raises `Refused`."""
        if (request.method, request.path) != ("POST", PATH):
            raise Refused(404, f"push events are sent to {PATH} with POST")
        if is_compressed(request):
            raise Refused(415, "push events are sent without compression")

        proof = Proof(request.headers, self._read_secret())
        await _read_body(request, proof)
        proof.verify()
        if self._note_event(proof.body_digest()):
            return "accepted before"
        self._pushed()
        return "accepted"

    def _read_secret(self) -> bytes:
        try:
            return read_secret(self._secret_file)
        except ValueError as error:
            log.error("%s", error)
            raise Refused(503, "cannot read the shared secret") from None

    def _note_event(self, digest: bytes) -> bool:
        """Remember an event, and return whether it was accepted before.

        Events of two pushes differ, because they name commits and times.
        """
        # Anyone who recorded a request on its way can send it again without the secret.
        repeated = digest in self._seen
        self._seen[digest] = None
        self._seen.move_to_end(digest)
        if len(self._seen) > _MAX_KNOWN_EVENTS:
            self._seen.popitem(last=False)
        return repeated


class Refused(Exception):
    """The answer to a request is an error, with a status and a text for the log and the sender."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def _read_body(request: web.BaseRequest, proof: Proof) -> None:
    """Feed a body to its proof piece by piece, so that the body is never kept."""
    size = 0

    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > _MAX_BODY_BYTES:
                    raise Refused(
                        413,
                        f"the event is larger than {_MAX_BODY_BYTES} bytes; the next poll finds "
                        "the push",
                    )
                proof.update(chunk)
    except TimeoutError:
        raise Refused(408, f"the event was not received within {_BODY_SECONDS:.0f} s") from None
    except (web.RequestPayloadError, ClientError, HttpProcessingError, ConnectionError):
        raise Refused(
            400, "the body ends early or does not have the encoding that its headers say"
        ) from None


class Proof:
    """Checks while a body arrives whether the sender of a request knows the shared secret.

    GitLab sends the secret itself, which is checked before the body is read. Other hosts send a
    signature of the body.
    """

    def __init__(self, headers: Mapping[str, str], secret: bytes) -> None:
        """Raise `Refused` if no body could make the request authentic."""
        self._signed = hmac.new(secret, digestmod=hashlib.sha256)
        self._body = hashlib.sha256()
        self._expected: str | None = None

        token = headers.get(_TOKEN)
        if token is not None:
            # All digests have one length, so not even the length of the secret leaks.
            sent = hmac.digest(secret, token.encode("utf-8", "surrogateescape"), "sha256")
            if not hmac.compare_digest(sent, hmac.digest(secret, secret, "sha256")):
                raise Refused(401, "the token is not the shared secret")
            return

        signatures = [headers[name] for name in _SIGNATURES if name in headers]
        signature = signatures[0] if signatures else ""
        self._expected = signature.removeprefix("sha256=").lower()
        if not _DIGEST.fullmatch(self._expected):
            raise Refused(401, "the request has neither a token nor a signature with SHA-256")

    def update(self, chunk: bytes) -> None:
        """Take the next piece of the body."""
        self._signed.update(chunk)
        self._body.update(chunk)

    def verify(self) -> None:
        """Raise `Refused` unless the whole body is authentic."""
        if self._expected is None:
            return
        # The comparison takes a constant time.
        if not hmac.compare_digest(self._signed.hexdigest(), self._expected):
            raise Refused(401, "the signature is not that of the shared secret")

    def body_digest(self) -> bytes:
        """Return the digest of the body, which identifies the event."""
        return self._body.digest()


def read_secret(file: Path) -> bytes:
    """Return the secret in a file. Raises `ValueError`, whose message never holds the content."""
    try:
        secret = file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ValueError(
            f"cannot read the secret of push events from {file}: {error.strerror}"
        ) from None
    if len(secret) < _MIN_SECRET_BYTES:
        raise ValueError(
            f"the secret of push events in {file} has less than {_MIN_SECRET_BYTES} bytes: create "
            "a longer one"
        )
    return secret
