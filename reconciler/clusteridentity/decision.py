"""What to do next about the token of a HarvesterClusterIdentity: pure, over what was observed.

| Token | Clusters use | Next |
|---|---|---|
| none, or that of another owner | the user's Secret | exchange |
| valid | the token | renew when it is due; exchange if Secret or settings have changed |
| suspect: a cluster met a 401 with it, or none uses it | what they use | probe |
| rejected: it met a 401 itself | what they use | exchange, else check the user's credentials |
| ended, by its record | what they use | exchange, else renew, else check the user's credentials |

Credentials in use are left only for others that have just worked. A token that was left while it
was rejected is recorded as ended, so that it does not come back: only its successor does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from caphv.api.tokenrenewal import Issued, seconds_to_retry

# The clock of this machine may be set while a timer waits.
MAX_WAIT_SECONDS = 600.0
_MIN_WAIT_SECONDS = 1.0
# After so long without an attempt, the next one that fails is the first one again.
_CALM_SECONDS = 2 * MAX_WAIT_SECONDS


class Action(Enum):
    """A request to Harvester, or several, which says something about credentials."""

    PROBE = "probe"
    """Use the token for a request that changes nothing."""
    EXCHANGE = "exchange"
    """Get a token with the credentials in the user's Secret."""
    RENEW = "renew"
    """Get a token with the last one."""
    CHECK = "check"
    """Use the credentials in the user's Secret for a request that changes nothing."""


class Outcome(Enum):
    """What came of an action."""

    DONE = "done"
    REJECTED = "rejected"
    """Harvester does not accept the credentials (401)."""
    REFUSED = "refused"
    """It does not work until something is changed."""
    UNKNOWN = "unknown"
    """It may work later."""


# Seconds until the second attempt, and the most between two. Each exchange applies all roles.
_SECONDS = {
    Action.PROBE: (10.0, 60.0),
    Action.EXCHANGE: (60.0, MAX_WAIT_SECONDS),
    Action.RENEW: (5.0, 60.0),
    Action.CHECK: (10.0, 60.0),
}
# The same after an exchange that was successful: the next one has another cause, unless Harvester
# rejects what it issues.
_EXCHANGED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the token of an identity.

    :param issued: record of the stored token, None without one
    :param source: fingerprint of the user's credentials; None if the Secret does not exist, empty
        if it cannot be used
    :param scope: see `scope_of`, for the identity as it is
    :param seconds: how long a token lives at most
    :param is_suspect: whether a cluster has met a 401 with the token
    :param in_use: whether clusters use the token
    """

    now: datetime
    issued: Issued | None
    source: str | None
    scope: str
    seconds: int
    is_suspect: bool = False
    in_use: bool = False

    @property
    def token(self) -> Issued | None:
        """The record of the token, None for that of another owner."""
        return self.issued if self.issued and self.issued.is_of(self.scope) else None

    @property
    def has_ended(self) -> bool:
        """Whether the token has ended by its record. Only Harvester knows: clocks may be wrong."""
        return self.token is not None and not self.token.is_usable(self.now)

    @property
    def is_due(self) -> bool:
        """Whether to renew the token."""
        if self.token is None or self.has_ended:
            return False
        # No token lives longer, unless the clock was set back or the identity asks for less.
        remaining = (self.token.expires_at - self.now).total_seconds()
        return self.now >= self.token.renew_at or remaining > self.seconds

    @property
    def wants_exchange(self) -> bool:
        """Whether only the user's credentials lead to the token that the identity asks for."""
        if self.token is None or self.has_ended or self.token.scope != self.scope:
            return True
        # Without the user's Secret, the token continues: an exchange is needed once only.
        return self.source not in (None, self.token.source)


