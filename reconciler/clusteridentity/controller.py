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
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from caphv.api.identities import (
    KUBECONFIG_KEY,
    decode_kubeconfig,
    kubeconfig_key,
    reference_of,
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
    issued_at,
    issued_of,
    renewal_of,
    scope_of,
    seconds_to_retry,
    ways,
)
from caphv.runtime.controller import Result
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    NotFound,
    RequestError,
    Unauthorized,
    Unreachable,
)
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
# Seconds between two looks for clusters that still need the token of a deleted identity.
_NEEDED_SECONDS = 10.0
_LONGEST_NAME = 253
# The clock of this machine may be set while a timer waits.
_LONGEST_WAIT_SECONDS = 600.0
_SHORTEST_WAIT_SECONDS = 1.0
# Until a former token is revoked, for clusters to turn to the new one; and until the next attempt.
_FORMER_SECONDS = 60.0
# Until the second attempt of an exchange that Harvester refuses.
_REFUSED_SECONDS = 60.0
# Seconds between two attempts to use a token that Harvester rejects.
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


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one reconcile of an identity has read."""

    identity: Obj
    renewal: Renewal
    scope: str
    source: _Source
    kept: _Kept | None

    @property
    def name(self) -> str:
        """Name of the identity."""
        return str(self.identity["metadata"]["name"])

    def has_usable_token(self, now: datetime) -> bool:
        """Return whether clusters may use the token that is kept."""
        kept = self.kept
        return kept is not None and kept.issued.scope == self.scope and kept.issued.is_usable(now)


# Fingerprint of the user's credentials, and what else a token depends on.
_Inputs = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A new token and how it was got, None without one, and which ways have failed."""

    way: Action | None
    token: Token | None
    errors: dict[Action, Exception]

    @property
    def problem(self) -> str:
        """Why there is no token of the user's Secret, or no token; empty without a problem."""
        if self.way is Action.EXCHANGE:
            return ""
        return "; ".join(_text(error) for error in self.errors.values())

    @property
    def is_lost(self) -> bool:
        """Whether Harvester rejects the token itself, but not the credentials of the user."""
        exchange = self.errors.get(Action.EXCHANGE)
        return (
            self.token is None
            and isinstance(self.errors.get(Action.RENEW), Unauthorized)
            and exchange is not None
            and not isinstance(exchange, (Unauthorized, Unreachable))
        )


