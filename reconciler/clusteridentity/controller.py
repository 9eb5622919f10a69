"""Renew the tokens of HarvesterClusterIdentities with `tokenRenewal`, one identity at a time.

The provider exchanges the credentials in the user's Secret once, and then renews the token with the
token itself. It keeps the token in a Secret of its own, which clusters use in place of the user's
Secret while the token is valid. Deleting the identity deletes this Secret, whose finalizer stays
until the token is revoked on Harvester.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from caphv.api.identities import (
    reference_of,
    secret_of,
)
from caphv.api.names import RENEWED_TOKEN_FINALIZER
from caphv.api.object import SECRETS, Key, Obj, being_deleted, uid_of
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import (
    Action,
    Issued,
    Renewal,
    issued_at,
    renewal_of,
    scope_of,
    seconds_to_retry,
    ways,
)
from caphv.runtime.controller import Result
from caphv.runtime.errors import (
    Conflict,
    NotFound,
    RequestError,
)
from caphv.runtime.kubeconfig import KubeconfigError
from reconciler.clusteridentity import status
from reconciler.clusteridentity.attempt import (
    Attempt,
    Facts,
    TokenIssuer,
    is_transient,
    owner_of,
    text_of,
)
from reconciler.clusteridentity.tokensecrets import (
    Kept,
    Source,
    TokenSecrets,
    is_ours,
    owner_uid,
    problem_of,
)
from reconciler.context import Context
from reconciler.harvester import tokenexchange
from reconciler.harvester.tokenexchange import ExchangeError, Token
from reconciler.remote.clusteridentities import NotRead

log = logging.getLogger(__name__)

_KIND = HARVESTER_CLUSTER_IDENTITIES.kind
_NOT_READ_SECONDS = 10.0
# Seconds between two looks for clusters that still need the token of a deleted identity.
_NEEDED_SECONDS = 10.0
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


# Fingerprint of the user's credentials, and what else a token depends on.
_Inputs = tuple[str | None, str]


class TokenRenewer:
    """Reconcile the renewal of one identity; keys have its name and no namespace.

    :param now: returns the time
    """

    def __init__(self, context: Context, now: Callable[[], datetime] | None = None) -> None:
        self._context = context
        self._identities = context.cluster_identities
        self._secrets, self._issuer = TokenSecrets(context), TokenIssuer(context)
        self._now = now or _now
        self._probed: dict[str, tuple[datetime, _Inputs]] = {}
        self._refusals: dict[str, int] = {}
        self._former: dict[str, list[tuple[Kept, datetime]]] = {}

    async def reconcile(self, key: Key) -> Result | None:
        """Exchange, renew or revoke the token of an identity. Raises `ApiError` for a retry."""
        if self._context.namespace:
            return None  # such a provider uses no HarvesterClusterIdentity
        name, secret_key = key.name, self._identities.renewed.key_of(key.name)
        secret = await self._secrets.read(secret_key)
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
            was_here = secret is not None and is_ours(secret)
            await self._stop(name, identity if is_here or was_here else None, secret)
            return None
        problem = problem_of(secret_key, secret)
        if problem:
            return await self._fall_back(identity, problem)
        return await self._renew(identity, renewal, secret)

    # Renewal

    async def _renew(self, identity: Obj, renewal: Renewal, secret: Obj | None) -> Result:
        """Have a valid token in the provider's Secret, and report it."""
        name = identity["metadata"]["name"]
        if secret is not None and owner_uid(secret, name) not in ("", uid_of(identity)):
            # The token of a former identity of this name is revoked, and not replaced unrevoked.
            await self._stop(name, None, secret)
            return Result(_SHORTEST_WAIT_SECONDS)

        scope = scope_of(renewal, uid_of(identity), self._context.management_cluster)
        source, kept = (
            await self._secrets.read_source(identity),
            await self._secrets.read_kept(secret),
        )
        facts = Facts(identity, renewal, scope, source, kept)
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
        attempt, problem = Attempt(None, None, {}), ""
        try:
            if secret is None and source.credentials is not None:
                # A token that is not kept could not be revoked.
                secret = await self._secrets.create(identity)
            attempt = await self._issuer.attempt(facts, order)
            problem = attempt.problem
            if attempt.token is not None and secret is not None:
                kept = await self._keep(facts, secret, attempt.way, attempt.token, now)
        except Conflict:
            raise
        except RequestError as error:
            problem = text_of(error)
        return await self._use(replace(facts, kept=kept), order, attempt, problem)

    async def _use(
        self, facts: Facts, order: tuple[Action, ...], attempt: Attempt, problem: str
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

    def _wait_after_refusal(self, name: str, attempt: Attempt) -> float:
        """Return the seconds until an exchange that was refused is tried again; 0 after another.

        Each one applies all roles, and a change of the Secret or identity is tried at once.
        """
        exchange = attempt.errors.get(Action.EXCHANGE)
        if exchange is None or is_transient(exchange):
            self._refusals.pop(name, None)
            return 0.0
        self._refusals[name] = count = self._refusals.get(name, 0) + 1
        return min(_LONGEST_WAIT_SECONDS, _REFUSED_SECONDS * 2 ** min(count - 1, 10))

    def _turn_to_token(self, name: str) -> None:
        """Have clusters use the token of an identity."""
        if self._identities.renewed.use(name, self._identities.renewed.key_of(name)):
            self._identities.report(name)

    async def _keep(
        self, facts: Facts, secret: Obj, way: Action | None, token: Token, start: datetime
    ) -> Kept:
        """Keep a new token; the former one is revoked later, if it is not revoked with this one.

        :param start: a time before the token was requested
        """
        former = facts.kept
        is_renewed = way is Action.RENEW and former is not None
        source = former.issued.source if is_renewed and former else facts.source.fingerprint or ""
        issued = issued_at(start, token.seconds, source, facts.scope)
        kept = await self._secrets.store(facts.identity, secret, token, issued)
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
            owner = owner_of(self._context, name, owner_uid(former.secret, name))
            if now < due:
                left.append((former, due))
                continue
            try:
                await tokenexchange.revoke(self._context.sessions.client, former.credentials, owner)
            except (RequestError, KubeconfigError, ExchangeError) as error:
                log.warning("former token of %s %s was not revoked: %s", _KIND, name, error)
                if is_transient(error):
                    left.append((former, due))
        if left:
            self._former[name] = left

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
        self, identity: Obj, kept: Kept, source: Source, problem: str, action: Action
    ) -> None:
        token = tokenexchange.token_in(kept.credentials)
        if problem:
            report = status.not_renewed(kept.issued, token, problem, action)
        else:
            missing = "" if source.exists else f"Secret {source.key} does not exist"
            report = status.renewed(kept.issued, token, missing)
        await status.write(self._context, identity, report)

    def _is_rejected(self, name: str, kept: Kept) -> bool:
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
        has_secret = secret is not None and is_ours(secret)
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
        if not is_ours(secret) or RENEWED_TOKEN_FINALIZER not in finalizers:
            return None
        kept = await self._secrets.read_kept(secret)
        if kept and kept.issued.is_usable(self._now()) and self._is_needed(name):
            return Result(_NEEDED_SECONDS)
        self._identities.renewed.ended.pop(name, None)
        # Clusters that are still allowed use the user's Secret until there is another token.
        if self._identities.renewed.use(name, None):
            self._identities.report(name)

        owner = owner_uid(secret, name)
        if kept and owner and kept.issued.is_usable(self._now()):
            try:
                await tokenexchange.revoke(
                    self._context.sessions.client,
                    kept.credentials,
                    owner_of(self._context, name, owner),
                )
            except (RequestError, KubeconfigError) as error:
                if is_transient(error):
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


def _wait(issued: Issued, problem: str, now: datetime) -> float:
    """Return the seconds until the next attempt."""
    if problem:
        return seconds_to_retry(issued, now)
    wait = (issued.renew_at - now).total_seconds()
    return max(_SHORTEST_WAIT_SECONDS, min(_LONGEST_WAIT_SECONDS, wait))
