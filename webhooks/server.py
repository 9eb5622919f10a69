"""Serve the admission webhooks over HTTPS.

The server needs no state besides a request, so any number of replicas serve at once and none leads.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import orjson
from aiohttp import web
from prometheus_client import generate_latest

from caphv.runtime import largebuffers
from caphv.runtime.httpserver import is_compressed, too_large
from caphv.runtime.largebodies import LargeBodies
from caphv.runtime.tlsserver import TLSServer
from webhooks import metrics
from webhooks.handler import MAX_BODY, TARGETS, Answer, BadReview, Target, answer, failure
from webhooks.rules.cluster import CROSS_NAMESPACE

log = logging.getLogger(__name__)

# Nearly all reviews are smaller and never wait. Larger reviews share memory for one of the largest
# size.
_LARGE_BODY = 128 * 1024
_LARGE_BODIES = MAX_BODY
_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class WebhookServer(TLSServer):
    """Serve the webhooks. Without `cross_namespace`, references to other namespaces are errors."""

    name = "webhook"
    max_body = MAX_BODY
    drain_seconds = 2.0

    def __init__(self, address: str, folder: Path, *, cross_namespace: bool = True) -> None:
        super().__init__(address, folder)
        self._enforced = () if cross_namespace else (CROSS_NAMESPACE,)
        self._large = LargeBodies(_LARGE_BODIES)

    def metrics(self) -> bytes:
        """Return the metrics of this server and its process."""
        return generate_latest(metrics.REGISTRY)

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
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
        if self.is_draining or max_size > _LARGE_BODY:
            response.force_close()
            largebuffers.trim()
        return response

    async def _review(self, request: web.BaseRequest, target: Target, max_size: int) -> Answer:
        """Read and answer a review. A large one has to wait until there is memory for it."""
        if max_size > MAX_BODY:
            raise too_large(MAX_BODY)
        if max_size <= _LARGE_BODY:
            return answer(target, await self.read_body(request), enforced=self._enforced)

        try:
            async with self._large.room(max_size, self.body_seconds):
                return answer(target, await self.read_body(request), enforced=self._enforced)
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


def _record(target: Target, reviewed: Answer) -> None:
    """Count a validated object, and log a refusal."""
    if target.webhook == "validate":
        # Clients choose the text of an operation, and each label is a time series.
        operation = reviewed.operation if reviewed.operation in _OPERATIONS else "other"
        metrics.REQUESTS.labels(target.kind, operation, str(reviewed.allowed).lower()).inc()

    if not reviewed.allowed:
        operation = ascii(reviewed.operation)
        name = ascii(reviewed.name)
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

    location = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "nowhere"
    return f"{type(error).__name__} at {location}"
