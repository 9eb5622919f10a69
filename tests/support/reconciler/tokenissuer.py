"""A Harvester in memory that issues tokens which end, and that refuses those which have ended, in simulated time."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from caphv.api.object import SECRETS, Obj, Resource, at, uid_of
from caphv.runtime.errors import Conflict, NotFound, RequestError, Unauthorized
from caphv.runtime.kubeconfig import Kubeconfig, token_claims
from tests.support.memoryserver import MemoryServer

START = datetime(2026, 11, 27, 8, tzinfo=UTC)
USER_TOKEN = "token-of-rancher"


class Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


def encoded(claims: Obj) -> str:
    """A token with these claims."""
    return f"e.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.s"


class Issuer(MemoryServer):
    """What all clients share. `skew` is how far the clock of Harvester is ahead, `users` the tokens of users."""

    def __init__(self, clock: Clock, skew: float = 0.0) -> None:
        super().__init__(server="https://harvester")
        self.clock, self.skew = clock, timedelta(seconds=skew)
        self.users = {USER_TOKEN}
        self.denied_rights: set[str] = set()
        self.outage: RequestError | None = None
        self.issued = self.unauthorized = 0
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})

    @property
    def time(self) -> Any:  # type: ignore[override]
        return None

    def check(self, token: str) -> None:
        """Raise what a request with a token meets."""
        if self.outage:
            raise self.outage
        if token in self.users:
            return
        claims = token_claims(token)
        bound = at(claims, "kubernetes.io", "secret")
        namespace = str(claims.get("sub", "")).split(":")[-2] if bound else ""
        secret = self.find("Secret", bound["name"], namespace) if bound else None
        is_revoked = bool(bound) and (secret is None or uid_of(secret) != bound["uid"])
        if is_revoked or claims.get("exp", 0) <= (self.clock.now + self.skew).timestamp():
            self.unauthorized += 1
            raise Unauthorized(401, "Unauthorized", "Unauthorized")

    def issue(self, path: str, spec: Obj) -> Obj:
        """Answer a TokenRequest."""
        _, _, _, _, namespace, _, name, _ = path.split("/")
        claims: Obj = {"sub": f"system:serviceaccount:{namespace}:{name}"}
        if bound := spec.get("boundObjectRef"):
            secret = self.find("Secret", bound["name"], namespace)
            if secret is None:
                raise NotFound(404, "NotFound", bound["name"])
            if uid_of(secret) != bound["uid"]:
                raise Conflict(409, "Conflict", "another uid")
            claims["kubernetes.io"] = {"secret": {"name": bound["name"], "uid": bound["uid"]}}
        start = int((self.clock.now + self.skew).timestamp())
        self.issued += 1
        claims |= {"iat": start, "exp": start + spec["expirationSeconds"], "jti": str(self.issued)}
        return {"status": {"token": encoded(claims)}}


class IssuerClient:
    """The client of one token."""

    name = "harvester"

    def __init__(self, issuer: Issuer, access: Kubeconfig) -> None:
        self._issuer, self._token, self.server = issuer, access.token, access.server

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._issuer, name)

        async def call(*words: Any, **options: Any) -> Any:
            self._issuer.check(self._token)
            return await method(*words, **options)

        return call

    async def request(self, _method: str, path: str, *, body: Obj, **_: Any) -> Obj:
        """Answer a TokenRequest."""
        self._issuer.check(self._token)
        if error := self._issuer.errors.get("create token"):
            raise error
        return self._issuer.issue(path, body["spec"])

    async def close(self) -> None:
        """Forget nothing."""


def bound_secrets(issuer: Issuer) -> Iterator[Obj]:
    """The Secrets on Harvester to which tokens are bound."""
    resource: Resource = SECRETS
    yield from (obj for obj in issuer.stored(resource) if obj["metadata"]["name"].startswith("caphv-renewal-"))
