"""Renew the tokens of HarvesterClusterIdentities with `tokenRenewal`, one identity at a time.

The provider exchanges the credentials in the user's Secret once, and then renews the token with the
token itself. It keeps the token in a Secret of its own, which clusters use in place of the user's
Secret while the token is valid. Deleting the identity deletes this Secret, whose finalizer stays
until the token is revoked on Harvester.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from caphv.api.identities import (
    KUBECONFIG_KEY,
    decode_kubeconfig,
    kubeconfig_key,
    secret_of,
)
from caphv.api.names import RENEWED_TOKEN_FINALIZER
from caphv.api.object import SECRETS, Key, Obj, being_deleted, text_at, uid_of
from caphv.api.ownership import Owner
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import (
    SECRET_TYPE,
    Action,
    Issued,
    Renewal,
    decide,
    issued_at,
    issued_of,
    renewal_of,
    scope_of,
    seconds_to_retry,
)
from caphv.runtime.controller import Result
from caphv.runtime.errors import ApiError, Conflict, NotFound, RequestError, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop
from reconciler.clusteridentity import status
from reconciler.context import Context
from reconciler.harvester import tokenexchange
from reconciler.harvester.tokenexchange import Credentials, ExchangeError, Token
from reconciler.remote.clusteridentities import NotRead

log = logging.getLogger(__name__)

_KIND = HARVESTER_CLUSTER_IDENTITIES.kind
_NOT_READ_SECONDS = 10.0
_LONGEST_NAME = 253
# The clock of this machine may be set while a timer waits.
_LONGEST_WAIT_SECONDS = 600.0
_SHORTEST_WAIT_SECONDS = 1.0
# Seconds between two exchanges of a token that Harvester rejects.
_REJECTED_SECONDS = 10.0


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Source:
    """The user's Secret. `credentials` is None if it does not exist or cannot be used."""

    key: Key
    credentials: Credentials | None = None
    problem: str = ""
    exists: bool = True

    @property
    def fingerprint(self) -> str | None:
        """What `decide` compares: None without a Secret, empty for one that cannot be used."""
        if self.credentials is not None:
            return self.credentials.access.fingerprint
        return "" if self.exists else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """The provider's own Secret, and what it says about the token in it."""

    secret: Obj
    issued: Issued
    credentials: Credentials


