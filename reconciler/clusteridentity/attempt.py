"""Perform the actions of `decision` on Harvester: probe, exchange, renew, check and revoke."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass
from typing import NamedTuple

from caphv.api.object import Obj, uid_of
from caphv.api.ownership import Owner
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import Renewal
from caphv.runtime.errors import ApiError, RequestError, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from reconciler.clusteridentity.decision import Action, Outcome
from reconciler.clusteridentity.tokensecrets import Source, StoredToken
from reconciler.context import Context
from reconciler.harvester import tokenexchange
from reconciler.harvester.tokenexchange import ExchangeError, Token

log = logging.getLogger(__name__)

_KIND = HARVESTER_CLUSTER_IDENTITIES.kind
# Less than the time of a reconcile in all, so that clusters get credentials in any case. An
# exchange applies several objects for each target namespace.
EXCHANGE_SECONDS = 120.0
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reconcile of an identity has read.

    :param secret: the provider's Secret, None without one
    :param stored: the token in it, None without one that can be used
    """

    identity: Obj
    renewal: Renewal
    scope: str
    source: Source
    secret: Obj | None
    stored: StoredToken | None

    @property
    def name(self) -> str:
        """Name of the identity."""
        return str(self.identity["metadata"]["name"])


class Attempt(NamedTuple):
    """An action on Harvester: the new token if it is to get one, and how it went.

    :param problem: why it failed, in words; empty if it did not
    """

    token: Token | None
    problem: str
    outcome: Outcome


class TokenIssuer:
    """Perform actions on Harvester."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def perform(self, reading: Reading, action: Action) -> Attempt:
        """Perform an action, and return how it went.

        Raises nothing that is due to Harvester or to the user's Secret.
        """
        seconds = EXCHANGE_SECONDS if action is Action.EXCHANGE else REQUEST_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return Attempt(await self._perform(reading, action), "", Outcome.DONE)
        except TimeoutError:
            return Attempt(None, f"not finished within {seconds:.0f} s", Outcome.UNKNOWN)
        except (ExchangeError, KubeconfigError, RequestError) as error:
            return Attempt(None, text_of(error), outcome_of(error))
        except Exception as error:
            # Clusters need credentials in any case. What a server or a user wrote may be in the
            # message, and not in the trace.
            trace = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s %s: %s\n%s", _KIND, reading.name, type(error).__name__, trace)
            problem = f"unexpected {type(error).__name__}, which the log of the provider shows"
            return Attempt(None, problem, Outcome.REFUSED)

    async def _perform(self, reading: Reading, action: Action) -> Token | None:
        """Perform an action, and return the new token if the action gets one.

        Raises `ExchangeError`, `KubeconfigError`, `RequestError`.
        """
        connect = self._context.sessions.client
        source = reading.source
        current = reading.stored.token.credentials if reading.stored else None
        if action is Action.PROBE and current is not None:
            await tokenexchange.probe(connect, current)
            return None
        if action is Action.RENEW and current is not None:
            return await tokenexchange.renew(connect, current, reading.renewal.seconds)
        if source.credentials is None:
            raise ExchangeError(source.problem)
        if action is Action.CHECK:
            await tokenexchange.probe(connect, source.credentials)
            return None
        management = self._context.management_cluster
        owner = Owner(_KIND, "", reading.name, uid_of(reading.identity), management)
        return await tokenexchange.exchange(
            connect, source.credentials, reading.renewal, owner, current
        )

    async def revoke(self, name: str, token: Token) -> Attempt:
        """Revoke the token of an identity on Harvester."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await tokenexchange.revoke(
                    self._context.sessions.client,
                    token.credentials,
                    self._context.management_cluster,
                )
        except (ExchangeError, KubeconfigError, RequestError, TimeoutError) as error:
            problem = text_of(error)
            log.warning("token of %s %s was not revoked: %s", _KIND, name, problem)
            return Attempt(None, problem, outcome_of(error))
        return Attempt(None, "", Outcome.DONE)


def text_of(error: Exception) -> str:
    """Return an error in words, with a mark if a server has refused a request."""
    return f"refused: {error}" if isinstance(error, ApiError) else str(error)


def outcome_of(error: Exception) -> Outcome:
    """Return what an error says about the credentials, and whether it may pass."""
    if isinstance(error, Unauthorized):
        return Outcome.REJECTED
    if isinstance(error, ApiError):
        passes = error.status in (409, 429) or error.status >= 500
    else:
        passes = isinstance(error, (Unreachable, TimeoutError))
    return Outcome.UNKNOWN if passes else Outcome.REFUSED