@dataclass(frozen=True, slots=True)
class Tries:
    """How often something was tried lately, when last, and how long to wait since."""

    count: int = 0
    last: datetime | None = None
    wait: float = 0.0

    def seconds_left(self, now: datetime) -> float:
        """Return the seconds until the next attempt; 0 if it may begin."""
        elapsed = _seconds_since(self.last, now)
        remaining = self.wait - elapsed
        # A clock that is set back delays nothing.
        return remaining if elapsed >= 0 and remaining >= _MIN_WAIT_SECONDS else 0.0

    def after(self, now: datetime, least: float, most: float) -> Tries:
        """Return what is remembered after another attempt."""
        is_calm = not 0 <= _seconds_since(self.last, now) < _CALM_SECONDS
        count = 0 if is_calm else self.count
        return Tries(count + 1, now, min(most, least * 2.0 ** min(count, 16)))


def tries_after(former: Tries, action: Action, outcome: Outcome, facts: Facts) -> Tries:
    """Return what is remembered after an attempt: the waits grow exponentially, to a bound."""
    least, most = _SECONDS[action]
    if action is Action.RENEW:
        # The sooner the token ends, the less there is to wait for.
        most = seconds_to_retry(facts.token, facts.now)
    if action is Action.EXCHANGE and outcome is Outcome.DONE:
        least = _EXCHANGED_SECONDS
    return former.after(facts.now, least, most)


def next_action(
    facts: Facts, outcomes: Mapping[Action, Outcome], tries: Mapping[Action, Tries]
) -> Action | None:
    """Return what to do next, None for nothing now.

    :param outcomes: what was done since the facts were read
    :param tries: former attempts
    """
    if Outcome.DONE in (outcomes.get(Action.EXCHANGE), outcomes.get(Action.RENEW)):
        return None
    for action in _wanted(facts, outcomes):
        if action not in outcomes and not tries.get(action, Tries()).seconds_left(facts.now):
            return action
    return None


def uses_token(facts: Facts, outcomes: Mapping[Action, Outcome]) -> bool:
    """Return whether clusters use the stored token, and not the user's Secret.

    :param facts: as they are after all actions
    :param outcomes: what was done
    """
    if facts.token is None or outcomes.get(Action.CHECK) is Outcome.DONE:
        return False
    proofs = Action.PROBE, Action.EXCHANGE, Action.RENEW
    return facts.in_use or any(outcomes.get(proof) is Outcome.DONE for proof in proofs)


def is_pending(facts: Facts) -> bool:
    """Return whether something has yet to succeed."""
    return any(_wanted(facts, {}))


def seconds_until_next(facts: Facts, tries: Mapping[Action, Tries]) -> float:
    """Return the seconds until there may be something to do, at most ten minutes."""
    waits = [tries.get(action, Tries()).seconds_left(facts.now) for action in _wanted(facts, {})]
    if facts.token is not None and not facts.has_ended and not facts.is_due:
        waits.append((facts.token.renew_at - facts.now).total_seconds())
    return max(_MIN_WAIT_SECONDS, min(MAX_WAIT_SECONDS, *waits, MAX_WAIT_SECONDS))


def _wanted(facts: Facts, outcomes: Mapping[Action, Outcome]) -> Iterator[Action]:
    """Yield what would help, in order, whether it was tried or not."""
    is_rejected = Outcome.REJECTED in (outcomes.get(Action.PROBE), outcomes.get(Action.RENEW))
    is_refused = outcomes.get(Action.RENEW) is Outcome.REFUSED

    # Only a request with the token shows whether it was revoked.
    is_proven = facts.in_use and not facts.is_suspect
    if facts.token is not None and not facts.has_ended and not is_proven:
        yield Action.PROBE
    if facts.wants_exchange or is_rejected or is_refused:
        yield Action.EXCHANGE
    # A mistake in the user's Secret, or an outage of Rancher, must not let the token end.
    if facts.is_due or (facts.has_ended and Action.EXCHANGE in outcomes):
        yield Action.RENEW

    is_of_no_use = is_rejected or (facts.has_ended and facts.in_use)
    if facts.source and is_of_no_use and outcomes.get(Action.EXCHANGE) is not Outcome.REJECTED:
        yield Action.CHECK


def _seconds_since(last: datetime | None, now: datetime) -> float:
    return (now - last).total_seconds() if last else float("inf")
