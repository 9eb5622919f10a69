"""Get a token for a HarvesterClusterIdentity: by an exchange of credentials, or by the last one."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from datetime import datetime

from caphv.api.object import Obj, uid_of
from caphv.api.ownership import Owner
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import Action, Renewal
from caphv.runtime.errors import ApiError, RequestError, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from reconciler.clusteridentity.tokensecrets import Kept, Source
from reconciler.context import Context
from reconciler.harvester import tokenexchange
from reconciler.harvester.tokenexchange import ExchangeError, Token

log = logging.getLogger(__name__)

_KIND = HARVESTER_CLUSTER_IDENTITIES.kind


@dataclass(frozen=True, slots=True)
class Facts:
    """What one reconcile of an identity has read."""

    identity: Obj
    renewal: Renewal
    scope: str
    source: Source
    kept: Kept | None

    @property
    def name(self) -> str:
        """Name of the identity."""
        return str(self.identity["metadata"]["name"])

    def has_usable_token(self, now: datetime) -> bool:
        """Return whether clusters may use the token that is kept."""
        kept = self.kept
        return kept is not None and kept.issued.scope == self.scope and kept.issued.is_usable(now)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A new token and how it was got, None without one, and which ways have failed."""

    way: Action | None
    token: Token | None
    errors: dict[Action, Exception]

    @property
    def problem(self) -> str:
        """Why there is no token of the user's Secret, or no token; empty without a problem."""
        if self.way is Action.EXCHANGE:
            return ""
        return "; ".join(text_of(error) for error in self.errors.values())

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


class TokenIssuer:
    """Get tokens from Harvester."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._identities = context.cluster_identities

    async def attempt(self, facts: Facts, order: tuple[Action, ...]) -> Attempt:
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
                return Attempt(way, token, errors)
            if way is Action.RENEW:
                log.warning("token of %s %s cannot be renewed: %s", _KIND, name, errors[way])
                if is_transient(errors[way]):
                    break
                if not isinstance(errors[way], Unauthorized):
                    # Harvester refuses the request, and thus has accepted the token.
                    self._identities.renewed.rejected.pop(name, None)
        return Attempt(None, None, errors)

    async def _issue(self, facts: Facts, way: Action) -> Token:
        """Return a new token."""
        connect, source, kept = self._context.sessions.client, facts.source, facts.kept
        if way is Action.RENEW and kept is not None:
            return await tokenexchange.renew(connect, kept.credentials, facts.renewal.seconds)
        if source.credentials is None:
            raise ExchangeError(source.problem)
        owner = owner_of(self._context, facts.name, uid_of(facts.identity))
        return await tokenexchange.exchange(connect, source.credentials, facts.renewal, owner)


def owner_of(context: Context, name: str, uid: str) -> Owner:
    """Return the record that objects on Harvester have of an identity."""
    return Owner(_KIND, "", name, uid, context.management_cluster)


def text_of(error: Exception) -> str:
    """Return an error in words, with a mark if a server has refused a request."""
    return f"refused: {error}" if isinstance(error, ApiError) else str(error)


def is_transient(error: Exception) -> bool:
    """Return whether an attempt may succeed later, although nothing is changed."""
    passes = isinstance(error, ApiError) and error.status in (409, 429)
    is_refusal = isinstance(error, ApiError) and error.status < 500 and not passes
    return isinstance(error, RequestError) and not is_refusal
