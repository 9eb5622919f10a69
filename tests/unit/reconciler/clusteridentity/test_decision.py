"""What is done next about a token: in any order of outages, revocations, changes and steps of the clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.tokenrenewal import Issued, issued_at
from reconciler.clusteridentity.decision import (
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

pytestmark = pytest.mark.unit

START = datetime(2026, 11, 27, 8, tzinfo=UTC)
LIFE = 600
OWNER, OTHERS = "owner-settings", "other-settings"


class World:
    """One identity, its clusters and a Harvester, with two clocks: that of the provider may be wrong.

    `alive` are the tokens that Harvester accepts until a time of its own; the user's credentials are `user`.
    """

    def __init__(self) -> None:
        self.truth = self.now = START
        self.alive: dict[Issued, datetime] = {}
        self.source: str | None = "user"
        self.user_works = self.may_exchange = self.may_renew = self.user_answers = self.token_answers = True
        self.scope = OWNER
        self.issued: Issued | None = None
        self.holder: Issued | None = None
        """The token in the Secret, as Harvester knows it: `issued` is what the Secret says about it."""
        self.in_use: bool | None = None
        self.is_suspect = False
        self.tries: dict[Action, Tries] = {}
        self.done: list[tuple[datetime, Action]] = []
        self.left: set[Issued] = set()

    def facts(self) -> Facts:
        uses = bool(self.in_use)
        return Facts(self.now, self.issued, self.source, self.scope, LIFE, is_suspect=self.is_suspect, in_use=uses)

    def token_works(self) -> bool:
        return self.holder is not None and self.alive.get(self.holder, START) > self.truth

    def perform(self, action: Action) -> Outcome:
        is_of_token = action in (Action.PROBE, Action.RENEW)
        if not (self.token_answers if is_of_token else self.user_answers):
            return Outcome.UNKNOWN
        if not (self.token_works() if is_of_token else self.user_works):
            return Outcome.REJECTED
        if action is Action.EXCHANGE:
            if not self.may_exchange:
                return Outcome.REFUSED
            self.issue(self.source or "", self.scope)
        if action is Action.RENEW:
            assert self.issued is not None
            if not self.may_renew:
                return Outcome.REFUSED
            self.issue(self.issued.source, self.issued.scope)
        return Outcome.DONE

    def issue(self, source: str, scope: str) -> None:
        self.issued = self.holder = issued_at(self.now, LIFE, source, scope)
        self.alive[self.holder] = self.truth + timedelta(seconds=LIFE)
        self.is_suspect = False

    def reconcile(self) -> float:
        """As the controller does; returns the wait."""
        before, token_before = self.in_use, self.holder
        facts, outcomes = self.facts(), dict[Action, Outcome]()
        if before is None and facts.token and not facts.has_ended:
            self.in_use = True  # a restart
        facts = self.facts()
        while action := next_action(facts, outcomes, self.tries):
            if action in (Action.EXCHANGE, Action.CHECK) and not self.source:
                outcome = Outcome.REFUSED
            else:
                outcome = self.perform(action)
            outcomes[action] = outcome
            self.tries[action] = tries_after(self.tries.get(action, Tries()), action, outcome, facts)
            self.done.append((self.truth, action))
            if action is Action.PROBE and outcome is Outcome.DONE:
                self.is_suspect = False
        facts = self.facts()
        is_used = uses_token(facts, outcomes)

        # What was in use is left only for what has just worked.
        if is_used:
            assert facts.token is not None
            assert self.holder not in self.left, "what was left does not come back"
            has_worked = Outcome.DONE in [outcomes.get(a) for a in (Action.EXCHANGE, Action.RENEW, Action.PROBE)]
            assert before is not False or has_worked or token_before is None
        elif before:
            assert outcomes.get(Action.CHECK) is Outcome.DONE
        if not is_used and facts.token is not None and not facts.has_ended:
            assert self.holder is not None
            self.left.add(self.holder)
            self.issued = facts.token.end()
        self.in_use = is_used
        return seconds_until_next(self.facts(), self.tries)

    def meet(self) -> None:
        """A cluster uses its credentials."""
        if self.in_use and self.token_answers and not self.token_works():
            self.is_suspect = True

    def restart(self) -> None:
        self.in_use, self.is_suspect, self.tries = None, False, {}


def change_nothing(_: World) -> None: ...


def revoke(world: World) -> None:
    world.alive.clear()


def suspect(world: World) -> None:
    world.is_suspect = True


def toggle(name: str) -> object:
    def change(world: World) -> None:
        setattr(world, name, not getattr(world, name))

    return change


def set_source(source: str | None) -> object:
    def change(world: World) -> None:
        world.source = source
        world.tries.clear()

    return change


def set_scope(scope: str) -> object:
    def change(world: World) -> None:
        world.scope = scope
        world.tries.clear()

    return change


def step_clock(seconds: float) -> object:
    def change(world: World) -> None:
        world.now += timedelta(seconds=seconds)

    return change


CHANGES = st.sampled_from(
    [
        change_nothing,
        revoke,
        suspect,
        World.restart,
        *map(toggle, ("user_works", "may_exchange", "may_renew", "user_answers", "token_answers")),
        set_source("user"),
        set_source("another"),
        set_source(""),
        set_source(None),
        set_scope("owner-new"),
        set_scope(OWNER),
        *map(step_clock, (-36000, -3600, -40, 40, 3600, 36000)),
    ]
)
MOMENTS = st.tuples(CHANGES, st.sampled_from([0.0, 1.0, 10.0, 61.0, 300.0, 1000.0]))


def live(world: World, seconds: float) -> None:
    """Let time pass; reconciles come when they are due."""
    end, due = world.truth + timedelta(seconds=seconds), 0.0
    while world.truth < end:
        pause = min(max(1.0, due), (end - world.truth).total_seconds())
        world.truth += timedelta(seconds=pause)
        world.now += timedelta(seconds=pause)
        world.meet()
        due = world.reconcile()
        assert 1 <= due <= 600


@given(st.lists(MOMENTS, max_size=12))
def test_credentials_in_use_are_left_only_for_others_that_work_and_do_not_come_back(moments: list) -> None:  # type: ignore[type-arg]
    world = World()
    world.reconcile()
    for change, seconds in moments:
        change(world)
        world.reconcile()
        live(world, seconds)


@given(st.lists(MOMENTS, max_size=8))
def test_a_token_is_in_use_again_soon_after_all_is_well(moments: list) -> None:  # type: ignore[type-arg]
    world = World()
    world.reconcile()
    for change, seconds in moments:
        change(world)
        live(world, seconds)
    world.user_works = world.may_exchange = world.may_renew = world.user_answers = world.token_answers = True
    world.source = "user"
    live(world, 1300)
    assert world.in_use
    assert world.token_works()
    assert not is_pending(world.facts())


@given(
    st.sampled_from(["user_works", "may_exchange", "user_answers"]),
    st.sampled_from([change_nothing, revoke]),
    st.booleans(),
    st.integers(0, 5),
)
def test_attempts_back_off_whatever_fails_and_however_often_clusters_ask(
    broken: str, change: object, flaps: bool, pause: int
) -> None:
    """Reconciles come at any time, and clusters meet 401s all the time."""
    world = World()
    world.reconcile()
    setattr(world, broken, False)
    world.scope = "owner-new"
    change(world)  # type: ignore[operator]
    world.done.clear()
    for _ in range(600):
        world.truth += timedelta(seconds=pause)
        world.now += timedelta(seconds=pause)
        world.is_suspect = flaps or world.is_suspect
        world.reconcile()
    seconds = 600 * pause
    count = {action: sum(done is action for _, done in world.done) for action in Action}
    assert count[Action.EXCHANGE] <= 5 + seconds / 600
    assert max(count[Action.PROBE], count[Action.CHECK]) <= 4 + seconds / 60
    assert count[Action.RENEW] <= 20 + seconds / 60


def test_what_harvester_rejects_at_once_is_exchanged_less_and_less_often() -> None:
    world = World()
    for _ in range(720):
        world.reconcile()
        revoke(world)
        world.meet()
        world.truth += timedelta(seconds=5)
        world.now += timedelta(seconds=5)
    assert sum(done is Action.EXCHANGE for _, done in world.done) < 15


SOURCES = st.sampled_from(["s", "t", "", None])


@given(st.floats(0, 1.2), SOURCES, st.sampled_from(["o-x", "o-y", "p-x"]), st.booleans(), st.booleans())
def test_the_first_action_depends_on_time_and_inputs_alone(
    share: float, source: str | None, scope: str, is_suspect: bool, in_use: bool
) -> None:
    issued = issued_at(START, LIFE, "s", "o-x")
    now = START + timedelta(seconds=LIFE * share)
    facts = Facts(now, issued, source, scope, LIFE, is_suspect=is_suspect, in_use=in_use)
    action = next_action(facts, {}, {})
    if scope == "p-x" or now >= issued.expires_at:
        assert action is Action.EXCHANGE
    elif is_suspect or not in_use:
        assert action is Action.PROBE
    elif scope == "o-y" or source in ("t", ""):
        assert action is Action.EXCHANGE
    else:
        assert action is (Action.RENEW if now >= issued.renew_at else None)
    if action is None:
        assert 1 <= seconds_until_next(facts, {}) <= (issued.renew_at - now).total_seconds() + 1


@given(st.floats(-1e6, 1e6), st.floats(1, 1e5), st.integers(0, 30))
def test_a_step_of_the_clock_delays_nothing_for_long(step: float, life: float, count: int) -> None:
    tries = Tries(count).after(START, 10, 600)
    assert tries.seconds_left(START + timedelta(seconds=step)) <= 600
    issued = issued_at(START, life, "s", "o-x")
    facts = Facts(START - timedelta(seconds=abs(step) + life), issued, "s", "o-x", int(life), in_use=True)
    assert next_action(facts, {}, {}) is Action.RENEW, "no token lives longer"
    later = replace(facts, now=issued.expires_at + timedelta(seconds=abs(step)))
    outcomes = {Action.EXCHANGE: Outcome.REJECTED}
    assert next_action(later, outcomes, {}) is Action.RENEW, "only Harvester knows whether it has ended"