class TokenRenewer:
    """Reconcile the renewal of one identity; keys have its name and no namespace.

    :param now: returns the time
    """

    def __init__(self, context: Context, now: Callable[[], datetime] | None = None) -> None:
        self._context = context
        self._identities = context.cluster_identities
        self._now = now or _now
        self._exchanged: dict[str, datetime] = {}

    async def reconcile(self, key: Key) -> Result | None:
        """Exchange, renew or revoke the token of an identity. Raises `ApiError` for a retry."""
        if self._context.namespace:
            return None  # such a provider uses no HarvesterClusterIdentity
        name, secret_key = key.name, self._identities.renewed.key_of(key.name)
        secret = await self._read_secret(secret_key)
        if secret is not None and being_deleted(secret):
            return await self._end(name, secret)
        try:
            identity = self._identities.read(name)
        except NotRead:
            return Result(_NOT_READ_SECONDS)

        renewal = renewal_of(identity) if identity else None
        if identity is None or renewal is None:
            await self._stop(name, identity, secret)
            return None
        problem = _problem_of(secret_key, secret)
        if problem:
            return await self._fall_back(identity, problem)
        return await self._renew(identity, renewal, secret)

    # Renewal

    async def _renew(self, identity: Obj, renewal: Renewal, secret: Obj | None) -> Result:
        """Have a valid token in the provider's Secret, and report it."""
        name, now = identity["metadata"]["name"], self._now()
        scope = scope_of(renewal, uid_of(identity), self._context.management_cluster)
        source = await self._read_source(identity)
        kept = await self._kept(secret)
        action = decide(kept.issued if kept else None, source.fingerprint, scope, now)
        if name in self._identities.renewed.rejected and self._may_exchange_again(name, now):
            action = Action.EXCHANGE

        problem = ""
        if action is not Action.KEEP:
            try:
                token, used = await self._issue(action, identity, renewal, source, kept)
                origin = kept.issued.source if used is Action.RENEW and kept else ""
                origin = origin or source.fingerprint or ""
                kept = await self._store(
                    identity, secret, token, issued_at(now, token.seconds, origin, scope)
                )
            except (ExchangeError, KubeconfigError) as error:
                problem = str(error)
            except Conflict:
                raise
            except RequestError as error:
                problem = f"{'' if isinstance(error, Unreachable) else 'refused: '}{error}"
            else:
                way = "renewed" if used is Action.RENEW else "exchanged"
                log.info("token of %s %s %s", _KIND, name, way)

        # A token of a former Secret stays in use until it ends, so that a mistake costs no access.
        now = self._now()
        may_use = kept is not None and kept.issued.scope == scope and kept.issued.is_usable(now)
        if kept is None or not may_use or (problem and self._is_rejected(name)):
            return await self._fall_back(identity, problem)
        if self._identities.renewed.use(name, self._identities.renewed.key_of(name)):
            self._identities.report(name)
        await self._report(identity, kept, source, problem, action)
        if self._is_rejected(name):
            return Result(_REJECTED_SECONDS)
        return Result(_wait(kept.issued, problem, now))

    async def _issue(
        self,
        action: Action,
        identity: Obj,
        renewal: Renewal,
        source: _Source,
        kept: _Kept | None,
    ) -> tuple[Token, Action]:
        """Return a new token, and how it was got."""
        connect = self._context.sessions.client
        name = identity["metadata"]["name"]
        if action is Action.RENEW and kept is not None:
            try:
                return await tokenexchange.renew(connect, kept.credentials, renewal.seconds), action
            except (ExchangeError, ApiError) as error:
                if source.credentials is None or _is_transient(error):
                    raise
                log.warning("token of %s %s cannot be renewed: %s", _KIND, name, error)

        if source.credentials is None:
            raise ExchangeError(source.problem)
        self._exchanged[name] = self._now()
        token = await tokenexchange.exchange(
            connect, source.credentials, renewal, self._owner(name, uid_of(identity))
        )
        self._identities.renewed.rejected.discard(name)
        return token, Action.EXCHANGE

    async def _store(
        self, identity: Obj, secret: Obj | None, token: Token, issued: Issued
    ) -> _Kept:
        """Write a token into the provider's Secret. Raises `Conflict` if others wrote it."""
        name = identity["metadata"]["name"]
        key = self._identities.renewed.key_of(name)
        owner = {
            "apiVersion": HARVESTER_CLUSTER_IDENTITIES.api_version,
            "kind": _KIND,
            "name": name,
            "uid": uid_of(identity),
        }
        metadata = {
            "annotations": issued.annotations(),
            "finalizers": [RENEWED_TOKEN_FINALIZER],
            "ownerReferences": [owner],
        }
        content = base64.b64encode(token.credentials.text.encode()).decode()
        obj: Obj = {"metadata": metadata, "data": {"kubeconfig": content}}

        if secret is None:
            metadata |= {"name": key.name, "namespace": key.namespace}
            stored = await self._context.client.create(SECRETS, {**obj, "type": SECRET_TYPE})
        else:
            metadata["resourceVersion"] = secret["metadata"]["resourceVersion"]
            stored = await self._context.client.patch(SECRETS, key.name, key.namespace, obj)
        self._context.caches.secrets.observe(stored)
        self._identities.report(name)
        return _Kept(stored, issued, token.credentials)

    async def _fall_back(self, identity: Obj, problem: str) -> Result:
        """Have clusters use the user's Secret, and report why."""
        name = identity["metadata"]["name"]
        if self._identities.renewed.use(name, None):
            self._identities.report(name)
        await status.write(
            self._context, identity, status.not_exchanged(problem or "the token has ended")
        )
        return Result(seconds_to_retry(None, self._now()))

    async def _report(
        self, identity: Obj, kept: _Kept, source: _Source, problem: str, action: Action
    ) -> None:
        token = tokenexchange.token_in(kept.credentials)
        if problem:
            report = status.not_renewed(kept.issued, token, problem, action)
        else:
            missing = "" if source.exists else f"Secret {source.key} does not exist"
            report = status.renewed(kept.issued, token, missing)
        await status.write(self._context, identity, report)

    def _is_rejected(self, name: str) -> bool:
        return name in self._identities.renewed.rejected

    def _may_exchange_again(self, name: str, now: datetime) -> bool:
        """Return whether a rejected token may be exchanged again, which is not endless."""
        last = self._exchanged.get(name)
        return last is None or (now - last).total_seconds() >= _REJECTED_SECONDS

    # End

    async def _stop(self, name: str, identity: Obj | None, secret: Obj | None) -> None:
        """Delete the token of an identity that does not exist or is not renewed any more."""
        self._identities.renewed.forget(name)
        self._exchanged.pop(name, None)
        if identity is not None:
            await status.write(self._context, identity, None)
        if secret is None or not _is_ours(secret):
            return
        key = Key(secret["metadata"]["namespace"], secret["metadata"]["name"])
        with contextlib.suppress(NotFound):
            answer = await self._context.client.delete(
                SECRETS, key.name, key.namespace, uid=uid_of(secret)
            )
            self._context.caches.secrets.observe_deletion(key.namespace, key.name, answer)
        self._context.queues.renewals.add(Key("", name))

    async def _end(self, name: str, secret: Obj) -> Result | None:
        """Revoke the token in a Secret that is being deleted, and release the Secret."""
        finalizers = secret["metadata"].get("finalizers") or []
        if not _is_ours(secret) or RENEWED_TOKEN_FINALIZER not in finalizers:
            return None
        # Clusters that are still allowed use the user's Secret until there is another token.
        if self._identities.renewed.use(name, None):
            self._identities.report(name)

        kept, owner = await self._kept(secret), _owner_uid(secret, name)
        if kept and owner and kept.issued.is_usable(self._now()):
            try:
                await tokenexchange.revoke(
                    self._context.sessions.client, kept.credentials, self._owner(name, owner)
                )
            except (RequestError, KubeconfigError) as error:
                if _is_transient(error):
                    # The token ends by itself at last.
                    log.warning("token of %s %s cannot be revoked yet: %s", _KIND, name, error)
                    return Result(seconds_to_retry(kept.issued, self._now()))
                log.warning("token of %s %s was not revoked: %s", _KIND, name, error)
        with contextlib.suppress(NotFound):
            await self._context.remove_finalizer(
                self._context.caches.secrets, secret, RENEWED_TOKEN_FINALIZER
            )
        return Result(_SHORTEST_WAIT_SECONDS)

    # Reading

    def _owner(self, name: str, uid: str) -> Owner:
        return Owner(_KIND, "", name, uid, self._context.management_cluster)

    async def _read_secret(self, key: Key) -> Obj | None:
        try:
            return await self._context.client.get(SECRETS, key.name, key.namespace)
        except NotFound:
            return None

    async def _read_source(self, identity: Obj) -> _Source:
        """Read the user's Secret, which is never written."""
        key, own = secret_of(identity), self._identities.namespace
        where = f"Secret {key}"
        if key.namespace != own:
            return _Source(key, problem=f"{where} is not in namespace {own} of the provider")
        secret = await self._read_secret(key)
        if secret is None:
            problem = f"{where} does not exist: create it with key kubeconfig"
            return _Source(key, problem=problem, exists=False)
        try:
            return _Source(key, await self._credentials(secret))
        except (KubeconfigError, ValueError) as error:
            return _Source(key, problem=f"{where}: {error}")

    async def _kept(self, secret: Obj | None) -> _Kept | None:
        """Return the token in the provider's Secret, None if it holds none that can be read."""
        issued = issued_of(secret) if secret else None
        if secret is None or issued is None:
            return None
        try:
            return _Kept(secret, issued, await self._credentials(secret))
        except (KubeconfigError, ValueError):
            return None

    async def _credentials(self, secret: Obj) -> Credentials:
        """Return the credentials in a Secret. Raises `KubeconfigError`."""
        key = kubeconfig_key(secret) or KUBECONFIG_KEY
        try:
            raw = decode_kubeconfig(key, text_at(secret, "data", key))
        except binascii.Error:
            raise KubeconfigError(f"key {key} is not base64") from None
        insecure = self._context.allow_insecure_identities
        access = await off_loop(len(raw), lambda: parse_kubeconfig(raw, allow_insecure=insecure))
        return Credentials(raw.decode("utf-8", "replace"), access)


