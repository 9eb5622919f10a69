"""The HTTPS server of the admission webhooks.

It knows nothing of what it serves but what is in a request, so any number of replicas serve at once and none leads.
aiohttp's server without its application layer: a table of paths is all the routing that is needed, and routes,
middlewares and signals cost as much again as the rest of a request.
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

_BODY_SECONDS = 5.0
# Nearly all reviews are smaller, and never wait. Of larger ones, one of the largest is read at a time, or several that
# are smaller.
_LARGE_BODY = 128 * 1024
_LARGE_BODIES = MAX_BODY
_HANDSHAKE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
# How long a server that ends continues answering: API servers that have not heard of it yet send here all the same.
_DRAIN_SECONDS = 2.0
_GRACE_SECONDS = 5.0
# How much of a body a connection takes before it is read; its default is 256 KiB.
_READ_AHEAD = 32 * 1024
_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class WebhookServer(Runnable):
    """Serves on `address` (`[host]:port`) with the certificate of a folder, for which it waits.

    Without `cross_namespace`, references to other namespaces are refused instead of warned about.
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
        """Say why no review is answered yet."""
        if self._serving:
            return []
        return [f"webhook: {self._certificates.problem or 'starting'}"]

    def metrics(self) -> bytes:
        """Return the metrics of this server and its process."""
        return generate_latest(metrics.REGISTRY)

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` when the address cannot be had."""
        async with contextlib.AsyncExitStack() as stack:
            while True:
                if self._certificates.refresh() and not self._serving:
                    await stack.enter_async_context(self._listening())
                await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        server = web.Server(self._handle, request_factory=request_factory(MAX_BODY))
        host, port = self._address or ("", 0)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(server, loop=loop, access_log=None, read_bufsize=_READ_AHEAD),
            host or None,
            port,
            ssl=self._certificates.listener(),
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
            backlog=1024,
        )
        self._serving = True
        log.info("webhooks are served on %s", ", ".join(str(sock.getsockname()) for sock in listener.sockets))
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
            return await self._answered(request)
        finally:
            has_answered(request)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        size = _most_bytes(request)
        try:
            target = _target(request)
            found = await self._reviewed(request, target, size)
        except web.HTTPException as error:
            response = _failed(error.status, error.reason, error.text or "", error.headers.get("Allow"))
            # What is left of the body is not read, so no other request can follow.
            response.force_close()
        except BadReview as error:
            response = _failed(400, "BadRequest", str(error))
        except Exception as error:
            # Neither its text nor its trace: both may hold parts of the object.
            log.error("a review on %s failed: %s", ascii(request.path), _where(error))
            response = _failed(500, "InternalError", "the webhook failed; its log says where")
        else:
            response = web.Response(body=found.body, content_type="application/json")
            _record(target, found)
            metrics.REQUEST_SECONDS.labels(target.webhook).observe(time.perf_counter() - started)
        # A connection keeps its buffers as large as its largest request.
        if self._draining or size > _LARGE_BODY:
            response.force_close()
            largebuffers.trim()
        return response

    async def _reviewed(self, request: web.BaseRequest, target: Target, size: int) -> Answer:
        if size > MAX_BODY:
            raise _too_large()
        if size <= _LARGE_BODY:
            return answer(target, await _body(request), enforced=self._enforced)
        try:
            async with self._large.room(size, _BODY_SECONDS):
                return answer(target, await _body(request), enforced=self._enforced)
        except TimeoutError:
            raise web.HTTPTooManyRequests(text="too many large reviews at a time: try again") from None


def _target(request: web.BaseRequest) -> Target:
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


def _most_bytes(request: web.BaseRequest) -> int:
    """How large the body can become."""
    return MAX_BODY if request.content_length is None else request.content_length


async def _body(request: web.BaseRequest) -> bytearray:
    """Return the body, in a single copy: `request.read` makes three."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    raise _too_large()
            return body
    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError):
        raise web.HTTPBadRequest(text="the body does not have the encoding that its headers say") from None
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {_BODY_SECONDS:.0f} s") from None


def _record(target: Target, found: Answer) -> None:
    if target.webhook == "validate":
        operation = found.operation if found.operation in _OPERATIONS else "other"
        metrics.REQUESTS.labels(target.kind, operation, str(found.allowed).lower()).inc()
    if not found.allowed:
        rules = ", ".join(found.rules) or "wrong path"
        log.info("refused: %s of %s %s: %s", ascii(found.operation), target.kind, ascii(found.name), rules)


def _failed(code: int, reason: str, message: str, allow: str | None = None) -> web.Response:
    metrics.ERRORS.labels(str(code)).inc()
    headers = {"Allow": allow} if allow else None
    body = orjson.dumps(failure(code, reason.replace(" ", ""), message))
    return web.Response(status=code, body=body, content_type="application/json", headers=headers)


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "nowhere"
    return f"{type(error).__name__} at {place}"
