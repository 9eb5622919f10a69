"""Protect the metrics endpoint with TLS, authentication and authorization.

Metrics name clusters, machines and Harvesters, which not everybody on the Pod network may see. The
Go provider put kube-rbac-proxy in front of them. This process does the same itself: a TokenReview
authenticates the bearer token, and a SubjectAccessReview decides whether its account may `get` the
path.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import tempfile
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from caphv.api.object import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Obj, Resource
from caphv.runtime.certwatcher import CertWatcher, server_context
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

# Scrapes come every few seconds with the same token. An account that loses the right may still read
# for this many seconds.
_ALLOWED_SECONDS = 60.0
_REFUSED_SECONDS = 10.0
_MAX_CACHED = 500
# Reviews are limited, because guessing tokens must not load the API server.
_MAX_CONCURRENT_REVIEWS = 4
_LOOK_SECONDS = 1.0
_LIFETIME = timedelta(days=3650)
# Certificates are backdated, because clocks differ a little.
_BACKDATE = timedelta(hours=1)


class Decision(Enum):
    """Decisions about a request, as HTTP status."""

    ALLOWED = 200
    UNKNOWN = 401
    FORBIDDEN = 403


class _CachedDecision(NamedTuple):
    """A decision, and the time until which it holds."""

    decision: Decision
    until: float


class TokenAuthorizer:
    """Authorize bearer tokens at the API server.

    Decisions are cached for a short time under the hash of the token.
    """

    def __init__(self, client: ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._decisions: OrderedDict[bytes, _CachedDecision] = OrderedDict()
        self._asking = asyncio.Semaphore(_MAX_CONCURRENT_REVIEWS)

    async def authorize(self, token: str, path: str) -> Decision:
        """Decide whether the owner of a token may `get` a path.

        Raises `ApiError` or `Unreachable` if the API server fails.
        """
        key = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        decision = self._cached_decision(key)
        if decision is not None:
            return decision

        async with self._asking:
            # Another request with this token may have been answered meanwhile.
            decision = self._cached_decision(key)
            if decision is not None:
                return decision

            decision = await self._ask(token, path)
            seconds = _ALLOWED_SECONDS if decision is Decision.ALLOWED else _REFUSED_SECONDS
            self._decisions[key] = _CachedDecision(decision, self._clock() + seconds)
            while len(self._decisions) > _MAX_CACHED:
                self._decisions.popitem(last=False)
        return decision

    def _cached_decision(self, key: bytes) -> Decision | None:
        cached = self._decisions.get(key)
        if cached is None:
            return None
        if cached.until <= self._clock():
            del self._decisions[key]
            return None
        return cached.decision

    async def _ask(self, token: str, path: str) -> Decision:
        """Have the API server authenticate a token, and then authorize its account."""
        review = await self._review(TOKEN_REVIEWS, {"token": token})
        if not review.get("authenticated"):
            return Decision.UNKNOWN
        user = review.get("user") or {}
        attributes = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        review = await self._review(SUBJECT_ACCESS_REVIEWS, attributes)
        return Decision.ALLOWED if review.get("allowed") else Decision.FORBIDDEN

    async def _review(self, resource: Resource, spec: Obj) -> Obj:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        answer = await self._client.request("POST", resource.path(), resource=resource, body=body)
        return answer.get("status") or {}


class MetricsAuth(Runnable):
    """Protect a server with the TLS context of `listener` and the middleware `guard`.

    The certificate comes from `folder` (`tls.crt`, `tls.key`) and follows its rotation. Without a
    folder, or while the folder has no pair, the server uses a self-signed certificate.
    """

    def __init__(self, client: ApiClient, folder: Path | None = None) -> None:
        self._authorizer = TokenAuthorizer(client)
        self._certificates = CertWatcher(folder) if folder else None

    async def run(self) -> None:
        """Check the folder for a new certificate until cancelled."""
        while True:
            if self._certificates:
                self._certificates.refresh()
            await asyncio.sleep(_LOOK_SECONDS)

    def listener(self) -> ssl.SSLContext:
        """Return the TLS context of a listening socket.

        Each handshake uses the newest certificate of the folder.
        """
        context = self_signed_context()
        if self._certificates:
            self._certificates.refresh()
            self._certificates.attach(context)
        return context

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Handle requests of accounts that may `get` the path.

        Answers other requests with 401 or 403, and all with 503 while the API server is silent.
        """
        decision = Decision.UNKNOWN
        token = _bearer_token(request)
        if token:
            try:
                decision = await self._authorizer.authorize(token, request.path)
            except RequestError as error:
                log.warning("cannot authorize a request for %s: %s", request.path, error)
                return web.Response(
                    status=503, text="the API server cannot check who may read this; try again\n"
                )

        if decision is Decision.ALLOWED:
            return await handler(request)
        if decision is Decision.UNKNOWN:
            return web.Response(
                status=401,
                text="a bearer token of the cluster is required\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return web.Response(
            status=403, text=f"the account may not get the non-resource URL {request.path}\n"
        )


def _bearer_token(request: web.Request) -> str:
    """Return the token of a request; empty without a printable one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    is_bearer = scheme.lower() == "bearer" and token.isascii() and token.isprintable()
    return token if is_bearer else ""


def self_signed_context() -> ssl.SSLContext:
    """Return a TLS context with a new self-signed certificate.

    Clients cannot verify the certificate, but tokens and metrics are encrypted.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "caphv")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - _BACKDATE)
        .not_valid_after(today + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )

    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    # OpenSSL only reads keys from files. The folder has mode 0700.
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:
        certificate_file = Path(folder, "tls.crt")
        key_file = Path(folder, "tls.key")
        certificate_file.write_bytes(certificate.public_bytes(pem))
        key_file.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return server_context((certificate_file, key_file))