class TokenRenewer:
    """Reconcile the renewal of one identity; keys have its name and no namespace.

    :param now: returns the time
    """

    def __init__(self, context: Context, now: Callable[[], datetime] | None = None) -> None:
        self._context = context
        self._identities = context.cluster_identities
        self._now = now or _now
        self._probed: dict[str, tuple[datetime, _Inputs]] = {}
        self._refusals: dict[str, int] = {}
        self._former: dict[str, list[tuple[_Kept, datetime]]] = {}

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

        # A provider in another namespace has its own Secret, and reports about it.
        is_here = identity is not None and secret_of(identity).namespace == secret_key.namespace
        renewal = renewal_of(identity) if identity and is_here else None
        if identity is None or renewal is None:
            was_here = secret is not None and _is_ours(secret)
            await self._stop(name, identity if is_here or was_here else None, secret)
            return None
        problem = _problem_of(secret_key, secret)
        if problem:
            return await self._fall_back(identity, problem)
        return await self._renew(identity, renewal, secret)

    # Renewal

    async def _renew(self, identity: Obj, renewal: Renewal, secret: Obj | None) -> Result:
        """Have a valid token in the provider's Secret, and report it."""
        name = identity["metadata"]["name"]
        if secret is not None and _owner_uid(secret, name) not in ("", uid_of(identity)):
            # The token of a former identity of this name is revoked, and not replaced unrevoked.
            await self._stop(name, None, secret)
            return Result(_SHORTEST_WAIT_SECONDS)

        scope = scope_of(renewal, uid_of(identity), self._context.management_cluster)
        source, kept = await self._read_source(identity), await self._kept(secret)
        facts = _Facts(identity, renewal, scope, source, kept)
        now, issued = self._now(), kept.issued if kept else None
        is_rejected = kept is not None and self._is_rejected(name, kept)
        if is_rejected:
            wait = self._seconds_until_probe(name, (source.fingerprint, scope), now)
            if wait > 0:
                return Result(wait)  # nothing changes: what was in use stays in use
        elif facts.has_usable_token(now) and not self._identities.renewed.is_known(name):
            # After a restart, clusters need not wait for an attempt that may last long.
            self._turn_to_token(name)
        await self._revoke_former(name)
        order = ways(issued, source.fingerprint, scope, now, is_rejected=is_rejected)
        attempt, problem = _Attempt(None, None, {}), ""
        try:
            if secret is None and source.credentials is not None:
                # A token that is not kept could not be revoked.
                secret = await self._create_secret(identity)
            attempt = await self._attempt(facts, order)
            problem = attempt.problem
            if attempt.token is not None and secret is not None:
                kept = await self._keep(facts, secret, attempt.way, attempt.token, now)
        except Conflict:
            raise
        except RequestError as error:
            problem = _text(error)
        return await self._use(replace(facts, kept=kept), order, attempt, problem)

    async def _use(
        self, facts: _Facts, order: tuple[Action, ...], attempt: _Attempt, problem: str
    ) -> Result:
        """Have clusters use the token, or else the user's Secret, and report it."""
        name, kept, now = facts.name, facts.kept, self._now()
        # A token of a former Secret stays in use until it ends, so that a mistake costs no access.
        is_lost = attempt.is_lost and facts.source.credentials is not None
        if kept is None or not facts.has_usable_token(now) or is_lost:
            result = await self._fall_back(facts.identity, problem)
            wait = self._wait_after_refusal(name, attempt)
            result = Result(max(wait, result.requeue_after or 0.0))
        else:
            self._turn_to_token(name)
            first = order[0] if order else Action.KEEP
            await self._report(facts.identity, kept, facts.source, problem, first)
            wait = _wait(kept.issued, problem, now)
            until_due = (kept.issued.renew_at - now).total_seconds()
            result = Result(max(wait, min(until_due, self._wait_after_refusal(name, attempt))))

        if kept is not None and self._is_rejected(name, kept):
            return Result(_REJECTED_SECONDS)
        if name in self._former:
            return Result(min(result.requeue_after or _FORMER_SECONDS, _FORMER_SECONDS))
        return result

    def _wait_after_refusal(self, name: str, attempt: _Attempt) -> float:
        """Return the seconds until an exchange that was refused is tried again; 0 after another.

        Each one applies all roles, and a change of the Secret or identity is tried at once.
        """
        exchange = attempt.errors.get(Action.EXCHANGE)
        if exchange is None or _is_transient(exchange):
            self._refusals.pop(name, None)
            return 0.0
        self._refusals[name] = count = self._refusals.get(name, 0) + 1
        return min(_LONGEST_WAIT_SECONDS, _REFUSED_SECONDS * 2 ** min(count - 1, 10))

    def _turn_to_token(self, name: str) -> None:
        """Have clusters use the token of an identity."""
        if self._identities.renewed.use(name, self._identities.renewed.key_of(name)):
            self._identities.report(name)

    async def _attempt(self, facts: _Facts, order: tuple[Action, ...]) -> _Attempt:
        """Try ways to get a token until one succeeds."""
        name = facts.name
        errors: dict[Action, Exception] = {}
        for way in order:
            try:
                token = await self._issue(facts, way)
            except (ExchangeError, KubeconfigError, RequestError) as error:
                errors[way] = error
            except Exception as error:
                # Clusters need credentials in any case. What a server or a user wrote may be in
                # the message, and not in the trace.
                trace = "".join(traceback.format_tb(error.__traceback__))
                log.error("%s %s: %s\n%s", _KIND, name, type(error).__name__, trace)
                problem = f"unexpected {type(error).__name__}, which the log of the provider shows"
                errors[way] = ExchangeError(problem)
            else:
                return _Attempt(way, token, errors)
            if way is Action.RENEW:
                log.warning("token of %s %s cannot be renewed: %s", _KIND, name, errors[way])
                if _is_transient(errors[way]):
                    break
                if not isinstance(errors[way], Unauthorized):
                    # Harvester refuses the request, and thus has accepted the token.
                    self._identities.renewed.rejected.pop(name, None)
        return _Attempt(None, None, errors)

    async def _issue(self, facts: _Facts, way: Action) -> Token:
        """Return a new token."""
        connect, source, kept = self._context.sessions.client, facts.source, facts.kept
        if way is Action.RENEW and kept is not None:
            return await tokenexchange.renew(connect, kept.credentials, facts.renewal.seconds)
        if source.credentials is None:
            raise ExchangeError(source.problem)
        owner = self._owner(facts.name, uid_of(facts.identity))
        return await tokenexchange.exchange(connect, source.credentials, facts.renewal, owner)

    async def _keep(
        self, facts: _Facts, secret: Obj, way: Action | None, token: Token, start: datetime
    ) -> _Kept:
        """Keep a new token; the former one is revoked later, if it is not revoked with this one.

        :param start: a time before the token was requested
        """
        former = facts.kept
        is_renewed = way is Action.RENEW and former is not None
        source = former.issued.source if is_renewed and former else facts.source.fingerprint or ""
        issued = issued_at(start, token.seconds, source, facts.scope)
        kept = await self._store(facts.identity, secret, token, issued)
        log.info("token of %s %s: %s", _KIND, facts.name, "renew" if is_renewed else "exchange")

        if former is not None and former.issued.is_usable(self._now()):
            bound = tokenexchange.bound_uid(former.credentials)
            if bound and bound != tokenexchange.bound_uid(token.credentials):
                due = self._now() + timedelta(seconds=_FORMER_SECONDS)
                self._former.setdefault(facts.name, []).append((former, due))
        return kept

    async def _revoke_former(self, name: str) -> None:
        """Revoke tokens of a former account or Harvester, as long as they have not ended."""
        now, left = self._now(), []
        for former, due in self._former.pop(name, []):
            if not former.issued.is_usable(now):
                continue
            owner = self._owner(name, _owner_uid(former.secret, name))
            if now < due:
                left.append((former, due))
                continue
            try:
                await tokenexchange.revoke(self._context.sessions.client, former.credentials, owner)
            except (RequestError, KubeconfigError, ExchangeError) as error:
                log.warning("former token of %s %s was not revoked: %s", _KIND, name, error)
                if _is_transient(error):
                    left.append((former, due))
        if left:
            self._former[name] = left

    async def _create_secret(self, identity: Obj) -> Obj:
        """Create the provider's Secret without a token. Raises `Conflict` if it exists."""
        key = self._identities.renewed.key_of(identity["metadata"]["name"])
        metadata = {**_metadata(identity), "name": key.name, "namespace": key.namespace}
        secret = {"metadata": metadata, "type": SECRET_TYPE}
        created = await self._context.client.create(SECRETS, secret)
        self._context.caches.secrets.observe(created)
        return created

    async def _store(self, identity: Obj, secret: Obj, token: Token, issued: Issued) -> _Kept:
        """Write a token into the provider's Secret. Raises `Conflict` if others wrote it."""
        name = identity["metadata"]["name"]
        key = self._identities.renewed.key_of(name)
        metadata = {
            **_metadata(identity),
            "annotations": issued.annotations(),
            "resourceVersion": secret["metadata"]["resourceVersion"],
        }
        content = base64.b64encode(token.credentials.text.encode()).decode()
        obj: Obj = {"metadata": metadata, "data": {"kubeconfig": content}}
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

    def _is_rejected(self, name: str, kept: _Kept) -> bool:
        """Return whether a cluster has met a 401 with this token, and not with a former one."""
        rejected = self._identities.renewed.rejected.get(name)
        return rejected == kept.credentials.access.fingerprint

    def _seconds_until_probe(self, name: str, inputs: _Inputs, now: datetime) -> float:
        """Return how long a rejected token is not tried again; 0 to try it now.

        Each cluster that meets a 401 calls for a probe, but one of them answers all.
        """
        last, former = self._probed.get(name, (None, None))
        wait = _REJECTED_SECONDS - (now - last).total_seconds() if last else 0.0
        if wait > 0 and former == inputs:
            return wait
        self._probed[name] = now, inputs
        return 0.0

    # End

    async def _stop(self, name: str, identity: Obj | None, secret: Obj | None) -> None:
        """Delete the token of an identity that does not exist or is not renewed any more."""
        has_secret = secret is not None and _is_ours(secret)
        if not has_secret or name not in self._identities.renewed.ended:
            self._identities.renewed.forget(name)
        self._probed.pop(name, None)
        self._former.pop(name, None)
        self._refusals.pop(name, None)
        if identity is not None:
            await status.write(self._context, identity, None)
        if secret is None or not has_secret:
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
        kept = await self._kept(secret)
        if kept and kept.issued.is_usable(self._now()) and self._is_needed(name):
            return Result(_NEEDED_SECONDS)
        self._identities.renewed.ended.pop(name, None)
        # Clusters that are still allowed use the user's Secret until there is another token.
        if self._identities.renewed.use(name, None):
            self._identities.report(name)

        owner = _owner_uid(secret, name)
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

    def _is_needed(self, name: str) -> bool:
        """Return whether clusters still refer to an identity that was deleted.

        Their deletion needs the token. Only those that are being deleted get it.
        """
        clusters = self._context.caches.harvester_clusters.store
        return name in self._identities.renewed.ended and any(
            reference_of(cluster) == name
            and (not being_deleted(cluster) or cluster["metadata"].get("finalizers"))
            for cluster in clusters
        )

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
        key = secret_of(identity)
        where = f"Secret {key}"
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
            credentials = await self._credentials(secret)
            tokenexchange.token_in(credentials)
        except (ExchangeError, KubeconfigError, ValueError):
            return None
        return _Kept(secret, issued, credentials)

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


def _metadata(identity: Obj) -> Obj:
    """Return what the provider's Secret for an identity always has."""
    owner = {
        "apiVersion": HARVESTER_CLUSTER_IDENTITIES.api_version,
        "kind": _KIND,
        "name": identity["metadata"]["name"],
        "uid": uid_of(identity),
    }
    return {"finalizers": [RENEWED_TOKEN_FINALIZER], "ownerReferences": [owner]}


def _problem_of(key: Key, secret: Obj | None) -> str:
    """Return why the provider cannot keep a token in a Secret, empty if it can."""
    if len(key.name) > _LONGEST_NAME:
        return f"the name of the identity leaves no room for Secret {key}"
    if secret is not None and not _is_ours(secret):
        return f"Secret {key} exists and is not the provider's: delete it"
    return ""


def _text(error: Exception) -> str:
    """Return an error in words, with a mark if a server has refused a request."""
    return f"refused: {error}" if isinstance(error, ApiError) else str(error)


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
    passes = isinstance(error, ApiError) and error.status in (409, 429)
    is_refusal = isinstance(error, ApiError) and error.status < 500 and not passes
    return isinstance(error, RequestError) and not is_refusal
