"""Serve the admission webhooks over HTTPS.

The server needs no state besides a request, so any number of replicas serve at once and none leads.
It uses aiohttp's server without the application layer, because a table of paths is enough, and
routes, middlewares and signals would double the cost of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import generate_latest

from caphv.runtime import largebuffers
from caphv.runtime.certwatcher import CertWatcher
from caphv.runtime.httpserver import Connection, has_answered, is_compressed, request_factory
from caphv.runtime.runnable import Runnable, listening_address
from webhooks import metrics
from webhooks.handler import MAX_BODY, TARGETS, Answer, BadReview, Target, answer, failure
from webhooks.largebodies import LargeBodies
from webhooks.rules.cluster import CROSS_NAMESPACE

log = logging.getLogger(__name__)

# The time for a body can be short, because an API server has the whole review in memory.
_BODY_SECONDS = 5.0
# Nearly all reviews are smaller and never wait. Larger reviews share memory for one of the largest
# size.
_LARGE_BODY = 128 * 1024
_LARGE_BODIES = MAX_BODY
_HANDSHAKE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
# A server that stops continues answering for so many seconds, because API servers may not know yet
# that it stops.
_DRAIN_SECONDS = 2.0
_GRACE_SECONDS = 5.0
# A connection buffers so many bytes of a body before it is read. The default is 256 KiB.
_READ_AHEAD = 32 * 1024
_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class WebhookServer(Runnable):
    """Serve on `address` (`[host]:port`) with the certificate of a folder, once it exists.

    Without `cross_namespace`, references to other namespaces are errors instead of warnings.
    """

    def __init__(self, address: str, folder: Path, *, cross_namespace: bool = True) -> None:
        self._enforced = () if cross_namespace else (CROSS_NAMESPACE,)
        self._address = listening_address(address)
        if self._address is None:
            raise ValueError(f"{address!r} is no [host]:port to listen on")
        self._certificates = CertWatcher(folder)
        self._large = LargeBodies(_LARGE_BODIES)
        self._serving = self._draining = False

    def not_ready(self) -> list[str]:
        """Return the reason why no review is answered yet."""
        if self._serving:
            return []
        return [f"webhook: {self._certificates.problem or 'starting'}"]

    def metrics(self) -> bytes:
        """Return the metrics of this server and its process."""
        return generate_latest(metrics.REGISTRY)

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` when it cannot listen on the address."""
        async with contextlib.AsyncExitStack() as stack:
            while True:
                # Listen only with a certificate. Without one, the probe reports the reason.
                if self._certificates.refresh() and not self._serving:
                    await stack.enter_async_context(self._listen())
                await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _listen(self) -> AsyncIterator[None]:
        """Serve while the context is open, and for some seconds after it is closed."""
        server = web.Server(self._handle, request_factory=request_factory(MAX_BODY))
        host, port = self._address or ("", 0)
        loop = asyncio.get_running_loop()

        def connect() -> Connection:
            return Connection(server, loop=loop, access_log=None, read_bufsize=_READ_AHEAD)

        listener = await loop.create_server(
            connect,
            host or None,
            port,
            ssl=self._certificates.listener(),
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
            backlog=1024,
        )
        self._serving = True
        addresses = ", ".join(str(sock.getsockname()) for sock in listener.sockets)
        log.info("webhooks are served on %s", addresses)

        try:
            yield
        finally:
            self._draining = True
            try:
                await asyncio.sleep(_DRAIN_SECONDS)
            finally:
                self._serving = False
                listener.close()
                await server.shutdown(_GRACE_SECONDS)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._respond(request)
        finally:
            has_answered(request)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a review, or a Status that explains why there is none."""
        started = time.perf_counter()
        max_size = MAX_BODY if request.content_length is None else request.content_length

        try:
            target = _target(request)
            reviewed = await self._review(request, target, max_size)
        except web.HTTPException as error:
            allow = error.headers.get("Allow")
            response = _failure_response(error.status, error.reason, error.text or "", allow)
            # The body may not have been read to its end, so no other request can follow.
            response.force_close()
        except BadReview as error:
            response = _failure_response(400, "BadRequest", str(error))
        except Exception as error:
            # Log neither the text of the error nor its trace, because both may hold parts of the
            # object.
            log.error("a review on %s failed: %s", ascii(request.path), _origin(error))
            response = _failure_response(
                500, "InternalError", "the webhook failed; its log says where"
            )
        else:
            response = web.Response(body=reviewed.body, content_type="application/json")
            _record(target, reviewed)
            metrics.REQUEST_SECONDS.labels(target.webhook).observe(time.perf_counter() - started)

        # A connection keeps its buffers as large as its largest request.
        if self._draining or max_size > _LARGE_BODY:
            response.force_close()
            largebuffers.trim()
        return response

    async def _review(self, request: web.BaseRequest, target: Target, max_size: int) -> Answer:
        """Read and answer a review. A large one has to wait until there is memory for it."""
        if max_size > MAX_BODY:
            raise _too_large()
        if max_size <= _LARGE_BODY:
            return answer(target, await _read_body(request), enforced=self._enforced)

        try:
            async with self._large.room(max_size, _BODY_SECONDS):
                return answer(target, await _read_body(request), enforced=self._enforced)
        except TimeoutError:
            message = "too many large reviews at a time: try again"
            raise web.HTTPTooManyRequests(text=message) from None


def _target(request: web.BaseRequest) -> Target:
    """Return the webhook of a request. Raises `web.HTTPException`."""
    target = TARGETS.get(request.path)
    if target is None:
        raise web.HTTPNotFound(text="no webhook has this path")
    if request.method != "POST":
        raise web.HTTPMethodNotAllowed(request.method, ["POST"], text="reviews are sent with POST")
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="reviews are sent as application/json")
    if is_compressed(request):
        raise web.HTTPUnsupportedMediaType(text="reviews are sent without compression")
    return target


def _too_large() -> web.HTTPRequestEntityTooLarge:
    return web.HTTPRequestEntityTooLarge(MAX_BODY, 0, text=f"a review has at most {MAX_BODY} bytes")


async def _read_body(request: web.BaseRequest) -> bytearray:
    """Return the body in a single copy, whereas `request.read` creates three."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    raise _too_large()
            return body

    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError):
        message = "the body does not have the encoding that its headers say"
        raise web.HTTPBadRequest(text=message) from None
    except TimeoutError:
        message = f"the body did not arrive within {_BODY_SECONDS:.0f} s"
        raise web.HTTPRequestTimeout(text=message) from None


def _record(target: Target, reviewed: Answer) -> None:
    """Count a validated object, and log a refusal."""
    if target.webhook == "validate":
        # Clients choose the text of an operation, and each label is a time series.
        operation = reviewed.operation if reviewed.operation in _OPERATIONS else "other"
        metrics.REQUESTS.labels(target.kind, operation, str(reviewed.allowed).lower()).inc()

    if not reviewed.allowed:
        operation, name = ascii(reviewed.operation), ascii(reviewed.name)
        rules = ", ".join(reviewed.rules) or "wrong path"
        log.info("refused: %s of %s %s: %s", operation, target.kind, name, rules)


def _failure_response(
    code: int, reason: str, message: str, allow: str | None = None
) -> web.Response:
    """Count a request without an answer, and return the Status for it.

    `allow` is the value of header `Allow`.
    """
    metrics.ERRORS.labels(str(code)).inc()
    headers = {"Allow": allow} if allow else None
    body = orjson.dumps(failure(code, reason.replace(" ", ""), message))
    return web.Response(status=code, body=body, content_type="application/json", headers=headers)


def _origin(error: BaseException) -> str:
    """Return the type of an error, and the file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next

    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "nowhere"
    return f"{type(error).__name__} at {place}"
