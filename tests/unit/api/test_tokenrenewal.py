"""When a token is renewed, and which one counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import tokenrenewal
from caphv.api.object import Key, Obj
from caphv.api.tokenrenewal import (
    Issued,
    Renewal,
    bound_name,
    issued_at,
    issued_of,
    renewal_of,
    scope_of,
    seconds_to_retry,
)

pytestmark = pytest.mark.unit

START = datetime(2026, 11, 27, 8, tzinfo=UTC)
TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
LIVES = st.integers(60, 30 * 24 * 3600)


def identity(renewal: object) -> Obj:
    return {"metadata": {"name": "shared"}, "spec": {"secretRef": {}, "tokenRenewal": renewal}}


@given(TIMES, LIVES, st.text("abc", min_size=1))
def test_a_token_is_renewed_before_two_thirds_of_its_life_and_long_before_its_end(
    now: datetime, seconds: int, scope: str
) -> None:
    issued = issued_at(now, seconds, "source", scope)
    life = timedelta(seconds=seconds)
    assert now + life * 0.59 <= issued.renew_at <= now + life * 2 / 3
    assert issued.renew_at + life * 0.25 <= issued.expires_at < now + life
    assert issued == issued_at(now, seconds, "source", scope), "a restart chooses the same time"


def test_tokens_that_were_issued_together_are_not_renewed_together() -> None:
    assert len({issued_at(START, 3600, "source", f"scope {n}").renew_at for n in range(50)}) > 30


@given(TIMES, LIVES)
def test_a_record_survives_the_secret_to_the_second(now: datetime, seconds: int) -> None:
    issued = issued_at(now, seconds, "0123", "abcd")
    read = issued_of({"metadata": {"annotations": issued.annotations()}})
    assert read is not None
    assert (read.source, read.scope) == ("0123", "abcd")
    for before, after in ((issued.renew_at, read.renew_at), (issued.expires_at, read.expires_at)):
        assert timedelta(0) <= before - after < timedelta(seconds=1), "never later than it is"


@pytest.mark.parametrize("wrong", [{}, {"caphv.io/renew-at": "soon"}, {"caphv.io/inputs-hash": "abcd"}])
def test_a_record_that_cannot_be_read_is_none(wrong: dict[str, str]) -> None:
    notes = {**issued_at(START, 600, "s", "x").annotations(), **wrong} if wrong else {}
    assert issued_of({"metadata": {"annotations": notes}}) is None


@given(LIVES, st.floats(0, 1.5))
def test_attempts_come_faster_when_the_token_is_about_to_end(seconds: int, share: float) -> None:
    issued = issued_at(START, seconds, "s", "x")
    assert 5 <= seconds_to_retry(issued, START + timedelta(seconds=seconds * share)) <= 60
    assert seconds_to_retry(issued, issued.expires_at - timedelta(seconds=20)) == 5
    assert seconds_to_retry(None, START) == 60


def test_the_field_of_an_identity() -> None:
    assert renewal_of({"metadata": {"name": "shared"}, "spec": {"secretRef": {}}}) is None
    assert renewal_of(identity({})) == Renewal(3600)
    account = {"name": "caphv", "namespace": "caphv-system", "targetNamespaces": ["a", "b"]}
    full = {"expirationSeconds": 600, "serviceAccount": account, "server": "https://h:6443/"}
    assert renewal_of(identity(full)) == Renewal(600, Key("caphv-system", "caphv"), ("a", "b"), "https://h:6443")
    everywhere = {"serviceAccount": {**account, "targetNamespaces": ["*"]}}
    assert renewal_of(identity(everywhere)) == Renewal(3600, Key("caphv-system", "caphv"))


def test_a_token_of_another_identity_or_management_cluster_is_exchanged() -> None:
    renewal = Renewal(600)
    scope = scope_of(renewal, "uid", "cluster")
    assert scope_of(Renewal(7200), "uid", "cluster") == scope, "another life begins with the next token"
    issued = issued_at(START, 600, "s", scope)
    for other in (scope_of(renewal, "another", "cluster"), scope_of(renewal, "uid", "another")):
        assert not issued.is_of(other)
    for changed in (Renewal(600, Key("a", "b")), Renewal(600, server="https://h")):
        assert scope_of(changed, "uid", "cluster") != scope
        assert issued.is_of(scope_of(changed, "uid", "cluster")), "valid until there is another"
    names = {bound_name("uid", "cluster", "a"), bound_name("uid", "another", "a"), bound_name("uid", "cluster", "b")}
    assert len(names) == 3
    assert max(map(len, names)) <= 63


@given(st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?\Z"))
def test_the_secret_of_an_identity_has_one_name(name: str) -> None:
    assert tokenrenewal.identity_name(tokenrenewal.secret_name(name)) == name
    assert tokenrenewal.identity_name(name) == "" or name.startswith("renewed-token.")


def test_no_request_starts_with_a_token_that_ends_meanwhile() -> None:
    issued: Issued = issued_at(START, 600, "s", "x")
    assert issued.is_usable(START + timedelta(seconds=569))
    assert not issued.is_usable(START + timedelta(seconds=570))