def _problem_of(key: Key, secret: Obj | None) -> str:
    """Return why the provider cannot keep a token in a Secret, empty if it can."""
    if len(key.name) > _LONGEST_NAME:
        return f"the name of the identity leaves no room for Secret {key}"
    if secret is not None and not _is_ours(secret):
        return f"Secret {key} exists and is not the provider's: delete it"
    return ""


def _wait(issued: Issued, problem: str, now: datetime) -> float:
    """Return the seconds until the next attempt."""
    if problem:
        return seconds_to_retry(issued, now)
    wait = (issued.renew_at - now).total_seconds()
    return max(_SHORTEST_WAIT_SECONDS, min(_LONGEST_WAIT_SECONDS, wait))


def _is_ours(secret: Obj) -> bool:
    """Return whether a Secret is one in which the provider keeps a token."""
    return secret.get("type") == SECRET_TYPE


def _owner_uid(secret: Obj, name: str) -> str:
    """Return the uid of the identity that owns a Secret, empty without one."""
    for owner in secret["metadata"].get("ownerReferences") or ():
        if (owner.get("kind"), owner.get("name")) == (_KIND, name):
            return str(owner.get("uid") or "")
    return ""


def _is_transient(error: Exception) -> bool:
    """Return whether an attempt may succeed later, although nothing is changed."""
    is_refusal = isinstance(error, ApiError) and error.status < 500 and error.status != 429
    return isinstance(error, RequestError) and not is_refusal
