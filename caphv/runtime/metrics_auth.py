"""TLS and authentication of the metrics endpoint.

Metrics name clusters, machines and Harvesters, which is nothing for everybody on the Pod network. The Go provider had a
sidecar (kube-rbac-proxy) in front of them. Here the process does the same itself: the API server says whose bearer
token it is (TokenReview) and whether that account may `get` the path (SubjectAccessReview).
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

from caphv.api.object import Obj, Resource
from caphv.runtime.certwatcher import CertWatcher, server_context
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
# Scrapes come every few seconds with the same token. An account that loses the right is let in for so long.
_REMEMBER_ALLOWED = 60.0
_REMEMBER_REFUSED = 10.0
_REMEMBERED = 500
# Whoever tries tokens must not become a load of the API server.
_AT_ONCE = 4
_LOOK_SECONDS = 1.0
_LIFETIME = timedelta(days=3650)
# Clocks differ a little.
_BACKDATE = timedelta(hours=1)


class Decision(Enum):
    """What becomes of a request, as HTTP status."""

    ALLOWED = 200
    UNKNOWN = 401
    FORBIDDEN = 403


class TokenAuthorizer:
    """What the API server says of tokens, remembered for a short time under their hash."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[Decision, float]] = OrderedDict()
        self._asking = asyncio.Semaphore(_AT_ONCE)

    async def judge(self, token: str, path: str) -> Decision:
        """Whether the owner of a token may `get` a path. Raises `ApiError`, `Unreachable` when nobody can say."""
        key = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        verdict = self._remembered(key)
        if verdict is None:
            async with self._asking:
                verdict = self._remembered(key) or await self._ask(token, path)
                lasts = _REMEMBER_ALLOWED if verdict is Decision.ALLOWED else _REMEMBER_REFUSED
                self._known[key] = verdict, self._clock() + lasts
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return verdict

    def _remembered(self, key: bytes) -> Decision | None:
        verdict, until = self._known.get(key, (None, 0.0))
        if verdict is not None and until <= self._clock():
            del self._known[key]
            return None
        return verdict

    async def _ask(self, token: str, path: str) -> Decision:
        said = await self._review(TOKEN_REVIEWS, {"token": token})
        if not said.get("authenticated"):
            return Decision.UNKNOWN
        user = said.get("user") or {}
        asked = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        said = await self._review(ACCESS_REVIEWS, asked)
        return Decision.ALLOWED if said.get("allowed") else Decision.FORBIDDEN

    async def _review(self, resource: Resource, spec: Obj) -> Obj:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        answer = await self._client.request("POST", resource.path(), resource=resource, body=body)
        return answer.get("status") or {}


class MetricsAuth(Runnable):
    """Guards a server: its `listener` is for the socket, its `guard` for the application.

    The certificate is that of `folder` (`tls.crt`, `tls.key`), whose rotation is followed; without a folder, and until
    it has a pair, one that this process has signed itself.
    """

    def __init__(self, client: ApiClient, folder: Path | None = None) -> None:
        self._reviews = TokenAuthorizer(client)
        self._certificates = CertWatcher(folder) if folder else None

    async def run(self) -> None:
        """Look at the folder until cancelled."""
        while True:
            if self._certificates:
                self._certificates.refresh()
            await asyncio.sleep(_LOOK_SECONDS)

    def listener(self) -> ssl.SSLContext:
        """Settings for a listening socket; each handshake is led to the newest certificate of the folder."""
        context = self_signed()
        if self._certificates:
            self._certificates.refresh()
            self._certificates.lead(context)
        return context

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let in who may `get` the path; 401, 403, or 503 while the API server does not say."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not (token.isascii() and token.isprintable()):
            verdict = Decision.UNKNOWN
        else:
            try:
                verdict = await self._reviews.judge(token, request.path)
            except (ApiError, Unreachable) as error:
                log.warning("cannot tell who asks for %s: %s", request.path, error)
                return web.Response(status=503, text="the API server does not say who may read this; try again\n")
        if verdict is Decision.ALLOWED:
            return await handler(request)
        if verdict is Decision.UNKNOWN:
            headers = {"WWW-Authenticate": "Bearer"}
            return web.Response(status=401, text="a bearer token of the cluster is needed\n", headers=headers)
        return web.Response(status=403, text=f"the account may not get the non-resource URL {request.path}\n")


def self_signed() -> ssl.SSLContext:
    """TLS with a new certificate that nobody can verify: it keeps tokens and metrics from being read on the way."""
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
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # mode 0700, and gone after the block
        files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        files[0].write_bytes(certificate.public_bytes(pem))
        files[1].write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return server_context(files)
