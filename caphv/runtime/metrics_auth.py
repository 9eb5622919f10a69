"""TLS, authentication and authorization of the metrics endpoint.

Metrics name clusters, machines and Harvesters, which not everybody on the Pod network may see. The Go provider put
kube-rbac-proxy in front of them; here the process does the same itself: a TokenReview authenticates the bearer token,
a SubjectAccessReview decides whether its account may `get` the path.
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

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from caphv.api.object import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Obj, Resource
from caphv.runtime.certwatcher import CertWatcher, server_context
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

# Scrapes come every few seconds with the same token. An account that loses the right is let in for so long.
_REMEMBER_ALLOWED = 60.0
_REMEMBER_REFUSED = 10.0
_REMEMBERED = 500
# Guessing tokens must not load the API server.
_AT_ONCE = 4
_LOOK_SECONDS = 1.0
_LIFETIME = timedelta(days=3650)
# Clocks differ a little.
_BACKDATE = timedelta(hours=1)


class Decision(Enum):
    """How a request is answered, as HTTP status."""

    ALLOWED = 200
    UNKNOWN = 401
    FORBIDDEN = 403


class TokenAuthorizer:
    """Authorizes bearer tokens at the API server; decisions are cached for a short time under the hash of the token."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[Decision, float]] = OrderedDict()
        self._asking = asyncio.Semaphore(_AT_ONCE)

    async def authorize(self, token: str, path: str) -> Decision:
        """Whether the owner of a token may `get` a path. Raises `ApiError` or `Unreachable` if the API server fails."""
        key = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        decision = self._remembered(key)
        if decision is None:
            async with self._asking:
                decision = self._remembered(key) or await self._ask(token, path)
                lasts = _REMEMBER_ALLOWED if decision is Decision.ALLOWED else _REMEMBER_REFUSED
                self._known[key] = decision, self._clock() + lasts
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return decision

    def _remembered(self, key: bytes) -> Decision | None:
        decision, until = self._known.get(key, (None, 0.0))
        if decision is not None and until <= self._clock():
            del self._known[key]
            return None
        return decision

    async def _ask(self, token: str, path: str) -> Decision:
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
    """Protects a server: `listener` gives the TLS context of its socket, `guard` the middleware of its application.

    The certificate comes from `folder` (`tls.crt`, `tls.key`) and follows its rotation; without a folder, or while it
    holds no pair, a self-signed one is served.
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
        """TLS context for a listening socket; each handshake uses the newest certificate of the folder."""
        context = self_signed()
        if self._certificates:
            self._certificates.refresh()
            self._certificates.attach(context)
        return context

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Allow accounts that may `get` the path; otherwise 401, 403, or 503 while the API server does not answer."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not (token.isascii() and token.isprintable()):
            decision = Decision.UNKNOWN
        else:
            try:
                decision = await self._authorizer.authorize(token, request.path)
            except (ApiError, Unreachable) as error:
                log.warning("cannot authorize a request for %s: %s", request.path, error)
                return web.Response(status=503, text="the API server cannot check who may read this; try again\n")
        if decision is Decision.ALLOWED:
            return await handler(request)
        if decision is Decision.UNKNOWN:
            headers = {"WWW-Authenticate": "Bearer"}
            return web.Response(status=401, text="a bearer token of the cluster is required\n", headers=headers)
        return web.Response(status=403, text=f"the account may not get the non-resource URL {request.path}\n")


def self_signed() -> ssl.SSLContext:
    """TLS with a new self-signed certificate: clients cannot verify it, but tokens and metrics are encrypted."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "caphv")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # mode 0700, removed after the block
        files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        files[0].write_bytes(certificate.public_bytes(pem))
        files[1].write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return server_context(files)
