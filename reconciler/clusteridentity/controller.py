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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from caphv.api.identities import Refused, reference_of, secret_of
from caphv.api.names import RENEWED_TOKEN_FINALIZER
from caphv.api.object import SECRETS, Key, Obj, being_deleted, key_of, uid_of
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import (
    BOUND_PREFIX,
    Renewal,
    issued_at,
    issued_of,
    renewal_of,
    scope_of,
)
from caphv.runtime.controller import Result
from caphv.runtime.errors import Conflict, NotFound, RequestError
from caphv.runtime.kubeconfig import KubeconfigError
from reconciler.clusteridentity import status
from reconciler.clusteridentity.attempt import Attempt, Reading, TokenIssuer, outcome_of, text_of
from reconciler.clusteridentity.decision import (
    MAX_WAIT_SECONDS,
    Action,
    Facts,
    Outcome,
    Tries,
    is_pending,
    next_action,
    seconds_until_next,
    tries_after,
    uses_token,
)
from reconciler.clusteridentity.tokensecrets import (
    StoredToken,
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
_MIN_WAIT_SECONDS = 1.0
# Until a former token is revoked, for clusters to turn to the new one.
_FORMER_SECONDS = 60.0
# Until the second attempt to revoke a token.
_REVOKE_SECONDS = 10.0
# Between two looks whether the provider may keep a token.
_UNUSABLE_SECONDS = 60.0


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _FormerToken:
    """A token of a former account, and the attempts to revoke it."""

    stored: StoredToken
    tries: Tries


class _Performed(NamedTuple):
    """What actions have done: the reading with what they have stored, and how each went."""

    reading: Reading
    outcomes: dict[Action, Outcome]


@dataclass(slots=True)
class _State:
    """What this process remembers of one identity.

    :param inputs: what the last attempts depended on
    :param tries: former attempts, which delay the next ones
    :param errors: why actions have failed
    :param former: tokens of former accounts that are yet to be revoked
    :param revocation: attempts to revoke the token
    """

    inputs: object = None
    tries: dict[Action, Tries] = field(default_factory=dict)
    errors: dict[Action, str] = field(default_factory=dict)
    former: list[_FormerToken] = field(default_factory=list)
    revocation: Tries = field(default_factory=Tries)

    def note(self, action: Action, outcome: Outcome, problem: str, facts: Facts) -> None:
        """Remember an attempt."""
        self.tries[action] = tries_after(self.tries.get(action, Tries()), action, outcome, facts)
        if outcome is not Outcome.DONE:
            # Whether the user's credentials work decides, and is no problem of the token.
            if action is not Action.CHECK:
                start = "a request with the token: " if action is Action.PROBE else ""
                self.errors[action] = start + problem
        elif action is Action.EXCHANGE:
            self.errors.clear()
        elif action is not Action.CHECK:
            # A token that renews itself has passed any test.
            for passed in (Action.PROBE, action):
                self.errors.pop(passed, None)

    def problem(self, facts: Facts) -> str:
        """Return why there is not yet what the identity asks for; empty without a problem."""
        if not is_pending(facts):
            self.errors.clear()
        return "; ".join(self.errors.values())


class TokenRenewer:
    """Reconcile the renewal of one identity; keys have its name and no namespace.

    :param now: returns the time
    """

    def __init__(self, context: Context, now: Callable[[], datetime] | None = None) -> None:
        self._context = context
        self._identities = context.cluster_identities
        self._secrets = TokenSecrets(context)
        self._issuer = TokenIssuer(context)
        self._now = now or _now
        self._states: dict[str, _State] = {}

    async def reconcile(self, key: Key) -> Result | None:
        """Exchange, renew or revoke the token of an identity. Raises `ApiError` for a retry."""
        if self._context.namespace:
            return None  # such a provider uses no HarvesterClusterIdentity
        name = key.name
        secret_key = self._identities.renewed.key_of(key.name)
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
        problem = problem_of(secret_key, secret, secret_of(identity))
        if problem:
            self._use(name, uses_token=False)
            await status.write(self._context, identity, status.not_exchanged(problem), self._now())
            return Result(_UNUSABLE_SECONDS)
        return await self._renew(identity, renewal, secret)

    # Renewal

    async def _renew(self, identity: Obj, renewal: Renewal, secret: Obj | None) -> Result:
        """Have a valid token in the provider's Secret, have clusters use it, and report it."""
        name = identity["metadata"]["name"]
        if secret is not None and owner_uid(secret, name) not in ("", uid_of(identity)):
            # The token of a former identity of this name is revoked, and not replaced unrevoked.
            await self._stop(name, None, secret)
            return Result(_MIN_WAIT_SECONDS)

        scope = scope_of(renewal, uid_of(identity), self._context.management_cluster)
        source = await self._secrets.read_source(identity)
        stored = await self._secrets.parse_stored_token(secret) if secret else None
        reading = Reading(identity, renewal, scope, source, secret, stored)
        state = self._states.setdefault(name, _State())
        if credentials := source.credentials or (stored and stored.token.credentials):
            self._identities.renewed.servers[name] = credentials.access.server
        if state.inputs != (renewal, source.version):
            # Whatever was changed may be what was missing.
            state.inputs = renewal, source.version
            state.tries.clear()

        facts = self._facts(reading)
        if facts.token and not facts.has_ended and not self._identities.renewed.is_known(name):
            # After a restart, clusters need not wait for an attempt that may last long.
            self._use(name, uses_token=True)
        performed = await self._act(reading, state)
        wait = await self._apply(performed.reading, performed.outcomes, state)
        await self._revoke_former(name, state)
        return Result(min([wait, *(former.tries.wait for former in state.former)]))

    async def _act(self, reading: Reading, state: _State) -> _Performed:
        """Perform actions while there are some."""
        facts = self._facts(reading)
        outcomes = dict[Action, Outcome]()
        latest = reading
        while action := next_action(facts, outcomes, state.tries):
            try:
                if action is Action.EXCHANGE and latest.source.credentials is not None:
                    secret = await self._secrets.hold(latest.identity, latest.secret)
                    latest = replace(latest, secret=secret)
                attempt = await self._issuer.perform(latest, action)
            except Conflict:
                raise
            except RequestError as error:
                attempt = Attempt(None, text_of(error), outcome_of(error))

            outcomes[action] = attempt.outcome
            state.note(action, attempt.outcome, attempt.problem, facts)
            if attempt.outcome is not Outcome.DONE:
                log.info("%s %s: %s: %s", _KIND, reading.name, action.value, attempt.problem)
            elif action is Action.PROBE:
                self._identities.renewed.rejected.pop(reading.name, None)
            if attempt.token is not None and latest.secret is not None:
                latest = await self._store(latest, latest.secret, action, attempt.token, facts.now)
        return _Performed(latest, outcomes)

    async def _apply(
        self, reading: Reading, outcomes: dict[Action, Outcome], state: _State
    ) -> float:
        """Have clusters use the token, or the user's Secret, and report it; return the wait."""
        name = reading.name
        facts = self._facts(reading)
        is_used = uses_token(facts, outcomes)
        self._use(name, uses_token=is_used)
        if not is_used and facts.token and not facts.has_ended and reading.secret:
            # Harvester rejects the token, and a restart must not bring it back.
            ended = facts.token.end()
            try:
                await self._secrets.end(reading.identity, reading.secret, ended)
                facts = replace(facts, issued=ended)
            except RequestError as error:
                log.warning("token of %s %s is not recorded as ended: %s", _KIND, name, error)

        await self._report(reading, facts, state.problem(facts), is_used=is_used)
        return seconds_until_next(replace(facts, in_use=is_used), state.tries)

    def _facts(self, reading: Reading) -> Facts:
        """Return the facts of which a decision is made."""
        name = reading.name
        stored = reading.stored
        renewed = self._identities.renewed
        # A 401 that a cluster has met with a former token says nothing about this one.
        fingerprint = stored.token.credentials.access.fingerprint if stored else ""
        return Facts(
            self._now(),
            stored.issued if stored else None,
            reading.source.fingerprint,
            reading.scope,
            reading.renewal.seconds,
            is_suspect=bool(fingerprint) and renewed.rejected.get(name) == fingerprint,
            in_use=renewed.uses_token(name),
        )

    def _use(self, name: str, *, uses_token: bool) -> None:
        """Have clusters use the token of an identity, or the user's Secret."""
        renewed = self._identities.renewed
        if renewed.use(name, renewed.key_of(name) if uses_token else None):
            self._identities.report(name)

    async def _store(
        self,
        reading: Reading,
        secret: Obj,
        action: Action,
        token: Token,
        start: datetime,
    ) -> Reading:
        """Store a new token in the provider's Secret, and return the reading with it.

        If the former token is bound to another Secret on Harvester, it is revoked later. Raises
        `RequestError` if the new token was not stored.

        :param secret: the provider's Secret
        :param action: how the token was obtained: exchanged or renewed
        :param start: a time before the token was requested
        """
        former = reading.stored
        if action is Action.RENEW and former is not None:
            # A renewed token is still that of the former Secret and settings. If the identity asks
            # for others meanwhile, the record has to differ from it, so that an exchange follows.
            issued = issued_at(start, token.seconds, former.issued.source, former.issued.scope)
        else:
            source = reading.source.fingerprint or ""
            issued = issued_at(start, token.seconds, source, reading.scope)
        try:
            written = await self._secrets.store(reading.identity, secret, token, issued)
        except RequestError:
            await self._revoke_unstored(reading, token)
            raise
        log.info("token of %s %s: %s", _KIND, reading.name, action.value)

        if former is not None and former.issued.is_of(issued.scope):
            bound = tokenexchange.bound_uid(former.token.credentials)
            if bound and bound != tokenexchange.bound_uid(token.credentials):
                tries = Tries().after(self._now(), _FORMER_SECONDS, MAX_WAIT_SECONDS)
                self._states[reading.name].former.append(_FormerToken(former, tries))
        return replace(reading, secret=written, stored=StoredToken(issued, token))

    async def _revoke_unstored(self, reading: Reading, token: Token) -> None:
        """Revoke a token that was not stored, unless the revocation would end another one, too.

        The tokens of one account are bound to one Secret on Harvester. If the provider's Secret
        exists, or had a token, the next attempt uses the same binding.
        """
        with contextlib.suppress(RequestError):
            key = self._identities.renewed.key_of(reading.name)
            secret = await self._secrets.read(key)
            if reading.stored is None and (secret is None or being_deleted(secret)):
                await self._issuer.revoke(reading.name, token)

    async def _revoke_former(self, name: str, state: _State, *, at_once: bool = False) -> None:
        """Revoke tokens of a former account or Harvester that are due.

        A token stays in the list while Harvester does not answer, until the token has ended.

        :param at_once: do not wait until clusters use the new token
        """
        now = self._now()
        remaining = []
        for former in state.former:
            if former.tries.seconds_left(now) and not at_once:
                remaining.append(former)
                continue
            attempt = await self._issuer.revoke(name, former.stored.token)
            if attempt.outcome is Outcome.UNKNOWN and now < former.stored.issued.ends_at:
                tries = former.tries.after(now, _FORMER_SECONDS, MAX_WAIT_SECONDS)
                remaining.append(replace(former, tries=tries))
        state.former = remaining

    async def _report(self, reading: Reading, facts: Facts, problem: str, *, is_used: bool) -> None:
        """Report in the status of the identity which credentials clusters use, and why."""
        stored = reading.stored
        source = reading.source
        if stored is None or not is_used:
            report = status.not_exchanged(problem or "the token has ended")
        elif problem:
            report = status.not_renewed(
                stored.issued, stored.token, problem, wants_exchange=facts.wants_exchange
            )
        else:
            missing = "" if source.exists else f"Secret {source.key} does not exist"
            report = status.renewed(stored.issued, stored.token, missing)
        await status.write(self._context, reading.identity, report, facts.now)

    # End

    async def _stop(self, name: str, identity: Obj | None, secret: Obj | None) -> None:
        """Delete the token of an identity that no longer exists or is no longer renewed."""
        has_secret = secret is not None and is_ours(secret)
        if not has_secret or name not in self._identities.renewed.ended:
            self._identities.renewed.forget(name)
        if state := self._states.pop(name, None):
            await self._revoke_former(name, state, at_once=True)
            if state.former:
                self._states[name] = _State(former=state.former)
        if identity is not None:
            await status.write(self._context, identity, None, self._now())
        if secret is None or not has_secret:
            return
        key = key_of(secret)
        with contextlib.suppress(NotFound):
            answer = await self._context.client.delete(
                SECRETS, key.name, key.namespace, uid=uid_of(secret)
            )
            self._context.caches.secrets.observe_deletion(key.namespace, key.name, answer)
        self._context.queues.renewals.add(Key("", name))

    async def _end(self, name: str, secret: Obj) -> Result | None:
        """Revoke the token in a Secret that is being deleted, and release the Secret.

        The Secret stays while clusters need the token for their deletion, and while Harvester does
        not answer, but not longer than the token is valid. An Event reports a token that may stay
        valid after the Secret is released.
        """
        finalizers = secret["metadata"].get("finalizers") or []
        if not is_ours(secret) or RENEWED_TOKEN_FINALIZER not in finalizers:
            return None
        state = self._states.get(name)
        if state is not None:
            # The end of the Secret may be seen before that of the identity.
            await self._revoke_former(name, state, at_once=True)

        issued = issued_of(secret)
        problem = ""
        try:
            token = await self._secrets.parse_token(secret)
        except (ExchangeError, KubeconfigError) as error:
            token = None
            problem = str(error)
        if token and issued and issued.is_usable(self._now()) and self._is_needed(name):
            return Result(_NEEDED_SECONDS)
        self._identities.renewed.ended.pop(name, None)
        # Clusters that are still allowed use the user's Secret until there is another token.
        self._use(name, uses_token=False)

        if token is not None:
            # Revoke a token that has ended, too: the clock of Harvester decides, not ours.
            attempt = await self._issuer.revoke(name, token)
            # A user may have removed the record. The token itself says when it ends, too.
            ends_at = issued.ends_at if issued else token.credentials.access.expires()
            if attempt.outcome is Outcome.UNKNOWN and ends_at and self._now() < ends_at:
                return await self._retry_revocation(name, secret)
            if attempt.outcome is Outcome.REFUSED:
                problem = attempt.problem
        if state and state.former:
            return Result(min(former.tries.wait for former in state.former))
        self._states.pop(name, None)
        if problem:
            self._context.event(
                SECRETS,
                secret,
                "Warning",
                "TokenNotRevoked",
                f"the token of {_KIND} {name} was not revoked and may be valid until it ends: "
                f"{problem}; to revoke it, delete Secret {BOUND_PREFIX}… next to its "
                "ServiceAccount on Harvester",
            )
        with contextlib.suppress(NotFound):
            await self._context.remove_finalizer(
                self._context.caches.secrets, secret, RENEWED_TOKEN_FINALIZER
            )
        return Result(_MIN_WAIT_SECONDS)

    async def _retry_revocation(self, name: str, secret: Obj) -> Result:
        """Report that an identity gets no token while a former one is not revoked, and wait."""
        with contextlib.suppress(NotRead):
            identity = self._identities.read(name)
            namespace = key_of(secret).namespace
            if identity and renewal_of(identity) and secret_of(identity).namespace == namespace:
                problem = f"Secret {key_of(secret)} stays until Harvester has revoked its token"
                report = status.not_exchanged(problem)
                await status.write(self._context, identity, report, self._now())

        state = self._states.setdefault(name, _State())
        state.revocation = state.revocation.after(self._now(), _REVOKE_SECONDS, MAX_WAIT_SECONDS)
        return Result(state.revocation.wait)

    def _is_needed(self, name: str) -> bool:
        """Return whether clusters still refer to an identity that was deleted, and may use it.

        Their deletion needs the token. Only those that are being deleted get it.
        """
        clusters = self._context.caches.harvester_clusters.store
        return name in self._identities.renewed.ended and any(
            reference_of(cluster) == name
            and (not being_deleted(cluster) or cluster["metadata"].get("finalizers"))
            and self._is_allowed(name, key_of(cluster).namespace)
            for cluster in clusters
        )

    def _is_allowed(self, name: str, namespace: str) -> bool:
        """Return whether clusters of a namespace may use a deleted identity, as far as is known."""
        try:
            answer = self._identities.resolve(name, namespace, is_ending=True)
        except NotRead as error:
            return not error.is_lasting
        return not isinstance(answer, Refused)
